package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// scope returns an agent with these tools, steps and capabilities.
func scope(id string, tools protocol.ToolScope, steps int, names ...string) *fleet.Agent {
	return &fleet.Agent{
		AgentID: id, MemoryScope: protocol.MemoryIsolated, ToolScope: tools,
		Capabilities: append([]string{}, names...), MaxSteps: steps,
	}
}

// TestConfine: a child has at most the rights of its parent, and at most the rights that it was given.
func TestConfine(t *testing.T) {
	t.Parallel()
	const all, some, none = protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated
	for name, test := range map[string]struct{ child, own, want *fleet.Agent }{
		"nothing is known":         {nil, nil, nil},
		"the first host's child":   {scope("c", all, 0), nil, scope("c", all, 0)},
		"nobody in particular":     {nil, scope("o", some, 3, "echo"), scope("o", some, 3, "echo")},
		"of one that has all":      {scope("c", some, 0, "echo"), scope("o", all, 0), scope("c", some, 0, "echo")},
		"of one that has no tools": {scope("c", all, 0, "x"), scope("o", none, 0), scope("c", none, 0)},
		"it would have all": {
			scope("c", all, 0), scope("o", some, 0, "echo", "proc"),
			scope("c", some, 0, "echo", "proc"),
		},
		"it would have more": {
			scope("c", some, 0, "echo", "write_file", "skill"),
			scope("o", some, 0, "echo", "proc"), scope("c", some, 0, "echo"),
		},
		"it has less": {scope("c", none, 0), scope("o", some, 0, "echo"), scope("c", none, 0)},
		"one tool of all": {
			scope("c", some, 0, "echo", "proc", "test"),
			scope("o", some, 0, "tools", "skill"), scope("c", some, 0, "echo"),
		},
		"all tools of one": {
			scope("c", some, 0, "tools", "proc"), scope("o", some, 0, "echo", "skill"),
			scope("c", some, 0, "echo"),
		},
		"all tools of all": {
			scope("c", some, 0, "tools"), scope("o", some, 0, "tools", "echo"),
			scope("c", some, 0, "tools", "echo"),
		},
		"steps of a bounded one":    {scope("c", all, 0), scope("o", all, 5), scope("c", all, 5)},
		"more steps than there are": {scope("c", all, 9), scope("o", all, 5), scope("c", all, 5)},
		"fewer steps":               {scope("c", all, 2), scope("o", all, 5), scope("c", all, 2)},
		"a scope that there is not": {scope("c", all, 0), scope("o", "wide", 0), scope("c", none, 0)},
	} {
		before, _ := json.Marshal([]*fleet.Agent{test.child, test.own})
		got := Confine(test.child, test.own)
		if test.own != nil {
			test.want.Depth = test.own.Depth + 1
		}
		diff := cmp.Diff(test.want, got)
		assert.Equal(t, diff, "", "%s", name)
		after, _ := json.Marshal([]*fleet.Agent{test.child, test.own})
		assert.Equal(t, string(after), string(before), "%s: %s became %s", name, before, after)
	}
}

func TestRefusedAgents(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	for want, agent := range map[string]*fleet.Agent{
		`schema_violation: /agent/agent_id: is missing; it names the child agent`: {ToolScope: protocol.ToolsShared},
		`schema_violation: /agent/tool_scope: is "wide"; should be shared, restricted or isolated`: {
			AgentID:   "a",
			ToolScope: "wide",
		},
		`schema_violation: /agent/max_steps: is below 0; 0 is any number`: scope("a",
			protocol.ToolsShared, -1),
	} {
		task := brief("t", "")
		task.Agent = agent
		res, err := s.RunTask(context.Background(), task)
		assert.That(t, res == nil && err != nil && err.Error() == want, "%v, %v; want %s", res, err, want)
	}
}

