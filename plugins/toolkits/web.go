package toolkits

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/net/html/charset"

	"a2e/host"
	"a2e/host/guard/webguard"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The bounds of the toolkit web.
const (
	webMaxPage  = 2 << 20 // bytes of a page as Markdown
	webPart     = 20_000  // bytes of a page in one answer
	webMaxXML   = 8 << 20 // bytes of a sitemap or feed that are read
	webMaxLinks = 1000    // addresses of a sitemap in one answer
	webMaxItems = 100     // entries of a feed in one answer
	webMaxText  = 1000    // bytes of the text of one entry
)

// site is the toolkit web.
type site struct {
	web   *tools.Web
	hosts []string
}

// newWeb makes the toolkit web. With allow_private it reaches private addresses.
func (p *Plugin) newWeb(o WebOptions, byConfig bool) (*made, error) {
	for _, pattern := range o.Hosts {
		if !doublestar.ValidatePattern(pattern) || strings.ContainsAny(pattern, "/:@") {
			return nil, p.wrongSetting("hosts", fmt.Sprintf("%.100q is not a host, such as example.com or "+
				"*.example.com", pattern), byConfig)
		}
	}
	s := &site{hosts: o.Hosts}
	s.web = tools.NewWeb(webguard.Options{AllowPrivate: p.opts.AllowPrivate, Setting: "allow_private: true"},
		webMaxPage, s.admits)
	return newMade(kitWeb, []tools.Tool{s.fetchTool(), s.sitemapTool(), s.feedTool()}, s.web.Close), nil
}

// admits reports whether a URL is on one of the hosts; without hosts it admits all.
func (s *site) admits(u *url.URL) bool {
	for _, pattern := range s.hosts {
		if doublestar.MatchUnvalidated(strings.ToLower(pattern), strings.TrimSuffix(u.Hostname(), ".")) {
			return true
		}
	}
	return len(s.hosts) == 0
}

// parse parses a URL and refuses one that may not be fetched.
func (s *site) parse(raw string) (*url.URL, error) {
	u, err := s.web.Parse(raw)
	if err == nil && !s.admits(u) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%.100q is not opened: the toolkit web is for %s",
			u.Hostname(), strings.Join(s.hosts, ", "))
	}
	return u, err
}

func webHeader(accept string) http.Header {
	return http.Header{"Accept": {accept}, "User-Agent": {"a2e (toolkit web)"}}
}

// webTool makes a tool that reads from the web.
func webTool[A, R any](name, description string, fn func(context.Context, *A) (*tools.Outcome, error)) tools.Tool {
	def := protocol.ToolDefinition{
		Name: name, Description: description, Idempotent: true,
		Tags: []string{"web", "http", "read"},
	}
	return tools.Typed[A, R](def, host.ToolDetail{ReadOnly: true, Idempotent: true, OpenWorld: true}, fn)
}

// pageArgs are the arguments of web_fetch.
type pageArgs struct {
	URL   string `json:"url" need:"The page, http or https."`
	Start int    `json:"start" may:"Where to go on, in bytes: next of the answer before."`
}

// pagePart is the data of web_fetch.
type pagePart struct {
	URL         string `json:"url" need:"Where the page is, after redirects."`
	Status      int    `json:"status" need:"HTTP status. From 400 up the call counts as failed."`
	ContentType string `json:"content_type" need:"Content-Type as the server sent it."`
	Content     string `json:"content" need:"The text from start on."`
	Bytes       int    `json:"bytes" need:"How long the whole text is."`
	Next        int    `json:"next,omitzero" may:"Where the rest begins, if there is one."`
}

func (s *site) fetchTool() tools.Tool {
	return webTool[pageArgs, pagePart]("web_fetch", "Fetch a web page as Markdown, with absolute links, part by "+
		"part. Other texts come as they are.", s.fetch)
}

