package tools

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/unicode"

	"a2e/host/guard/webguard"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// front serves a handler as http://front.example (port 80), and returns a tool that can reach it.
func front(t *testing.T, cfg httpConfig, handler http.HandlerFunc) *Web {
	t.Helper()
	s := newInnerServer(t, "127.0.0.1:0", handler)
	n := &testNet{
		names:  map[string][][]string{"front.example": {{publicA}}, "www.front.example": {{publicA}}},
		public: map[string]string{publicA: s.Listener.Addr().String()},
	}
	return n.tool(t, cfg)
}

// TestHTTPGetRedirects checks that a redirect leads only to URLs that could have been requested directly, with each
// status and at any place in a chain.
func TestHTTPGetRedirects(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	h := front(t, httpConfig{}, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		referer, cookie := r.Header.Get("Referer"), r.Header.Get("Cookie")
		assert.That(t, referer == "" && cookie == "", "a request carries Referer %q, Cookie %q", referer, cookie)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		status, hops, to := http.StatusFound, 0, q.Get("to")
		if s := q.Get("status"); s != "" {
			status, _ = strconv.Atoi(s)
		}
		if hops, _ = strconv.Atoi(q.Get("hops")); hops > 0 {
			q.Set("hops", strconv.Itoa(hops-1))
			to = "/?" + q.Encode()
		}
		if to == "" {
			fmt.Fprint(w, "arrived")
			return
		}
		w.Header().Set("Location", to)
		w.WriteHeader(status)
	})
	type redirect struct {
		status, hops int
		to           string
		code         protocol.ErrorCode // "" = the fetch succeeds
	}
	cases := []redirect{
		{302, 0, "http://www.front.example/", ""},
		{302, 0, "//www.front.example/", ""},
		{302, 0, "HTTP://FRONT.example:80/", ""},
		{302, 0, "?", ""},
		{302, 5, "", ""},
		{302, 6, "", broken},
		{302, 5, "http://www.front.example/", broken},
		{302, 4, inner.URL, denied},
		{302, 0, "file:///etc/passwd", broken},
		{302, 0, "gopher://127.0.0.1/_x", broken},
		{302, 0, "ftp://front.example/", broken},
		{302, 0, "data:text/plain,x", broken},
		{302, 0, "javascript:alert(1)", broken},
		{302, 0, "//127.0.0.1:" + inner.port, denied},
		{302, 0, "http://localhost:" + inner.port, denied},
		{302, 0, "http://[::ffff:127.0.0.1]:" + inner.port, denied},
		{302, 0, "http://2130706433:" + inner.port, broken},
		{302, 0, "http://a:b@front.example/", broken},
		{302, 0, "http://front.example@127.0.0.1:" + inner.port, broken},
		{302, 0, "http:/" + "\\127.0.0.1:" + inner.port, broken},
		{302, 0, "http://127。0。0。1:" + inner.port, broken},
		{302, 0, "http:///", broken},
		{302, 0, "http://front.example:22/", denied},
		{302, 0, "http://169.254.169.254/latest/meta-data/", denied},
		{302, 0, "http://front.example:0/", broken},
		{302, 0, "http://%zz/", broken},
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		cases = append(cases, redirect{status, 0, "http://www.front.example/", ""},
			redirect{status, 0, inner.URL, denied}, redirect{status, 2, inner.URL, denied})
	}
	for _, c := range cases {
		from := fmt.Sprintf("http://front.example/?status=%d&hops=%d&to=%s", c.status, c.hops, url.QueryEscape(c.to))
		res, _, err := get(t, h, from)
		switch {
		case c.code == "" && (err != nil || res.Content != "arrived"):
			t.Errorf("%+v: %+v, %v, want to arrive", c, res, err)
		case c.code != "" && codeOfError(err) != c.code:
			t.Errorf("%+v: %+v, %v, want %s", c, res, err, c.code)
		case c.code == denied && !strings.Contains(err.Error(), "http_allow_private"):
			t.Errorf("%+v: %v does not say why", c, err)
		}
	}
	assert.Equal(t, inner.accepted.Load(), 0, "… connections reached the inner server")
}

