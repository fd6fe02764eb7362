package mcp

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/observe/trace"
	"a2e/host/schema"
	"a2e/plugins/mcp/link"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// activeCall is one tool call under way.
type activeCall struct {
	ctx  context.Context // of the agent's request
	emit host.Emitter

	exact func(protocol.Object) // gets progress as the server sent it, in place of emit; nil = emit gets it

	mu    sync.Mutex
	inner context.Context // context of the request on the connection, nil before it; guarded by mu
}

// callKey is the context key of the activeCall that a request of the server belongs to.
type callKey struct{}

// call runs a tool of the server. A client that asked for a task gets the new task. If the tool can only
// run as a task and the client did not ask for one, call waits for the result of the task: so all clients
// can use the tool.
func (s *server) call(ctx context.Context, name string, args protocol.Object, emit host.Emitter) (*tools.Outcome,
	error,
) {
	support := s.taskSupport(name)
	params := map[string]any{"name": name, "arguments": jsontext.Value(args.Raw())}
	asked := dialect.MCPCallOf(ctx, s.offered(name))
	var task jsontext.Value
	if asked != nil {
		task = asked.Task
	}
	isTask := support == taskRequired || support != "" && task != nil
	switch {
	case isTask && task != nil:
		params["task"] = task
	case isTask:
		params["task"] = struct{}{}
	}
	var out *tools.Outcome
	c := &activeCall{ctx: ctx, emit: emit}
	if asked != nil {
		c.exact = asked.Progress
	}
	traced := trace.Child(ctx, trace.Client, "tools/call", name)
	err := s.within(c, func(ctx context.Context, cs *sdk.ClientSession, token string) error {
		meta := map[string]any{}
		if asked != nil {
			for key, val := range asked.Meta.All() {
				meta[string(key)] = jsontext.Value(val)
			}
		}
		meta["progressToken"] = token
		if parent := trace.Parent(traced); parent != "" {
			meta["traceparent"] = parent
		}
		params["_meta"] = meta
		raw, err := s.request(ctx, cs, "tools/call", params)
		if err == nil && isTask {
			if out, err = s.begun(ctx, cs, raw, task == nil, emit); err != nil || out != nil {
				return err
			}
		}
		if err == nil && emit.Streaming() {
			link.AwaitProgress(ctx)
		}
		if err == nil {
			out, err = outcome(raw, emit)
		}
		return err
	})
	endSpan(traced, s.opts.ID, err)
	if code, ok := answeredCode(err); ok && code == jsonrpc.CodeInvalidParams && saysUnknown(err) {
		s.listChanged(kindTools)
		return nil, withCode(err, protocol.CodeMCPToolNotFound)
	}
	return out, err
}

// offered returns the name under which the host offers a tool of the server.
func (s *server) offered(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.tools {
		if b.name == name {
			return b.tool.Def.Name
		}
	}
	return ""
}

// endSpan ends the span of a tool call to a server.
func endSpan(ctx context.Context, id string, err error) {
	code := ""
	if err != nil {
		code = "failed"
	}
	trace.End(ctx, code, trace.Text("rpc.method", "tools/call"), trace.Text("a2e.mcp_server", id))
}

// asked runs f, which sends one request to the server, on behalf of the request that ctx belongs to.
func (s *server) asked(ctx context.Context, f func(context.Context, *sdk.ClientSession) error) error {
	c := &activeCall{ctx: ctx, emit: host.Mute{}}
	return s.within(c, func(ctx context.Context, cs *sdk.ClientSession, _ string) error { return f(ctx, cs) })
}

// within runs f, which sends a request to the server, and keeps c in s.calls while it runs. So the progress
// of the request, and what the server asks because of it, are matched with c. token is the progress token.
func (s *server) within(c *activeCall, f func(ctx context.Context, cs *sdk.ClientSession, token string) error) error {
	s.noteCaller(c.ctx)
	token := strconv.FormatUint(s.lastCall.Add(1), 10)
	s.mu.Lock()
	s.calls[token] = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, token)
		s.mu.Unlock()
	}()
	return s.link.Call(context.WithValue(c.ctx, callKey{}, c), func(ctx context.Context, cs *sdk.ClientSession) error {
		c.begin(ctx)
		return f(ctx, cs, token)
	})
}

// begin notes the context of the request on the connection.
func (c *activeCall) begin(inner context.Context) {
	c.mu.Lock()
	c.inner = inner
	c.mu.Unlock()
}

// extend gives the server the whole time limit of the call again.
func (c *activeCall) extend() {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		link.Extend(inner)
	}
}

// progressed passes a progress notification to its call.
func (s *server) progressed(params protocol.Object) {
	token, _ := params.Get("progressToken")
	key, isText := token.Str()
	if !isText {
		key = string(token)
	}
	s.mu.Lock()
	c := s.calls[key]
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.extend()
	told, err := progressShape().fit(params.Raw())
	if err != nil {
		return
	}
	c.progress(told)
}

// progressShape returns the shape of the params of a progress notification.
func progressShape() shape {
	return shape{required: []string{"progress"}, members: map[string]rule{
		"progress": isNumber, "total": isNumber, "message": isText, "_meta": passedMeta,
	}}
}

// progress reports the progress to the agent, in percent if the total is known.
func (c *activeCall) progress(told protocol.Object) {
	if c.exact != nil {
		c.exact(told)
		return
	}
	number := func(name string) (n float64, text string) {
		val, _ := told.Get(name)
		n, _ = strconv.ParseFloat(string(val), 64) // 0 if it is not a number
		return n, string(val)
	}
	done, doneText := number("progress")
	total, totalText := number("total")
	pct, message := 0.0, told.Text("message")
	switch {
	case total > 0:
		pct = min(max(100*done/total, 0), 100)
		message = cmp.Or(message, doneText+" of "+totalText)
	default:
		message = cmp.Or(message, doneText)
	}
	c.emit.Progress(pct, message)
}

