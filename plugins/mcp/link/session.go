package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// httpSession is the session at an HTTP server. The SDK knows only the first one. If the server loses it, a
// new session replaces it in the requests that are sent.
type httpSession struct {
	id       string   // "" = the server gave none
	version  string   // MCP version agreed on in a new session; "" = the one that the SDK knows
	count    int      // sessions before this one
	known    bool     // the SDK has an id
	hello    []byte   // the request that begins a session
	renewing *renewal // the current renewal; nil = none

	life context.Context // of the session
	end  context.CancelFunc
}

// renewal is the start of a new session.
type renewal struct {
	done chan struct{} // closed at the end
	err  error         // set before done is closed
}

// current returns the current session.
func (w *web) current() httpSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.httpSession
}

// met notes the session id in an answer, and hides later ids from the SDK: it would end the connection for
// another id.
func (w *web) met(resp *http.Response) {
	id := resp.Header.Get(sessionHeader)
	if id == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known {
		resp.Header.Del(sessionHeader)
		return
	}
	w.id, w.known = id, true
}

// header returns the headers of a request in the session.
func (s *httpSession) header(of http.Header) http.Header {
	h := of.Clone()
	if h.Del(sessionHeader); s.id != "" {
		h.Set(sessionHeader, s.id)
	}
	if s.version != "" {
		h.Set(versionHeader, s.version)
	}
	return h
}

// exchange sends a request of the SDK. If the server has lost the session, it has not accepted the request:
// then a new session is begun, and the request is sent once more.
func (w *web) exchange(ctx context.Context, req *http.Request, msg jsonrpc.Message) (*http.Response, error) {
	var body []byte
	header := req.Header.Clone()
	if msg != nil {
		w.conn.sends(msg)
		var err error
		if body, err = encode(msg); err != nil {
			return nil, err
		}
		if call, ok := msg.(*jsonrpc.Request); ok {
			nameRequest(header, call)
			if call.Method == methodInitialize {
				w.mu.Lock()
				w.hello = body
				w.mu.Unlock()
			}
		}
	}
	for again := false; ; again = true {
		in := w.current()
		resp, err := w.send(ctx, req.Method, req.URL.String(), in.header(header), body)
		if err != nil || msg == nil || in.id == "" || !w.conn.up.Load() || !forgotten(resp) {
			return resp, err
		}
		_ = resp.Body.Close() // it was read
		if again {
			return nil, fmt.Errorf("%w, also in a new session", &refusal{resp.StatusCode})
		}
		if err := w.renew(ctx, in.count); err != nil {
			lost := &refusal{resp.StatusCode}
			return nil, fmt.Errorf("%w: the session is lost, and there is no new one: %w", lost, err)
		}
	}
}

// forgotten reports whether an answer says that the server does not know the session. By the
// specification its status is 404; older servers say it with 400, in words.
func forgotten(resp *http.Response) bool {
	if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusBadRequest {
		return false
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxPlain)) // an error leaves the part that was read
	resp.Body = &limited{Reader: bytes.NewReader(text), body: resp.Body, release: func() {}}
	if resp.StatusCode == http.StatusBadRequest {
		return strings.Contains(strings.ToLower(string(text)), "session")
	}
	m, _ := decode(trim(text), textID("")) // most are no message
	answer, ok := m.Message.(*jsonrpc.Response)
	return !ok || !errors.Is(answer.Error, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound})
}

// renew begins a session in place of the one with this number, once for all callers.
func (w *web) renew(ctx context.Context, number int) error {
	w.mu.Lock()
	r := w.renewing
	switch {
	case w.over:
		w.mu.Unlock()
		return errClosed
	case w.count != number: // another caller has begun it
		w.mu.Unlock()
		return nil
	case r == nil:
		r = &renewal{done: make(chan struct{})}
		w.renewing = r
		w.goes.Go(func() {
			r.err = w.begin()
			w.mu.Lock()
			w.renewing = nil
			w.mu.Unlock()
			close(r.done)
		})
	}
	w.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin begins a session.
func (w *web) begin() error {
	ctx, cancel := context.WithTimeout(w.conn.life, w.conn.link.cfg.ConnectTimeout)
	defer cancel()
	next := w.current()
	next.id, next.version = "", ""
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	resp, err := w.send(ctx, http.MethodPost, w.origin.String(), header, next.hello)
	if err != nil {
		return err
	}
	next.id = resp.Header.Get(sessionHeader)
	hello, err := w.introduction(resp)
	if err != nil {
		return err
	}
	next.version = hello.ProtocolVersion
	initialized := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp, err = w.send(ctx, http.MethodPost, w.origin.String(), next.header(header), initialized)
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // there is nothing in it
	if resp.StatusCode >= 300 {
		return &refusal{resp.StatusCode}
	}
	w.mu.Lock()
	w.id, w.version = next.id, next.version
	w.count++
	w.end()
	w.life, w.end = context.WithCancel(w.conn.life)
	w.mu.Unlock()
	w.conn.renewed(hello)
	return nil
}

// introduction reads the answer to a request that begins a session.
func (w *web) introduction(resp *http.Response) (*mcp.InitializeResult, error) {
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return nil, &refusal{resp.StatusCode}
	}
	own, _ := jsonrpc.MakeID(float64(w.conn.hello.Load().(int64))) // a number is always an id
	texts := func() ([]byte, error) { return io.ReadAll(io.LimitReader(resp.Body, maxLine+1)) }
	if isStream(resp) {
		lines := newEventReader(resp.Body)
		texts = func() ([]byte, error) {
			ev, err := lines.next()
			return ev.data, err
		}
	}
	for {
		text, err := texts()
		if err != nil {
			return nil, fmt.Errorf("its answer broke off: %w", err)
		}
		if len(trim(text)) == 0 && isStream(resp) {
			continue
		}
		all := w.conn.read(text, own)
		if at := slices.IndexFunc(all, func(m message) bool { return answers(m, own) }); at >= 0 {
			return introduced(all[at].Message.(*jsonrpc.Response))
		}
		if !isStream(resp) {
			return nil, errors.New("it did not answer")
		}
	}
}

// introduced reads how a server introduces itself.
func introduced(answer *jsonrpc.Response) (*mcp.InitializeResult, error) {
	if answer.Error != nil {
		return nil, answer.Error
	}
	hello := new(mcp.InitializeResult)
	if err := json.Unmarshal(answer.Result, hello, lenient()); err != nil {
		return nil, err
	}
	if !slices.Contains(mcp.SupportedProtocolVersions(), hello.ProtocolVersion) {
		return nil, fmt.Errorf("it speaks the unknown version %q of MCP now", hello.ProtocolVersion)
	}
	return hello, nil
}