// TestHTTPGetDowngrade checks that https works, and that a redirect from https to http is refused.
func TestHTTPGetDowngrade(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		fmt.Fprint(w, "by TLS, "+r.Proto)
	}))
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	n := &testNet{
		names:  map[string][][]string{"example.com": {{publicA}}},
		public: map[string]string{publicA: s.Listener.Addr().String()},
	}
	h := n.tool(t, httpConfig{roots: roots})
	for _, u := range []string{"https://example.com/", "https://example.com/?to=https://example.com/"} {
		res, _, err := get(t, h, u)
		must.That(t, err == nil && strings.HasPrefix(res.Content, "by TLS"), "%s: %+v, %v", u, res, err)
	}
	res, _, err := get(t, h, "https://example.com/?to=http://example.com/plain")
	assert.That(t, codeOfError(err) == protocol.CodeToolDenied && strings.Contains(err.Error(),
		"http://example.com/plain"),
		"%+v, %v, want tool_denied naming the target", res, err)
	if _, _, err := get(t, n.tool(t, httpConfig{}),
		"https://example.com/"); codeOfError(err) != protocol.CodeToolError {
		t.Errorf("%v, want tool_error for an unknown authority", err)
	}
}

func encoded(t *testing.T, enc interface{ String(string) (string, error) }, s string) string {
	t.Helper()
	return must.Get(enc.String(s))(t)
}

// TestHTTPGetContent checks how each kind of content is decoded or refused.
func TestHTTPGetContent(t *testing.T) {
	sjis := japanese.ShiftJIS.NewEncoder()
	utf16 := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder()
	late := strings.Repeat("a", 2000) + "é"
	for _, c := range []struct {
		name, contentType, body, want string
		code                          protocol.ErrorCode
	}{
		{"plain", "text/plain; charset=utf-8", "hé <b>", "hé <b>", ""},
		{"latin1", "text/plain; charset=iso-8859-1", "h\xe9", "hé", ""},
		{"no charset, UTF-8", "text/plain", "hé", "hé", ""},
		{"no charset, UTF-8 far in", "application/json", late, late, ""},
		{"no charset, not UTF-8", "text/plain", "h\xe9", "hé", ""},
		{"unknown charset", "text/plain; charset=nonsense", "hé", "hé", ""},
		{"broken UTF-8", "text/plain; charset=utf-8", "h\xe9llo", "h\uFFFDllo", ""},
		{"shift_jis", "text/plain; charset=Shift_JIS", encoded(t, sjis, "日本語"), "日本語", ""},
		{"shift_jis by meta", "text/html", `<meta charset="shift_jis"><p>` + encoded(t, sjis, "日本語"), "日本語", ""},
		{"UTF-16 by BOM", "text/plain", encoded(t, utf16, "hé"), "hé", ""},
		{"UTF-8 BOM", "text/plain", "\uFEFFhé", "hé", ""},
		{"json", "application/json", `{"a":"<b>"}`, `{"a":"<b>"}`, ""},
		{"vendor json", "application/vnd.api+json", `{}`, `{}`, ""},
		{"xml", "application/xml", `<a/>`, `<a/>`, ""},
		{"svg", "image/svg+xml", `<svg/>`, `<svg/>`, ""},
		{
			"html", "text/html; charset=utf-8", "<title>t</title><h1>Hi</h1><script>x()</script><p>a <b>b</b>",
			"# Hi\n\na **b**", "",
		},
		{"html, odd case", "TEXT/HTML", "<h1>Hi</h1>", "# Hi", ""},
		{"xhtml", "application/xhtml+xml", "<h1>Hi</h1>", "# Hi", ""},
		{"no type, html", "", "<!doctype html><h1>Hi</h1>", "# Hi", ""},
		{"no type, text", "", "just text", "just text", ""},
		{"bytes that are text", "application/octet-stream", "just text", "just text", ""},
		{"bytes that are not", "application/octet-stream", "\x7fELF\x00\x01", "", broken},
		{"bad type", "; ;", "just text", "just text", ""},
		{"empty", "text/plain", "", "", ""},
		{"empty, no type", "", "", "", ""},
		{"png", "image/png", "\x89PNG\r\n\x1a\n", "", broken},
		{"pdf", "application/pdf", "%PDF-1.7", "", broken},
		{"binary as text", "text/plain", "a\x00b\x01", "", broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := front(t, httpConfig{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				if c.contentType != "" {
					w.Header().Set("Content-Type", c.contentType)
				}
				_, _ = w.Write([]byte(c.body))
			})
			res, out, err := get(t, h, "http://front.example/")
			if c.code != "" {
				assert.That(t, codeOfError(err) == c.code && strings.Contains(err.Error(), "text only"),
					"%+v, %v, want %s", res, err, c.code)
				return
			}
			must.OK(t, err)
			assert.That(t, res.Content == c.want && res.Status == 200 && res.ContentType == c.contentType &&
				!out.Failed && !out.Truncated,
				"%+v %+v, want %q", res, out, c.want)
		})
	}
}

