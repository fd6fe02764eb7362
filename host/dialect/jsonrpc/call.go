package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/audit"
	"a2e/host/trace"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// callOverhead is what a request costs in memory beyond its line.
const callOverhead = 512

// call is one request or notification.
type call struct {
	id       jsontext.Value
	quiet    bool // a notification
	method   string
	params   protocol.Object
	shape    byte // of the parameters, as jsonrpc.Request has it
	size     int
	answered atomic.Bool
	gone     chan struct{} // closed when the answer is written
	then     func()        // what follows the answer, unless that is an error; set by the method
	began    time.Time     // when it came
	span     *trace.Span

	// The fields below are guarded by Front.mu.
	session string                  // the one it is of
	waits   bool                    // it stands in a list of those that did not begin
	dropped bool                    // it shall not begin any more
	stop    context.CancelCauseFunc // nil = it does not run, or cannot be stopped
	tool    string                  // the id of the call of a tool that it made
}

func newCall(r jsonrpc.Request, size int) *call {
	return &call{
		id: slices.Clone(r.ID), quiet: r.Notification, method: r.Method, params: r.Params.Clone(), shape: r.Shape,
		size: size + callOverhead, gone: make(chan struct{}), began: time.Now(),
	}
}

// parent returns the trace that the client's request is part of; "" = it does not say.
func (c *call) parent() string {
	meta, _ := c.params.Child("_meta")
	return meta.Text("traceparent")
}

func (f *Front) serve(ctx context.Context, m method, c *call) {
	var result any
	ctx = trace.With(ctx, c.span)
	err := error(jsonrpc.Errorf(jsonrpc.CodeInternal, "the method %s broke off", c.method))
	defer func() { // also when a tool ends this goroutine
		f.answer(c, result, err)
		if err == nil && c.then != nil {
			c.then()
		}
	}()
	defer func() {
		if v := recover(); v != nil {
			f.logger().Error().Str("method", c.method).Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a JSON-RPC method panicked")
		}
	}()
	if result, err = m.run(f, ctx, c); errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = cmp.Or(context.Cause(ctx), err)
	}
}

// answer sends the one answer to a request.
func (f *Front) answer(c *call, result any, err error) {
	if c.answered.Swap(true) {
		return
	}
	f.close(c) // before the client, who may ask for it, can know
	line, err := f.line(c, result, err)
	if c.quiet {
		line = nil
	}
	f.record(c, len(line), err)
	if !c.quiet {
		f.out.Send(line)
	} else if err != nil {
		f.logger().Debug().Err(err).Str("method", c.method).Msg("a notification was refused")
	}
	close(c.gone)
}

// record puts a request into the audit trail. The correlation id is that of the call of a
// tool.
func (f *Front) record(c *call, size int, err error) {
	e := audit.Entry{
		Duration: time.Since(c.began), Success: err == nil, ReqID: string(c.id),
		InputBytes: c.size - callOverhead, OutputBytes: size, Type: c.method,
	}
	if text, ok := protocol.Value(c.id).Str(); ok {
		e.ReqID = text
	}
	if id, ok := c.params.Get("session_id"); ok {
		e.SessionID, _ = id.Str()
	}
	if err != nil {
		e.ErrorCode = codeOf(jsonrpc.From(err))
	}
	f.mu.Lock()
	e.CorrelationID = c.tool
	f.mu.Unlock()
	if e.CorrelationID != "" {
		e.Capability = string(protocol.CapTools)
	}
	host.Trail(f.ctx, e, c.span)
}

// codeOf returns the code of an error in words: A2E's, where it is one.
func codeOf(e *jsonrpc.Error) string { return fmt.Sprint(cmp.Or(e.Data["code"], e.Data["reason"])) }

// close has a request count no more. One that stands in a list counts until it is taken out,
// or a client could fill that with requests that it takes back.
func (f *Front) close(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !c.waits {
		f.closeLocked(c)
	}
}

func (f *Front) closeLocked(c *call) {
	if _, there := f.open[c]; !there {
		return
	}
	delete(f.open, c)
	f.room.Leave(c.size)
	if same := slices.DeleteFunc(f.byID[c.key()], func(other *call) bool { return other == c }); len(same) > 0 {
		f.byID[c.key()] = same
	} else {
		delete(f.byID, c.key())
	}
}

