package tools

import (
	"context"
	"net/http"
	"net/url"

	"a2e/host/webguard"
)

// Web opens web addresses under the rules of http_get, for the tools of other plugins:
// public addresses only unless it is told otherwise, checked once more when the kernel
// connects; no proxy, no cookies, bounded headers and bodies.
type Web struct {
	get    *httpGet
	client *http.Client
}

// NewWeb makes one whose answers hold at most maxOutputBytes of text (0 = 1 MiB). follow
// tells whether a redirect is followed; one that is not is the answer. A redirect that
// http_get would not follow is refused all the same.
func NewWeb(guard webguard.Options, maxOutputBytes int, follow func(to *url.URL) bool) *Web {
	w := &Web{get: newHTTPGet(httpConfig{Options: guard, maxOutput: maxOutputBytes})}
	client := *w.get.http()
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if !follow(req.URL) {
			return http.ErrUseLastResponse
		}
		return w.get.followRedirect(req, via)
	}
	w.client = &client
	return w
}

// Parse reads a URL and refuses one that can never be opened. The error is a
// *protocol.Error which shows nothing that may be secret.
func (w *Web) Parse(raw string) (*url.URL, error) {
	u, err := w.get.guard().Parse(raw)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Do sends a request and gives its answer as http_get does: {status, content_type,
// content}, failed from status 400 up. The error is a *protocol.Error, or that of ctx.
func (w *Web) Do(ctx context.Context, req *http.Request) (*Outcome, error) {
	limited, cancel := context.WithTimeout(ctx, w.get.cfg.timeout)
	defer cancel()
	resp, err := w.client.Do(req.WithContext(limited))
	if err != nil {
		return nil, w.get.explain(ctx, req.URL, err)
	}
	defer resp.Body.Close()
	out, err := w.get.read(resp)
	if err != nil {
		return nil, w.get.explain(ctx, resp.Request.URL, err)
	}
	return out, nil
}

// Close ends idle connections.
func (w *Web) Close() { w.get.close() }