// TestHTTPGetStatus checks that an HTTP error is a failed result, and not an error of the call.
func TestHTTPGetStatus(t *testing.T) {
	for status, failed := range map[int]bool{
		200: false, 201: false, 204: false, 304: false, 400: true, 404: true,
		418: true, 500: true, 503: true,
	} {
		h := front(t, httpConfig{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(status)
			if status != 204 && status != 304 {
				fmt.Fprint(w, "body")
			}
		})
		res, out, err := get(t, h, "http://front.example/")
		if err != nil || res.Status != status || out.Failed != failed || failed &&
			(res.Content != "body" || out.Failure != fmt.Sprintf("HTTP %d", status)) {
			t.Errorf("%d: %+v %+v %v", status, res, out, err)
		}
	}
	h := front(t, httpConfig{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/gif")
		w.WriteHeader(404)
		fmt.Fprint(w, "GIF89a")
	})
	res, out, err := get(t, h, "http://front.example/")
	assert.That(t, err == nil && res.Content == "" && out.Failed, "a missing image: %+v %+v %v, want a failed "+
		"result without content", res, out, err)
}

// endless writes until the client has gone away, and then closes gone.
func endless(gone chan<- struct{}, contentType, encoding string, piece []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", contentType)
		if encoding != "" {
			w.Header().Set("Content-Encoding", encoding)
		}
		for {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
}

// TestHTTPGetSize checks that reading stops at the limit, counted in bytes after decompression, and that the cut is
// between two characters.
func TestHTTPGetSize(t *testing.T) {
	piece := bytes.Repeat([]byte("aé"), 100_000)
	var member bytes.Buffer // a gzip stream may be many of these members in a row
	z := gzip.NewWriter(&member)
	must.Get(z.Write(piece))(t)
	must.OK(t, z.Close())
	for _, c := range []struct {
		contentType, encoding string
		piece                 []byte
	}{
		{"text/plain; charset=utf-8", "", piece},
		{"text/plain; charset=utf-8", "gzip", member.Bytes()},
		{"text/html; charset=utf-8", "", piece},
		{"text/html; charset=utf-8", "gzip", member.Bytes()},
	} {
		gone := make(chan struct{})
		h := front(t, httpConfig{maxOutput: 1000}, endless(gone, c.contentType, c.encoding, c.piece))
		res, out, err := get(t, h, "http://front.example/")
		must.OK(t, err)
		n := len(res.Content)
		assert.That(t, n <= 1000 && n >= 990 && out.Truncated && utf8.ValidString(res.Content),
			"%s %s: %d bytes, truncated = %v", c.contentType, c.encoding, n, out.Truncated)
		select {
		case <-gone:
		case <-time.After(patience):
			t.Errorf("%s %s: the download goes on", c.contentType, c.encoding)
		}
	}
	h := front(t, httpConfig{maxOutput: 4}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "1234", r.URL.Query().Get("more"))
	})
	res, out, err := get(t, h, "http://front.example/")
	assert.That(t, err == nil && res.Content == "1234" && !out.Truncated, "exactly the limit: %+v %+v %v", res, out,
		err)
	res, out, err = get(t, h, "http://front.example/?more=5")
	assert.That(t, err == nil && res.Content == "1234" && out.Truncated, "one more than the limit: %+v %+v %v", res,
		out, err)
}

// TestWallHTTPGetHostileAnswers checks that answers that are not proper HTTP are refused.
func TestWallHTTPGetHostileAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"endless header":       "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2*httpMaxHeader) + "\r\n\r\n",
		"no HTTP":              "220 smtp ready\r\n",
		"cut body":             "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nabc",
		"cut gzip":             "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08",
		"other compression":    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\n\r\nabc",
		"redirect to nowhere":  "HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
		"redirect with spaces": "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1 .example.com/\r\n\r\n",
	} {
		h := front(t, httpConfig{}, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		})
		res, _, err := get(t, h, "http://front.example/")
		assert.Equal(t, codeOfError(err), protocol.CodeToolError, "%s: %+v, %v, want tool_error", name, res, err)
	}
}

