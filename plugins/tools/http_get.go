package tools

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/host"
	"a2e/host/webguard"
	"a2e/protocol"
)

// The bounds of one http_get.
const (
	httpTimeout     = 30 * time.Second
	tlsTimeout      = 10 * time.Second
	httpMaxHeader   = 64 << 10
	httpMaxPage     = 2 << 20 // bytes of an HTML page that are read: Markdown is a fraction of it
	httpMaxHops     = 5
	httpDefaultKeep = 1 << 20
)

// httpConfig is what http_get may do.
type httpConfig struct {
	webguard.Options     // AllowPrivate is http_allow_private
	maxOutput        int // bytes of content in an answer; 0 = 1 MiB

	roots   *x509.CertPool // nil = those of the system
	timeout time.Duration  // 0 = 30 s
}

// httpGet is the http_get tool. The HTTP client is made at the first call. It
// keeps idle connections for a while: close ends them.
type httpGet struct {
	cfg   httpConfig
	guard func() *webguard.Guard
	http  func() *http.Client
}

// newHTTPGet makes the tool; nothing is opened or started yet.
func newHTTPGet(cfg httpConfig) *httpGet {
	if cfg.maxOutput <= 0 {
		cfg.maxOutput = httpDefaultKeep
	}
	if cfg.timeout <= 0 {
		cfg.timeout = httpTimeout
	}
	h := &httpGet{cfg: cfg}
	h.guard = sync.OnceValue(func() *webguard.Guard { return webguard.New(cfg.Options) })
	h.http = sync.OnceValue(h.newClient)
	return h
}

// tool gives the registry's entry.
func (h *httpGet) tool() Tool {
	return Tool{
		Def: protocol.ToolDefinition{
			Name: "http_get",
			Description: "Fetch a web page or API answer with HTTP GET and return it as text. HTML comes back as Markdown with absolute links, without scripts and styles; " +
				"JSON, XML and plain text come back as they are, in UTF-8. Follows up to 5 redirects. Only public addresses can be reached, not localhost or a private network, " +
				"unless the host's config allows it. No JavaScript runs, no cookies or credentials are sent. Images and other binary content are refused.",
			InputParameters: []protocol.ToolParameter{
				{Name: "url", Type: "string", Required: true, Description: "Absolute http:// or https:// URL, such as https://example.com/docs?page=2. Percent-encode spaces."},
			},
			OutputParameters: []protocol.ToolParameter{
				{Name: "status", Type: "integer", Required: true, Description: "HTTP status of the last answer, such as 200. From 400 up the call counts as failed."},
				{Name: "content_type", Type: "string", Required: true, Description: "Content-Type as the server sent it (text/html even though content is Markdown)."},
				{Name: "content", Type: "string", Required: true, Description: "The text, cut at the host's output limit."},
			},
			Idempotent: true,
			Tags:       []string{"web", "http", "fetch", "read"},
			Version:    "1.0.0",
		},
		Kind:    KindBuiltin,
		Detail:  host.ToolDetail{ReadOnly: true, OpenWorld: true},
		Timeout: h.cfg.timeout,
		Call:    h.call,
	}
}

// close ends idle connections. Calls that still run are not touched.
func (h *httpGet) close() { h.http().CloseIdleConnections() }

