package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

func TestTask(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	p.SendRaw(dispatch("t1", "", "") + "\n")
	a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	if !strings.Contains(string(a.Line), `"worker":{"agent_id":"w1","model":"m1","model_tier":"small","context_window":1000},"capabilities":{"tools":["lift"],"mcp_servers":["down","up"],"extensions":["cancel"]}`) ||
		a.Get("/mcp_health") != `{"down":"error","up":"ok"}` || !strings.Contains(string(a.Line),
		`"repo_state":null`) || a.Get("/session/session_fresh") != "true" {
		t.Errorf("announce: %s", a.Line)
	}
	m := result(p, "t1")
	want := `{"type":"TASK_RESULT","protocol_version":"2.0","task_id":"t1","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null,"artifacts":{"pr":null,"files_changed":[]},"summary":"did work"}`
	assert.Equal(t, string(m.Line), want, "result:\n%s\nwant", m.Line)
	p.SendRaw(dispatch("t1", "", "") + "\n") // the task is not done again
	resultNo(t, p, "t1", 2)
	p.SendRaw(`{"type":"ping","id":"p"}` + "\n") // A2E still works beside fleet
	p.Wait("a pong", func(m hosttest.Message) bool { return m.Type == protocol.TypePong })
}

func TestBlocked(t *testing.T) {
	past, soon := time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Add(time.Hour).Format(time.RFC3339)
	workers := &pool{}
	p := open(t, workers, front.Options{})
	p.SendRaw(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"n\u0000l"},"brief":"x"}` + "\n")
	check(t, result(p, "n\x00l"), "/status", "blocked", "/blocked_reason~", "NUL")
	for i, c := range []struct{ line, why string }{
		{
			`{"type":"TASK_DISPATCH","protocol_version":"1.0","task":{"task_id":"ID"},"brief":"x"}`,
			`should be 2.x, such as "2.0"`,
		},
		{`{"type":"TASK_DISPATCH","task":{"task_id":"ID"},"brief":"x"}`, `should be 2.x, such as "2.0"`},
		{
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","priority":"asap"},"brief":"x"}`,
			"should be low",
		},
		{
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","reply_schema":"xml"},"brief":"x"}`,
			"should be prose",
		},
		{
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","token_budget":-1},"brief":"x"}`,
			"should be 0 for none",
		},
		{
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID","token_budget":"x"},"brief":"x"}`,
			"token_budget",
		},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":" "}`, "brief is empty"},
		{
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","deadline":"tomorrow"}`,
			"RFC 3339",
		},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","deadline":"` + past +
			`"}`, "is past"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_mcp":["up","gone"]}}`, `"gone" is not registered`},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_mcp":["down"]}}`, "not healthy (error)"},
		{`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"},"brief":"x","requirements":{"required_capabilities":["lift","fly"]}}`, `capability "fly"`},
		{`{"type":"TASK_DISPATCH","task":{"task_id":"ID","x":"\ud800"},"brief":"x"}`, "half of a surrogate pair"},
		{`{"type":"TASK_DISPATCH","brief":"` + "\xff" + `","task":{"task_id":"ID"}}`, "not UTF-8"},
		{`{"brief":"x","task":{"a":{"b":1,"b":2},"task_id":"ID"},"type":"TASK_DISPATCH"}`, "appears twice"},
	} {
		id := fmt.Sprint("b", i)
		p.SendRaw(strings.ReplaceAll(c.line, `"ID"`, `"`+id+`"`) + "\n")
		m := result(p, id)
		check(t, m, "/status", "blocked", "/blocked_reason~", c.why, "/tokens_spent", "0")
	}
	assert.Equal(t, workers.order(), "", "work was done for blocked tasks")
	p.SendRaw(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"fine","priority":"urgent","reply_schema":"json","token_budget":5},"brief":"x","deadline":"` + soon +
		`","requirements":{"required_mcp":["up"],"required_capabilities":["lift","tools"]}}` + "\n")
	check(t, result(p, "fine"), "/status", "done")
	check(t, do(p, `{"type":"TASK_RESULT","task_id":"x"}`, ""), "/status", "error", "/error~", "TASK_DISPATCH")
	p.SendRaw("{nonsense\n")
	p.Wait("an answer to a broken line, in the last dialect",
		func(m hosttest.Message) bool { return strings.Contains(m.Get("/error"), "not valid JSON") })
}

