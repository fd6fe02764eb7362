package toolkits

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func packed(t testing.TB, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_ = must.Get(io.WriteString(w, text))(t)
	must.OK(t, w.Close())
	return b.String()
}

// newSite starts a web server with pages by their paths.
func newSite(t testing.TB, pages map[string]string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case strings.HasPrefix(text, "http"):
			http.Redirect(w, r, text, http.StatusFound)
			return
		case strings.HasSuffix(r.URL.Path, ".html"):
			w.Header().Set("Content-Type", "text/html")
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				text = packed(t, text)
			}
		}
		io.WriteString(w, strings.ReplaceAll(text, "SITE", "http://"+r.Host))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// read calls a tool of the toolkit web.
func read(t testing.TB, p *hosttest.Pair, tool, url, more string) hosttest.Message {
	t.Helper()
	return p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":"web_%s","arguments":{"url":%q%s}}`, tool, url,
		more))
}

const (
	rss = `<?xml version="1.0" encoding="ISO-8859-1"?><!DOCTYPE rss [<!ENTITY nope "x">]><rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/"><channel><title>News &amp; more</title><link>SITE/</link><image><title>Logo</title></image>
<item><media:title>other</media:title><title>Caf` + "\xe9" + `</title><link>/a</link><pubDate>Tue, 02 Jan 2024 03:04:05 GMT</pubDate><description><![CDATA[<p>Some <b>text</b> and <a href="x">a link</a></p>]]></description></item>
<item><title>Second</title><link>javascript:alert(1)</link></item></channel></rss>`
	atom = `<feed xmlns="http://www.w3.org/2005/Atom"><title>Atom</title><entry><title type="html">One</title><link rel="self" href="/self"/><link href="one"/><updated>2024-01-02T03:04:05Z</updated><content type="xhtml"><div><i>x</i></div></content></entry></feed>`
	rdf  = `<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>Old</title></channel><item><title>One</title><link>SITE/1</link><dc:date>2024-01-02</dc:date></item></rdf:RDF>`
)

func TestWeb(t *testing.T) {
	long := "<h1>Title</h1>" + strings.Repeat("<p>Some words here, \u00fcber alles.</p>", 1000)
	base := newSite(t, map[string]string{
		"/page.html": `<p><a href="/x">there</a></p>`, "/long.html": long, "/rss": rss, "/atom": atom, "/rdf": rdf,
		"/moved":      "https://example.com/",
		"/robots.txt": "User-agent: *\nsitemap: SITE/maps.xml\n",
		"/maps.xml":   `<sitemapindex><sitemap><loc>SITE/a.xml.gz</loc></sitemap><sitemap><loc>SITE/b.txt</loc></sitemap></sitemapindex>`,
		"/a.xml.gz":   packed(t, `<urlset><url><loc> https://a.example/1 </loc><lastmod>2024-01-02</lastmod></url>`+strings.Repeat(`<url><loc>https://a.example/2</loc></url>`, 1100)+`</urlset>`), "/b.txt": "\nhttps://b.example/1\nhttps://b.example/2\n",
	})
	p := open(t, t.TempDir(), Options{AllowPrivate: true, Web: &WebOptions{Hosts: []string{"127.0.0.*"}}})
	read(t, p, "fetch", base+"/page.html", "").Has(t, "/data/data/content", "[there]("+base+"/x)", "/data/data/status",
		"200", "/data/data/next", "")
	m := read(t, p, "fetch", base+"/long.html", "")
	whole := m.Get("/data/data/content")
	for m.Get("/data/data/next") != "" {
		m = read(t, p, "fetch", base+"/long.html", `,"start":`+m.Get("/data/data/next"))
		whole += m.Get("/data/data/content")
	}
	assert.That(t, fmt.Sprint(len(whole)) == m.Get("/data/data/bytes") && strings.Count(whole,
		"\u00fcber alles.") == 1000, "the parts have %d bytes: %.100s", len(whole), whole)
	read(t, p, "fetch", base+"/gone", "").Has(t, "/data/success", "false", "/data/error", "HTTP 404")
	read(t, p, "fetch", base+"/moved", "").Has(t, "/data/data/status", "302")
	read(t, p, "sitemap", base, "").Has(t, "/data/data/sitemaps", `["`+base+`/a.xml.gz","`+base+`/b.txt"]`,
		"/data/data/pages", "[]")
	m = read(t, p, "sitemap", base+"/a.xml.gz", "")
	m.Has(t, "/data/data/pages/0", `{"lastmod":"2024-01-02","url":"https://a.example/1"}`, "/data/data/pages/999/url",
		"https://a.example/2", "/data/data/next", "1000")
	read(t, p, "sitemap", base+"/a.xml.gz", `,"start":1000`).Has(t, "/data/data/pages/100/url", "https://a.example/2",
		"/data/data/next", "")
	read(t, p, "sitemap", base+"/b.txt", "").Has(t, "/data/data/pages",
		`[{"url":"https://b.example/1"},{"url":"https://b.example/2"}]`)
	read(t, p, "feed", base+"/rss", "").Has(t, "/data/data/title", "News & more", "/data/data/entries",
		`[{"published":"2024-01-02T03:04:05Z","summary":"Some **text** and [a link](`+base+`/x)","title":"Café","url":"`+base+`/a"},{"title":"Second","url":""}]`)
	read(t, p, "feed", base+"/atom", "").Has(t, "/data/data/title", "Atom", "/data/data/entries",
		`[{"published":"2024-01-02T03:04:05Z","summary":"*x*","title":"One","url":"`+base+`/one"}]`)
	read(t, p, "feed", base+"/rdf", "").Has(t, "/data/data/title", "Old", "/data/data/entries",
		`[{"published":"2024-01-02","title":"One","url":"`+base+`/1"}]`)
}

