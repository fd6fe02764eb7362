package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/guard/webguard"
)

// The bounds of one HTTP connection.
const (
	dialTimeout   = 10 * time.Second
	deleteTimeout = time.Second
	maxHops       = 5
	maxHeader     = 64 << 10 // bytes of the headers of an answer
	maxPlain      = 64 << 10 // bytes of an answer that is not a message, such as an error page
)

// The headers of MCP.
const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	lastHeader    = "Last-Event-ID"
)

// web is a server that is reached by HTTP. It is the carrier, and the RoundTripper of the SDK's transport.
// The SDK would give up the whole connection for one failed request or one stream that ends. So web hides
// both: a request fails alone, streams are opened again, and a session that the server has lost is replaced
// by a new one.
type web struct {
	mcp.Transport
	conn   *conn
	client *http.Client // sends requests to the server and follows redirects
	base   *http.Transport
	origin *url.URL
	guard  *webguard.Guard // nil = all addresses are allowed
	goes   sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	status      int        // HTTP status of the first refused POST of the handshake; 0 = none
	httpSession            // the current session
	over        bool       // release was called: goes takes no more goroutines
}

func newWeb(c *conn) (carrier, error) {
	origin, err := url.Parse(c.link.cfg.URL)
	if err != nil {
		return nil, errors.New("its url cannot be read")
	}
	w := &web{conn: c, origin: origin}
	w.life, w.end = context.WithCancel(c.life)
	dial := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if w.guard = c.link.cfg.Guard; w.guard != nil {
		if _, bad := w.guard.Parse(c.link.cfg.URL); bad != nil {
			return nil, bad
		}
		dial = w.guard.DialContext
	}
	w.base = &http.Transport{
		DialContext:     dial, // Proxy stays nil: a proxy of the environment would see the headers
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxHeader, MaxIdleConns: 16, MaxIdleConnsPerHost: 16,
		IdleConnTimeout: time.Minute,
	}
	w.client = &http.Client{Transport: outward{w}, CheckRedirect: w.redirect}
	client := &http.Client{Transport: w}
	if c.transport == SSE {
		w.Transport = &mcp.SSEClientTransport{Endpoint: c.link.cfg.URL, HTTPClient: client, MaxEventSize: 2 * maxLine}
	} else {
		w.Transport = &mcp.StreamableClientTransport{
			Endpoint: c.link.cfg.URL, HTTPClient: client,
			MaxEventSize: 2 * maxLine,
		}
	}
	return w, nil
}

// Connect implements mcp.Transport.
func (w *web) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := w.Transport.Connect(ctx)
	if err != nil || w.conn.transport != SSE {
		return c, err
	}
	return patient{c}, nil
}

// patient is a connection of the SSE transport that survives a message that the server refuses.
type patient struct{ mcp.Connection }

// Write implements mcp.Connection.
func (p patient) Write(ctx context.Context, msg jsonrpc.Message) error {
	err := p.Connection.Write(ctx, msg)
	if errors.As(err, new(*refusal)) {
		return fmt.Errorf("%w: %w", &jsonrpc.Error{Code: codeRejected, Message: "refused"}, err)
	}
	return err
}

// RoundTrip implements http.RoundTripper: it handles a request of the SDK.
func (w *web) RoundTrip(req *http.Request) (*http.Response, error) {
	msg, err := carried(req)
	if err = errors.Join(err, closeBody(req)); err != nil {
		return nil, err
	}
	if answer, ok := msg.(*jsonrpc.Response); ok && w.conn.gate.answer(answer.ID.Raw()) {
		return made(req, http.StatusAccepted, "", ""), nil
	}
	if req.Method == http.MethodGet && w.conn.transport == HTTP {
		return w.listen(req), nil
	}
	ctx, release := w.bound(req)
	resp, err := w.exchange(ctx, req, msg)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		release()
		return nil, err
	}
	resp.Request = req
	return w.take(ctx, resp, msg, release)
}