// fetch runs web_fetch.
func (s *site) fetch(ctx context.Context, in *pageArgs) (*tools.Outcome, error) {
	u, err := s.parse(in.URL)
	if err != nil {
		return nil, err
	}
	req := &http.Request{Method: http.MethodGet, URL: u, Header: webHeader("text/markdown, text/html, " +
		"application/xhtml+xml, text/*;q=0.9, */*;q=0.1")}
	out, err := s.web.Do(ctx, req)
	if err != nil {
		return nil, err
	}
	answer, ok := out.Data.(*tools.WebAnswer)
	if !ok {
		return nil, fmt.Errorf("an answer of type %T", out.Data)
	}
	text := answer.Content
	if in.Start < 0 || in.Start > len(text) || in.Start < len(text) && !utf8.RuneStart(text[in.Start]) {
		return nil, protocol.Violation(protocol.FieldError{
			Path: "/arguments/start",
			Message: fmt.Sprintf("is not a position in the text, which has %d bytes; use next of the answer before",
				len(text)),
		})
	}
	part := &pagePart{
		URL: answer.URL.String(), Status: answer.Status, ContentType: answer.ContentType,
		Bytes: len(text),
	}
	part.Content = protocol.Head(text[in.Start:], webPart)
	if end := in.Start + len(part.Content); end < len(text) {
		part.Next = end
	}
	out.Data = part
	return out, nil
}

// xmlEntry is an address of a sitemap, or an entry of a feed: RSS of any version, or Atom.
type xmlEntry struct {
	Loc       string    `xml:"loc"`
	LastMod   string    `xml:"lastmod"`
	Title     []xmlText `xml:"title"`
	Links     []xmlLink `xml:"link"`
	ID        string    `xml:"id"`
	GUID      string    `xml:"guid"`
	Dates     []xmlText `xml:"pubDate"`
	Published []xmlText `xml:"published"`
	Updated   []xmlText `xml:"updated"`
	Date      []xmlText `xml:"date"`
	Texts     []xmlText `xml:"description"`
	Summary   []xmlText `xml:"summary"`
	Encoded   []xmlText `xml:"encoded"`
	Content   []xmlText `xml:"content"`
}

// xmlText is a text with the namespace of its element: other namespaces use the same names.
type xmlText struct {
	XMLName xml.Name
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
	Inner   string `xml:",innerxml"`
}

type xmlLink struct {
	Href string `xml:"href,attr"`
	Rel  string `xml:"rel,attr"`
	Text string `xml:",chardata"`
}

// first returns the first text that is not empty. It prefers the namespaces of feeds to
// others, such as that of media:title.
func first(lists ...[]xmlText) string {
	foreign := ""
	for _, t := range slices.Concat(lists...) {
		text := strings.TrimSpace(t.Text)
		if t.Type == "xhtml" {
			text = strings.TrimSpace(t.Inner)
		}
		switch {
		case text == "":
		case slices.Contains([]string{
			"", "http://www.w3.org/2005/Atom", "http://purl.org/rss/1.0/",
			"http://purl.org/dc/elements/1.1/", "http://purl.org/rss/1.0/modules/content/",
		}, t.XMLName.Space):
			return text
		case foreign == "":
			foreign = text
		}
	}
	return foreign
}

// link returns the URL of an entry, resolved against the feed's URL at; "" = it has none.
func (e *xmlEntry) link(at *url.URL) string {
	for _, l := range e.Links {
		if text := strings.TrimSpace(l.Href + l.Text); text != "" && (l.Rel == "" || l.Rel == "alternate") {
			if u, err := at.Parse(text); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
				return u.String()
			}
		}
	}
	return ""
}

// readEntries calls found for each element with one of the names, until found returns false, and
// returns the title around them. It knows the entities of XML and HTML, but none that the text
// defines itself. The error is that of a text that is not XML, or that ends too early.
func readEntries(text []byte, names []string, found func(name string, e *xmlEntry) bool) (title string, err error) {
	dec := xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, []byte("\uFEFF"))))
	dec.CharsetReader, dec.Entity = charset.NewReaderLabel, xml.HTMLEntity
	parent := ""
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return title, nil
		}
		if err != nil {
			return title, err
		}
		start, ok := token.(xml.StartElement)
		switch {
		case !ok:
		case slices.Contains(names, start.Name.Local):
			e := new(xmlEntry)
			if err := dec.DecodeElement(e, &start); err != nil {
				return title, err
			}
			if !found(start.Name.Local, e) {
				return title, nil
			}
		case start.Name.Local == "title" && title == "" && (parent == "channel" || parent == "feed"):
			var t xmlText
			if err := dec.DecodeElement(&t, &start); err != nil {
				return title, err
			}
			title = strings.TrimSpace(t.Text)
		case start.Name.Local == "channel" || start.Name.Local == "feed":
			parent = start.Name.Local
		}
	}
}

