package mcp

import (
	"cmp"
	"context"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

// conn is the go-sdk's transport. The go-sdk reads the messages that feed stores, and its answers go out with the ids
// that the client wrote.
type conn struct {
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
	kept := []byte("{}")
	for key, val := range meta.All() {
		if name := string(key); name == "progressToken" && val.Kind() == '"' || strings.HasPrefix(name, hopPrefix) {
			kept = withLast(kept, name, val)
		}
	}
	return withLast(withMembers([]byte("{}"), obj, "_meta"), "_meta", kept)
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
