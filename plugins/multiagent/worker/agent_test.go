package worker

import (
	"context"
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

// scope is an agent that may use these.
func scope(id string, tools protocol.ToolScope, steps int, names ...string) *fleet.Agent {
	return &fleet.Agent{AgentID: id, MemoryScope: protocol.MemoryIsolated, ToolScope: tools, Capabilities: append([]string{}, names...), MaxSteps: steps}
}

// A child has no more than its parent, and no more than it was given.
func TestConfine(t *testing.T) {
	t.Parallel()
	const all, some, none = protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated
	for name, test := range map[string]struct{ child, own, want *fleet.Agent }{
		"nothing is known":          {nil, nil, nil},
		"the first host's child":    {scope("c", all, 0), nil, scope("c", all, 0)},
		"nobody in particular":      {nil, scope("o", some, 3, "echo"), scope("o", some, 3, "echo")},
		"of one that has all":       {scope("c", some, 0, "echo"), scope("o", all, 0), scope("c", some, 0, "echo")},
		"of one that has no tools":  {scope("c", all, 0, "x"), scope("o", none, 0), scope("c", none, 0)},
		"it would have all":         {scope("c", all, 0), scope("o", some, 0, "echo", "proc"), scope("c", some, 0, "echo", "proc")},
		"it would have more":        {scope("c", some, 0, "echo", "write_file", "skill"), scope("o", some, 0, "echo", "proc"), scope("c", some, 0, "echo")},
		"it has less":               {scope("c", none, 0), scope("o", some, 0, "echo"), scope("c", none, 0)},
		"one tool of all":           {scope("c", some, 0, "echo", "proc", "test"), scope("o", some, 0, "tools", "skill"), scope("c", some, 0, "echo")},
		"all tools of one":          {scope("c", some, 0, "tools", "proc"), scope("o", some, 0, "echo", "skill"), scope("c", some, 0, "echo")},
		"all tools of all":          {scope("c", some, 0, "tools"), scope("o", some, 0, "tools", "echo"), scope("c", some, 0, "tools", "echo")},
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
		`schema_violation: /agent/agent_id: is missing; it names the child agent`:                  {ToolScope: protocol.ToolsShared},
		`schema_violation: /agent/tool_scope: is "wide"; should be shared, restricted or isolated`: {AgentID: "a", ToolScope: "wide"},
		`schema_violation: /agent/max_steps: is below 0; 0 is any number`:                          scope("a", protocol.ToolsShared, -1),
	} {
		task := brief("t", "")
		task.Agent = agent
		res, err := s.RunTask(context.Background(), task)
		assert.That(t, res == nil && err != nil && err.Error() == want, "%v, %v; want %s", res, err, want)
	}
}

// A process learns as whom it works from its task or its host, and from nothing else: not
// from the config or the further variables of a task.
func TestAgentOfAProcess(t *testing.T) {
	t.Parallel()
	child, own := scope("child", protocol.ToolsShared, 7), scope("own", protocol.ToolsRestricted, 0, "echo")
	both, deeper := scope("child", protocol.ToolsRestricted, 7, "echo"), scope("own", protocol.ToolsRestricted, 0, "echo")
	both.Depth, deeper.Depth = 1, 1
	for name, test := range map[string]struct{ child, own, want *fleet.Agent }{
		"none": {nil, nil, nil}, "of the task": {child, nil, child}, "of the host": {nil, own, deeper}, "of both": {child, own, both},
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

// agentOf reads what a process found in its variable.
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

// No request that starts a program can say as whom that works.
func TestNoRequestNamesAnAgent(t *testing.T) {
	t.Parallel()
	assert.Fails(t, sandbox.CheckEnv(fleet.EnvAgent, "x"), "", "a request may say as whom its process works")
}

// Nobody has a task done as one of those above: their memory is not its own.
func TestNoTaskAsOneAbove(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	s.env.Agent = &fleet.Agent{AgentID: "me", ParentAgentID: "boss", RootAgentID: "root", ToolScope: protocol.ToolsShared}
	for id, refused := range map[string]bool{"boss": true, "root": true, "child": false} {
		task := brief("t", "")
		task.Agent = scope(id, protocol.ToolsShared, 0)
		_, err := s.RunTask(context.Background(), task)
		assert.That(t, (err != nil) == refused && (!refused || strings.Contains(err.Error(), "/agent/agent_id")), "%s: %v", id, err)
	}
}
