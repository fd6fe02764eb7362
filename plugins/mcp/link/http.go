package link

import (
	"bufio"
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/webguard"
)

// The bounds of one HTTP connection.
const (
	dialTimeout   = 10 * time.Second
	deleteTimeout = time.Second
	maxHops       = 5
	maxHeader     = 64 << 10 // bytes of the headers of an answer
	maxPlain      = 64 << 10 // bytes of an answer that is no message, such as that of an error
)

// web is a server that is reached by HTTP. It is the carrier, and the RoundTripper of the
// SDK's transport.
type web struct {
	mcp.Transport
	conn   *conn
	base   *http.Transport
	origin *url.URL
	guard  *webguard.Guard // nil = it may lead anywhere

	mu     sync.Mutex // guards status
	status int        // of the first answer to a POST that refused it; 0 = none has
}

func newWeb(c *conn) (carrier, error) {
	origin, err := url.Parse(c.link.cfg.URL)
	if err != nil {
		return nil, errors.New("its url cannot be read")
	}
	w := &web{conn: c, origin: origin}
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
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxHeader, MaxIdleConns: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	client := &http.Client{Transport: w, CheckRedirect: w.redirect}
	if c.transport == SSE {
		w.Transport = &mcp.SSEClientTransport{Endpoint: c.link.cfg.URL, HTTPClient: client, MaxEventSize: 2 * maxLine}
	} else {
		w.Transport = &mcp.StreamableClientTransport{Endpoint: c.link.cfg.URL, HTTPClient: client, MaxEventSize: 2 * maxLine}
	}
	return w, nil
}

// RoundTrip implements http.RoundTripper.
func (w *web) RoundTrip(req *http.Request) (*http.Response, error) {
	msg, err := carried(req)
	if err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	if answer, ok := msg.(*jsonrpc.Response); ok && w.conn.gate.answer(answer.ID.Raw()) {
		return made(req, http.StatusAccepted, "", ""), closeBody(req)
	}
	if w.conn.life.Err() != nil && req.Method == http.MethodGet {
		return made(req, http.StatusOK, "text/event-stream", lastEvent), nil
	}
	ctx, release := w.bound(req)
	sent := req.Clone(ctx)
	if raw := unwrap(msg); raw != msg {
		body, err := jsonrpc.EncodeMessage(raw)
		if err != nil {
			release()
			return nil, errors.Join(err, closeBody(req))
		}
		sent.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		nameRequest(sent.Header, raw)
	}
	if w.guard != nil { // also for where a redirect or the server itself leads
		if bad := w.guard.CheckURL(sent.URL); bad != nil {
			release()
			return nil, errors.Join(bad, closeBody(req))
		}
	}
	if w.own(req.URL) {
		for name, value := range w.conn.link.cfg.Headers {
			sent.Header.Set(name, value)
		}
	}
	resp, err := w.base.RoundTrip(sent)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		release()
		return nil, err
	}
	resp.Request = req
	return w.take(resp, msg, release)
}

