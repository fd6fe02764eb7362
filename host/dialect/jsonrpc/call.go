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
	"a2e/host/observe/event"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

type method struct {
	run   handler
	uses  uses
	lets  bool // it decides on what the client may do, too
	takes shape
	texts string                           // names of parameters that must be texts that are not blank
	works func(f *Front) []host.WorkerInfo // rpc.handshake lists it where there are such workers; nil = in any case
}

type handler func(f *Front, ctx context.Context, c *call) (any, error)

// shape says what the parameters of a method must be.
type shape int

const (
	whatever  shape = iota // they are not looked at, or all of them are optional filters
	optional               // an object, or nothing
	required               // an object
	ofSession              // an object with a session_id, of which the session is call.on
)

// uses says what the requests of a method use, which decides their order.
type uses int

const (
	aChange uses = iota // they change sessions, or what else the store keeps
	aLook               // they read that
	aside               // they need none of that: they tell what the client may do, or change what it is told
	nothing
	aList // they ask plugins, one of each method after the other
	aTool // they run a tool: they take a slot
)

// The keys of what requests use. A change takes effect before what comes after it, whoever it
// is for: a session is mentioned in the state and in the history, too.
const (
	keySessions = "rpc/sessions/"
	keyAccess   = "rpc/access/"
	keyList     = "rpc/list/" // the method follows
)

func (m *method) claims(name string) (claims []protocol.Claim) {
	claim := func(key string, access protocol.Access) {
		claims = append(claims, protocol.Claim{Key: key, Access: access})
	}
	switch m.uses {
	case aChange:
		claim(keySessions, protocol.Exclusive)
	case aLook:
		claim(keySessions, protocol.Shared)
	case aList:
		claim(keySessions, protocol.Follows)
		claim(keyList+name+"/", protocol.Exclusive)
	case aTool:
		claim(keySessions, protocol.Follows)
	}
	if m.uses == aside || m.lets {
		claim(keyAccess, protocol.Exclusive)
	}
	return claims
}

// call is one request or notification.
type call struct {
	id      jsontext.Value
	key     string // of the id, see jsonrpc.Key
	quiet   bool   // a notification
	method  string
	uses    uses
	params  protocol.Object
	shape   byte     // of the parameters, as jsonrpc.Request has it
	session string   // session_id
	on      *session // that
	args    []string // of a command that is no tool
	size    int
	number  int           // among those that came; set by workOf
	gone    chan struct{} // closed when the answer is written
	reason  string        // why the state is another now, "" = it is not; set by the method, as what follows
	created string        // the id of a new session
	then    func()        // what follows an answer that is no error
	served  bool          // the answer is no error
	began   time.Time     // when it came
	span    context.Context
	work    *host.Work

	// The fields below are guarded by Front.mu.
	runs bool
	tool string // the id of the call of a tool that it made
}

func newCall(r jsonrpc.Request, size int) *call {
	return &call{
		id: slices.Clone(r.ID), key: jsonrpc.Key(r.ID), quiet: r.Notification, method: r.Method,
		params: r.Params.Clone(), shape: r.Shape, session: strings.TrimSpace(r.Params.Text("session_id")),
		size: size + callOverhead, gone: make(chan struct{}), began: time.Now(),
	}
}

// workOf makes a request one of the host's scheduler.
func (f *Front) workOf(c *call) *host.Work {
	m, known := f.methods[c.method]
	if !known {
		m.uses = aside // a handshake before it decides on the answer
	}
	c.span = host.Trace(f.ctx, c.method, "", func() string { // the client's span; "" = it says none
		meta, _ := c.params.Child("_meta")
		return meta.Text("traceparent")
	})
	if compress, _ := c.params.Get("compress_immediately"); c.method == jsonrpc.ModelSelect && compress.Kind() == 't' {
		m.uses = aList // it waits for a model, and others not for it
	}
	c.uses = m.uses
	c.work = &host.Work{
		Name: c.method, Claims: m.claims(c.method), Ahead: m.uses != aTool, Size: len(c.params.Raw()), Span: c.span,
		Run:      func(ctx context.Context) (any, error) { return f.serve(ctx, c) },
		Answer:   func(resp any, err error) []byte { return f.answer(c, resp, err) },
		Answered: func() { f.answered(c) },
	}
	if call, ok := f.toolCall(c.params.Text("raw_command")); ok && m.uses == aTool {
		c.work.Type, c.work.Object = protocol.TypeToolCallReq, call
	}
	f.work.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.came++
	c.number = f.came
	f.open[c] = true
	return c.work
}

