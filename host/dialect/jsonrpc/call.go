package jsonrpc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	id      jsontext.Value
	quiet   bool // a notification
	method  string
	params  protocol.Object
	shape   byte // of the parameters, as jsonrpc.Request has it
	session string
	size    int
	key     string // of Front.open, and its number among those that came; set by workOf
	number  int
	gone    chan struct{} // closed when the answer is written
	then    func()        // what follows the answer, unless that is an error; set by the method
	after   func()        // then, of an answer that is no error
	began   time.Time     // when it came
	span    *trace.Span
	work    *host.Work

	// The fields below are guarded by Front.mu.
	runs bool
	tool string // the id of the call of a tool that it made
}

func newCall(r jsonrpc.Request, size int) *call {
	return &call{
		id: slices.Clone(r.ID), quiet: r.Notification, method: r.Method, params: r.Params.Clone(), shape: r.Shape,
		session: strings.TrimSpace(r.Params.Text("session_id")), size: size + callOverhead,
		gone: make(chan struct{}), began: time.Now(),
	}
}

// parent returns the trace that the client's request is part of; "" = it does not say.
func (c *call) parent() string {
	meta, _ := c.params.Child("_meta")
	return meta.Text("traceparent")
}

// answer returns the line of the one answer to a request, with its end; nil = a notification has none.
func (f *Front) answer(c *call, resp any, err error) []byte {
	f.close(c) // before the client, who may ask for it, can know
	out, _ := resp.(outcome)
	line, err := f.line(c, out.result, err)
	if c.quiet {
		line = nil
	}
	f.record(c, len(line), err)
	switch {
	case err == nil:
		c.after = out.then
	case c.quiet:
		f.logger().Debug().Err(err).Str("method", c.method).Msg("a notification was refused")
	}
	if line == nil {
		return nil
	}
	return append(line, '\n')
}

// answered does what follows the answer, which is written.
func (f *Front) answered(c *call) {
	defer f.work.Done()
	close(c.gone)
	if c.after != nil {
		c.after()
	}
}

// record puts a request into the audit trail. The correlation id is that of the call of a
// tool.
func (f *Front) record(c *call, size int, err error) {
	e := audit.Entry{
		Duration: time.Since(c.began), Success: err == nil, ReqID: string(c.id),
		InputBytes: c.size - callOverhead, OutputBytes: size, Type: c.method, SessionID: c.session,
	}
	if text, ok := protocol.Value(c.id).Str(); ok {
		e.ReqID = text
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

// close has a request count no more.
func (f *Front) close(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	same := slices.DeleteFunc(f.open[c.key], func(other *call) bool { return other == c })
	if f.open[c.key] = same; len(same) == 0 {
		delete(f.open, c.key)
	}
}

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
	uses  uses
	lets  bool // it decides on what the client may do, too
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
