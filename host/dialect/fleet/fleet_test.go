package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

func TestTask(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	p.SendRaw(dispatch("t1", "", "") + "\n")
	a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	if !strings.Contains(string(a.Line), `"worker":{"agent_id":"w1","model":"m1","model_tier":"small","context_window":1000},"capabilities":{"tools":["lift"],"mcp_servers":["down","up"],"extensions":["cancel"]}`) ||
		a.Get("/mcp_health") != `{"down":"error","up":"ok"}` || !strings.Contains(string(a.Line), `"repo_state":null`) || a.Get("/session/session_fresh") != "true" {
		t.Errorf("announce: %s", a.Line)
	}
	m := result(p, "t1")
	if want := `{"type":"TASK_RESULT","protocol_version":"2.0","task_id":"t1","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null,"artifacts":{"pr":null,"files_changed":[]},"summary":"did work"}`; string(m.Line) != want {
		t.Errorf("result:\n%s\nwant:\n%s", m.Line, want)
	}
	p.SendRaw(dispatch("t1", "", "") + "\n") // it is not done again
	resultNo(t, p, "t1", 2)
	p.SendRaw(`{"type":"ping","id":"p"}` + "\n") // A2E goes on beside it
	p.Wait("a pong", func(m hosttest.Message) bool { return m.Type == protocol.TypePong })
}

func TestBlocked(t *testing.T) {
	past, soon := time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Add(time.Hour).Format(time.RFC3339)
	workers := &pool{}
	p := open(t, workers, front.Options{})
	for i, c := range []struct{ line, why string }{
		{`{"type":"TASK_DISPATCH","protocol_version":"1.0","task":{"task_id":"ID"},"brief":"x"}`, `must be "2.0"`},
		{`{"type":"TASK_DISPATCH","task":{"task_id":"ID"},"brief":"x"}`, `must be "2.0"`},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","priority":"asap"},"brief":"x"}`, "none of low"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","reply_schema":"xml"},"brief":"x"}`, "none of prose"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","token_budget":-1},"brief":"x"}`, "negative"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","token_budget":"x"},"brief":"x"}`, "token_budget"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":" "}`, "brief is empty"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","deadline":"tomorrow"}`, "RFC 3339"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","deadline":"` + past + `"}`, "is past"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_mcp":["up","gone"]}}`, `"gone" is not registered`},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_mcp":["down"]}}`, "not healthy (error)"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_capabilities":["lift","fly"]}}`, `capability "fly"`},
	} {
		id := fmt.Sprint("b", i)
		p.SendRaw(strings.ReplaceAll(c.line, `"ID"`, `"`+id+`"`) + "\n")
		m := result(p, id)
		if m.Get("/status") != "blocked" || !strings.Contains(m.Get("/blocked_reason"), c.why) || m.Get("/tokens_spent") != "0" {
			t.Errorf("%s\n%s, should be blocked: %s", c.line, m.Line, c.why)
		}
	}
	if workers.order() != "" {
		t.Errorf("work was done for blocked tasks: %s", workers.order())
	}
	p.SendRaw(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"fine","priority":"urgent","reply_schema":"json","token_budget":5},"brief":"x","deadline":"` + soon +
		`","requirements":{"required_mcp":["up"],"required_capabilities":["lift","tools"]}}` + "\n")
	if m := result(p, "fine"); m.Get("/status") != "done" {
		t.Errorf("all is met: %s", m.Line)
	}
	p.SendRaw(`{"type":"TASK_RESULT","task_id":"x"}` + "\n")
	if m := result(p, ""); m.Get("/status") != "error" || !strings.Contains(m.Get("/error"), "TASK_DISPATCH") {
		t.Errorf("a message for an orchestrator: %s", m.Line)
	}
	p.SendRaw("{nonsense\n")
	p.Wait("an answer to a broken line, in the last dialect", func(m hosttest.Message) bool { return strings.Contains(m.Get("/error"), "not valid JSON") })
}

func TestNoWorkers(t *testing.T) {
	p := hosttest.New(t, host.Options{Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})}})
	p.SendRaw(dispatch("t", "low", "") + "\n")
	if m := result(p, "t"); m.Get("/status") != "blocked" || !strings.Contains(m.Get("/blocked_reason"), "workers") {
		t.Errorf("%s", m.Line)
	}
}

func TestToken(t *testing.T) {
	sum := front.Options{Tokens: tokens("secret")}
	p := open(t, &pool{}, sum)
	p.SendRaw(dispatch("a", "low", "") + "\n" + dispatch("b", "low", `,"auth_token":"wrong"`) + "\n" + dispatch("c", "low", `,"auth_token":"secret"`) + "\n")
	for id, status := range map[string]string{"a": "blocked", "b": "blocked", "c": "done"} {
		if m := result(p, id); m.Get("/status") != status {
			t.Errorf("%s: %s", id, m.Line)
		}
	}
}

// TestPriority: while the place is taken, higher priorities go ahead, equal ones in order.
func TestPriority(t *testing.T) {
	workers := &pool{hold: make(chan struct{})}
	p := open(t, workers, front.Options{})
	p.SendRaw(dispatch("first", "low", "") + "\n")
	p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	for _, id := range []string{"l1:low", "n1:normal", "u1:urgent", "h1:high", "d1:", "u2:urgent"} {
		id, priority, _ := strings.Cut(id, ":")
		p.SendRaw(dispatch(id, priority, "") + "\n")
	}
	p.SendRaw(dispatch("first", "low", "") + "\n") // a duplicate of what runs; it tells that the others are in
	p.Wait("the refused duplicate", func(m hosttest.Message) bool {
		return m.Get("/task_id") == "first" && strings.Contains(m.Get("/blocked_reason"), "under way")
	})
	close(workers.hold)
	for _, id := range []string{"l1", "n1", "u1", "h1", "d1", "u2"} {
		result(p, id)
	}
	if got := workers.order(); got != "first u1 u2 h1 n1 d1 l1" {
		t.Errorf("order: %s", got)
	}
}