func (f *Front) serve(ctx context.Context, c *call) (any, error) {
	m, known := f.methods[c.method]
	f.mu.Lock()
	c.runs = true
	admitted := f.admitted
	f.mu.Unlock()
	switch {
	case !admitted && c.method != jsonrpc.Handshake && c.method != jsonrpc.Ping:
		return nil, unauthorized("send rpc.handshake with the host's auth_token first")
	case !known:
		return nil, jsonrpc.NotFound(c.method)
	case m.takes != whatever && c.shape != '{' && (m.takes != optional || c.shape != 0):
		return nil, jsonrpc.NotObject(c.method)
	}
	texts := m.texts
	if m.takes == ofSession {
		texts = "session_id " + texts
	}
	for name := range strings.FieldsSeq(texts) {
		if strings.TrimSpace(c.params.Text(name)) == "" {
			return nil, c.wrong(name, "must be a non-empty string")
		}
	}
	if m.takes == ofSession {
		s, err := f.get(ctx, c.session)
		if err != nil {
			return nil, err
		}
		c.on = s
	}
	result, err := m.run(f, ctx, c)
	if err == nil && c.reason != "" {
		f.changed(ctx, c)
	}
	return result, err
}

// taking makes a handler of one with parameters.
func taking[P any](run func(*Front, context.Context, *call, *P) (any, error)) handler {
	return func(f *Front, ctx context.Context, c *call) (any, error) {
		var req P
		if err := protocol.Decode(c.params, nil, &req); err != nil {
			e := jsonrpc.From(err)
			field, _ := e.Data["field"].(string)
			return nil, c.wrong(field, strings.TrimPrefix(e.Message, field+": "))
		}
		return run(f, ctx, c, &req)
	}
}

func (c *call) wrong(field, why string) *jsonrpc.Error {
	return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "invalid params for %s: %s %s", c.method, field, why).
		With("field", field)
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

// quoted shows a name of the client in an error.
func quoted[T ~string](name T) string {
	return string(protocol.AppendString(nil, protocol.Clip(name, 64)))
}

// cancel serves $/cancelRequest: requests that ask plugins or run a tool are stopped, whether they wait or run.
func (f *Front) cancel(c *call) {
	id, _ := c.params.Get("id")
	key := jsonrpc.Key(jsontext.Value(id))
	cause := protocol.Errorf(protocol.CodeCancelled, "cancelled by %s", jsonrpc.CancelMethod)
	f.stopOpen(cause, func(c *call) bool {
		return c.key == key && !c.quiet && (c.uses == aList || c.uses == aTool)
	})
	f.answer(c, nil, nil)
}

// stopOpen stops the requests without their answer that match, and returns how many.
func (f *Front) stopOpen(cause error, match func(*call) bool) (stopped int) {
	var works []*host.Work
	f.mu.Lock()
	for c := range f.open {
		if match(c) {
			works = append(works, c.work)
		}
	}
	f.mu.Unlock()
	return host.StopAll(cause, works...)
}

// answer returns the line of the one answer to a request, with its end; nil = a notification has none.
func (f *Front) answer(c *call, result any, err error) []byte {
	f.mu.Lock()
	delete(f.open, c) // before the client, who may ask for it, can know
	tool := c.tool
	f.mu.Unlock()
	line, err := f.line(c, result, err)
	if c.served = err == nil; c.quiet {
		line = nil
	}
	f.record(c, tool, len(line), err)
	if c.quiet && err != nil {
		f.opts.Log.Debug().Err(err).Str("method", c.method).Msg("a notification was refused")
	}
	if line == nil {
		return nil
	}
	return append(line, '\n')
}

// answered does what follows the answer, which is written.
func (f *Front) answered(c *call) {
	defer f.work.Done()
	defer close(c.gone)
	if c.served && c.then != nil {
		c.then()
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
	if f.debug.Load() {
		e = &jsonrpc.Error{Code: e.Code, Message: e.Message, Data: maps.Clone(e.Data)}
		e.With("debug", map[string]any{"method": c.method, "error": err.Error()})
	}
	return jsonrpc.AppendError(nil, c.id, e), err
}

// record puts a request into the audit trail. The correlation id is that of the call of a tool; "" = there was none.
func (f *Front) record(c *call, tool string, size int, err error) {
	e := event.Event{
		Duration: time.Since(c.began), CorrelationID: tool,
		ReqID:      strings.TrimPrefix(c.key, `"`), // the text of an id that is one
		InputBytes: c.size - callOverhead, OutputBytes: size, Type: c.method, SessionID: c.session,
	}
	if err != nil {
		e.ErrorCode = codeOf(jsonrpc.From(err))
	}
	if tool != "" {
		e.Capability = string(protocol.CapTools)
	}
	host.Trail(f.ctx, e, c.span)
}

// codeOf returns the code of an error in words: A2E's, where it is one.
func codeOf(e *jsonrpc.Error) string { return fmt.Sprint(cmp.Or(e.Data["code"], e.Data["reason"])) }

func (f *Front) event(t jsonrpc.EventType, payload any) {
	text, err := protocol.AppendJSON(nil, payload)
	if err != nil {
		f.opts.Log.Error().Err(err).Str("event", string(t)).Msg("an event does not encode")
		return
	}
	f.out.Send(jsonrpc.AppendEvent(nil, t, stamp(f.opts.Now()), text))
}

// stamp writes a time as events and results have it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
