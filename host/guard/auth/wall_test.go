package auth_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"a2e/host"
	workers "a2e/host/agent"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/dialect/mcp"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
	wire "a2e/protocol/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spy is a plugin that notes, in each protocol, the agent that asks it.
type spy struct {
	mu    sync.Mutex
	asked []string // guarded by mu
}

func (s *spy) note(agent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, agent)
}

func (s *spy) agents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.asked)
	slices.Sort(all)
	return slices.Compact(all)
}

func (*spy) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: "spy", Capability: protocol.CapTools,
		Also: []protocol.Capability{protocol.CapMultiAgent},
	}
}

func (*spy) Close(context.Context) error { return nil }

func (s *spy) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			return &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{{Name: "look"}}}, nil
		}),
		host.Handle(protocol.TypeToolCallReq, func(ctx context.Context, _ *protocol.ToolCallRequest,
			_ host.Emitter,
		) (*protocol.ToolCallResponse, error) {
			s.note(host.SessionFrom(ctx).AgentID)
			return &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: "look"}}, nil
		}),
	}
}

func (*spy) Workers() []workers.WorkerInfo {
	return []workers.WorkerInfo{{Name: "w", Mode: "oneshot", MaxTasks: 1, Healthy: true}}
}

func (s *spy) RunTask(_ context.Context, task workers.WorkerTask) (*wire.Result, error) {
	id := ""
	if task.Agent != nil {
		id = task.Agent.AgentID
	}
	s.note(id)
	return &wire.Result{
		Type: wire.TypeResult, ProtocolVersion: wire.Version, TaskID: task.Task.TaskID,
		Status: wire.StatusDone,
	}, nil
}

// stage is a host that speaks all protocols, with a token for everybody, one for alice and one for bob.
type stage struct {
	t    *testing.T
	spy  *spy
	in   *io.PipeWriter
	mu   sync.Mutex
	said strings.Builder // guarded by mu
}

const (
	ofAlice = "alice-3f6c0a"
	ofBob   = "bob-77d1e2"
	shared  = "everybody-1b"
)

func newStage(t *testing.T) *stage {
	t.Helper()
	tokens := auth.Tokens{auth.New(shared, ""), auth.New(ofAlice, "alice"), auth.New(ofBob, "bob")}
	s := &stage{t: t, spy: &spy{}}
	file := must.Get(store.OpenMemory(t.Context(), jsonrpc.Part()))(t)
	t.Cleanup(func() { _ = file.Close() })
	kept := func(context.Context) (store.Store, error) { return file, nil }
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{s.spy}, Tokens: tokens, Dialects: []host.Dialect{
		mcp.New(mcp.Options{Tokens: tokens}), jsonrpc.New(jsonrpc.Options{Tokens: tokens, Store: kept}),
		fleet.New(fleet.Options{Tokens: tokens, Worker: wire.Worker{AgentID: "host"}, MaxTasks: 1}),
	}}))(t)
	in, w := io.Pipe()
	s.in = w
	done := make(chan error, 1)
	go func() {
		done <- h.Serve(in, s)
		in.CloseWithError(io.ErrClosedPipe)
	}()
	t.Cleanup(func() {
		w.Close()
		assert.OK(t, <-done)
	})
	return s
}

// Write implements io.Writer for the host.
func (s *stage) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.Write(b)
}

// say sends a line and waits until the host sends a text with the given word.
func (s *stage) say(line, word string) {
	s.t.Helper()
	s.mu.Lock()
	before := s.said.Len()
	s.mu.Unlock()
	_, _ = io.WriteString(s.in, line+"\n")
	hosttest.Eventually(s.t, "the answer to "+line, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.said.String()[before:], word)
	})
}

// a2e, rpc, mcp and fleet do the steps of a client in each protocol. They accept any answer.
func (s *stage) a2e(fields string) {
	s.say(`{"type":"handshake/req","id":"h","agent_caps":["tools"]`+fields+`}`, `"req_id":"`)
	s.say(`{"type":"tool/call/req","id":"c","tool_name":"look","arguments":{}}`, `"req_id":"c"`)
}

func (s *stage) rpc(params string) {
	s.say(`{"jsonrpc":"2.0","id":"h","method":"rpc.handshake","params":{`+params+`}}`, `"id":"h"`)
	s.say(`{"jsonrpc":"2.0","id":"s","method":"session.create","params":{}}`, `"id":"s"`)
	s.mu.Lock()
	_, after, _ := strings.Cut(s.said.String(), `"session_id":"`)
	s.mu.Unlock()
	id, _, _ := strings.Cut(after, `"`)
	s.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"c","method":"command.execute","params":{"session_id":%q,"raw_command":"/look {}"}}`, id), `"id":"c"`)
}

func (s *stage) mcp(name, meta string) {
	s.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":%q,"version":"1"},"_meta":{%s}}}`, name, meta), `"id":"h"`)
	_, _ = io.WriteString(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	s.say(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"look","arguments":{}}}`, `"id":"c"`)
}

func (s *stage) fleet(fields string) {
	s.say(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t","priority":"normal"},"brief":"look"`+fields+`}`, `"TASK_RESULT"`)
}