// answeredCode returns the code of an error that a server answered with; ok = false for any
// other error.
func answeredCode(err error) (code int64, ok bool) {
	if refusal, is := errors.AsType[*protocol.Error](err); is {
		code, ok = refusal.Detail["code"].(int64)
	}
	return code, ok
}

// saysUnknown reports whether the text of a server's error means that the server does not have what the
// request named: except for resources, MCP has no code for that.
func saysUnknown(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "not found") || strings.Contains(text, "unknown") ||
		strings.Contains(text, "no such") || strings.Contains(text, "not exist")
}

// withCode returns the error of a server with another code of this protocol.
func withCode(err error, code protocol.ErrorCode) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		return err
	}
	other := *refusal
	other.Code, other.Retryable = code, code.Retryable()
	return &other
}

// The bounds of the texts that describe a result, in bytes.
const (
	maxSummary = 300
	maxFailure = 4000
)

// The bounds of schemas, and of texts in messages.
const (
	maxSchemaSize = 2000 // parts of a schema, references followed; bounds the cost of a check
	maxProblem    = 500  // bytes of a URI that a message quotes
	maxQuoted     = 64   // bytes of a name that a message quotes
)

// encode returns a value as JSON; a value of the SDK as the SDK itself writes it. Raw JSON in the value
// keeps its bytes.
func encode(v any) (jsontext.Value, error) {
	legacy := v1.OmitEmptyWithLegacySemantics(true)
	return json.Marshal(v, legacy, json.Deterministic(true), jsontext.PreserveRawStrings(true))
}

// checker returns the function that checks a tool's arguments. given is the server's schema, input the same
// schema as the host offers it. If this host cannot judge by the schema, the server decides.
func checker(given, input jsontext.Value) func(protocol.Object) error {
	return tools.CheckBy(func() (*schema.Schema, error) {
		if !schema.Known(given) {
			return nil, errors.New("is of an unknown dialect")
		}
		return schema.Compile(input, maxSchemaSize)
	})
}

// The bounds of what a server may ask.
const (
	maxAsking     = 8               // open requests of one server
	maxElicitSize = 100_000         // nodes of the schema of an answer, references followed
	sampleWait    = 5 * time.Minute // for the agent's model
	elicitWait    = time.Minute     // for the user
	rootsWait     = 2 * time.Second // for the agent's roots; then the workspace is the answer
	rootsLate     = time.Minute     // for roots that come later; the server is told of them
)

// The codes of JSON-RPC errors that a server gets.
const (
	codeRefused  = -1     // MCP's code for a user who refuses
	codeTooMany  = -32000 // this host's own code
	loggingLevel = "info"
)

// ask sends a request of the server to the agent, on behalf of the call that it belongs to, or else in the
// session that behalf chooses. No call of the server times out meanwhile.
func (s *server) ask(ctx context.Context, limit time.Duration, t protocol.Type, req, resp any) error {
	if s.asking.Add(1) > maxAsking {
		s.asking.Add(-1)
		return &jsonrpc.Error{Code: codeTooMany, Message: "too many requests of this server are open; wait for answers"}
	}
	defer s.asking.Add(-1)
	asking, cancel := context.WithCancelCause(s.behalf(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer context.AfterFunc(s.p.life, func() { cancel(context.Cause(s.p.life)) })()
	asking, stop := context.WithTimeoutCause(asking, limit, protocol.Errorf(protocol.CodeTimeout,
		"the agent did not answer %s within %s", t, limit))
	defer stop()
	defer s.keepAwake(asking)()
	return s.p.Services().Ask(asking, t, req, resp)
}

// behalf returns the context of the call that a request of the server belongs to. Most servers do not name
// it. Then it is the newest call under way, if all calls are of one session. Without a call it is the
// session of the last caller. Otherwise it is the plugin's own context, without a session.
func (s *server) behalf(ctx context.Context) context.Context {
	if c, ok := ctx.Value(callKey{}).(*activeCall); ok {
		return c.ctx
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest uint64
	var found context.Context
	for token, c := range s.calls {
		n, _ := strconv.ParseUint(token, 10, 64)
		if found != nil && host.SessionFrom(found) != host.SessionFrom(c.ctx) {
			return s.p.life
		}
		if found == nil || n > newest {
			newest, found = n, c.ctx
		}
	}
	switch {
	case found != nil:
		return found
	case s.roots.last != nil:
		return host.InSession(s.p.life, s.roots.last)
	}
	return s.p.life
}

// keepAwake extends the calls of the server again and again, until ctx ends or the function that it returns
// is called.
func (s *server) keepAwake(ctx context.Context) func() {
	ticker := time.NewTicker(max(s.link.Config().CallTimeout/3, time.Millisecond))
	ended := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.mu.Lock()
			for _, c := range s.calls {
				c.extend()
			}
			s.mu.Unlock()
			select {
			case <-ticker.C:
			case <-ended:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		close(ended)
		ticker.Stop()
		<-done
	}
}

// askID returns a new id for a request of the server to the agent.
func (s *server) askID() string { return s.opts.ID + "-" + strconv.FormatUint(s.lastAsk.Add(1), 10) }

// refusal returns the error that the server gets when the agent answers with an error or does not answer.
func refusal(err error) error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return wire
	}
	if known, ok := errors.AsType[*protocol.Error](err); ok {
		return &jsonrpc.Error{Code: codeRefused, Message: known.Message}
	}
	return &jsonrpc.Error{Code: codeRefused, Message: "the agent does not answer: " + err.Error()}
}