func TestNoWorkers(t *testing.T) {
	p := hosttest.New(t, host.Options{Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})}})
	check(t, do(p, dispatch("t", "low", ""), "t"), "/status", "blocked", "/blocked_reason~", "workers")
}

func TestToken(t *testing.T) {
	sum := front.Options{Tokens: tokens("secret")}
	p := open(t, &pool{}, sum)
	p.SendRaw(dispatch("a", "low", "") + "\n" + dispatch("b", "low", `,"auth_token":"wrong"`) + "\n" +
		dispatch("c", "low", `,"auth_token":"secret"`) + "\n")
	for id, status := range map[string]string{"a": "blocked", "b": "blocked", "c": "done"} {
		check(t, result(p, id), "/status", status)
	}
}

// TestPriority: while the slot is taken, tasks wait by priority, and in order of arrival within a priority.
func TestPriority(t *testing.T) {
	workers := &pool{hold: make(chan struct{})}
	p := open(t, workers, front.Options{})
	p.SendRaw(dispatch("first", "low", "") + "\n")
	p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	for _, id := range []string{"l1:low", "n1:normal", "u1:urgent", "h1:high", "d1:", "u2:urgent"} {
		id, priority, _ := strings.Cut(id, ":")
		p.SendRaw(dispatch(id, priority, "") + "\n")
	}
	// A duplicate of the running task: its refusal shows that the host has read the others.
	p.SendRaw(dispatch("first", "low", "") + "\n")
	p.Wait("the refused duplicate", func(m hosttest.Message) bool {
		return m.Get("/task_id") == "first" && strings.Contains(m.Get("/blocked_reason"), "already running")
	})
	close(workers.hold)
	for _, id := range []string{"l1", "n1", "u1", "h1", "d1", "u2"} {
		result(p, id)
	}
	assert.Equal(t, workers.order(), "first u1 u2 h1 n1 d1 l1", "order")
}

// TestFirstTaskIsBlocked: a sender whose first task cannot be done here first gets an announce, once. A sender
// without the token, or of a line that is not a valid task, gets none.
func TestFirstTaskIsBlocked(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		state string // state of the server "up"
		want  int    // number of announces
	}{
		"no such server":   {needing("ID", `{"required_mcp":["gone"]}`, ""), "connected", 1},
		"no such tool":     {needing("ID", `{"required_capabilities":["fly"]}`, ""), "connected", 1},
		"too late":         {dispatch("ID", "", `,"deadline":"2001-01-01T00:00:00Z"`), "connected", 1},
		"a mute server":    {needing("ID", `{"required_mcp":["up"]}`, ""), "connecting", 1},
		"without a token":  {dispatch("ID", "", `,"auth_token":"wrong"`), "connected", 0},
		"another version":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID"},"brief":"x"}`, "connected", 0},
		"does not decode":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID","token_budget":"x"}}`, "connected", 0},
		"a wrong priority": {dispatch("ID", "asap", ""), "connected", 0},
	} {
		t.Run(name, func(t *testing.T) {
			opts := front.Options{}
			if name == "without a token" {
				opts.Tokens = tokens("secret")
			}
			l := openLab(t, &pool{}, opts, shortly, shortly, long)
			if c.state == "connecting" {
				l.kit.set("connecting", c.state)
			}
			for i := range 2 {
				l.SendRaw(c.line + "\n")
				m := resultNo(t, l.Pair, "ID", i+1)
				if m.Get("/status") != "blocked" || len(announces(l.Pair)) != c.want {
					t.Fatalf("%d announces, want %d, with %s", len(announces(l.Pair)), c.want, m.Line)
				}
			}
			if first := l.Messages()[0]; c.want > 0 && (first.Type != fleet.TypeAnnounce ||
				first.Get("/session/session_fresh") != "true" || first.Get("/session/active_tasks") != "0") {
				t.Errorf("first came %s", first.Line)
			}
		})
	}
}

// TestAnnounceAtStartup: with AtStartup a worker announces itself even if nobody sends anything.
func TestAnnounceAtStartup(t *testing.T) {
	for range 20 { // the end of the input races with the first look at the tools, so try often
		p := open(t, &pool{}, front.Options{AtStartup: true})
		p.CloseInput()
		must.OK(t, p.WaitEnd())
		must.Equal(t, len(announces(p)), 1, "… announces")
	}
}

