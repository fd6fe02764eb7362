package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/host/child"
)

// lastEvent is what the SDK reads at the end of a connection: it is not a message, so the SDK closes the
// connection at once.
const lastEvent = "data: closed\n\n"

// How a stream is opened again.
const (
	minRetry   = 100 * time.Millisecond // the least that a server may ask for
	firstRetry = time.Second            // if the server asks for no time; it doubles
	mostRetry  = 30 * time.Second
	maxResumes = 5           // in a row without news, for the stream of an answer
	openWait   = time.Second // how long the handshake waits for the stream of notifications
)

// events is a stream of server-sent events, as the SDK reads it. Texts that are not messages are left out,
// and a server that is too far ahead is not read. If the stream ends too soon, another one continues it,
// and the SDK does not notice.
type events struct {
	conn    *conn
	ctx     context.Context // of the request; ends with the connection
	release func()
	closed  sync.Once

	web      *web       // the server that open uses; nil = there is none
	own      jsonrpc.ID // id of the request that the stream answers; not valid = none
	open     opener     // makes the next stream; nil = there is none
	standing bool       // it lasts as long as the session
	spent    bool       // the answer was passed on: the SDK ignores all that follows

	first   chan opened  // gets the first stream, if open makes it; nil = it was taken
	reader  *eventReader // nil = there is no stream now
	session int          // the number of the session that the stream belongs to
	last    string       // id of the last event; "" = it has none
	retry   time.Duration
	pace    child.Backoff
	began   time.Time // when the stream was opened
	news    bool      // an event came since then
	ever    bool      // there was a stream

	queue []message // to be passed on
	ready []byte    // to be read next
	err   error     // returned after ready was read

	mu   sync.Mutex // guards body
	body io.Closer  // of the stream; nil = there is none
}

// opener opens a stream that continues after the event with the id last. It gives up when ctx ends.
type opener func(ctx context.Context, last string) opened

// opened is a stream of a session, or the error for it.
type opened struct {
	body    io.ReadCloser
	session int // its number
	err     error
}

func newEvents(ctx context.Context, c *conn, body io.ReadCloser, release func()) *events {
	e := &events{conn: c, ctx: ctx, release: release, ever: body != nil}
	e.pace = child.Backoff{First: firstRetry, Most: mostRetry, Jitter: 0.1, Enough: steadyAfter}
	if c.link.env.firstRetry > 0 {
		e.pace.First = c.link.env.firstRetry
	}
	if body != nil {
		e.begin(opened{body: body})
	}
	return e
}

// begin starts to read a new stream.
func (e *events) begin(o opened) {
	e.mu.Lock()
	e.body = o.body
	e.mu.Unlock()
	e.reader, e.session, e.began, e.news, e.ever = newEventReader(o.body), o.session, e.conn.link.env.Now(), false, true
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
		e.release()
		err = e.drop()
		if e.first != nil { // the first stream is open, or fails now
			o := <-e.first
			if o.err == nil {
				err = o.body.Close()
			}
		}
	})
	return err
}

// drop closes the stream.
func (e *events) drop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.body == nil {
		return nil
	}
	defer func() { e.body = nil }()
	return e.body.Close()
}

// next returns the text of the next event for the SDK, which may be empty.
func (e *events) next() ([]byte, error) {
	switch {
	case len(e.queue) > 0:
		m := e.queue[0]
		e.queue = e.queue[1:]
		return e.pass(m), nil
	case e.reader == nil && e.open == nil:
		return nil, io.EOF
	case e.reader == nil:
		return nil, e.reopen()
	}
	ev, err := e.reader.next()
	if err != nil {
		return nil, e.ended(err)
	}
	return e.take(&ev), nil
}

// take handles an event: it queues the messages in it. It returns text only for the endpoint event of SSE.
func (e *events) take(ev *event) []byte {
	if ev.retry != 0 {
		e.retry = ev.retry
	}
	data := trim(ev.data)
	e.news = e.news || len(data) > 0 || ev.over != nil || ev.id != "" && ev.id != e.last
	if ev.id != "" {
		e.last = ev.id
	}
	switch {
	case ev.over != nil:
		e.conn.skip([]byte("an event"), errLong)
		e.queue = ev.over.failed(e.own, errLong)
	case len(data) == 0:
	case e.conn.transport == SSE && ev.name == "endpoint":
		return fmt.Appendf(nil, "event: endpoint\ndata: %s\n\n", data)
	case ev.name == "" || ev.name == "message":
		e.queue = answerLast(e.conn.read(data, e.own), e.own)
	}
	return nil
}

// answerLast moves the answer to the request with the id own behind the other messages: the SDK stops
// reading after it.
func answerLast(all []message, own jsonrpc.ID) []message {
	slices.SortStableFunc(all, func(a, b message) int { return rank(a, own) - rank(b, own) })
	return all
}

func rank(m message, own jsonrpc.ID) int {
	if answers(m, own) {
		return 1
	}
	return 0
}

// answers reports whether a message is the answer to the request with the id own.
func answers(m message, own jsonrpc.ID) bool {
	answer, ok := m.Message.(*jsonrpc.Response)
	return ok && own.IsValid() && answer.ID == own
}

// pass waits until a message may pass and returns its text as events.
func (e *events) pass(m message) (text []byte) {
	if e.spent {
		return nil // the SDK would never answer a mark
	}
	for _, m := range e.conn.admit(m) {
		line, err := m.encoded()
		if err != nil {
			e.conn.skip(m.text, err)
			continue
		}
		for line := range bytes.Lines(line) {
			text = fmt.Appendf(text, "data: %s\n", bytes.TrimRight(line, "\r\n"))
		}
		text = append(text, '\n')
	}
	e.spent = answers(m, e.own)
	return text
}

