package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/observe/event"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

func TestTask(t *testing.T) {
	p := open(t, &pool{}, front.Options{})
	p.SendRaw(dispatch("t1", "", "") + "\n")
	a := announced(p)
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
	// with returns a dispatch with further members of its task, and of itself
	with := func(task, more string) string {
		return `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"ID"` + task + `},"brief":"x"` + more + `}`
	}
	for i, c := range []struct{ line, why string }{
		{strings.Replace(with("", ""), `"2.0"`, `"1.0"`, 1), `should be 2.x, such as "2.0"`},
		{strings.Replace(with("", ""), `"protocol_version":"2.0",`, "", 1), `should be 2.x, such as "2.0"`},
		{with(`,"priority":"asap"`, ""), "should be low"},
		{with(`,"reply_schema":"xml"`, ""), "should be prose"},
		{with(`,"token_budget":-1`, ""), "should be 0 for none"},
		{with(`,"token_budget":"x"`, ""), "token_budget"},
		{strings.Replace(with("", ""), `"x"`, `" "`, 1), "brief is empty"},
		{with("", `,"deadline":"tomorrow"`), "RFC 3339"},
		{with("", `,"deadline":"`+past+`"`), "is past"},
		{with("", `,"requirements":{"required_mcp":["up","gone"]}`), `"gone" is not registered`},
		{with("", `,"requirements":{"required_mcp":["down"]}`), "not healthy (error)"},
		{with("", `,"requirements":{"required_capabilities":["lift","fly"]}`), `capability "fly"`},
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
	fine := with(`,"priority":"urgent","reply_schema":"json","token_budget":5`, `,"deadline":"`+soon+
		`","requirements":{"required_mcp":["up"],"required_capabilities":["lift","tools"]}`)
	check(t, do(p, strings.Replace(fine, "ID", "fine", 1), "fine"), "/status", "done")
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
	announced(p)
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

// TestInline: fields that are written in the brief, as in the first phase of the RFC, count like fields of the message.
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
	const (
		all      = `{"required_capabilities":["lift","crane","tools","multi_agent"]}`
		shared   = `{"agent_id":"a","tool_scope":"shared"}`
		isolated = `{"agent_id":"a","tool_scope":"isolated"}`
		only     = `{"agent_id":"a","tool_scope":"restricted","capabilities":` // and a list
	)
	for i, c := range []struct{ requirements, agent, status, why string }{
		{all, shared, "done", ""},
		{
			all, isolated, "blocked", `"a" may not use "lift"; the agent "a" may not use "crane"; the agent "a" may ` +
				`not use "tools"; the agent "a" may not use "multi_agent"`,
		},
		{all, only + `["tools","toolkits","multi_agent"]}`, "done", ""},
		{all, only + `["lift","crane"]}`, "blocked", `"tools"; the agent "a" may not use "multi_agent"`},
		{`{"required_capabilities":["lift","crane"]}`, only + `["lift","crane"]}`, "done", ""},
		{`{"required_capabilities":["drill"]}`, shared, "blocked", `no tool, toolkit or capability "drill"`},
		{`{"required_mcp":["up"]}`, shared, "done", ""},
		{`{"required_mcp":["up"]}`, isolated, "blocked", "isolated"},
		{`{"required_mcp":["off"]}`, shared, "blocked", `"off" is not registered`},
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
