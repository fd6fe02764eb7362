// Package mcp makes the host an MCP server on its own pipe: a host.Dialect whose tools, resources and prompts are those
// of the host's plugins.
//
//	Take ─ parse ─┬─ ping, junk, what is not known: answered here
//	              ├─ answer of the client, cancel: handed on at once
//	              └─ host.Work ─ the host's scheduler ─┬─ quickCall, quickTools: a plugin ─────────┐
//	                                                   └─ serve: go-sdk ─ handler ─ host.Call ─────┤
//	stdout ◄──────────────── one answer for each request ◄── finish ◄─────────────────────────────┘
//
//	message.go     what a line means, errors    definitions.go  definitions of tools; calls by the go-sdk
//	pending.go     requests not yet answered    resources.go    files, memories
//	session.go     initialize, the session      prompts.go      skills
//	conn.go        the go-sdk and its transport gateway.go      MCP servers behind the host
//	tool_calls.go  calls and lists of tools     events.go       notifications
//	modern.go      versions without initialize  ask.go          what plugins ask the client
//	batch.go       several messages on a line   result.go       results of tools, for the client
//	tables.go      the list of tools            misfit.go       errors of the go-sdk in words of MCP
//
// The go-sdk negotiates the version, and decodes and encodes all requests except plain calls and lists of tools.
package mcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/guard/auth"
	"a2e/host/observe/event"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// Options say how the host serves MCP. A zero field means its default, which its comment names.
type Options struct {
	Version      string      // of this program, for serverInfo; default "unknown"
	Tokens       auth.Tokens // initialize must bring one as params._meta["a2e/auth_token"]; none = open
	Vouched      bool        // a client without a token was already let in; it may not name an agent of a token
	NoTasks      bool        // the transport does not support MCP's tasks
	Workspace    string      // absolute folder in the URIs of file resources; "" = the URIs are relative to it
	Instructions string      // for the client's model; default: a text about the tools and the workspace
	Log          zerolog.Logger
	Tables       *Tables // shared with other servers; nil = not shared
	// Greeted, if not nil, is called with what the client offers (the JSON of MCP's capabilities) before anything else
	// is served. It is called again if the client tries again after a refused greeting.
	Greeted func(can jsontext.Value)

	CallTimeout time.Duration // for one call of a tool or skill, in whole seconds; default 10 minutes
	Refresh     time.Duration // longest time between two looks for changes of the lists; default 8 s
}

func (o *Options) setDefaults() {
	o.Version = cmp.Or(o.Version, "unknown")
	o.CallTimeout = max(cmp.Or(o.CallTimeout, 10*time.Minute), time.Second)
	o.Refresh = cmp.Or(o.Refresh, 8*time.Second)
	if o.Instructions == "" {
		o.Instructions = instructions(o.Workspace)
	}
}

// instructions returns the text about this server that clients show to their models.
func instructions(workspace string) string {
	if workspace != "" {
		workspace = " (" + workspace + ")"
	}
	return "Tools to work in one folder, the workspace" + workspace + ": paths are relative to it. " +
		"A result that is cut says how to get the rest. Files and memories are resources, skills are prompts."
}

// server is the host.Dialect.
type server struct {
	opts Options
	ctx  context.Context // of the host
	out  host.Output

	pending   *pending
	conn      *conn
	questions questions
	guard     dialect.Guard
	seen      atomic.Bool     // the client has begun with MCP, so every line with jsonrpc is MCP's
	closing   context.Context // ends when the server stops serving
	close     context.CancelFunc
	session   *session     // nil before initialize, beside which no other request runs; see opening
	opening   sync.Mutex   // held while a request of a version without initialize begins the session
	isOpen    atomic.Bool  // the session has begun
	greeted   atomic.Bool  // initialize was answered with a result
	isModern  atomic.Bool  // the client uses a version without initialize
	rounds    sync.Map     // the rounds that wait for the client, by requestState
	parked    atomic.Int64 // number of rounds that wait
	listeners sync.Map     // a set of *listener
	batches   atomic.Bool  // the client's version has batches
	hasIcons  atomic.Bool  // the client's version has icons
	abandoned atomic.Int64 // number of round handlers that did not stop in time
	listening atomic.Int64 // number of open subscriptions/listen
	level     atomic.Int64 // as set by logging/setLevel; 0 = no log messages
	subs      sync.Map     // URI of a resource that the client subscribed to -> id of its server, "" = any
	watch     *watch
	listed    atomic.Pointer[knownTools]

	quickLists atomic.Int64 // lists under way without a turn
}

// New makes the dialect. It serves one client, on one host.
func New(opts Options) host.Dialect {
	opts.setDefaults()
	s := &server{opts: opts, pending: newPending()}
	s.conn = &conn{news: dialect.NewBell(), calls: make(map[string]*request)}
	s.questions.open = make(map[string]*question)
	s.watch = newWatch(s)
	return s
}

// Open implements host.Dialect.
func (s *server) Open(ctx context.Context, out host.Output) {
	s.ctx, s.out = ctx, out
	s.closing, s.close = context.WithCancel(ctx)
	s.conn.closed, s.conn.close = context.WithCancel(ctx)
}

// Mine implements host.Dialect. A JSON-RPC line is MCP's from the first initialize or server/discover on, or from the
// first request that names its version as modern ones do. Before that, it belongs to another dialect.
func (s *server) Mine(line *protocol.Line) bool {
	if !line.RPC {
		return false
	}
	if s.seen.Load() {
		return true
	}
	name := line.Object().Text("method")
	modern := func() bool { // the text alone is no proof: other messages may quote it
		params, _ := line.Object().Get("params")
		return bytes.Contains(line.Raw(), []byte(metaVersion)) && readMeta(jsontext.Value(params)) != nil
	}
	if name == methodInitialize || name == methodDiscover || modern() {
		s.seen.Store(true)
		return true
	}
	return false
}