// TestWallWeb: no page leads the host to another host or to this machine, and no page is too large for
// it.
func TestWallWeb(t *testing.T) {
	bomb := `<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;"><!ENTITY x SYSTEM "file:///etc/passwd">]><rss><channel><title>&b;&x;</title><item><title>&x;</title></item></channel></rss>`
	base := newSite(t, map[string]string{
		"/bomb": bomb, "/deep": strings.Repeat("<a>", 100_000), "/deepitem": "<rss><item>" + strings.Repeat("<a>",
			200_000), "/zip.gz": packed(t, "<urlset>"+strings.Repeat("<url><loc>https://a.example/</loc></url>",
			1_000_000)), "/text": "words", "/html": "<html><p>no feed</html>",
		"/endless":    "<rss><channel><title>E</title>" + strings.Repeat("<item><title>again</title></item>", 500_000),
		"/half":       "<rss><channel><title>H</title><item><title>one</title></item><item><title>tw",
		"/metadata":   "http://169.254.169.254/latest",
		"/robots.txt": "Sitemap: http://169.254.169.254/sitemap.xml",
	})
	p := open(t, t.TempDir(), Options{AllowPrivate: true})
	configure(p, "web", `{"hosts":["127.0.0.1"]}`).Has(t, "/message", "web_fetch, web_sitemap, web_feed")
	for _, path := range []string{"/bomb", "/deep", "/deepitem", "/text", "/html", "/gone"} {
		m := read(t, p, "feed", base+path, "")
		assert.That(t, m.Code == protocol.CodeToolError && !strings.Contains(string(m.Line), "root:"), "%s: %.300s",
			path, m.Line)
	}
	read(t, p, "feed", base+"/endless", `,"limit":3`).Has(t, "/data/data/entries/2/title", "again", "/data/truncated",
		"true")
	read(t, p, "feed", base+"/half", "").Has(t, "/data/data/entries", `[{"title":"one","url":""}]`, "/data/truncated",
		"true")
	read(t, p, "sitemap", base+"/zip.gz", `,"start":100000`).Has(t, "/data/data/next", "101000")
	read(t, p, "fetch", base+"/metadata", "").Has(t, "/data/data/status", "302")
	for _, c := range [][2]string{
		{"fetch", "http://example.com/"},
		{"feed", "http://localhost/"},
		{"sitemap", base},
		{"sitemap", "http://[::1]/"},
	} {
		m := read(t, p, c[0], c[1], "")
		assert.Equal(t, m.Code, protocol.CodeToolDenied, "%s %s: %s", c[0], c[1], m.Line)
	}
	for _, more := range []string{`,"start":-1`, `,"start":10000`} {
		assert.Equal(t, read(t, p, "fetch", base+"/text", more).Code, protocol.CodeSchemaViolation, "%s", more)
	}
	assert.Equal(t, read(t, p, "feed", base+"/rss", `,"limit":0`).Code, protocol.CodeSchemaViolation, "limit 0")
	configure(p, "web", `{"hosts":["https://example.com/"]}`).Has(t, "/code", "schema_violation")
	guarded := open(t, t.TempDir(), Options{Web: &WebOptions{}})
	for _, url := range []string{base + "/text", "http://169.254.169.254/latest", "http://localhost/"} {
		for _, tool := range []string{"fetch", "feed", "sitemap"} {
			m := read(t, guarded, tool, url, "")
			assert.Equal(t, m.Code, protocol.CodeToolDenied, "%s %s: %s", tool, url, m.Line)
		}
	}
}
