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
	"a2e/host/agent"
	"a2e/host/observe/event"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

type method struct {
	run   handler
	uses  uses
	lets  bool // it may change what the client is allowed to do
	takes shape
	texts string                            // names of parameters that must be non-blank strings, separated by spaces
	works func(f *Front) []agent.WorkerInfo // rpc.handshake lists the method if works returns any; nil = always
}

type handler func(f *Front, ctx context.Context, c *call) (any, error)

// shape says what the parameters of a method must be.
type shape int

const (
	whatever  shape = iota // not checked: the method ignores them, or they are optional filters
	optional               // an object, or nothing
	required               // an object
	ofSession              // an object with a session_id, whose session becomes call.on
)

// uses says what the requests of a method use. This decides their order.
type uses int

const (
	aChange uses = iota // they change sessions or other data of the store
	aLook               // they read such data
	aside               // they need no such data: they report what the client may do, or change what it is sent
	nothing
	aList // they ask plugins; the requests of one method run one after the other
	aTool // they run a tool, and take a slot
)

// The keys of the claims of requests. A change takes effect before all later requests, even of other sessions, because
// the state and the history show each session.
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
	on      *session // the session of session_id; nil = the method takes none
	args    []string // of a built-in command
	size    int
	number  int           // in the order of arrival, from 1; set by workOf
	gone    chan struct{} // closed when the answer is written
	reason  string        // why the state has changed; "" = it has not; set by the method, as created and then
	created string        // the id of a new session
	then    func()        // called after an answer that is not an error
	served  bool          // the answer is not an error
	began   time.Time     // time of arrival
	span    context.Context
	work    *host.Work

	// The fields below are guarded by Front.mu.
	runs bool
	tool string // the id of the tool call that it made; "" = none
}

func newCall(r jsonrpc.Request, size int) *call {
	return &call{
		id: slices.Clone(r.ID), key: jsonrpc.Key(r.ID), quiet: r.Notification, method: r.Method,
		params: r.Params.Clone(), shape: r.Shape, session: strings.TrimSpace(r.Params.Text("session_id")),
		size: size + callOverhead, gone: make(chan struct{}), began: time.Now(),
	}
}

// workOf returns the host.Work of a request.
func (f *Front) workOf(c *call) *host.Work {
	m, known := f.methods[c.method]
	if !known {
		m.uses = aside // an earlier handshake decides whether the client may know that
	}
	c.span = host.Trace(f.ctx, c.method, "", func() string { // the client's span; "" = none
		meta, _ := c.params.Child("_meta")
		return meta.Text("traceparent")
	})
	if compress, _ := c.params.Get("compress_immediately"); c.method == jsonrpc.ModelSelect && compress.Kind() == 't' {
		m.uses = aList // it waits for a model, and others must not wait for it
	}
	c.uses = m.uses
	c.work = &host.Work{
		Name: c.method, Claims: m.claims(c.method), NoSlot: m.uses != aTool, Size: len(c.params.Raw()), Span: c.span,
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

// taking makes a handler from a function with decoded parameters.
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

// text is a string of the client, without space around it; null becomes "".
type text string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *text) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var s string
	err := json.UnmarshalDecode(dec, &s)
	*t = text(strings.TrimSpace(s))
	return err
}

// quoted returns a name of the client as errors show it: quoted and cut.
func quoted[T ~string](name T) string {
	return string(protocol.AppendString(nil, protocol.Clip(name, 64)))
}

// cancel serves $/cancelRequest. It stops requests that ask plugins or run a tool, whether they wait or run.
func (f *Front) cancel(c *call) {
	id, _ := c.params.Get("id")
	key := jsonrpc.Key(jsontext.Value(id))
	cause := protocol.Errorf(protocol.CodeCancelled, "cancelled by %s", jsonrpc.CancelMethod)
	f.stopOpen(cause, func(c *call) bool {
		return c.key == key && !c.quiet && (c.uses == aList || c.uses == aTool)
	})
	f.answer(c, nil, nil)
}

// stopOpen stops the unanswered requests that match, and returns how many it stopped.
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

// answer returns the line of the answer to a request, with its newline; nil = a notification gets none. It is called
// once for each request.
func (f *Front) answer(c *call, result any, err error) []byte {
	f.mu.Lock()
	delete(f.open, c) // first, because a client that has the answer may ask for the open requests
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

// answered does what must follow the answer. The answer is written already.
func (f *Front) answered(c *call) {
	defer f.work.Done()
	defer close(c.gone)
	if c.served && c.then != nil {
		c.then()
	}
}

// line returns the line of an answer and its error. If the result does not encode, the answer and the error say so.
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

// record puts a request into the audit trail. tool is the id of its tool call and becomes the correlation id; "" =
// there was none.
func (f *Front) record(c *call, tool string, size int, err error) {
	e := event.Event{
		Duration: time.Since(c.began), CorrelationID: tool,
		ReqID:      strings.TrimPrefix(c.key, `"`), // the text of a string id
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

// codeOf returns the code of an error in words: the code of A2E if it has one, else its reason.
func codeOf(e *jsonrpc.Error) string { return fmt.Sprint(cmp.Or(e.Data["code"], e.Data["reason"])) }

func (f *Front) event(t jsonrpc.EventType, payload any) {
	text, err := protocol.AppendJSON(nil, payload)
	if err != nil {
		f.opts.Log.Error().Err(err).Str("event", string(t)).Msg("an event does not encode")
		return
	}
	f.out.Send(jsonrpc.AppendEvent(nil, t, stamp(f.opts.Now()), text))
}

// stamp formats a time as in events and results.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
