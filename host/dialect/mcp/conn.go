package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host"
	tokens "a2e/host/auth"
	"a2e/host/dialect"
	"a2e/host/trace"
	"a2e/protocol"
)

// conn is the go-sdk's transport: it reads what it is fed, and its answers go out under the
// ids that the client gave, as the client wrote them.
type conn struct {
	server *server
	news   dialect.Bell
	closed context.Context
	close  context.CancelFunc

	mu  sync.Mutex
	fed []rpcMessage // not read yet; guarded by mu
}

// Connect implements mcp.Transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID implements mcp.Connection.
func (c *conn) SessionID() string { return "" }

// Close implements mcp.Connection.
func (c *conn) Close() error {
	c.close()
	return nil
}

// feed returns a message to the go-sdk.
func (c *conn) feed(msg rpcMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fed = append(c.fed, msg)
	c.news.Ring()
}

// Read implements mcp.Connection.
func (c *conn) Read(ctx context.Context) (rpcMessage, error) {
	for {
		c.mu.Lock()
		msg, ok := dialect.Shift(&c.fed)
		c.mu.Unlock()
		if ok {
			return msg, nil
		}
		select {
		case <-c.news:
		case <-c.closed.Done():
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Write implements mcp.Connection. It does not fail: that would end the session. The go-sdk
// asks and tells the client nothing of its own.
func (c *conn) Write(_ context.Context, msg rpcMessage) error {
	m, ok := msg.(*jsonrpc.Response)
	if !ok {
		return nil
	}
	r := c.server.pending.find(m.ID.Raw())
	switch {
	case r == nil:
	case m.Error != nil:
		c.server.answer(r, nil, misfit(r.method, toRPC(m.Error)))
	case r.method == methodInitialize && c.server.hasTasks():
		c.server.answer(r, withTasks(m.Result), nil)
	default:
		c.server.answer(r, m.Result, nil)
	}
	return nil
}

// hand returns a request to the go-sdk, whose handler finds it by requestOf.
func (s *server) hand(r *request) {
	id, _ := jsonrpc.MakeID(r.key) // a text is always fine
	s.conn.feed(&jsonrpc.Request{
		ID: id, Method: r.method, Params: withoutOwnMeta(r.params),
		Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{Extra: map[string]any{"request": r}}},
	})
}

// withoutOwnMeta returns the params of a request without the members of _meta that are no business of
// the go-sdk, which would decode them.
func withoutOwnMeta(params jsontext.Value) []byte {
	obj, err := protocol.ParseObject(params)
	meta, has := obj.Child("_meta")
	if err != nil || !has {
		return params
	}
	out := []byte("{}")
	for key, val := range obj.All() {
		if string(key) != "_meta" {
			out = withLast(out, string(key), val)
		}
	}
	kept := []byte("{}")
	for key, val := range meta.All() {
		if name := string(key); name == "progressToken" && val.Kind() == '"' || strings.HasPrefix(name, hopPrefix) {
			kept = withLast(kept, name, val)
		}
	}
	return withLast(out, "_meta", kept)
}

// requestOf finds the request that a handler of the go-sdk serves.
func requestOf(req mcp.Request) *request {
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		r, _ := extra.TokenInfo.Extra["request"].(*request)
		return r
	}
	return nil
}

const (
	// grace is how long a handler that was stopped may take to answer for itself.
	grace = 250 * time.Millisecond
	// listTimeout bounds a list.
	listTimeout = time.Minute
	// noTimeout is that of what lasts as long as the client.
	noTimeout = 100 * 365 * 24 * time.Hour
	// maxAbandoned is how many handlers that do not stop are borne before new requests are
	// refused: each may hold a processor and what it works on.
	maxAbandoned = 100
)

// handler answers the requests of one method.
type handler func(s *server, ctx context.Context, r *request, params mcp.Params) (mcp.Result, error)

// method is where the requests of a method wait, and what answers them; nil = the go-sdk.
type method struct {
	lane   laneName
	answer handler
}

// methods lists the methods of MCP that are served.
func methods() map[string]method {
	return map[string]method{
		methodInitialize:   {laneLists, nil},
		methodDiscover:     {laneLists, nil},
		methodSetLevel:     {laneLists, nil}, // see serve
		methodTools:        {laneLists, (*server).listTools},
		methodPrompts:      {laneLists, (*server).listPrompts},
		methodResources:    {laneLists, (*server).listResources},
		methodTemplates:    {laneLists, (*server).listTemplates},
		methodCallTool:     {laneCalls, (*server).callTool},
		methodGetPrompt:    {laneCalls, (*server).getPrompt},
		methodReadResource: {laneCalls, (*server).readResource},
		methodSubscribe:    {laneCalls, (*server).subscribe},
		methodUnsubscribe:  {laneCalls, (*server).unsubscribe},
		methodComplete:     {laneCalls, (*server).forward},
		methodGetTask:      {laneCalls, (*server).forward},
		methodTaskResult:   {laneCalls, (*server).forward},
		methodTasks:        {laneCalls, (*server).forward},
		methodCancelTask:   {laneCalls, (*server).forward},
		methodListen:       {laneListen, (*server).listen},
	}
}

// receive is the go-sdk's middleware: it puts the handlers in place of the go-sdk's own.
func (s *server) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		handle, r := s.methods[method].answer, requestOf(req)
		if handle == nil || r == nil {
			return next(ctx, method, req)
		}
		res, err := s.run(trace.With(ctx, r.span), r, func(ctx context.Context) (mcp.Result, error) { return handle(s, ctx, r, req.GetParams()) })
		if c, ok := res.(interface{ complete() }); ok && err == nil && r.meta != nil {
			c.complete()
		}
		return res, err
	}
}