// bound returns the context of a request, which ends with the connection. Only the one
// that ends the session comes after that.
func (w *web) bound(req *http.Request) (ctx context.Context, release func()) {
	if req.Method == http.MethodDelete {
		return context.WithTimeout(req.Context(), deleteTimeout)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(w.conn.life, func() { cancel(context.Cause(w.conn.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// take bounds and filters what came for a request that carried msg.
func (w *web) take(resp *http.Response, msg jsonrpc.Message, release func()) (*http.Response, error) {
	call, _ := msg.(*jsonrpc.Request)
	if call != nil && !call.IsCall() {
		call = nil
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // without one it is ""
	w.conn.gate.hear()
	switch good := resp.StatusCode >= 200 && resp.StatusCode < 300; {
	case good && media == "text/event-stream":
		stream := newEvents(w.conn, resp.Body, release)
		if stream.resumed = resp.Request.Header.Get("Last-Event-ID") != ""; call != nil {
			stream.call = call.ID.Raw()
		}
		resp.Body = stream
		return resp, nil
	case good && media == "application/json" && call != nil && w.conn.transport == HTTP:
		defer release()
		return w.whole(resp)
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

// whole reads an answer that is one message. What is wrong with it is the failure of the
// request, not that of the connection.
func (w *web) whole(resp *http.Response) (*http.Response, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLine+1))
	_ = resp.Body.Close() // it was read
	if err != nil {
		return nil, fmt.Errorf("its answer broke off: %w", err)
	}
	text = bytes.TrimSpace(text)
	msg, err := decode(text)
	if _, ok := msg.(*jsonrpc.Response); err == nil && !ok {
		err = errors.New("a request or notification instead of an answer")
	}
	if err != nil {
		w.conn.skip(text, err)
		return nil, fmt.Errorf("its answer is no message: %w", err)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return resp, nil
}

// finish implements carrier. What is under way is cut, so that the session can end.
func (w *web) finish(_ context.Context, session *mcp.ClientSession) {
	w.conn.kill(errClosed)
	if session != nil {
		_ = session.Close() // the server may be gone
	}
}

// release implements carrier.
func (w *web) release() { w.base.CloseIdleConnections() }

// why implements carrier: what the status of the handshake tells.
func (w *web) why(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn.session != nil {
		return err
	}
	switch w.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusUnsupportedMediaType:
		return fmt.Errorf("%w: %w", &refusal{w.status}, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("it was refused with HTTP status %d; the headers of the config should carry what the server asks for: %w", w.status, err)
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

// made is an answer that did not come over the network.
func made(req *http.Request, status int, media, body string) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {media}},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}

// limited is the start of a body.
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

// redirect follows a redirect. The headers of the config stay behind where it leads to
// another host, see RoundTrip.
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

// own reports whether a URL leads to the host of the config, by no weaker a way.
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

// lastEvent is what the SDK reads at the end of a connection: as it is no message, the
// SDK returns the connection up at once, in place of trying to resume the stream.
const lastEvent = "data: closed\n\n"

// minRetry is the least that a server may have the SDK wait before it resumes a stream, in
// milliseconds.
const minRetry = 100

// events filters a stream of server-sent events: what is no message is left out, and a
// server that gets too far ahead is not read.
type events struct {
	conn    *conn
	body    io.ReadCloser
	lines   *bufio.Scanner
	release func()
	closed  sync.Once

	call    any  // id of the request that the stream answers; nil = none, or not known
	resumed bool // it goes on with another one, which may be that of any request
	spent   bool // the answer was there: the SDK throws away what comes after it

	ready []byte // to be read next
	err   error  // comes behind it
}

func newEvents(c *conn, body io.ReadCloser, release func()) *events {
	e := &events{conn: c, body: body, lines: bufio.NewScanner(body), release: release}
	e.lines.Buffer(nil, maxLine)
	return e
}

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.ready, e.err = e.next()
		if e.err != nil && e.conn.life.Err() != nil {
			e.ready, e.err = []byte(lastEvent), io.EOF
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// Close implements io.Closer.
func (e *events) Close() (err error) {
	e.closed.Do(func() {
		err = e.body.Close()
		e.release()
	})
	return err
}

// event is one of them.
type event struct {
	name string
	head []byte // its lines without the data
	data []byte // with a line break behind each line
	size int
}

// next returns the text of the next event that may pass, maybe nothing. An event without its
// end does not count, and one that is too long is the end of the stream, as for the SDK.
func (e *events) next() ([]byte, error) {
	var ev event
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			return e.pass(&ev)
		}
		if ev.size += len(line); ev.size > maxLine {
			return nil, broken("%w", errLong)
		}
		ev.field(line)
	}
	if err := e.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// field takes one line of an event.
func (ev *event) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		ev.data = append(append(ev.data, value...), '\n')
		return
	case "event":
		ev.name = string(value)
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 32); err == nil { // the SDK comes back as soon as it is told, again and again
			value = strconv.AppendUint(nil, max(ms, minRetry), 10)
		}
	case "id":
	default:
		return
	}
	ev.head = fmt.Appendf(ev.head, "%s: %s\n", name, value)
}

// pass returns the text of an event, as far as it may pass.
func (e *events) pass(ev *event) ([]byte, error) {
	if e.spent {
		return nil, nil // a mark in it would never be answered
	}
	if e.conn.transport == SSE && ev.name == "endpoint" {
		return ev.text(ev.data), nil
	}
	data := bytes.TrimSpace(ev.data)
	if len(data) == 0 || ev.name != "" && ev.name != "message" {
		return e.rest(ev), nil
	}
	all, err := e.conn.admit(data)
	switch {
	case err != nil:
		e.conn.skip(data, err)
		return e.rest(ev), nil
	case len(all) == 0:
		return nil, errClosed
	}
	if answer, ok := all[0].(*jsonrpc.Response); ok {
		e.spent = e.resumed || e.call != nil && answer.ID.Raw() == e.call
	}
	if req, ok := all[0].(*jsonrpc.Request); ok && isHandled(req.Method) {
		if data, err = jsonrpc.EncodeMessage(req); err != nil { // it may be wrapped
			return nil, err
		}
	}
	text := ev.text(data)
	if len(all) == 1 {
		return text, nil
	}
	ping, err := jsonrpc.EncodeMessage(all[1])
	if err != nil {
		return nil, err
	}
	return append(text, "data: "+string(ping)+"\n\n"...), nil
}

// rest is what counts of an event without a message: where to resume.
func (e *events) rest(ev *event) []byte {
	if e.conn.transport == SSE {
		return nil // the SDK takes each event there for a message
	}
	return ev.text(nil)
}

// text spells an event.
func (ev *event) text(data []byte) []byte {
	text := slices.Clone(ev.head)
	for line := range bytes.Lines(data) {
		text = fmt.Appendf(text, "data: %s\n", bytes.TrimRight(line, "\n"))
	}
	if len(text) > 0 {
		text = append(text, '\n')
	}
	return text
}