// ended handles the end of the stream. It returns an error if no other stream is to follow.
func (e *events) ended(why error) error {
	_ = e.drop() // it has ended
	e.reader = nil
	if e.open == nil || e.spent || !e.standing && e.last == "" {
		e.open = nil
		return why
	}
	now := e.conn.link.env.Now()
	if e.pace.Down(now, why, now.Sub(e.began), e.news); !e.standing && e.pace.Failures > maxResumes {
		return e.giveUp(errors.New("it ended without the answer, again and again"))
	}
	return e.pause()
}

// reopen opens the stream again. If that fails again and again, a request gets an error, but the stream of
// notifications is tried on: the server may have one later.
func (e *events) reopen() error {
	var o opened
	if e.first != nil {
		o, e.first = <-e.first, nil
	} else {
		o = e.open(e.ctx, e.last)
	}
	var refused *refusal
	switch {
	case e.ctx.Err() != nil:
		if o.err == nil {
			_ = o.body.Close() // nobody reads it
		}
		return context.Cause(e.ctx)
	case o.err == nil:
		e.begin(o)
		return nil
	case !errors.As(o.err, &refused):
	case e.standing && (!e.ever && refused.status < 500 || refused.isNever()):
		e.session = o.session
		return e.sleep(nil) // until there is a new session
	case !e.standing && refused.status < 500:
		return e.giveUp(o.err)
	}
	e.session = o.session
	if e.pace.Down(e.conn.link.env.Now(), o.err, 0, false); !e.standing && e.pace.Failures > maxResumes {
		return e.giveUp(o.err)
	}
	return e.pause()
}

// isNever reports whether a refusal says that the server never has such a stream.
func (r *refusal) isNever() bool {
	return r.status == http.StatusMethodNotAllowed || r.status == http.StatusNotImplemented || r.status < 300
}

// giveUp ends the stream and makes the error the answer to the request.
func (e *events) giveUp(why error) error {
	e.open = nil
	text := "the stream of its answer was lost, and cannot be resumed: " + e.conn.link.text(why)
	e.queue = []message{{Message: &jsonrpc.Response{ID: e.own, Error: &jsonrpc.Error{Code: codeLost, Message: text}}}}
	return nil
}

// pause waits before the stream is opened again.
func (e *events) pause() error {
	wait := e.pace.Wait(e.conn.link.env.Now())
	switch {
	case e.retry > 0 && e.pace.Failures <= 1:
		wait = e.retry
	case wait == 0:
		wait = e.pace.First
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	return e.sleep(timer.C)
}

// sleep waits for until, for another session, or for the end of ctx, which is an error.
func (e *events) sleep(until <-chan time.Time) error {
	if now := e.web.current(); now.count == e.session {
		select {
		case <-until:
		case <-now.life.Done():
		case <-e.ctx.Done():
			return context.Cause(e.ctx)
		}
	}
	if e.web.current().count != e.session {
		e.last, e.pace.Failures = "", 0 // the ids were those of the session before
	}
	return nil
}

// listen answers the SDK's request for notifications with a stream that lasts as long as the connection.
// The server's own stream is optional: if it is lost, only its notifications are lost.
func (w *web) listen(req *http.Request) *http.Response {
	ctx, release := w.bound(req)
	e := newEvents(ctx, w.conn, nil, release)
	e.web, e.standing, e.first = w, true, make(chan opened, 1)
	e.open = w.inSession(w.opener(http.MethodGet, req.URL.String(), req.Header, nil))
	made := made(req, http.StatusOK, "text/event-stream", "")
	made.Body, made.ContentLength = e, -1
	here := make(chan struct{})
	w.conn.goes.Go(func() {
		defer close(here)
		e.first <- e.open(ctx, "")
	})
	timer := time.NewTimer(openWait) // so the first notifications are not missed
	defer timer.Stop()
	select {
	case <-here:
	case <-timer.C:
	case <-ctx.Done():
	}
	return made
}

// answering makes the stream the one that answers a call. It can be resumed if its events have ids. A
// stream of notifications, as in the newest MCP, is requested again instead.
func (e *events) answering(w *web, req *http.Request, call *jsonrpc.Request) {
	e.web, e.own, e.session = w, call.ID, w.current().count
	header := req.Header.Clone()
	if body, err := encode(call); err == nil && call.Method == methodListen {
		open := w.opener(http.MethodPost, req.URL.String(), header, body)
		e.standing, e.open = true, func(ctx context.Context, _ string) opened { return open(ctx, "") }
		return
	}
	header.Del("Content-Type")
	e.open = w.opener(http.MethodGet, req.URL.String(), header, nil)
}

// opener returns a function that opens a stream by a request.
func (w *web) opener(method, to string, header http.Header, body []byte) opener {
	return func(ctx context.Context, last string) opened {
		in := w.current()
		h := in.header(header)
		h.Set("Accept", "text/event-stream")
		if last != "" {
			h.Set(lastHeader, last)
		}
		resp, err := w.send(ctx, method, to, h, body)
		if err == nil && (resp.StatusCode >= 300 || !isStream(resp)) {
			_ = resp.Body.Close() // it is not what was asked for
			err = &refusal{resp.StatusCode}
		}
		if err != nil {
			return opened{session: in.count, err: err}
		}
		return opened{body: resp.Body, session: in.count}
	}
}

// inSession returns an opener whose streams end with their session.
func (w *web) inSession(open opener) opener {
	return func(ctx context.Context, last string) opened {
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(w.current().life, cancel)
		release := func() {
			stop()
			cancel()
		}
		o := open(ctx, last)
		if o.err != nil {
			release()
			return o
		}
		o.body = &limited{Reader: o.body, body: o.body, release: release}
		return o
	}
}