// outcome is what came of a handler.
type outcome struct {
	result mcp.Result
	err    error
}

// run runs a handler on a goroutine of its own: one that panics, ends its goroutine or
// does not stop harms only its own request.
func (s *server) run(ctx context.Context, r *request, handle func(context.Context) (mcp.Result, error)) (mcp.Result, error) {
	if n := s.abandoned.Load(); n >= maxAbandoned {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%s did not stop after the timeout; restart the host",
			protocol.Count(n, "request"))
	}
	if r.meta != nil && asksBack(r.method) {
		return s.inRounds(ctx, r, handle)
	}
	limit := map[laneName]time.Duration{laneLists: listTimeout, laneCalls: s.opts.CallTimeout + grace, laneListen: noTimeout}[r.lane]
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	s.pending.attach(r, stop)
	out := s.wait(ctx, s.start(ctx, r.method, handle))
	if cause := context.Cause(ctx); errors.Is(cause, errCancelled) || errors.Is(cause, errShutdown) {
		return nil, cause
	}
	return out.result, out.err
}

// start runs a handler; the channel gets its outcome.
func (s *server) start(ctx context.Context, method string, handle func(context.Context) (mcp.Result, error)) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		out := outcome{err: protocol.Errorf(protocol.CodeRuntimeError, "the plugin broke off %s", method)} // if handle ends the goroutine
		defer func() {
			if v := recover(); v != nil {
				s.opts.Log.Error().Str("method", method).Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a handler panicked")
				out = outcome{err: protocol.Errorf(protocol.CodeRuntimeError, "the host failed while it handled %s; its log has the details", method)}
			}
			done <- out
		}()
		result, err := handle(ctx)
		out = outcome{result, err}
	}()
	return done
}

// wait waits for a handler, but not much longer than its context.
func (s *server) wait(ctx context.Context, done <-chan outcome) outcome {
	select {
	case out := <-done:
		return out
	case <-ctx.Done():
	}
	select {
	case out := <-done:
		return out
	case <-time.After(grace):
	}
	s.abandoned.Add(1)
	go func() { // ends with the handler
		<-done
		s.abandoned.Add(-1)
	}()
	return outcome{err: context.Cause(ctx)}
}

const (
	maxAgentID = 200                    // bytes of the client's name
	lastWait   = 100 * time.Millisecond // for what ends with the session
)

// session is the client's, from initialize on.
type session struct {
	ctx context.Context // ends with the session
	end func()
	mcp *mcp.ServerSession
}

// close ends the session.
func (ss *session) close() {
	dialect.Await(dialect.Over(func() { _ = ss.mcp.Wait() }), lastWait)
	ss.end()
}

// serve is the pump: it gives the go-sdk one message after the other, each request when
// there is a place for it.
func (s *server) serve() {
	for r := s.pending.take(s.closing); r != nil; r = s.pending.take(s.closing) {
		r.meta, r.token = readMeta(r.params), progressToken(r.params)
		switch {
		case r.meta == nil && r.method == methodInitialize:
			if err := s.initialize(r); err != nil {
				s.answer(r, nil, toRPC(err))
			}
		case r.meta == nil && (r.method == methodDiscover || r.method == methodListen):
			s.answer(r, nil, rpcErrorf(codeMethodNotFound, "%s is of the version %s, which each request names in params._meta", r.method, modernVersion))
		case s.session == nil && r.meta == nil:
			s.answer(r, nil, rpcErrorf(codeInvalidRequest, "initialize first: %q comes before it", r.method))
		case r.meta == nil && r.method == methodSetLevel:
			s.setLevel(r)
		default:
			if err := s.admit(r); err != nil {
				s.answer(r, nil, toRPC(err))
				continue
			}
			s.hand(r)
		}
	}
}

// hello is what this server itself reads of the params of initialize.
type hello struct {
	Version string `json:"protocolVersion"`
	Client  struct {
		Name string `json:"name"`
	} `json:"clientInfo"`
	Offers capabilities `json:"capabilities"`
	Meta   struct {
		Token string `json:"a2e/auth_token"`
	} `json:"_meta"`
}