// TestAgentOfAProcess: a process learns for which agent it works from its task or its host only. Neither the config nor
// the environment of a task can change that.
func TestAgentOfAProcess(t *testing.T) {
	t.Parallel()
	child, own := scope("child", protocol.ToolsShared, 7), scope("own", protocol.ToolsRestricted, 0, "echo")
	both, deeper := scope("child", protocol.ToolsRestricted, 7, "echo"), scope("own", protocol.ToolsRestricted, 0,
		"echo")
	both.Depth, deeper.Depth = 1, 1
	for name, test := range map[string]struct{ child, own, want *fleet.Agent }{
		"none": {nil, nil, nil}, "of the task": {child, nil, child}, "of the host": {nil, own, deeper},
		"of both": {child, own, both},
	} {
		oneshot := shell("w", `printf %s "$A2E_AGENT"`)
		oneshot.Env = map[string]string{fleet.EnvAgent: "of the config"}
		long := fake(t, "f")
		long.Env[fleet.EnvAgent] = "of the config"
		s := newStage(t, oneshot, long)
		s.env.Agent = test.own
		task := brief("t", "var A2E_AGENT; done")
		task.Agent, task.Worker = test.child, "w"
		task.Env = map[string]string{fleet.EnvAgent: "of the task's variables"}
		diff := cmp.Diff(test.want, agentOf(t, s.do(task).Summary))
		assert.Equal(t, diff, "", "%s, oneshot", name)
		task.Worker = "f"
		s.do(task)
		diff = cmp.Diff(test.own, agentOf(t, strings.Join(s.notes("vars"), "")))
		assert.Equal(t, diff, "", "%s, the variable of a fleet child", name)
		var told fleet.Dispatch
		must.OK(t, json.Unmarshal([]byte(s.notes("lines")[0]), &told))
		diff = cmp.Diff(test.want, told.Agent)
		assert.Equal(t, diff, "", "%s, the dispatch of a fleet child", name)
	}
}

// agentOf decodes the agent that a process found in its environment variable.
func agentOf(t *testing.T, text string) *fleet.Agent {
	t.Helper()
	if text == "" {
		return nil
	}
	agent := new(fleet.Agent)
	err := json.Unmarshal([]byte(text), agent)
	assert.That(t, err == nil, "%q: %v", text, err)
	return agent
}

// TestNoRequestNamesAnAgent: no request that starts a program can set the variable that tells the program its agent.
func TestNoRequestNamesAnAgent(t *testing.T) {
	t.Parallel()
	assert.Fails(t, sandbox.CheckEnv(fleet.EnvAgent, "x"), "", "a request may say as whom its process works")
}

// TestNoTaskAsOneAbove: no task may run as an agent above its own, because the memory of that agent belongs to others.
func TestNoTaskAsOneAbove(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	s.env.Agent = &fleet.Agent{
		AgentID: "me", ParentAgentID: "boss", RootAgentID: "root",
		ToolScope: protocol.ToolsShared,
	}
	for id, refused := range map[string]bool{"boss": true, "root": true, "child": false} {
		task := brief("t", "")
		task.Agent = scope(id, protocol.ToolsShared, 0)
		_, err := s.RunTask(context.Background(), task)
		assert.That(t, (err != nil) == refused && (!refused || strings.Contains(err.Error(), "/agent/agent_id")),
			"%s: %v", id, err)
	}
}

// says returns a worker that answers that it is blocked; fields has further fields of its result.
func says(name, fields string) Worker {
	return shell(name, `echo '{"status":"blocked","blocked_reason":"not me"`+fields+`}'`)
}

