package mcp

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strconv"
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
	"a2e/host/dialect"
	tokens "a2e/host/guard/auth"
	"a2e/protocol"
)

// conn is the go-sdk's transport. The go-sdk reads the messages that feed stores, and its answers go out with the ids
// that the client wrote.
type conn struct {
	server *server
	news   dialect.Bell
	closed context.Context
	close  context.CancelFunc

	mu    sync.Mutex          // guards the fields below
	fed   []rpcMessage        // messages that the go-sdk has not read yet
	calls map[string]*request // the requests in the go-sdk, by their id there
	last  int                 // number of the last id
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

// feed hands a message to the go-sdk.
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

// Write implements mcp.Connection. It never fails, because an error would end the session. It drops everything except
// answers: the go-sdk sends no requests or notifications of its own to the client.
func (c *conn) Write(_ context.Context, msg rpcMessage) error {
	m, ok := msg.(*jsonrpc.Response)
	if !ok {
		return nil
	}
	id, _ := m.ID.Raw().(string)
	if r := c.take(id); r != nil {
		out := encoded{result: m.Result}
		if m.Error != nil {
			out = encoded{e: misfit(r.method, toRPC(m.Error))}
		}
		select {
		case r.encoded <- out:
		default: // it has an answer already
		}
	}
	return nil
}

// take removes the request with an id of the go-sdk and returns it; nil = it was given up.
func (c *conn) take(id string) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.calls[id]
	delete(c.calls, id)
	return r
}

// hand passes a request to the go-sdk under a new id, and returns that id. The client's id would not do: the client may
// use it again while the go-sdk still works on a cancelled request. The handler finds the request by requestOf.
func (s *server) hand(r *request) (name string) {
	s.conn.mu.Lock()
	s.conn.last++
	name = strconv.Itoa(s.conn.last)
	s.conn.calls[name] = r
	s.conn.mu.Unlock()
	id, _ := jsonrpc.MakeID(name) // a string is always valid
	s.conn.feed(&jsonrpc.Request{
		ID: id, Method: r.method, Params: withoutOwnMeta(r.params),
		Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: name}}, // not r: the go-sdk keeps some requests
	})
	return name
}

// withoutOwnMeta returns the params of a request without the members of _meta that the go-sdk does not need but would
// decode.
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

// requestOf returns the request that a handler of the go-sdk serves; nil = it was given up.
func (c *conn) requestOf(req mcp.Request) *request {
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[extra.TokenInfo.UserID]
}

const (
	// grace is how long a stopped handler may take to return its own answer.
	grace = 250 * time.Millisecond
	// listTimeout bounds a request for a list.
	listTimeout = time.Minute
	// maxListeners is how many subscriptions/listen may be open at once.
	maxListeners = 16
	// maxAbandoned is how many round handlers may fail to stop before new requests are refused. Each of them may hold a
	// processor and memory.
	maxAbandoned = 100
)

// handler answers the requests of one method.
type handler func(s *server, ctx context.Context, r *request, params mcp.Params) (mcp.Result, error)

// method says how requests of a method are scheduled and which handler answers them; a nil handler = the go-sdk
// answers.
type method struct {
	uses   uses
	answer handler
}

// uses says what a request takes from the host's scheduler.
type uses int

const (
	aTurn uses = iota // no slot, so that lists are answered while long calls run
	aSlot             // a slot
	noEnd             // a slot to begin with; then it lasts until the client cancels it
)

// methodOf returns how a method of MCP is served; false = it is not served.
func methodOf(name string) (m method, served bool) {
	switch name {
	case methodInitialize, methodDiscover, methodSetLevel:
		return method{aTurn, nil}, true
	case methodTools:
		return method{aTurn, (*server).listTools}, true
	case methodPrompts:
		return method{aTurn, (*server).listPrompts}, true
	case methodResources:
		return method{aTurn, (*server).listResources}, true
	case methodTemplates:
		return method{aTurn, (*server).listTemplates}, true
	case methodCallTool:
		return method{aSlot, (*server).callTool}, true
	case methodGetPrompt:
		return method{aSlot, (*server).getPrompt}, true
	case methodReadResource:
		return method{aSlot, (*server).readResource}, true
	case methodSubscribe:
		return method{aSlot, (*server).subscribe}, true
	case methodUnsubscribe:
		return method{aSlot, (*server).unsubscribe}, true
	case methodComplete, methodGetTask, methodTaskResult, methodTasks, methodCancelTask:
		return method{aSlot, (*server).forward}, true
	case methodListen:
		return method{noEnd, (*server).listen}, true
	}
	return method{}, false
}