// initialize begins the session and leaves the answer to the go-sdk. The error is the
// answer.
func (s *server) initialize(r *request) error {
	if s.session != nil {
		if s.session.mcp.InitializeParams() != nil {
			return rpcErrorf(codeInvalidRequest, "the session is initialized already; a pipe has one")
		}
	} else if h, err := readHello(r.params); err != nil { // else the go-sdk refused the first one
		return err
	} else if err := s.begin(h); err != nil {
		return err
	}
	s.hand(r)
	return nil
}

// begin begins the session of a client that may have one.
func (s *server) begin(h hello) error {
	program := cmp.Or(protocol.Clip(h.Client.Name, maxAgentID), "mcp")
	if wrong := tokens.WrongName(program); wrong != "" {
		return protocol.Violation(protocol.FieldError{Path: "/params/clientInfo/name", Message: wrong})
	}
	agent, ok := s.opts.Tokens.AdmitClient(h.Meta.Token, program)
	if s.opts.Vouched && h.Meta.Token == "" {
		agent, ok = program, !s.opts.Tokens.Name(program)
	}
	if !s.guard.Checked(s.closing, ok) {
		s.opts.Log.Warn().Msg("MCP initialize refused: the token is missing or wrong")
		return protocol.Errorf(protocol.CodeUnauthorized, `unauthorized: initialize, or the first request without it, needs the host's token as params._meta["a2e/auth_token"]`)
	}
	if s.opts.Greeted != nil {
		s.opts.Greeted(h.Offers.said())
	}
	dialect.AwaitPlugins(s.closing)
	return s.open(h, agent)
}

func readHello(params jsontext.Value) (h hello, err error) {
	if params == nil {
		return h, protocol.Violation(protocol.FieldError{Path: "/params", Message: "is required"})
	}
	obj, err := protocol.ParseObject(params)
	if err != nil {
		return h, err
	}
	return h, protocol.Decode(obj, []string{"protocolVersion"}, &h)
}

// open begins the session of a client.
func (s *server) open(h hello, agent string) error {
	ss := &session{}
	ss.ctx, _, ss.end = host.BeginSession(s.ctx, agent, (&asker{s, h.Offers}).ask)
	srv := mcp.NewServer(&mcp.Implementation{Name: "a2e", Title: "A2E host", Version: s.opts.Version}, s.serverOptions())
	srv.AddReceivingMiddleware(s.receive)
	var err error
	if s.hasTasks() && h.Version < modernVersion {
		for _, method := range []string{methodGetTask, methodTaskResult, methodTasks, methodCancelTask} { // which the go-sdk does not know
			if err = mcp.AddReceivingCustomMethod(srv, method, unreached); err != nil {
				ss.end()
				return err
			}
		}
	}
	if ss.mcp, err = srv.Connect(ss.ctx, s.conn, nil); err != nil {
		ss.end()
		return err
	}
	s.session = ss
	s.isOpen.Store(true)
	s.batches.Store(h.Version == batchVersion)
	s.isModern.Store(h.Version >= modernVersion)
	s.hasIcons.Store(h.Version >= iconsVersion)
	s.watch.start(ss.ctx)
	return nil
}

func (s *server) serverOptions() *mcp.ServerOptions {
	offers := new(mcp.ServerCapabilities)
	text := serverCapabilities
	if s.hasServers() {
		text = gatewayCapabilities
	}
	_ = json.Unmarshal([]byte(text), offers) // it is what the type has
	return &mcp.ServerOptions{
		Instructions: s.opts.Instructions, Capabilities: offers,
		Logger: slog.New(zerolog.NewSlogHandler(s.opts.Log.Level(max(s.opts.Log.GetLevel(), zerolog.WarnLevel)))),
	}
}

// What this server offers to each client, without MCP servers behind it and with them.
const (
	serverCapabilities  = `{"logging":{},"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{}}`
	gatewayCapabilities = `{"logging":{},"tools":{"listChanged":true},"prompts":{"listChanged":true},` +
		`"resources":{"listChanged":true,"subscribe":true},"completions":{}}`
)

// tasksVersion is the one version of MCP that has tasks.
const tasksVersion = "2025-11-25"

// unreached stands for the methods of tasks in the go-sdk: receive gives them to forward.
func unreached(context.Context, *mcp.ServerSession, *rawParams) (*rawResult, error) {
	return nil, rpcErrorf(codeMethodNotFound, "the request was lost")
}

// withTasks adds to the result of initialize that there are tasks.
func withTasks(result []byte) []byte {
	var parts map[string]jsontext.Value
	if json.Unmarshal(result, &parts) != nil || textOf(parts["protocolVersion"]) != tasksVersion {
		return result
	}
	parts["capabilities"] = withMember(parts["capabilities"], `"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)
	if out, err := json.Marshal(parts, json.Deterministic(true)); err == nil {
		return out
	}
	return result
}
