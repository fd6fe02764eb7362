package toolkits

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host"
	"a2e/host/webguard"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The bounds of the toolkit web.
const (
	webMaxPage  = 2 << 20 // bytes of a page as Markdown
	webPart     = 20_000  // bytes of it in one answer
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

// newWeb makes the toolkit web. The config may open private addresses to it (allow_private).
func (p *Plugin) newWeb(o WebOptions, byConfig bool) (*made, error) {
	for _, pattern := range o.Hosts {
		if !doublestar.ValidatePattern(pattern) || strings.ContainsAny(pattern, "/:@") {
			return nil, p.wrongSetting("hosts", fmt.Sprintf("%.100q is no host, such as example.com or *.example.com", pattern), byConfig)
		}
	}
	s := &site{hosts: o.Hosts}
	s.web = tools.NewWeb(webguard.Options{AllowPrivate: p.opts.AllowPrivate, Setting: "allow_private: true"}, webMaxPage, s.admits)
	return newMade(kitWeb, []tools.Tool{s.fetchTool(), s.sitemapTool(), s.feedTool()}, s.web.Close), nil
}

// webTools names the tools of the toolkit web.
func webTools() []string { return []string{"web_feed", "web_fetch", "web_sitemap"} }

// admits reports whether a URL is of one of the hosts, which are all where none is named.
func (s *site) admits(u *url.URL) bool {
	for _, pattern := range s.hosts {
		if doublestar.MatchUnvalidated(strings.ToLower(pattern), strings.TrimSuffix(u.Hostname(), ".")) {
			return true
		}
	}
	return len(s.hosts) == 0
}

// parse reads a URL and refuses what is not to be fetched.
func (s *site) parse(raw string) (*url.URL, error) {
	u, err := s.web.Parse(raw)
	if err == nil && !s.admits(u) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%.100q is not opened: the toolkit web is for %s", u.Hostname(), strings.Join(s.hosts, ", "))
	}
	return u, err
}

func webHeader(accept string) http.Header {
	return http.Header{"Accept": {accept}, "User-Agent": {"a2e (toolkit web)"}}
}

// webTool makes a tool that reads a page.
func webTool[A any](name, description, of string, more []protocol.ToolParameter, out []protocol.ToolParameter, fn func(context.Context, *A) (*tools.Outcome, error)) tools.Tool {
	def := protocol.ToolDefinition{
		Name: name, Description: description, Idempotent: true, Tags: []string{"web", "http", "read"},
		InputParameters:  append([]protocol.ToolParameter{{Name: "url", Type: "string", Required: true, Description: of}}, more...),
		OutputParameters: out,
	}
	return tool(def, host.ToolDetail{ReadOnly: true, Idempotent: true, OpenWorld: true}, fn)
}

// pageArgs are the arguments of web_fetch.
type pageArgs struct {
	URL   string `json:"url"`
	Start int    `json:"start"`
}

// pagePart is the data of web_fetch.
type pagePart struct {
	URL         string `json:"url"`
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
	Content     string `json:"content"`
	Bytes       int    `json:"bytes"`
	Next        int    `json:"next,omitzero"`
}

func (s *site) fetchTool() tools.Tool {
	return webTool("web_fetch", "Fetch a web page as Markdown, with absolute links, part by part. Other texts come as they are.", "The page, http or https.",
		[]protocol.ToolParameter{{Name: "start", Type: "integer", Description: "Where to go on, in bytes: next of the answer before."}},
		[]protocol.ToolParameter{
			{Name: "url", Type: "string", Required: true, Description: "Where the page is, after redirects."},
			{Name: "status", Type: "integer", Required: true, Description: "HTTP status. From 400 up the call counts as failed."},
			{Name: "content_type", Type: "string", Required: true, Description: "Content-Type as the server sent it."},
			{Name: "content", Type: "string", Required: true, Description: "The text from start on."},
			{Name: "bytes", Type: "integer", Required: true, Description: "How long the whole text is."},
			{Name: "next", Type: "integer", Description: "Where the rest begins, if there is one."},
		}, s.fetch)
}

// fetch runs web_fetch.
func (s *site) fetch(ctx context.Context, in *pageArgs) (*tools.Outcome, error) {
	u, err := s.parse(in.URL)
	if err != nil {
		return nil, err
	}
	req := &http.Request{Method: http.MethodGet, URL: u, Header: webHeader("text/markdown, text/html, application/xhtml+xml, text/*;q=0.9, */*;q=0.1")}
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
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/start", Message: fmt.Sprintf("is no place in the text, which has %d bytes; it is next of the answer before", len(text))})
	}
	part := &pagePart{URL: answer.URL.String(), Status: answer.Status, ContentType: answer.ContentType, Bytes: len(text)}
	part.Content = cut(text[in.Start:], webPart)
	if end := in.Start + len(part.Content); end < len(text) {
		part.Next = end
	}
	out.Data = part
	return out, nil
}

// cut returns the first n bytes of a text at most, and no half of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
