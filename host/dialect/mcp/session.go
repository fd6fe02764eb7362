package mcp

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

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
	agent, ok := s.opts.Tokens.AdmitClient(h.Meta.Token, cmp.Or(dialect.Clip(h.Client.Name, maxAgentID), "mcp"))
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
	if s.hasServers() && h.Version < modernVersion {
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
