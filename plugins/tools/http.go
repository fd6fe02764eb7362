package tools

import (
	"cmp"
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

	"a2e/host/guard/webguard"
	"a2e/protocol"
)

// The bounds of one http_get.
const (
	httpTimeout   = 30 * time.Second
	tlsTimeout    = 10 * time.Second
	httpMaxHeader = 64 << 10
	httpMaxPage   = 2 << 20 // bytes of an HTML page that are read: Markdown is a fraction of it
	httpMaxHops   = 5
)

// Web opens web addresses under the rules of http_get, also for the tools of other plugins:
// only public addresses unless its options allow others, checked once more at the
// connect; no proxy, no cookies, bounded headers and bodies. The HTTP client is made at the
// first call; it keeps idle connections for 30 s.
type Web struct {
	maxOutput int                    // bytes of content in an answer
	follow    func(to *url.URL) bool // nil = it follows every redirect that http_get allows
	roots     *x509.CertPool         // nil = those of the system
	timeout   time.Duration
	guard     func() *webguard.Guard
	http      func() *http.Client
}

// NewWeb makes a Web whose answers hold at most maxOutputBytes of text (0 = 1 MiB). follow
// reports whether a redirect is followed; if not, the redirect itself is the answer. A redirect
// that http_get would not follow is refused even so.
func NewWeb(guard webguard.Options, maxOutputBytes int, follow func(to *url.URL) bool) *Web {
	w := &Web{maxOutput: cmp.Or(max(maxOutputBytes, 0), defaultMaxOutput), follow: follow, timeout: httpTimeout}
	w.guard = sync.OnceValue(func() *webguard.Guard { return webguard.New(guard) })
	w.http = sync.OnceValue(w.newClient)
	return w
}

// Close closes idle connections. Running calls go on.
func (w *Web) Close() { w.http().CloseIdleConnections() }