// TestAudit: each dispatch leaves an entry in the audit trail, whatever its result, and so does a line that cannot be
// parsed.
func TestAudit(t *testing.T) {
	var a hosttest.Trail
	p := hosttest.New(t, host.Options{
		Plugins:  []host.Plugin{&pool{}, newKit()},
		Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})}, Events: a.Of(event.Request),
	})
	good := dispatch("good", "low", "")
	p.SendRaw(good + "\n")
	done := result(p, "good")
	for _, line := range []string{
		needing("lacks", `{"required_mcp":["x"]}`, ""),
		strings.Replace(dispatch("old", "low", ""), `"2.0"`, `"1.0"`, 1), strings.Replace(dispatch("odd", "low", ""),
			`"work"`, "7", 1),
	} {
		p.SendRaw(line + "\n")
	}
	for _, id := range []string{"lacks", "old", "odd"} {
		result(p, id)
	}
	p.SendRaw("{\"broken\n")
	result(p, "")
	got := map[string]string{}
	for _, e := range a.Entries() {
		got[e.ReqID] = fmt.Sprint(e.Type, " ", e.Outcome())
		assert.That(t, e.ReqID != "good" || e.InputBytes == len(good) && e.OutputBytes == len(done.Line),
			"%d bytes in and %d out: %+v", len(good), len(done.Line), e)
	}
	want := "map[: parse_error good:TASK_DISPATCH ok lacks:TASK_DISPATCH blocked odd:TASK_DISPATCH blocked " +
		"old:TASK_DISPATCH blocked]"
	assert.Equal(t, fmt.Sprint(got), want, "got  %v", got)
}

// TestConnecting: a task waits for the first connection to a server that it needs, but not for a reconnection. Other
// tasks do not wait with it.
func TestConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, long, long)
		l.kit.set("connecting", "connecting")
		l.SendRaw(needing("waits", `{"required_mcp":["up"]}`, "") + "\n" + needing("stops", `{"required_mcp":["up"]}`,
			"") + "\n" + needing("late", `{"required_mcp":["up"]}`, soon()) + "\n" +
			needing("lacks", `{"required_mcp":["up","gone"]}`, "") + "\n" + dispatch("free", "low", "") + "\n" +
			cancel("stops") + "\n")
		for _, c := range []struct{ id, status, why string }{
			{"free", "done", ""},
			{"lacks", "blocked", "not registered"},
			{"stops", "blocked", "cancelled"},
			{"late", "error", "deadline"},
		} {
			m := result(l.Pair, c.id)
			assert.That(t, m.Get("/status") == c.status && strings.Contains(m.Get("/blocked_reason")+m.Get("/error"),
				c.why), "%s: %s", c.id, m.Line)
		}
		assert.Equal(t, len(results(l.Pair, "waits")), 0, "it was answered while the server connects")
		l.kit.set("ready", "connected")
		check(t, result(l.Pair, "waits"), "/status", "done")
		l.kit.set("connecting", "reconnecting")
		check(t, do(l.Pair, needing("again", `{"required_mcp":["up"]}`, ""), "again"), "/status", "blocked",
			"/blocked_reason~", "not healthy (timeout)")
	})
}

// TestNeverConnects: the wait for a server is bounded, and a task after that does not wait at all, because the sender
// was told how the server is.
func TestNeverConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, 2*time.Second, long)
		l.kit.set("connecting", "connecting")
		begun := time.Now()
		for i, waits := range []time.Duration{2 * time.Second, 0} {
			l.SendRaw(needing("t", `{"required_mcp":["up"]}`, "") + "\n")
			check(t, resultNo(t, l.Pair, "t", i+1), "/status", "blocked", "/blocked_reason~",
				`"up" is not healthy (timeout)`)
			took := time.Since(begun)
			assert.That(t, took >= waits && took <= waits+time.Second, "it took %s", took)
			begun = time.Now()
		}
		check(t, announces(l.Pair)[0], "/mcp_health", `{"down":"error","up":"timeout"}`)
		l.kit.set("ready", "connected")
		check(t, do(l.Pair, needing("u", `{"required_mcp":["up"]}`, ""), "u"), "/status", "done")
		check(t, announces(l.Pair)[1], "/mcp_health", `{"down":"error","up":"ok"}`)
	})
}