// bound returns the context of a request, which ends with the connection. The DELETE that ends the session
// may come after that; it has deleteTimeout.
func (w *web) bound(req *http.Request) (ctx context.Context, release func()) {
	if req.Method == http.MethodDelete {
		return context.WithTimeout(req.Context(), deleteTimeout)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(w.conn.life, func() { cancel(context.Cause(w.conn.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// send sends a request, and follows redirects.
func (w *web) send(ctx context.Context, method, to string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := w.client.Do(req)
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // the text of err shows the URL
	}
	return resp, err
}

// outward is the RoundTripper for requests to the server.
type outward struct{ *web }

// RoundTrip implements http.RoundTripper.
func (o outward) RoundTrip(req *http.Request) (*http.Response, error) {
	if o.guard != nil { // this also checks redirects and URLs from the server
		if bad := o.guard.CheckURL(req.URL); bad != nil {
			return nil, errors.Join(bad, closeBody(req))
		}
	}
	if o.own(req.URL) {
		req = req.Clone(req.Context())
		for name, value := range o.conn.link.cfg.Headers {
			req.Header.Set(name, value)
		}
	}
	return o.base.RoundTrip(req)
}

// take bounds and filters the answer to a request that carried msg.
func (w *web) take(
	ctx context.Context, resp *http.Response, msg jsonrpc.Message, release func(),
) (*http.Response, error) {
	call, _ := msg.(*jsonrpc.Request)
	if call != nil && !call.IsCall() {
		call = nil
	}
	w.conn.gate.hear()
	w.met(resp)
	switch good := resp.StatusCode >= 200 && resp.StatusCode < 300; {
	case good && isStream(resp):
		stream := newEvents(ctx, w.conn, resp.Body, release)
		if call != nil && w.conn.transport == HTTP {
			stream.answering(w, resp.Request, call)
		}
		resp.Body = stream
		return resp, nil
	case good && call != nil && w.conn.transport == HTTP:
		return w.whole(ctx, resp, call, release)
	case resp.StatusCode >= 400 && msg != nil && w.conn.up.Load():
		defer release()
		return w.refused(resp, call)
	case resp.StatusCode >= 400 && (msg != nil || w.conn.transport == SSE):
		w.mu.Lock()
		if w.status == 0 {
			w.status = resp.StatusCode
		}
		w.mu.Unlock()
	}
	resp.Body = &limited{Reader: io.LimitReader(resp.Body, maxPlain), body: resp.Body, release: release}
	return resp, nil
}

// isStream reports whether an answer is a stream of events.
func isStream(resp *http.Response) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // without one it is ""
	return media == "text/event-stream"
}

// whole reads an answer that is not a stream. If it is faulty, only the request fails, not the connection.
func (w *web) whole(
	ctx context.Context, resp *http.Response, call *jsonrpc.Request, release func(),
) (*http.Response, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLine+1))
	_ = resp.Body.Close() // it was read
	if err != nil {
		release()
		return nil, fmt.Errorf("its answer broke off: %w", err)
	}
	all := []message{{Message: unfit(call.ID, errLong)}}
	if len(text) <= maxLine {
		all = answerLast(w.conn.read(text, call.ID), call.ID)
	} else {
		w.conn.skip(text, errLong)
	}
	if n := len(all); n == 0 || !answers(all[n-1], call.ID) {
		all = []message{{Message: unfit(call.ID, w.unanswered(resp, text, all))}}
	}
	if len(all) > 1 { // a batch, which the SDK does not read
		stream := newEvents(ctx, w.conn, http.NoBody, release)
		stream.own, stream.queue = call.ID, all
		resp.Body, resp.ContentLength = stream, -1
		resp.Header.Set("Content-Type", "text/event-stream")
		return resp, nil
	}
	release()
	return resp, replace(resp, all[0])
}

// unanswered returns an error that says what came in place of the answer to a request.
func (w *web) unanswered(resp *http.Response, text []byte, all []message) error {
	if len(all) == 0 {
		return fmt.Errorf("a text of the type %q that is not a message", resp.Header.Get("Content-Type"))
	}
	if answer, ok := all[0].Message.(*jsonrpc.Response); ok && errors.Is(answer.Error,
		&jsonrpc.Error{Code: codeUnfit}) {
		return answer.Error
	}
	err := errors.New("a request, a notification or the answer to another request instead of an answer")
	w.conn.skip(text, err)
	return err
}

// replace makes a message the body of an answer.
func replace(resp *http.Response, m message) error {
	text, err := m.encoded()
	if err != nil {
		return err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	resp.Header.Set("Content-Type", "application/json")
	return nil
}

// refused reads an answer whose status refuses the request. If it contains a JSON-RPC error, that is the
// answer to call.
func (w *web) refused(resp *http.Response, call *jsonrpc.Request) (*http.Response, error) {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxPlain)) // an error leaves the part that was read
	_ = resp.Body.Close()                                      // it was read
	refusal := &refusal{status: resp.StatusCode}
	if call == nil || w.conn.transport == SSE {
		return nil, refusal
	}
	m, err := decode(trim(text), call.ID)
	answer, ok := m.Message.(*jsonrpc.Response)
	if err != nil || !ok || answer.Error == nil {
		return nil, refusal
	}
	answer.ID = call.ID
	resp.Status, resp.StatusCode = "", http.StatusOK
	return resp, replace(resp, message{Message: answer})
}

// finish implements carrier. It cancels what is under way, so that the session can end.
func (w *web) finish(_ context.Context, session *mcp.ClientSession) {
	w.conn.kill(errClosed)
	if session != nil {
		_ = session.Close() // the server may be gone
	}
}

// release implements carrier.
func (w *web) release() {
	w.mu.Lock()
	w.over = true
	w.end()
	w.mu.Unlock()
	w.goes.Wait()
	w.base.CloseIdleConnections()
}

// why implements carrier: it adds what the status of a failed handshake means.
func (w *web) why(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn.session != nil {
		return err
	}
	switch w.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusUnsupportedMediaType:
		return fmt.Errorf("%w: %w", &refusal{w.status}, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("it was refused with HTTP status %d; the headers of the config should carry what the "+
			"server asks for: %w", w.status, err)
	}
	return err
}

// pid implements carrier.
func (w *web) pid() int { return 0 }

// carried returns the message that a request carries to the server; nil = none.
func carried(req *http.Request) (jsonrpc.Message, error) {
	if req.Method != http.MethodPost || req.GetBody == nil {
		return nil, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	return jsonrpc.DecodeMessage(text)
}

// closeBody closes the body of a request that is not sent.
func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// made returns an answer that did not come over the network.
func made(req *http.Request, status int, media, body string) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {media}},
		Body:   io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}

// limited is a body of which Reader reads only a part or a copy.
type limited struct {
	io.Reader
	body    io.Closer
	release func()
}

// Close implements io.Closer.
func (l *limited) Close() error {
	defer l.release()
	return l.body.Close()
}

// redirect decides whether a redirect is followed. Another host does not get the headers of the config, see
// outward.RoundTrip.
func (w *web) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxHops {
		return fmt.Errorf("there were more than %d redirects", maxHops)
	}
	if w.guard != nil && via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme == "http" {
		return errors.New("a redirect from https to plain http is not followed")
	}
	req.Header.Del("Referer")
	return nil
}

// own reports whether a URL leads to the host and port of the config. An upgrade from http to https also
// counts.
func (w *web) own(u *url.URL) bool {
	if !strings.EqualFold(u.Hostname(), w.origin.Hostname()) {
		return false
	}
	ours, theirs := port(w.origin), port(u)
	return u.Scheme == w.origin.Scheme && theirs == ours || u.Scheme == "https" && theirs == "443" && ours == "80"
}

// port returns the port that a URL leads to.
func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
