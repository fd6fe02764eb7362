package fleet_test

import (
	"strings"
	"testing"
	"testing/synctest"

	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/protocol/fleet"
)

// TestConnecting: a task waits for the first connection to a server that it needs, and for
// no later one. Other tasks do not wait for that.
func TestConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, long, long)
		l.kit.set("connecting", "connecting")
		l.SendRaw(needing("waits", `{"required_mcp":["up"]}`, "") + "\n" + needing("stops", `{"required_mcp":["up"]}`, "") + "\n" + needing("late", `{"required_mcp":["up"]}`, soon()) + "\n" +
			needing("lacks", `{"required_mcp":["up","gone"]}`, "") + "\n" + dispatch("free", "low", "") + "\n" + cancel("stops") + "\n")
		for _, c := range []struct{ id, status, why string }{
			{"free", "done", ""}, {"lacks", "blocked", "not registered"}, {"stops", "blocked", "cancelled"}, {"late", "error", "deadline"},
		} {
			if m := result(l.Pair, c.id); m.Get("/status") != c.status || !strings.Contains(m.Get("/blocked_reason")+m.Get("/error"), c.why) {
				t.Errorf("%s: %s", c.id, m.Line)
			}
		}
		if len(results(l.Pair, "waits")) != 0 {
			t.Error("it was answered while the server connects")
		}
		l.kit.set("ready", "connected")
		if m := result(l.Pair, "waits"); m.Get("/status") != "done" {
			t.Errorf("%s", m.Line)
		}
		l.kit.set("connecting", "reconnecting")
		l.SendRaw(needing("again", `{"required_mcp":["up"]}`, "") + "\n")
		if m := result(l.Pair, "again"); m.Get("/status") != "blocked" || !strings.Contains(m.Get("/blocked_reason"), "not healthy (timeout)") {
			t.Errorf("%s", m.Line)
		}
	})
}

// TestNeverConnects: the wait for a server has an end.
func TestNeverConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, shortly, long)
		l.kit.set("connecting", "connecting")
		l.SendRaw(needing("t", `{"required_mcp":["up"]}`, "") + "\n")
		if m := result(l.Pair, "t"); m.Get("/status") != "blocked" || !strings.Contains(m.Get("/blocked_reason"), `did not connect`) {
			t.Errorf("%s", m.Line)
		}
	})
}

// TestScope: what a task requires, its agent must be allowed to use.
func TestScope(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	const all = `{"required_capabilities":["lift","crane","tools","multi_agent"]}`
	for i, c := range []struct{ requirements, agent, status, why string }{
		{all, `{"agent_id":"a","tool_scope":"shared"}`, "done", ""},
		{all, `{"agent_id":"a","tool_scope":"isolated"}`, "blocked", `"a" may not use "lift"; the agent "a" may not use "crane"; the agent "a" may not use "tools"; the agent "a" may not use "multi_agent"`},
		{all, `{"agent_id":"a","tool_scope":"restricted","capabilities":["tools","toolkits","multi_agent"]}`, "done", ""},
		{all, `{"agent_id":"a","tool_scope":"restricted","capabilities":["lift","crane"]}`, "blocked", `"tools"; the agent "a" may not use "multi_agent"`},
		{`{"required_capabilities":["lift","crane"]}`, `{"agent_id":"a","tool_scope":"restricted","capabilities":["lift","crane"]}`, "done", ""},
		{`{"required_capabilities":["drill"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "blocked", `no tool, toolkit or capability "drill"`},
		{`{"required_mcp":["up"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "done", ""},
		{`{"required_mcp":["up"]}`, `{"agent_id":"a","tool_scope":"isolated"}`, "blocked", "isolated"},
		{`{"required_mcp":["off"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "blocked", `"off" is not registered`},
		{`{}`, `{"tool_scope":"shared"}`, "blocked", "agent.agent_id is missing"},
		{`{}`, `{"agent_id":"a"}`, "blocked", `agent.tool_scope "" is none of`},
		{`{}`, `{"agent_id":"a","tool_scope":"shared","memory_scope":"x"}`, "blocked", `agent.memory_scope "x"`},
		{`{}`, `{"agent_id":"a","tool_scope":"shared","depth":-1}`, "blocked", "negative"},
		{`{}`, `null`, "done", ""},
		{`null`, `null`, "done", ""},
	} {
		id := string(rune('a' + i))
		p.SendRaw(needing(id, c.requirements, `,"agent":`+c.agent) + "\n")
		if m := result(p, id); m.Get("/status") != c.status || !strings.Contains(m.Get("/blocked_reason"), c.why) {
			t.Errorf("%s %s\n%s, should be %s %s", c.requirements, c.agent, m.Line, c.status, c.why)
		}
	}
}

// TestAnnounceAgain: at the start without any task, and again when a server's health or
// what can be done has changed; not else.
func TestAnnounceAgain(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{AtStartup: true}, shortly, long, shortly)
	first := l.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	if first.Get("/mcp_health") != `{"down":"error","up":"ok"}` || first.Get("/session/session_fresh") != "true" || first.Get("/session/active_tasks") != "0" {
		t.Errorf("at the start: %s", first.Line)
	}
	for _, id := range []string{"a", "b"} {
		l.SendRaw(dispatch(id, "low", "") + "\n")
		result(l.Pair, id)
	}
	if all := announces(l.Pair); len(all) != 1 {
		t.Errorf("%d announces, though nothing has changed", len(all))
	}
	l.kit.set("connecting", "reconnecting")
	eventually(t, "a second announce", func() bool { return len(announces(l.Pair)) == 2 })
	workers.mu.Lock()
	workers.extensions = []string{"steer"}
	workers.mu.Unlock()
	eventually(t, "a third announce", func() bool { return len(announces(l.Pair)) == 3 })
	all := announces(l.Pair)
	if m := all[1]; m.Get("/mcp_health") != `{"down":"error","up":"timeout"}` || m.Get("/session/session_fresh") != "false" || m.Get("/session/context_id") != first.Get("/session/context_id") {
		t.Errorf("the second: %s", m.Line)
	}
	if m := all[2]; m.Get("/capabilities/extensions") != `["cancel","steer"]` {
		t.Errorf("the third: %s", m.Line)
	}
}