// TestExecutors: the announce describes the workers that do the tasks, and the requirements of a task are checked
// against the same.
func TestExecutors(t *testing.T) {
	const none, own = `[]`, `["lift"]`
	for name, c := range map[string]struct {
		workers                   []agent.WorkerInfo
		tools, health, can, lacks string
	}{
		"the host": {
			[]agent.WorkerInfo{{HostTools: true}},
			own, `{"down":"error","up":"ok"}`,
			`{"required_mcp":["up"],"required_capabilities":["lift","crane"]}`, `{"required_capabilities":["file"]}`,
		},
		"what a config lists": {
			[]agent.WorkerInfo{{Tools: []string{"terminal", "edit_file", "up", "docs"}}},
			`["docs","edit_file","patch","terminal"]`, `{"up":"ok"}`,
			`{"required_mcp":["up","docs"],"required_capabilities":["terminal","patch"]}`,
			`{"required_capabilities":["lift"]}`,
		},
		"a child": {
			[]agent.WorkerInfo{{
				Tools: []string{"read_file", "write_file"}, MCPServers: []string{"far", "ill"},
				MCPHealth: map[string]fleet.Health{"far": "ok", "ill": "timeout"},
			}},
			`["file","read_file","write_file"]`, `{"far":"ok","ill":"timeout"}`,
			`{"required_mcp":["far"],"required_capabilities":["file"]}`, `{"required_mcp":["ill"]}`,
		},
		"a child that has not said": {
			[]agent.WorkerInfo{{Unknown: true}},
			none, `{}`,
			`{"required_mcp":["far"],"required_capabilities":["fly"]}`, `null`,
		},
		"a model with some of them": {
			[]agent.WorkerInfo{{
				HostTools: true, Only: []string{"l*", "up__*"},
				Tools: []string{"skilled"},
			}},
			`["lift","skilled"]`, `{"up":"ok"}`,
			`{"required_mcp":["up"],"required_capabilities":["lift","skilled"]}`,
			`{"required_capabilities":["tools"]}`,
		},
		"two of which one can do it": {
			[]agent.WorkerInfo{{Tools: []string{"grep"}}, {HostTools: true}},
			`["grep","lift","search"]`, `{"down":"error","up":"ok"}`, `{"required_capabilities":["search","lift"]}`,
			`{"required_mcp":["down"]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, &pool{workers: c.workers}, front.Options{AtStartup: true})
			a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
			check(t, a, "/capabilities/tools", c.tools, "/mcp_health", c.health)
			check(t, do(p, needing("can", c.can, ""), "can"), "/status", "done")
			if c.lacks != "null" {
				check(t, do(p, needing("lacks", c.lacks, ""), "lacks"), "/status", "blocked")
			}
		})
	}
}

// TestAgain: a task that is running is refused as a duplicate. A task that failed, was blocked or was done in part
// can be sent again and is done again; a task that was done is not.
func TestAgain(t *testing.T) {
	workers := &pool{hold: make(chan struct{})}
	workers.act = func(task agent.WorkerTask) (*fleet.Result, error) {
		return fleet.NewResult("", fleet.Status(task.Brief)), nil
	}
	p := open(t, workers, front.Options{})
	var want []string
	for i, status := range []string{"error", "partial", "blocked", "done", "done"} {
		line := strings.Replace(dispatch("t", "", ""), `"work"`, fmt.Sprintf("%q", status), 1) + "\n"
		p.SendRaw(line)
		if i < 4 {
			want = append(want, "t")
			workers.awaitStart(t, strings.Join(want, " "))
			p.SendRaw(line)
			check(t, resultNo(t, p, "t", 2*i+1), "/status", "blocked", "/duplicate", "true")
			workers.hold <- struct{}{}
		}
		check(t, resultNo(t, p, "t", 2*i+2-i/4), "/status", status, "/duplicate", "")
	}
	assert.Equal(t, workers.order(), "t t t t", "it was begun")
}

// TestCarriedAgain: with Carry the queue keeps the results, so the host does a task with a known id again: the queue
// may use the id for another task.
func TestCarriedAgain(t *testing.T) {
	workers := &pool{}
	p := open(t, workers, front.Options{Carry: true})
	for i := range 2 {
		p.SendRaw(dispatch("t", "", "") + "\n")
		check(t, resultNo(t, p, "t", i+1), "/status", "done")
	}
	assert.Equal(t, workers.order(), "t t")
}

// TestPartial: the result of a task that was done in part says what remains, in whatever form its worker said it.
func TestPartial(t *testing.T) {
	for said, want := range map[string][2]string{
		`{}`: {
			`the worker does not say what remains`,
			`["the worker does not say what remains"]`,
		},
		`{"next_steps":["a","b"]}`:                     {`a; b`, `["a","b"]`},
		`{"remaining":"a"}`:                            {`a`, `["a"]`},
		`{"remaining":{"files":1},"next_steps":["a"]}`: {`{"files":1}`, `["a"]`},
	} {
		p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
			r := fleet.NewResult("", fleet.StatusPartial)
			return r, json.Unmarshal([]byte(said), r)
		}}, front.Options{})
		check(t, do(p, dispatch("t", "", ""), "t"), "/status", "partial", "/remaining", want[0], "/next_steps", want[1])
	}
}

// TestInline: fields that are written in the brief, as in the first phase of the RFC, count like fields of the
// message.
func TestInline(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	brief := `"TASK DISPATCH (inline)\nrequired_mcp: gone\n\nwork"`
	check(t, do(p, strings.Replace(dispatch("t", "", ""), `"work"`, brief, 1), "t"), "/status", "blocked",
		"/blocked_reason~", `"gone" is not registered`)
	brief = `"TASK DISPATCH (inline)\nrequired_mcp: up\ncolour: red\n\nwork"`
	check(t, do(p, strings.Replace(dispatch("u", "", ""), `"work"`, brief, 1), "u"), "/status", "done", "/summary",
		"did colour: red\n\nwork")
	brief = `"Please:\n\nTASK DISPATCH (inline)\ntask_id: v\npriority: asap\n\nBrief: work"`
	unnamed := strings.Replace(dispatch("", "", ""), `"work"`, brief, 1)
	check(t, do(p, unnamed, "v"), "/status", "blocked", "/blocked_reason~",
		`priority is "asap"; should be low, normal, high or urgent`)
	check(t, do(p, strings.NewReplacer("task_id: v", "task_id: w", "asap", "high", `"2.0"`, `"2.7"`).Replace(unnamed),
		"w"), "/status", "done", "/summary", "did Please:\n\nwork")
}

// TestScope: the agent of a task must be allowed to use what the task requires.
func TestScope(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	const all = `{"required_capabilities":["lift","crane","tools","multi_agent"]}`
	for i, c := range []struct{ requirements, agent, status, why string }{
		{all, `{"agent_id":"a","tool_scope":"shared"}`, "done", ""},
		{
			all, `{"agent_id":"a","tool_scope":"isolated"}`, "blocked",
			`"a" may not use "lift"; the agent "a" may not use "crane"; the agent "a" may not use "tools"; the agent "a" may not use "multi_agent"`,
		},
		{
			all, `{"agent_id":"a","tool_scope":"restricted","capabilities":["tools","toolkits","multi_agent"]}`, "done",
			"",
		},
		{
			all, `{"agent_id":"a","tool_scope":"restricted","capabilities":["lift","crane"]}`, "blocked",
			`"tools"; the agent "a" may not use "multi_agent"`,
		},
		{
			`{"required_capabilities":["lift","crane"]}`,
			`{"agent_id":"a","tool_scope":"restricted","capabilities":["lift","crane"]}`, "done", "",
		},
		{
			`{"required_capabilities":["drill"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "blocked",
			`no tool, toolkit or capability "drill"`,
		},
		{`{"required_mcp":["up"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "done", ""},
		{`{"required_mcp":["up"]}`, `{"agent_id":"a","tool_scope":"isolated"}`, "blocked", "isolated"},
		{`{"required_mcp":["off"]}`, `{"agent_id":"a","tool_scope":"shared"}`, "blocked", `"off" is not registered`},
		{`{}`, `{"tool_scope":"shared"}`, "blocked", "agent.agent_id is missing"},
		{`{}`, `{"agent_id":"a"}`, "blocked", `agent.tool_scope "" is not one of`},
		{`{}`, `{"agent_id":"a","tool_scope":"shared","memory_scope":"x"}`, "blocked", `agent.memory_scope "x"`},
		{`{}`, `{"agent_id":"a","tool_scope":"shared","depth":-1}`, "blocked", "negative"},
		{`{}`, `null`, "done", ""},
		{`null`, `null`, "done", ""},
	} {
		id := string(rune('a' + i))
		check(t, do(p, needing(id, c.requirements, `,"agent":`+c.agent), id), "/status", c.status, "/blocked_reason~",
			c.why)
	}
}

// TestAnnounceAgain: a worker announces itself at the start even without a task, and again only when the health of a
// server or its own abilities have changed.
func TestAnnounceAgain(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{AtStartup: true}, shortly, long, shortly)
	first := l.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	if first.Get("/mcp_health") != `{"down":"error","up":"ok"}` || first.Get("/session/session_fresh") != "true" ||
		first.Get("/session/active_tasks") != "0" {
		t.Errorf("at the start: %s", first.Line)
	}
	for _, id := range []string{"a", "b"} {
		do(l.Pair, dispatch(id, "low", ""), id)
	}
	if all := announces(l.Pair); len(all) != 1 {
		t.Errorf("%d announces, though nothing has changed", len(all))
	}
	l.kit.set("connecting", "reconnecting")
	hosttest.Eventually(t, "a second announce", func() bool { return len(announces(l.Pair)) == 2 })
	workers.mu.Lock()
	workers.extensions = []string{"steer"}
	workers.mu.Unlock()
	hosttest.Eventually(t, "a third announce", func() bool { return len(announces(l.Pair)) == 3 })
	all := announces(l.Pair)
	check(t, all[1], "/mcp_health", `{"down":"error","up":"timeout"}`, "/session/session_fresh", "false",
		"/session/context_id", first.Get("/session/context_id"))
	check(t, all[2], "/capabilities/extensions", `["cancel","steer"]`)
}

// TestPendingInOrder: tasks that wait for the same MCP server start in the order in which they came, once the server
// is connected.
func TestPendingInOrder(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{}, shortly, long, long)
	l.kit.set("connecting", "connecting")
	var lines strings.Builder
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint("t", i))
		lines.WriteString(needing(want[i], `{"required_mcp":["up"]}`, "") + "\n")
	}
	l.SendRaw(lines.String() + needing("last", `{"required_mcp":["down"]}`, "") + "\n")
	result(l.Pair, "last") // by now the host has looked at all tasks
	l.kit.set("ready", "connected")
	for _, id := range want {
		result(l.Pair, id)
	}
	assert.Equal(t, workers.order(), strings.Join(want, " "), "the order")
}

// tardy is a plugin that knows what it serves only some time after its start.
type tardy struct {
	*kit
	wait  time.Duration
	knows atomic.Bool
}

func (p *tardy) Info() host.PluginInfo {
	info := host.PluginInfo{Name: "tardy"}
	if p.knows.Load() {
		info.Capability = protocol.CapMemory
	}
	return info
}

func (p *tardy) Start(context.Context, *host.Services) error {
	time.AfterFunc(p.wait, func() { p.knows.Store(true) })
	return nil
}

func (p *tardy) Ready(ctx context.Context) {
	for !p.knows.Load() && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// TestTardyPlugins: the first task waits, for a limited time, for plugins that are not ready. What a slower plugin
// serves is available for later tasks.
func TestTardyPlugins(t *testing.T) {
	for _, c := range []struct {
		wait          time.Duration
		first, second string
	}{{7 * time.Second, "done", "done"}, {30 * time.Second, "blocked", "done"}} {
		synctest.Test(t, func(t *testing.T) {
			late := &tardy{kit: newKit(), wait: c.wait}
			p := hosttest.New(t, host.Options{
				Plugins:  []host.Plugin{&pool{}, late},
				Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})},
			})
			for _, task := range [][2]string{{"first", c.first}, {"second", c.second}} {
				check(t, do(p, needing(task[0], `{"required_capabilities":["memory"]}`, ""), task[0]), "/status",
					task[1])
				time.Sleep(30 * time.Second)
				check(t, announces(p)[0], "/capabilities/tools~", "lift")
			}
		})
	}
}