func agent(id string) string {
	return fmt.Sprintf(`,"agent":{"agent_id":%q,"tool_scope":"shared","memory_scope":"shared","depth":1}`, id)
}

// childToken is the token that proves the child agent childID.
const (
	childID    = "sub_e2a23adf4bf9b7740e62cf0dff55a549"
	childToken = "00112233445566778899aabbccddeeff"
	below      = "alice/child-1"
)

func named(agent string) string { return fmt.Sprintf(`,"agent_id":%q`, agent) }

func client(name string) string { return fmt.Sprintf(`"client_name":%q`, name) }

func proven() string {
	return strings.Replace(agent(childID), `"depth"`, `"agent_token":"`+childToken+`","depth"`, 1)
}

func token(text string) string { return fmt.Sprintf(`,"auth_token":%q`, text) }

// TestWallAuthAnotherAgent: if each agent has its own token, nobody else can act as that agent in any protocol: not
// with its name, not with another token, not with a second handshake.
func TestWallAuthAnotherAgent(t *testing.T) {
	hash := func() string { sum := sha256.Sum256([]byte(ofAlice)); return hex.EncodeToString(sum[:]) }()
	for name, try := range map[string]func(s *stage){
		"a2e: no token":                     func(s *stage) { s.a2e(`,"agent_id":"alice"`) },
		"a2e: an empty token":               func(s *stage) { s.a2e(`,"agent_id":"alice"` + token("")) },
		"a2e: a wrong token":                func(s *stage) { s.a2e(`,"agent_id":"alice"` + token("wrong")) },
		"a2e: the token of bob":             func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(ofBob)) },
		"a2e: the token of everybody":       func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(shared)) },
		"a2e: the name in another spelling": func(s *stage) { s.a2e(`,"agent_id":"\u0061lice"` + token(shared)) },
		"a2e: the name twice": func(s *stage) {
			s.a2e(`,"agent_id":"bob","agent_id":"alice"` +
				token(ofBob))
		},
		"a2e: a part of the token": func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(ofAlice[:8])) },
		"a2e: more than the token": func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(ofAlice+"\n")) },
		"a2e: the token in capitals": func(s *stage) {
			s.a2e(`,"agent_id":"alice"` +
				token(strings.ToUpper(ofAlice)))
		},
		"a2e: the hash of the token": func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(hash)) },
		"a2e: two tokens in one": func(s *stage) {
			s.a2e(`,"agent_id":"alice"` +
				token(ofBob+","+ofAlice))
		},
		"a2e: the token as a list": func(s *stage) {
			s.a2e(`,"agent_id":"alice","auth_token":["` + ofBob +
				`"]`)
		},
		"a2e: the name with another token of it": func(s *stage) { s.a2e(`,"agent_id":"bob"` + token(ofAlice)) },
		"a2e: first as bob, then by name": func(s *stage) {
			s.a2e(token(ofBob))
			s.a2e(`,"agent_id":"alice"` +
				token(ofBob))
		},
		"a2e: first as bob, then without": func(s *stage) { s.a2e(token(ofBob)); s.a2e(`,"agent_id":"alice"`) },
		"a2e: bob, unnamed":               func(s *stage) { s.a2e(token(ofBob)) },
		"rpc: no token":                   func(s *stage) { s.rpc(`"client_name":"alice"`) },
		"rpc: the token of everybody":     func(s *stage) { s.rpc(`"client_name":"alice"` + token(shared)) },
		"rpc: the token of bob":           func(s *stage) { s.rpc(`"client_name":"alice"` + token(ofBob)) },
		"rpc: first as bob, then by name": func(s *stage) {
			s.rpc(`"client_name":"bob"` + token(ofBob))
			s.rpc(`"client_name":"alice"` + token(shared))
		},
		"rpc: first as everybody, then by name": func(s *stage) {
			s.rpc(`"client_name":"x"` + token(shared))
			s.rpc(`"client_name":"alice"` + token(shared))
		},
		"mcp: no token":               func(s *stage) { s.mcp("alice", "") },
		"mcp: a wrong token":          func(s *stage) { s.mcp("alice", `"a2e/auth_token":"wrong"`) },
		"mcp: the token of everybody": func(s *stage) { s.mcp("alice", `"a2e/auth_token":"`+shared+`"`) },
		"mcp: the token of bob":       func(s *stage) { s.mcp("alice", `"a2e/auth_token":"`+ofBob+`"`) },
		"mcp: first as bob": func(s *stage) {
			s.mcp("bob", `"a2e/auth_token":"`+ofBob+`"`)
			s.mcp("alice", `"a2e/auth_token":"`+shared+`"`)
		},
		"fleet: no token":                      func(s *stage) { s.fleet(agent("alice")) },
		"fleet: a wrong token":                 func(s *stage) { s.fleet(agent("alice") + token("wrong")) },
		"fleet: the token of everybody":        func(s *stage) { s.fleet(agent("alice") + token(shared)) },
		"fleet: the token of bob":              func(s *stage) { s.fleet(agent("alice") + token(ofBob)) },
		"fleet: the token of bob and no agent": func(s *stage) { s.fleet(token(ofBob)) },
		"a2e: the id of a child":               func(s *stage) { s.a2e(named(childID) + token(shared)) },
		"a2e: an agent below":                  func(s *stage) { s.a2e(named(below) + token(shared)) },
		"rpc: the id of a child":               func(s *stage) { s.rpc(client(childID) + token(shared)) },
		"rpc: an agent below":                  func(s *stage) { s.rpc(client(below) + token(shared)) },
		"mcp: the id of a child":               func(s *stage) { s.mcp(childID, `"a2e/auth_token":"`+shared+`"`) },
		"mcp: an agent below":                  func(s *stage) { s.mcp(below, `"a2e/auth_token":"`+shared+`"`) },
		"fleet: the id of a child":             func(s *stage) { s.fleet(agent(childID) + token(shared)) },
		"fleet: the id of a child of bob's":    func(s *stage) { s.fleet(agent(childID) + token(ofBob)) },
		"fleet: an agent below":                func(s *stage) { s.fleet(agent(below) + token(shared)) },
		"fleet: bob, an agent below":           func(s *stage) { s.fleet(agent(below) + token(ofBob)) },
		"fleet: a proof without a token":       func(s *stage) { s.fleet(proven()) },
		"a2e as bob, fleet by name":            func(s *stage) { s.a2e(token(ofBob)); s.fleet(agent("alice")) },
		"a2e as bob, rpc by name":              func(s *stage) { s.a2e(token(ofBob)); s.rpc(`"client_name":"alice"`) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			try(s)
			if slices.ContainsFunc(s.spy.agents(), func(agent string) bool {
				return agent == childID || agent == "alice" || strings.HasPrefix(agent, "alice/")
			}) {
				t.Errorf("it was alice or a child of hers: %q; the host said\n%s", s.spy.agents(), s.said.String())
			}
		})
	}
}