// TestHTTPGetEnds checks that a fetch ends by its own limit, by the limit of the request and by cancel, and that
// nothing is left running.
func TestHTTPGetEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	stop := make(chan struct{})
	reached := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "beginning")
			w.(http.Flusher).Flush()
		}
		reached <- struct{}{}
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(stop)
	// late repeats a fetch with a growing limit until the server is reached, so that the limit ends the fetch there.
	late := func(path string, fetch func(limit time.Duration) error) {
		for limit := 50 * time.Millisecond; len(reached) == 0; limit *= 2 {
			err := fetch(limit)
			must.Equal(t, codeOfError(err), protocol.CodeTimeout, "%s: %v, want timeout", path, err)
		}
		<-reached
	}
	for _, path := range []string{"/head", "/body"} {
		late(path, func(limit time.Duration) error {
			own := newHTTPGet(httpConfig{Options: webguard.Options{AllowPrivate: true}, timeout: limit})
			defer own.Close()
			_, _, err := get(t, own, s.URL+path)
			return err
		})
		h := newHTTPGet(httpConfig{Options: webguard.Options{AllowPrivate: true}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-reached; cancel() }()
		args := must.Get(protocol.ParseObject([]byte(`{"url":"` + s.URL + path + `"}`)))(t)
		_, err := h.tool().Call(ctx, args, nil)
		assert.That(t, errors.Is(err, context.Canceled), "%s: %v, want cancelled", path, err)
		late(path, func(limit time.Duration) error {
			short, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := h.tool().Call(short, args, nil)
			return err
		})
		h.Close()
	}
}

func testPage(t *testing.T) *url.URL {
	t.Helper()
	return must.Get(url.Parse("https://example.com/docs/a/page.html?x=1"))(t)
}

// TestMarkdown checks how the converter renders each kind of element.
func TestMarkdown(t *testing.T) {
	for _, c := range []struct{ name, page, want string }{
		{"headings", "<h1>A</h1><h3>B</h3><p>c", "# A\n\n### B\n\nc"},
		{"hidden", "<style>x</style><script>y</script><noscript>n</noscript><svg><text>s</text></svg><template>t</template><!--c--><p>z", "z"},
		{"relative link", `<a href="../b?q=1#f">b</a>`, "[b](https://example.com/docs/b?q=1#f)"},
		{"rooted link", `<a href="/b">b</a>`, "[b](https://example.com/b)"},
		{"other host", `<a href="//other.example/b">b</a>`, "[b](https://other.example/b)"},
		{"absolute link", `<a href="http://other.example/">b</a>`, "[b](http://other.example/)"},
		{"fragment", `<a href="#f">b</a>`, "[b](https://example.com/docs/a/page.html?x=1#f)"},
		{"base", `<base href="/root/"><a href="b">b</a>`, "[b](https://example.com/root/b)"},
		{"script link", `<a href="javascript:x()">b</a>`, "b"},
		{"image", `<img src="i.png" alt="I">`, "![I](https://example.com/docs/a/i.png)"},
		{"data image", `<p>a<img src="data:image/png;base64,AAAA" alt="I">b`, "ab"},
		{"list", "<ul><li>a<li>b<ul><li>c</ul></ul>", "- a\n- b\n  \n  - c"},
		{"code", "<pre><code class=language-go>x := 1\n</code></pre>", "```go\nx := 1\n```"},
		{"table", "<table><tr><th>a<th>b<tr><td>1<td>a long one</table>", "| a | b |\n|---|---|\n| 1 | a long one |"},
		{"no escapes", "<p>1. [x] *y* a_b", "1. [x] *y* a_b"},
	} {
		assert.Equal(t, Markdown(c.page, testPage(t)), c.want, "%s", c.name)
	}
}