// workOf makes the host.Work of a request. initialize comes before all that follows it. Requests that take no slot run
// one after the other, for each method.
func (s *server) workOf(r *request) *host.Work {
	session := protocol.Claim{Key: "mcp/", Access: protocol.Shared}
	if r.method == methodInitialize {
		session.Access = protocol.Exclusive
	}
	w := &host.Work{
		Name: r.method, Claims: append(sees(r.method), session), Span: r.span, Size: len(r.params),
		Run:      func(ctx context.Context) (any, error) { return s.serve(ctx, r) },
		Answer:   func(resp any, err error) []byte { return s.served(r, resp, err) },
		Answered: s.pending.done,
	}
	if r.method == methodCallTool { // then the Work has the claims of the tool
		if obj, err := s.toolCall(r.name, callArguments(r.params), false); err == nil {
			w.Type, w.Object = protocol.TypeToolCallReq, obj
		}
	}
	switch r.served.uses {
	case aTurn:
		if w.NoSlot, w.Limit = true, listTimeout; s.isQuickList(r) && s.needsNoTurn(w) {
			break
		}
		w.Claims = append(w.Claims, protocol.Claim{Key: "mcp-turn/" + r.method + "/", Access: protocol.Exclusive})
	case aSlot:
		w.Limit = s.opts.CallTimeout + grace
	}
	return w
}

// sees returns the claims of requests that must see the effect of earlier ones but hold up no later ones.
func sees(method string) []protocol.Claim {
	tools := protocol.Claim{Key: protocol.KeyTools, Access: protocol.Follows}
	files := protocol.Claim{Key: protocol.KeyWorkspace, Access: protocol.Follows}
	switch method {
	case methodTools, methodPrompts, methodResources, methodTemplates: // they do not wait for long work on files
		return []protocol.Claim{tools}
	case methodGetPrompt, methodReadResource, methodSubscribe, methodComplete:
		return []protocol.Claim{tools, files}
	}
	return nil
}

// callArguments returns the arguments of a call, or nil if they are not an object.
func callArguments(params jsontext.Value) jsontext.Value {
	if args := member(params, "arguments"); args.Kind() == '{' {
		return args
	}
	return nil
}

// served returns the line of the answer to a request.
func (s *server) served(r *request, resp any, err error) []byte {
	if err != nil {
		return s.finish(r, nil, toRPC(err))
	}
	out := resp.(encoded)
	return s.finish(r, out.result, out.e)
}

// outcome is what a handler returned.
type outcome struct {
	result mcp.Result
	err    error
}

// encoded is an answer as it goes out: a result, or an error if e is not nil.
type encoded struct {
	result []byte
	e      *rpcError
}

// receive is a middleware for the go-sdk: it runs the handlers of this package in place of the go-sdk's own, in the
// context of the host's scheduler.
//
//	serve ─ hand ─► go-sdk decodes ─► receive ─► handler ─► go-sdk encodes ─► Write ─ encoded ─► serve
func (s *server) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		r := s.conn.requestOf(req)
		if r == nil || r.served.answer == nil {
			return next(ctx, method, req)
		}
		out := <-s.start(r.ctx, method, func(ctx context.Context) (mcp.Result, error) {
			return s.handle(ctx, r, req.GetParams())
		})
		if c, ok := out.result.(interface{ complete() }); ok && out.err == nil && r.meta != nil {
			c.complete()
		}
		return out.result, out.err
	}
}

// viaSDK serves a request whose params the go-sdk decodes and whose result it encodes. It returns when the handler has
// returned.
func (s *server) viaSDK(ctx context.Context, r *request) (any, error) {
	host.HandOff(ctx)
	r.ctx, r.encoded = host.InSession(ctx, s.session.host), make(chan encoded, 1)
	name := s.hand(r)
	defer s.conn.take(name)
	select {
	case out := <-r.encoded:
		return out, nil
	case <-s.conn.closed.Done(): // the session is over
		return nil, cmp.Or(context.Cause(ctx), error(errLate))
	}
}

// handle runs the handler of a request.
func (s *server) handle(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	answer := r.served.answer
	if r.meta != nil && asksBack(r.method) {
		return s.inRounds(ctx, r, func(ctx context.Context) (mcp.Result, error) { return answer(s, ctx, r, params) })
	}
	return answer(s, ctx, r, params)
}