// newClient makes a client that keeps nothing between two requests but
// connections. Proxy stays nil on purpose: a proxy from the environment would
// be dialed in place of the address that the guard has to see.
func (h *httpGet) newClient() *http.Client {
	return &http.Client{
		CheckRedirect: h.followRedirect,
		Transport: &http.Transport{
			DialContext:            h.guard().DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: h.cfg.roots},
			TLSHandshakeTimeout:    tlsTimeout,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: httpMaxHeader,
			MaxIdleConns:           8,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}

// followRedirect lets a redirect pass that could have been asked for directly.
func (h *httpGet) followRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > httpMaxHops {
		return protocol.Errorf(protocol.CodeToolError, "stopped after %d redirects, at %s", httpMaxHops, shownURL(req.URL))
	}
	if err := h.guard().CheckURL(req.URL); err != nil {
		err.Message = "redirected: " + err.Message
		return err
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme == "http" {
		return protocol.Errorf(protocol.CodeToolDenied,
			"a redirect from https to plain http is not followed; fetch %s itself if that is what you want", shownURL(req.URL))
	}
	req.Header.Del("Referer")
	return nil
}

// httpResult is the tool's `data`.
type httpResult struct {
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
	Content     string `json:"content"`
}

// call runs one fetch, within the request's own limit and 30 s.
func (h *httpGet) call(ctx context.Context, args protocol.Object, _ host.Emitter) (*Outcome, error) {
	var in struct {
		URL string `json:"url"`
	}
	if err := args.Decode(&in); err != nil {
		return nil, err
	}
	u, bad := h.guard().Parse(in.URL)
	if bad != nil {
		return nil, bad
	}
	limited, cancel := context.WithTimeout(ctx, h.cfg.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, webguard.BadURL("%w", err)
	}
	req.Header.Set("Accept", "text/markdown, text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.1")
	req.Header.Set("User-Agent", "a2e (http_get)")
	resp, err := h.http().Do(req)
	if err != nil {
		return nil, h.explain(ctx, u, err)
	}
	defer resp.Body.Close()
	out, err := h.read(resp)
	if err != nil {
		return nil, h.explain(ctx, resp.Request.URL, err)
	}
	return out, nil
}

// explain turns a failed fetch into what the caller is told.
func (h *httpGet) explain(ctx context.Context, u *url.URL, err error) error {
	var told *protocol.Error
	var outer *url.Error
	var netErr net.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return protocol.Errorf(protocol.CodeTimeout, "%s did not answer in time (limit %v)", shownURL(u), h.cfg.timeout)
	case errors.As(err, &outer):
		err = outer.Err // the outer text repeats the URL
	}
	failed := protocol.Errorf(protocol.CodeToolError, "%s could not be fetched: %w", shownURL(u), err)
	failed.Retryable = true
	return failed
}

// read makes the outcome of an answer. It stops reading where the limit is.
func (h *httpGet) read(resp *http.Response) (*Outcome, error) {
	res := &httpResult{Status: resp.StatusCode, ContentType: clip(strings.ToValidUTF8(resp.Header.Get("Content-Type"), "�"), 200)}
	out := &Outcome{Data: res}
	if res.Status >= 400 {
		out.Failed, out.Failure = true, "HTTP "+strconv.Itoa(res.Status)
	}
	text, err := h.text(resp, out)
	if err != nil && (!out.Failed || !errors.Is(err, errNotText)) {
		return nil, err
	}
	res.Content = text
	out.Summary = fmt.Sprintf("HTTP %d, %d bytes from %s", res.Status, len(text), shownURL(resp.Request.URL))
	return out, nil
}

// errNotText marks content that is no text.
var errNotText = errors.New("not text")

// text reads the body and makes UTF-8 text of it, at most maxOutput bytes.
func (h *httpGet) text(resp *http.Response, out *Outcome) (string, error) {
	header := resp.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(header)
	if err != nil && media == "" {
		header = ""
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return "", notText(resp, "compressed as "+clip(enc, 40)+", which was not asked for")
	}
	form := formOf(media)
	if form == formBinary {
		return "", notText(resp, media)
	}
	limit := h.cfg.maxOutput
	if form == formHTML || form == formUnknown {
		limit = max(limit, httpMaxPage)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return "", err
	}
	if out.Truncated = len(body) > limit; out.Truncated {
		body = cutRune(body[:limit])
	}
	if form == formUnknown {
		header = http.DetectContentType(body)
		if media, _, _ = mime.ParseMediaType(header); formOf(media) == formBinary || formOf(media) == formUnknown {
			return "", notText(resp, media)
		}
		form, header = formOf(media), media
	}
	text := toUTF8(body, header)
	if strings.IndexByte(text, 0) >= 0 {
		return "", notText(resp, "binary data")
	}
	if form == formHTML {
		text = markdown(text, resp.Request.URL)
	}
	if len(text) > h.cfg.maxOutput {
		text, out.Truncated = cutText(text, h.cfg.maxOutput), true
	}
	return text, nil
}

func notText(resp *http.Response, what string) *protocol.Error {
	size := "of unknown size"
	if resp.ContentLength >= 0 {
		size = fmt.Sprintf("%d bytes", resp.ContentLength)
	}
	return protocol.Errorf(protocol.CodeToolError, "this tool returns text only; %s is %w: %s, %s", shownURL(resp.Request.URL), errNotText, what, size)
}

// shownURL is a URL as messages show it: without what may be secret in it.
func shownURL(u *url.URL) string {
	c := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return clip(c.String(), 200)
}

// clip shortens text that goes into a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