// Take implements host.Dialect.
func (s *server) Take(line *protocol.Line) *host.Work {
	return s.take(line.Object(), nil)
}

// take takes in one message. of is its batch, or nil.
func (s *server) take(obj protocol.Object, of *batch) *host.Work {
	m, bad := parse(obj)
	from := origin{id: m.id, method: m.method, bytes: len(obj.Raw()), came: time.Now(), batch: of}
	params, ok := obj.Child("params")
	if ok && (m.method == methodCallTool || m.method == methodGetPrompt) {
		from.name = params.Text("name")
	}
	switch {
	case bad != nil:
		s.reply(from, nil, bad)
	case m.kind == anAnswer:
		s.questions.answered(m.id, replyOf(m))
	case m.kind == aNotification:
		s.notified(m)
	case m.method == methodPing && readMeta(m.params) == nil: // modern versions have no ping
		s.reply(from, noResult(), nil)
	default:
		if w, answered := s.quickCall(m, params, from); w != nil || answered {
			return w
		}
		return s.request(m, from)
	}
	return nil
}

// request returns the host.Work of a request, or answers it at once and returns nil.
func (s *server) request(m message, from origin) *host.Work {
	served, known := methodOf(m.method)
	if !known {
		s.reply(from, nil, rpcErrorf(codeMethodNotFound, "unknown method %.64q", m.method))
		return nil
	}
	from.id = from.id.Clone()
	from.span = host.Trace(s.ctx, m.method, from.name, func() string { return traceparent(m.params) })
	r := &request{origin: from, served: served, key: jsonrpc.Key(m.id), params: m.params.Clone()}
	r.meta, r.token = readMeta(r.params), progressToken(r.params)
	r.work = s.workOf(r)
	if err := s.pending.begin(r); err != nil {
		s.reply(r.origin, nil, toRPC(err))
		return nil
	}
	return r.work
}

// notified takes in a notification. Only notifications/cancelled has an effect here.
func (s *server) notified(m message) {
	if m.method != notifyCancelled {
		return
	}
	id := member(m.params, "requestId")
	if id == nil {
		return
	}
	if r := s.pending.find(jsonrpc.Key(id)); r != nil && r.method != methodInitialize { // that may not be cancelled
		r.cancelled.Store(true)
		r.work.Stop(host.ErrCancelled)
	}
}

// Broken implements host.Dialect. The answer has the id of the line, unless the line is itself an answer: then the
// question that it belongs to fails.
func (s *server) Broken(line *protocol.Line, err *protocol.Error) {
	s.broken(line, err, nil)
}

// broken answers a line, or an item of the batch of, that cannot be read.
func (s *server) broken(line *protocol.Line, err *protocol.Error, of *batch) {
	m, _ := parse(line.Object())
	e := &rpcError{Code: codeParse, Message: err.Message}
	if err.Code == protocol.CodeInvalidMessage { // valid JSON but not an object, such as a batch
		e.Code = codeInvalidRequest
	}
	if errors.Is(err, protocol.ErrArray) {
		e.Message = "the line is not an object; a batch of messages needs the version 2025-03-26, and at least one " +
			"of them"
	}
	if m.kind == anAnswer && s.questions.answered(m.id, reply{err: e}) {
		of.add(s, nil)
		return
	}
	from := origin{id: m.id, method: m.method, bytes: len(line.Raw()), came: time.Now(), batch: of}
	if m.kind == anAnswer {
		from.id = nil
	}
	s.reply(from, nil, e)
}

// Drain implements host.Dialect.
func (s *server) Drain(ctx context.Context) {
	s.questions.end()
	for _, r := range s.pending.all(methodListen) {
		r.work.Stop(errGone())
	}
	select {
	case <-dialect.Over(s.pending.open.Wait):
	case <-ctx.Done():
	}
	s.close()
	s.conn.close()
	if s.session != nil {
		s.session.close()
		dialect.Await(dialect.Over(s.watch.goes.Wait), lastWait)
	}
}

// reply sends an answer and records the request in the audit trail.
func (s *server) reply(from origin, result []byte, e *rpcError) {
	line := s.line(from, result, e)
	s.audit(from, e, len(line))
	if from.batch != nil {
		from.batch.add(s, line)
		return
	}
	s.out.Send(line)
}

// line returns the line of an answer, without a newline.
func (s *server) line(from origin, result []byte, e *rpcError) []byte {
	if e != nil {
		return jsonrpc.AppendFailure(nil, from.id, jsonrpc.Code(e.Code), e.Message, e.Data)
	}
	return jsonrpc.AppendResult(make([]byte, 0, len(result)+len(from.id)+48), from.id, result)
}

// audit records a request in the audit trail. length is that of its answer in bytes.
func (s *server) audit(from origin, e *rpcError, length int) {
	entry := event.Event{
		Type: from.method, Name: from.name, ReqID: strings.TrimPrefix(jsonrpc.Key(from.id), `"`),
		Duration: time.Since(from.came), InputBytes: from.bytes, OutputBytes: length,
	}
	if e != nil {
		entry.ErrorCode = strconv.FormatInt(e.Code, 10)
	}
	host.Trail(s.ctx, entry, from.span)
}

// noResult returns an empty result, {}.
func noResult() []byte { return []byte("{}") }

// tell sends a notification that belongs to a request, unless the request was answered.
func (s *server) tell(r *request, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.answered {
		s.out.Send(line)
	}
}

// notice returns the line of a notification.
func notice(method string, params []byte) []byte { return jsonrpc.AppendCall(nil, nil, method, params) }