const (
	maxAgentID = 200                    // bytes of the client's name
	lastWait   = 100 * time.Millisecond // how long to wait for what ends with the session
)

// session is the client's session, from initialize on.
type session struct {
	ctx  context.Context // ends with the session
	end  func()
	mcp  *mcp.ServerSession
	host *host.Session
}

// close ends the session.
func (ss *session) close() {
	dialect.Await(dialect.Over(func() { _ = ss.mcp.Wait() }), lastWait)
	ss.end()
}

// serve serves one request.
func (s *server) serve(ctx context.Context, r *request) (any, error) {
	switch {
	case r.meta == nil && r.method == methodInitialize:
		return s.initialize(ctx, r)
	case r.meta == nil && (r.method == methodDiscover || r.method == methodListen):
		return nil, rpcErrorf(codeMethodNotFound, "%s is of the version %s, which each request names in params._meta",
			r.method, modernVersion)
	case !s.isOpen.Load() && r.meta == nil:
		return nil, rpcErrorf(codeInvalidRequest, "initialize first: %q comes before it", r.method)
	case r.meta == nil && r.method == methodSetLevel:
		return s.setLevel(r)
	case s.isQuickList(r):
		return s.quickTools(ctx, r.cursor())
	case r.meta == nil && strings.HasPrefix(r.method, "tasks/") && s.hasTasks() && !s.isModern.Load():
		host.HandOff(ctx)
		return s.forwarded(host.InSession(ctx, s.session.host), r) // the go-sdk knows no tasks
	}
	if err := s.admit(ctx, r); err != nil {
		return nil, err
	}
	return s.viaSDK(ctx, r)
}

// hello has the members of initialize's params that this server reads.
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

// initialize begins the session and leaves the answer to the go-sdk.
func (s *server) initialize(ctx context.Context, r *request) (any, error) {
	if s.session != nil {
		if s.session.mcp.InitializeParams() != nil {
			return nil, rpcErrorf(codeInvalidRequest, "the session is initialized already; a pipe has one")
		}
	} else if h, err := readHello(r.params); err != nil { // else the go-sdk refused an earlier initialize
		return nil, err
	} else if err := s.begin(ctx, h); err != nil {
		return nil, err
	}
	answer, err := s.viaSDK(ctx, r)
	if out, _ := answer.(encoded); err == nil && out.e == nil {
		s.greeted.Store(true)
		if s.hasTasks() {
			return encoded{result: withTasks(out.result)}, nil
		}
	}
	return answer, err
}

// begin checks the token and the name of a client and begins its session.
func (s *server) begin(ctx context.Context, h hello) error {
	host.HandOff(ctx) // the guard and the plugins may take a while
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
		return protocol.Errorf(protocol.CodeUnauthorized,
			`unauthorized: initialize, or the first request without it, needs the host's token as params._meta["a2e/auth_token"]`)
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
	ss.ctx, ss.host, ss.end = host.BeginSession(s.ctx, agent, (&asker{s, h.Offers}).ask)
	srv := mcp.NewServer(&mcp.Implementation{Name: "a2e", Title: "A2E host", Version: s.opts.Version},
		s.serverOptions())
	srv.AddReceivingMiddleware(s.receive)
	var err error
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
	_ = json.Unmarshal([]byte(text), offers) // the text is valid for the type
	return &mcp.ServerOptions{
		Instructions: s.opts.Instructions, Capabilities: offers,
		Logger: slog.New(zerolog.NewSlogHandler(s.opts.Log.Level(max(s.opts.Log.GetLevel(), zerolog.WarnLevel)))),
	}
}

// The capabilities that this server offers to each client, without MCP servers behind it and with them.
const (
	serverCapabilities  = `{"logging":{},"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{}}`
	gatewayCapabilities = `{"logging":{},"tools":{"listChanged":true},"prompts":{"listChanged":true},` +
		`"resources":{"listChanged":true,"subscribe":true},"completions":{}}`
)

// tasksVersion is the one version of MCP that has tasks.
const tasksVersion = "2025-11-25"

// withTasks adds the capability tasks to the result of initialize, if the version has tasks.
func withTasks(result []byte) []byte {
	var parts map[string]jsontext.Value
	if json.Unmarshal(result, &parts) != nil || textOf(parts["protocolVersion"]) != tasksVersion {
		return result
	}
	parts["capabilities"] = withMember(parts["capabilities"],
		`"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)
	if out, err := json.Marshal(parts, json.Deterministic(true)); err == nil {
		return out
	}
	return result
}