// TestBudgetIsShared: a worker that gets a task after another was blocked gets the rest of the token budget.
func TestBudgetIsShared(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields string // of the result of the first worker
		budget int
		want   string
	}{
		"some is left":      {`,"tokens_spent":4`, 10, `done summary="6" ~6`},
		"without a budget":  {`,"tokens_spent":4`, 0, `done summary="0" ~6`},
		"an estimate":       {``, 1, `done summary="1" ~3`},
		"nothing was spent": {`,"tokens_spent":0`, 10, `done summary="10" ~2`},
		"nothing is left": {
			`,"tokens_spent":10`, 10,
			`blocked 10 next=[no other worker was asked: nothing is left of the token budget of 10] reason="not me"`,
		},
		"less than nothing": {
			`,"tokens_spent":11`, 10,
			`blocked 11 next=[no other worker was asked: nothing is left of the token budget of 10 the token budget of 10 was exceeded: 11 were spent] reason="not me"`,
		},
		"its own words first": {
			`,"tokens_spent":9,"next_steps":["x"]`, 9,
			`blocked 9 next=[x no other worker was asked: nothing is left of the token budget of 9] reason="not me"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := says("first", test.fields)
			first.Priority = 1
			s := newStage(t, first, shell("second", `echo x >asked; echo $A2E_TOKEN_BUDGET`))
			task := brief("id", "work")
			task.Task.TokenBudget = test.budget
			got := s.do(task)
			assert.Equal(t, describe(got), test.want)
			assert.Equal(t, len(s.notes("asked")) > 0, (got.Status == fleet.StatusDone), "the second worker was asked")
		})
	}
}

// TestBudgetOfAChild: a fleet worker is told the rest of the budget.
func TestBudgetOfAChild(t *testing.T) {
	t.Parallel()
	first := says("first", `,"tokens_spent":4`)
	first.Priority = 1
	s := newStage(t, first, fake(t, "second"))
	task := brief("id", "done")
	task.Task.TokenBudget = 10
	assert.Equal(t, describe(s.do(task)), `done 11 next=[the token budget of 10 was exceeded: 11 were spent] summary="did id"`)
	var sent fleet.Dispatch
	err := json.Unmarshal([]byte(s.notes("lines")[0]), &sent)
	assert.That(t, err == nil && sent.Task.TokenBudget == 6, "it was told %d tokens, %v", sent.Task.TokenBudget, err)
}

// TestBudgetOfTheOnlyWorker: if no other worker could take the task, the result does not say that the budget left one
// out.
func TestBudgetOfTheOnlyWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t, says("first", `,"tokens_spent":10`))
	task := brief("id", "")
	task.Task.TokenBudget = 10
	assert.Equal(t, describe(s.do(task)), `blocked 10 reason="not me"`)
}

// TestBudgetStops: a worker that certainly spends more than its budget is stopped, and its output so far is kept.
func TestBudgetStops(t *testing.T) {
	t.Parallel()
	const within = budgetSlack + 10*bytesPerToken
	print := func(bytes int, text string) string {
		return fmt.Sprintf(`head -c %d /dev/zero | tr '\0' '%s'; `, bytes, text)
	}
	for name, test := range map[string]struct {
		script string
		budget int
		stops  bool
	}{
		"for ever":             {`yes`, 10, true},
		"and ends by itself":   {print(within+32, "x"), 10, true},
		"with a result":        {print(within+32, "x") + `echo; echo '{"status":"done","tokens_spent":1}'`, 10, true},
		"on stderr":            {`{ ` + print(3*within, "x") + `} >&2`, 10, false},
		"as much as it may":    {print(within, "x"), 10, false},
		"blanks are not words": {print(3*within, " ") + print(3*within, `\n`), 10, false},
		"without a budget":     {print(3*within, "x"), 0, false},
		"a very large budget":  {print(3*within, "x"), 1 << 62, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, shell("w", test.script))
			task := brief("id", "")
			task.Task.TokenBudget = test.budget
			res := s.do(task)
			if !test.stops {
				assert.Equal(t, res.Status, fleet.StatusDone, "… %s", res.Error)
				return
			}
			if res.Status != fleet.StatusError || !strings.HasPrefix(res.Error, "token_budget: ") ||
				!res.TokensEstimated || res.TokensSpent < within/charsPerToken/2 || len(res.Summary) < within/2 {
				t.Errorf("%s %q, %d tokens, summary of %d bytes", res.Status, res.Error, res.TokensSpent,
					len(res.Summary))
			}
		})
	}
}
