package plugins_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/plugins"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// scoped is a host for a child agent, after its handshake.
func scoped(t *testing.T, agent *fleet.Agent) (*hosttest.Pair, []string) {
	t.Helper()
	cfg := load(t, "{}")
	cfg.Agent = agent
	made, err := plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.Start(t, host.Options{Plugins: made, AgentID: agent.AgentID})
	var resp protocol.HandshakeResponse
	p.Handshake().Decode(t, &resp)
	var has []string
	for _, row := range resp.AcceptedCaps {
		if row.Enabled {
			has = append(has, string(row.Capability))
		}
	}
	slices.Sort(has)
	return p, has
}

// toolNames lists the tools that the host shows.
func toolNames(t *testing.T, p *hosttest.Pair) (names []string) {
	t.Helper()
	var resp protocol.ToolListResponse
	p.Call(protocol.TypeToolListReq, `{"include_deferred":true}`).Decode(t, &resp)
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	slices.Sort(names)
	return names
}

func echo(p *hosttest.Pair, tool string) hosttest.Message {
	return p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{"text":"hi"}}`, tool))
}

// TestScopeRestricted: a child agent has the tools and the capabilities that are named,
// and no way around that.
func TestScopeRestricted(t *testing.T) {
	p, has := scoped(t, &fleet.Agent{AgentID: "child", ToolScope: protocol.ToolsRestricted, Capabilities: []string{"echo", "read_file", "planning"}, MaxSteps: 2})
	if !slices.Equal(has, []string{"memory", "planning", "tools"}) {
		t.Errorf("it has %v", has)
	}
	if names := toolNames(t, p); !slices.Equal(names, []string{"echo", "read_file"}) {
		t.Errorf("its tools are %v", names)
	}
	for _, refused := range []string{"write_file", "run_command", "no_such_tool"} {
		if m := echo(p, refused); m.Get("/code") != string(protocol.CodeToolDenied) || !strings.Contains(m.Get("/message"), refused) {
			t.Errorf("%s: %s", refused, m)
		}
	}
	if m := p.Call(protocol.TypeProcSpawnReq, `{"cmd":["ls"]}`); m.Get("/code") != string(protocol.CodeCapabilityMissing) {
		t.Errorf("a process: %s", m)
	}
	for range 2 {
		if m := echo(p, "echo"); m.Get("/data/success") != "true" {
			t.Errorf("echo: %s", m)
		}
	}
	if m := echo(p, "echo"); m.Get("/code") != string(protocol.CodeToolDenied) || !strings.Contains(m.Get("/message"), "2 steps") {
		t.Errorf("a third step: %s", m)
	}
}

// TestScopeIsolated: such a child agent has its memory and nothing else.
func TestScopeIsolated(t *testing.T) {
	_, has := scoped(t, &fleet.Agent{AgentID: "child", ToolScope: protocol.ToolsIsolated, Capabilities: []string{"echo", "tools"}})
	if !slices.Equal(has, []string{"memory"}) {
		t.Errorf("it has %v", has)
	}
}

// TestScopeShared: a child agent that shares has all there is, up to its steps, and its
// own name, whatever it says in the handshake.
func TestScopeShared(t *testing.T) {
	p, has := scoped(t, &fleet.Agent{AgentID: "child", ToolScope: protocol.ToolsShared, MaxSteps: 1})
	if len(has) < 10 {
		t.Errorf("it has %v", has)
	}
	if names := toolNames(t, p); !slices.Contains(names, "run_command") {
		t.Errorf("its tools are %v", names)
	}
	if a, b := echo(p, "echo"), echo(p, "echo"); a.Get("/data/success") != "true" || b.Get("/code") != string(protocol.CodeToolDenied) {
		t.Errorf("two calls with one step: %s, %s", a, b)
	}
	open := func() string { return p.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`).Get("/memory_id") }
	stored := p.Call(protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":%q,"entries":[{"key":{"k":1},"content":"v","tier":"episodic"}]}`, open()))
	if len(stored.Get("/stored/0")) == 0 {
		t.Fatalf("store: %s", stored)
	}
	p.Call(protocol.TypeHandshakeReq, `{"agent_id":"somebody else","agent_caps":["memory"]}`)
	if m := p.Call(protocol.TypeMemoryRetrieveReq, fmt.Sprintf(`{"memory_id":%q,"keys":[{"k":1}],"tier":"episodic"}`, open())); m.Get("/total") != "1" {
		t.Errorf("under another name the child has another memory: %s", m)
	}
}