// read fetches a text and unpacks it if it is packed with gzip.
func (s *site) read(ctx context.Context, u *url.URL) (text []byte, at *url.URL, truncated bool, err error) {
	text, at, truncated, err = s.web.Get(ctx, u, webHeader("application/xml, text/xml, application/rss+xml, "+
		"application/atom+xml, text/plain, */*;q=0.1"), webMaxXML)
	if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		return text, at, truncated, err
	}
	packed, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, at, false, protocol.Errorf(protocol.CodeToolError, "what was fetched is not a gzip file: %w", err)
	}
	text, err = io.ReadAll(io.LimitReader(packed, webMaxXML+1))
	if len(text) > webMaxXML || err != nil { // the rest is missing
		return text[:min(len(text), webMaxXML)], at, true, nil
	}
	return text, at, truncated, nil
}

// mapPage is one address of a sitemap.
type mapPage struct {
	URL     string `json:"url"`
	LastMod string `json:"lastmod,omitzero"`
}

// siteMap is the data of web_sitemap.
type siteMap struct {
	URL      string    `json:"url" need:"The sitemap that was read; \"\" = robots.txt lists several."`
	Pages    []mapPage `json:"pages" need:"url and lastmod of each page, 1000 at most."`
	Sitemaps []string  `json:"sitemaps" need:"Further sitemaps."`
	Next     int       `json:"next,omitzero" may:"How many pages to skip for the rest, if there is one."`
}

// mapArgs are the arguments of web_sitemap.
type mapArgs struct {
	URL   string `json:"url" need:"A site, such as https://example.com, or a sitemap of it (XML, gzip or text)."`
	Start int    `json:"start" may:"How many pages to skip: next of the answer before."`
}

func (s *site) sitemapTool() tools.Tool {
	return webTool[mapArgs, siteMap]("web_sitemap", "List the pages of a web site by its sitemap, which is found by "+
		"robots.txt or at /sitemap.xml. A sitemap of sitemaps lists those; call it again with each.", s.sitemap)
}

// sitemap runs web_sitemap.
func (s *site) sitemap(ctx context.Context, in *mapArgs) (*tools.Outcome, error) {
	u, err := s.parse(in.URL)
	if err != nil {
		return nil, err
	}
	if in.Start < 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/start", Message: "must not be negative"})
	}
	m := &siteMap{Pages: []mapPage{}, Sitemaps: []string{}}
	out := &tools.Outcome{Data: m}
	if ext := path.Ext(u.Path); ext != ".xml" && ext != ".gz" && ext != ".txt" && !strings.Contains(u.Path, "sitemap") {
		if m.Sitemaps, err = s.announced(ctx, u); err != nil {
			return nil, err
		}
		if len(m.Sitemaps) > 1 {
			return out, nil
		}
		if u, err = s.parse(m.Sitemaps[0]); err != nil {
			return nil, err
		}
		m.Sitemaps = []string{}
	}
	text, at, truncated, err := s.read(ctx, u)
	if err != nil {
		return nil, err
	}
	m.URL, out.Truncated = at.String(), truncated
	return out, m.fill(text, in.Start, out)
}

// announced returns the sitemaps that robots.txt names, or the usual place.
func (s *site) announced(ctx context.Context, u *url.URL) ([]string, error) {
	at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/robots.txt"}
	found := []string{}
	text, _, _, err := s.read(ctx, &at)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(name), "sitemap") &&
			len(found) < webMaxLinks {
			found = append(found, strings.ToValidUTF8(strings.TrimSpace(value), "\uFFFD"))
		}
	}
	if len(found) == 0 {
		at.Path = "/sitemap.xml"
		found = append(found, at.String())
	}
	return found, nil
}

// fill adds the addresses of a sitemap, without the first skip pages.
func (m *siteMap) fill(text []byte, skip int, out *tools.Outcome) error {
	seen := 0
	add := func(page mapPage) bool {
		if seen++; seen <= skip {
			return true
		}
		if len(m.Pages) == webMaxLinks {
			m.Next, out.Truncated = skip+webMaxLinks, true
			return false
		}
		m.Pages = append(m.Pages, page)
		return true
	}
	if !bytes.Contains(text[:min(len(text), 1000)], []byte("<")) {
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(strings.ToValidUTF8(line, "\uFFFD")); strings.HasPrefix(line, "http") &&
				!add(mapPage{URL: line}) {
				break
			}
		}
		return nil
	}
	_, err := readEntries(text, []string{"url", "sitemap"}, func(name string, e *xmlEntry) bool {
		if e.Loc = strings.TrimSpace(e.Loc); e.Loc == "" {
			return true
		}
		if name == "sitemap" {
			m.Sitemaps = append(m.Sitemaps, e.Loc)
			return len(m.Sitemaps) < webMaxLinks
		}
		return add(mapPage{URL: e.Loc, LastMod: strings.TrimSpace(e.LastMod)})
	})
	return partly(err, len(m.Pages)+len(m.Sitemaps), out, "sitemap")
}