// newClient makes a client that keeps only connections between two
// requests. Proxy is nil on purpose: with a proxy from the environment, the guard
// would see the address of the proxy instead of the address to check.
func (w *Web) newClient() *http.Client {
	return &http.Client{
		CheckRedirect: w.redirect,
		Transport: &http.Transport{
			DialContext:            w.guard().DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: w.roots},
			TLSHandshakeTimeout:    tlsTimeout,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: httpMaxHeader,
			MaxIdleConns:           8,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}

// redirect allows a redirect to a URL that http_get could open directly, but none from https to http.
func (w *Web) redirect(req *http.Request, via []*http.Request) error {
	if w.follow != nil && !w.follow(req.URL) {
		return http.ErrUseLastResponse
	}
	if len(via) > httpMaxHops {
		return protocol.Errorf(protocol.CodeToolError, "stopped after %d redirects, at %s", httpMaxHops,
			shownURL(req.URL))
	}
	if err := w.guard().CheckURL(req.URL); err != nil {
		err.Message = "redirected: " + err.Message
		return err
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme == "http" {
		return protocol.Errorf(protocol.CodeToolDenied,
			"a redirect from https to plain http is not followed; fetch %s itself if that is what you want",
			shownURL(req.URL))
	}
	req.Header.Del("Referer")
	return nil
}

// WebAnswer is the answer of a web server, and the `data` of http_get.
type WebAnswer struct {
	Status      int      `json:"status" need:"HTTP status of the last answer, such as 200. From 400 up the call counts as failed."`
	ContentType string   `json:"content_type" need:"Content-Type as the server sent it (text/html even though content is Markdown)."`
	Content     string   `json:"content" need:"The text, cut at the host's output limit."`
	URL         *url.URL `json:"-"` // the URL that answered, after redirects
}

// httpArgs are the arguments of http_get.
type httpArgs struct {
	URL string `json:"url" need:"Absolute http:// or https:// URL, such as https://example.com/docs?page=2. Percent-encode spaces."`
}

// get runs one call of http_get.
func (w *Web) get(ctx context.Context, a *httpArgs) (*Outcome, error) {
	u, err := w.Parse(a.URL)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, webguard.BadURL("%w", err)
	}
	req.Header.Set("Accept", "text/markdown, text/html, application/xhtml+xml, application/json, text/*;q=0.9, "+
		"*/*;q=0.1")
	req.Header.Set("User-Agent", "a2e (http_get)")
	return w.Do(ctx, req)
}

// Parse parses a URL and refuses one that can never be opened. The error is a
// *protocol.Error that shows nothing that may be secret.
func (w *Web) Parse(raw string) (*url.URL, error) {
	u, err := w.guard().Parse(raw)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Do sends a request and returns its answer as http_get does: the data is a *WebAnswer, and the
// outcome is failed from status 400 up. The error is a *protocol.Error, or context.Canceled. A
// request takes at most 30 s, or less if ctx has a shorter limit.
func (w *Web) Do(ctx context.Context, req *http.Request) (out *Outcome, err error) {
	err = w.send(ctx, req, func(resp *http.Response) error {
		out, err = w.read(resp)
		return err
	})
	return out, err
}

// Get fetches the unchanged content of a URL, at most limit bytes; truncated = there is more.
// at is the URL that answered. The error is as for Do; a status other than 200 is an error, too.
func (w *Web) Get(ctx context.Context, u *url.URL, header http.Header, limit int) (body []byte, at *url.URL,
	truncated bool, err error,
) {
	req := &http.Request{Method: http.MethodGet, URL: u, Header: header}
	err = w.send(ctx, req, func(resp *http.Response) error {
		if at = resp.Request.URL; resp.StatusCode != http.StatusOK {
			return protocol.Errorf(protocol.CodeToolError, "%s: HTTP %d", shownURL(at), resp.StatusCode)
		}
		body, err = io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
		if truncated = len(body) > limit; truncated {
			body = body[:limit]
		}
		return err
	})
	return body, at, truncated, err
}

// send sends a request and calls read for its answer, both within the time limit.
func (w *Web) send(ctx context.Context, req *http.Request, read func(*http.Response) error) error {
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	resp, err := w.http().Do(req.WithContext(limited))
	if err != nil {
		return w.explain(ctx, req.URL, err)
	}
	defer resp.Body.Close()
	if err := read(resp); err != nil {
		return w.explain(ctx, resp.Request.URL, err)
	}
	return nil
}

// explain turns the error of a failed fetch into the error for the caller.
func (w *Web) explain(ctx context.Context, u *url.URL, err error) error {
	var told *protocol.Error
	var outer *url.Error
	var netErr net.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return protocol.Errorf(protocol.CodeTimeout, "%s did not answer in time (limit %v)", shownURL(u), w.timeout)
	case errors.As(err, &outer):
		err = outer.Err // the outer text repeats the URL
	}
	failed := protocol.Errorf(protocol.CodeToolError, "%s could not be fetched: %w", shownURL(u), err)
	failed.Retryable = true
	return failed
}

// read makes the outcome of an answer. It stops reading at the limit.
func (w *Web) read(resp *http.Response) (*Outcome, error) {
	res := &WebAnswer{
		URL: resp.Request.URL, Status: resp.StatusCode,
		ContentType: protocol.Clip(strings.ToValidUTF8(resp.Header.Get("Content-Type"), "�"), 200),
	}
	out := &Outcome{Data: res}
	if res.Status >= 400 {
		out.Failed, out.Failure = true, "HTTP "+strconv.Itoa(res.Status)
	}
	text, err := w.text(resp, out)
	if err != nil && (!out.Failed || !errors.Is(err, errNotText)) {
		return nil, err
	}
	res.Content = text
	out.Summary = fmt.Sprintf("HTTP %d, %d bytes from %s", res.Status, len(text), shownURL(resp.Request.URL))
	return out, nil
}

// errNotText marks content that is not text.
var errNotText = errors.New("not text")

// text reads the body and returns it as UTF-8 text, at most maxOutput bytes.
func (w *Web) text(resp *http.Response, out *Outcome) (string, error) {
	header := resp.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(header)
	if err != nil && media == "" {
		header = ""
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return "", notText(resp, "compressed as "+protocol.Clip(enc, 40)+", which was not asked for")
	}
	form := formOf(media)
	if form == formBinary {
		return "", notText(resp, media)
	}
	limit := w.maxOutput
	if form == formHTML || form == formUnknown {
		limit = max(limit, httpMaxPage)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return "", err
	}
	if out.Truncated = len(body) > limit; out.Truncated {
		body = protocol.Head(body, limit)
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
		text = Markdown(text, resp.Request.URL)
	}
	if len(text) > w.maxOutput {
		text, out.Truncated = protocol.Head(text, w.maxOutput), true
	}
	return text, nil
}

func notText(resp *http.Response, what string) *protocol.Error {
	size := "of unknown size"
	if resp.ContentLength >= 0 {
		size = fmt.Sprintf("%d bytes", resp.ContentLength)
	}
	return protocol.Errorf(protocol.CodeToolError, "this tool returns text only; %s is %w: %s, %s",
		shownURL(resp.Request.URL), errNotText, what, size)
}

// shownURL returns a URL for messages, without the parts that may be secret: user and query.
func shownURL(u *url.URL) string {
	c := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return protocol.Clip(c.String(), 200)
}
