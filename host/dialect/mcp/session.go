package mcp

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/dialect"
	tokens "a2e/host/guard/auth"
	"a2e/protocol"
)

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
			"unauthorized: initialize, or the first request without it, needs the host's token as "+
				`params._meta["a2e/auth_token"]`)
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
	s.watch.goes.Go(func() { s.watch.run(ss.ctx) })
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