// partly returns an error if nothing of a text could be read. If only a part could be read, it marks the
// outcome as truncated.
func partly(err error, read int, out *tools.Outcome, what string) error {
	switch {
	case err == nil:
		return nil
	case read == 0:
		return protocol.Errorf(protocol.CodeToolError, "this is no %s: %.200s", what, err.Error())
	}
	out.Truncated, out.Summary = true, fmt.Sprintf("cut where the %s cannot be read any further: %.200s", what,
		err.Error())
	return nil
}

// feedArgs are the arguments of web_feed.
type feedArgs struct {
	URL   string `json:"url" need:"The feed."`
	Limit *int   `json:"limit" may:"How many entries, 1 to 100; 20 unless it is given."`
}

// feedEntry is one entry of a feed.
type feedEntry struct {
	Title     string `json:"title"`
	URL       string `json:"url"`
	Published string `json:"published,omitzero"`
	Summary   string `json:"summary,omitzero"`
}

// feed is the data of web_feed.
type feed struct {
	URL     string      `json:"url" need:"Where the feed is, after redirects."`
	Title   string      `json:"title" need:"Its title."`
	Entries []feedEntry `json:"entries" need:"title, url, published and summary of each entry, in the feed's order."`
}

func (s *site) feedTool() tools.Tool {
	return webTool[feedArgs, feed]("web_feed", "Read an RSS or Atom feed: the newest entries with title, address, "+
		"time and a short text as Markdown.", s.feed)
}

// feed runs web_feed.
func (s *site) feed(ctx context.Context, in *feedArgs) (*tools.Outcome, error) {
	limit := 20
	if in.Limit != nil {
		limit = *in.Limit
	}
	if limit < 1 || limit > webMaxItems {
		return nil, protocol.Violation(protocol.FieldError{
			Path:    "/arguments/limit",
			Message: fmt.Sprintf("must be 1 to %d", webMaxItems),
		})
	}
	u, err := s.parse(in.URL)
	if err != nil {
		return nil, err
	}
	text, at, truncated, err := s.read(ctx, u)
	if err != nil {
		return nil, err
	}
	f := &feed{URL: at.String(), Entries: []feedEntry{}}
	out := &tools.Outcome{Data: f}
	f.Title, err = readEntries(text, []string{"item", "entry"}, func(_ string, e *xmlEntry) bool {
		if len(f.Entries) == limit {
			out.Truncated = true
			return false
		}
		f.Entries = append(f.Entries, feedEntry{
			Title: protocol.Head(first(e.Title), webMaxText), URL: e.link(at),
			Published: published(first(e.Dates, e.Published, e.Updated, e.Date)),
			Summary: protocol.Head(tools.Markdown(protocol.Head(first(e.Texts, e.Summary, e.Encoded, e.Content),
				16*webMaxText), at), webMaxText),
		})
		return true
	})
	if err == nil && f.Title == "" && len(f.Entries) == 0 {
		err = errors.New("it has neither a title nor entries")
	}
	f.Title = protocol.Head(f.Title, webMaxText)
	err = partly(err, len(f.Entries), out, "feed")
	out.Truncated = out.Truncated || truncated && len(f.Entries) < limit
	return out, err
}

// published returns a time as RFC 3339, or the first 100 bytes of the text if it cannot be parsed.
func published(text string) string {
	for _, layout := range []string{
		time.RFC3339, time.RFC1123Z, time.RFC1123, "Mon, _2 Jan 2006 15:04:05 -0700",
		"Mon, _2 Jan 2006 15:04:05 MST", "_2 Jan 2006 15:04:05 -0700", time.RFC822Z, time.RFC822,
	} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.Format(time.RFC3339)
		}
	}
	return protocol.Head(text, 100)
}