// TestTokensLetIn: in each protocol a token lets in its own agent, and the token of everybody lets in any agent that
// has no token of its own.
func TestTokensLetIn(t *testing.T) {
	for name, tc := range map[string]struct {
		try  func(s *stage)
		want string
	}{
		"a2e, named":                  {func(s *stage) { s.a2e(`,"agent_id":"alice"` + token(ofAlice)) }, "alice"},
		"a2e, unnamed":                {func(s *stage) { s.a2e(token(ofAlice)) }, "alice"},
		"a2e, another":                {func(s *stage) { s.a2e(`,"agent_id":"carol"` + token(shared)) }, "carol"},
		"a2e, none":                   {func(s *stage) { s.a2e(token(shared)) }, ""},
		"a2e, bob and then alice":     {func(s *stage) { s.a2e(token(ofBob)); s.a2e(token(ofAlice)) }, "alice bob"},
		"rpc":                         {func(s *stage) { s.rpc(`"client_name":"vscode"` + token(ofAlice)) }, "alice"},
		"rpc, without a name":         {func(s *stage) { s.rpc(token(ofAlice)[1:]) }, "alice"},
		"rpc, another":                {func(s *stage) { s.rpc(`"client_name":"vscode"` + token(shared)) }, "vscode"},
		"rpc, another without name":   {func(s *stage) { s.rpc(token(shared)[1:]) }, "rpc"},
		"rpc, bob and then alice":     {func(s *stage) { s.rpc(token(ofBob)[1:]); s.rpc(token(ofAlice)[1:]) }, "bob"},
		"rpc, a name that MCP has":    {func(s *stage) { s.rpc(`"client_name":"io.modelcontextprotocol/protocolVersion"` + token(shared)) }, "io.modelcontextprotocol/protocolVersion"},
		"mcp":                         {func(s *stage) { s.mcp("claude", `"a2e/auth_token":"`+ofAlice+`"`) }, "alice"},
		"mcp, another":                {func(s *stage) { s.mcp("claude", `"a2e/auth_token":"`+shared+`"`) }, "claude"},
		"fleet":                       {func(s *stage) { s.fleet(token(ofAlice)) }, "alice"},
		"fleet, named":                {func(s *stage) { s.fleet(token(ofAlice) + agent("alice")) }, "alice"},
		"fleet, a child agent of it":  {func(s *stage) { s.fleet(token(ofAlice) + agent("child-1")) }, below},
		"fleet, the same once more":   {func(s *stage) { s.fleet(token(ofAlice) + agent(below)) }, below},
		"fleet, a proven child":       {func(s *stage) { s.fleet(token(ofAlice) + proven()) }, childID},
		"fleet, proven, another":      {func(s *stage) { s.fleet(token(shared) + proven()) }, childID},
		"fleet, another":              {func(s *stage) { s.fleet(token(shared) + agent("child-2")) }, "child-2"},
		"fleet, nobody in particular": {func(s *stage) { s.fleet(token(shared)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			tc.try(s)
			got := strings.Join(s.spy.agents(), " ")
			assert.That(t, len(s.spy.agents()) != 0 && got == tc.want, "it was %q, want %q; the host said\n%s", got,
				tc.want, s.said.String())
		})
	}
}