// key is what $/cancelRequest finds a request by; "" = a notification.
func (c *call) key() string { return jsonrpc.Key(c.id) }

// line makes the answer, and gives the error of one whose result does not encode.
func (f *Front) line(c *call, result any, err error) ([]byte, error) {
	if err == nil {
		text, bad := protocol.AppendJSON(nil, result)
		if bad == nil {
			return jsonrpc.AppendResult(nil, c.id, text), nil
		}
		err = bad
	}
	e := jsonrpc.From(err)
	if f.debugging() {
		e = &jsonrpc.Error{Code: e.Code, Message: e.Message, Data: maps.Clone(e.Data)}
		e.With("debug", map[string]any{"method": c.method, "error": err.Error()})
	}
	return jsonrpc.AppendError(nil, c.id, e), err
}

func (f *Front) event(t jsonrpc.EventType, payload any) {
	text, err := protocol.AppendJSON(nil, payload)
	if err != nil {
		f.logger().Error().Err(err).Str("event", string(t)).Msg("an event does not encode")
		return
	}
	f.out.Send(jsonrpc.AppendEvent(nil, t, stamp(f.opts.Now()), text))
}

// stamp writes a time as events and results have it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// method serves one method.
type method struct {
	run   func(f *Front, ctx context.Context, c *call) (any, error)
	at    lane
	takes shape
	works func(f *Front) bool // whether rpc.handshake lists it; nil = it does
}

// shape says what the parameters of a method must be.
type shape int

const (
	whatever shape = iota // they are not looked at, or all of them are optional filters
	optional              // an object, or nothing
	required              // an object
)

// fits reports whether parameters that came as JSON of a kind are what the method takes.
func (s shape) fits(kind byte) bool {
	return s == whatever || kind == '{' || kind == 0 && s == optional
}

// text is a text of the client, without space around it; null is none.
type text string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *text) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var s string
	err := json.UnmarshalDecode(dec, &s)
	*t = text(strings.TrimSpace(s))
	return err
}

// taking makes a method of what one does with parameters. Those that are named must be texts
// that are not blank.
func taking[P any](run func(*Front, context.Context, *call, *P) (any, error), texts ...string) func(*Front, context.Context, *call) (any, error) {
	return func(f *Front, ctx context.Context, c *call) (any, error) {
		for _, name := range texts {
			val, _ := c.params.Get(name)
			if s, ok := val.Str(); !ok || strings.TrimSpace(s) == "" {
				return nil, c.wrong(name, "must be a non-empty string")
			}
		}
		var req P
		if err := protocol.Decode(c.params, nil, &req); err != nil {
			e := jsonrpc.From(err)
			field, _ := e.Data["field"].(string)
			return nil, c.wrong(field, strings.TrimPrefix(e.Message, field+": "))
		}
		return run(f, ctx, c, &req)
	}
}

// wrong is the error of a parameter.
func (c *call) wrong(field, why string) *jsonrpc.Error {
	e := jsonrpc.Params(field, why)
	e.Message = "invalid params for " + c.method + ": " + field + " " + why
	return e
}

// named is the parameters of a method on a session.
type named struct {
	SessionID text `json:"session_id"`
}

func (n named) of() string { return string(n.SessionID) }

// onSession makes a method of what one does with a session and its parameters. The session
// stays in memory meanwhile.
func onSession[P interface{ of() string }](run func(*Front, context.Context, *call, *session, *P) (any, error), texts ...string) func(*Front, context.Context, *call) (any, error) {
	return taking(func(f *Front, ctx context.Context, c *call, req *P) (any, error) {
		s, err := f.get(ctx, (*req).of())
		if err != nil {
			return nil, err
		}
		defer f.unpin(s)
		return run(f, ctx, c, s, req)
	}, append([]string{"session_id"}, texts...)...)
}

// quoted shows a name of the client in an error.
func quoted(name string) string { return string(protocol.AppendString(nil, protocol.Clip(name, 64))) }