// TestMarkdownHostile converts pages that are built to take very long, to need very much memory or to overflow the
// stack. Each keeps its text, in an answer not much longer than the page. The time limit of go test is the only clock.
func TestMarkdownHostile(t *testing.T) {
	const size = 30_000
	rep := func(s string) string { return strings.Repeat(s, size/len(s)) }
	pages := map[string]string{
		"table of wide rows": "<table><tr>" + strings.Repeat("<td>", 5000) + strings.Repeat("<tr><td>", 5000) +
			"needle</table>",
		"wide spans":          "<table>" + strings.Repeat("<tr><td colspan=1000 rowspan=1000>x", 1000) + "needle</table>",
		"huge span":           "<table><tr><td colspan=999999999 rowspan=999999999>needle</table>",
		"wide cell":           "<table><tr><td>" + rep("a") + strings.Repeat("<tr><td>b", 2000) + "<tr><td>needle</table>",
		"quotes around lines": strings.Repeat("<blockquote>", 100) + rep("a<br>") + "needle",
		"lists around lines":  strings.Repeat("<ul><li>", 100) + rep("a<br>") + "needle",
		"tables in tables":    strings.Repeat("<table><tr><td>", 100) + rep("a<br>") + "needle",
		"one attribute":       `<p title="` + rep("a") + `">needle`,
		"many attributes":     "<p " + rep("a=b ") + ">needle",
		"open tag":            "needle" + "<p " + rep("a=b "),
		"text area":           "needle<textarea>" + rep("</b>"),
	}
	for _, s := range []string{
		"<div>", "<b>", "<i>", "<p>", "<a href=x>", "<blockquote>", "<ul><li>", "<ol><li>", "<table>",
		"<table><tr><td>", "<font>", "<svg>", "<math>", "<span>",
		"<dl><dd>", "<button>", "<nobr>", "<ruby><rt>", "<select>", "<option>", "<template>", "<form>", "</p>",
		"</div>", "<h1>", "<pre>", "<code>", "<br>", "<img src=x>",
		"[", "![", "(", "*", "_", "`", "~", "#", "\n- ", "1. ", "\\", "&", "&amp;", "&#", "<", "<!", "<!--", "\u00a0", " ", "\n", "a\n\n",
	} {
		pages["many "+s] = "<p>needle</p>" + rep(s)
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			got := Markdown(page, testPage(t))
			if !strings.Contains(got, "needle") {
				t.Errorf("the text is lost; got %q…", protocol.Clip(got, 100))
			}
			assert.That(t, len(got) <= 30*len(page), "%d bytes became %d", len(page), len(got))
			if text := plainText(page); !strings.Contains(text, "needle") || len(text) > 2*len(page) {
				t.Errorf("as plain text: %d bytes, %q…", len(text), protocol.Clip(text, 100))
			}
		})
	}
}

// TestMarkdownFallsBack checks the plain text that takes the place of Markdown: pages that are too deep or too costly
// become lines of text, without what a reader does not see.
func TestMarkdownFallsBack(t *testing.T) {
	const body = "<title>t</title><style>s</style><p>One  two</p><script>x()</script><ul><li>three<li><b>four</b> " +
		"&amp; five</ul>"
	const want = "One two \nthree \nfour & five"
	assert.Equal(t, plainText(body), want)
	for name, open := range map[string]string{
		"deeper than the parser goes": strings.Repeat("<div>", 100_000),
		"deep quotes":                 strings.Repeat("<blockquote>", 400) + strings.Repeat("<br>", 10_000),
	} {
		if got := Markdown(open+body, testPage(t)); got != want {
			t.Errorf("%s: %q, want %q", name, protocol.Clip(got, 100), want)
		}
	}
}

// TestMarkdownTables checks which tables are laid out as Markdown.
func TestMarkdownTables(t *testing.T) {
	row := "<tr>" + strings.Repeat("<td>x", 10)
	rows := strings.Repeat(row, 300)
	got := Markdown("<table>"+rows+"</table>", testPage(t))
	assert.Equal(t, strings.Count(got, "| x "), 3000, "a table of 3,000 cells")
	wide := rows + "<tr><td colspan=1000>x" // fills every row up to 1,000 cells
	if got := Markdown("<table>"+wide+"</table>", testPage(t)); strings.Contains(got, "|") ||
		strings.Count(got, "x") != 3001 {
		t.Errorf("a table of 301,000 cells: %d kept, starting %q", strings.Count(got, "x"), protocol.Clip(got, 60))
	}
}
