package multiagent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// What one task wants is not wanted by the next one of the child.
func TestWantsOfATaskAreItsOwn(t *testing.T) {
	w := shell("w", "cat")
	w.Capabilities = []string{"a", "b", "x"}
	s, plugin := openStage(t, options(w), Env{})
	id := s.spawn("ann", "", `,"metadata":{"required_capabilities":["a","b"],"required_mcp":["a","b"]}`)
	ask[protocol.SubagentDelegateResponse](s, protocol.TypeSubagentDelegateReq, fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"go","metadata":{"required_capabilities":["x"],"required_mcp":["x"]}}}`, id))
	if got := s.await(id); got.Status != protocol.SubagentCompleted {
		t.Errorf("%+v", got)
	}
	if c := plugin.childOf(t, id); !slices.Equal(c.asks.Capabilities, []string{"a", "b"}) || !slices.Equal(c.asks.MCP, []string{"a", "b"}) {
		t.Errorf("its next task wants %v of %v", c.asks.Capabilities, c.asks.MCP)
	}
}

// What a request says of a child and of a task has bounds.
func TestLongNamesAndLists(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	id := s.spawn("ann", "", "")
	long, many := strings.Repeat("x", maxNameBytes+1), `["a"`+strings.Repeat(`,"a"`, maxNeeds)+`]`
	task := func(rest string) string {
		return fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"go"%s}}`, id, rest)
	}
	for _, c := range []struct {
		typ          protocol.Type
		fields, path string
	}{
		{protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m"},"parent_agent_id":"` + long + `"}`, "/parent_agent_id"},
		{protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m"},"root_agent_id":"` + long + `"}`, "/root_agent_id"},
		{protocol.TypeAgentSpawnReq, `{"name":"n","metadata":{"root_agent_id":"` + long + `"}}`, "/metadata/root_agent_id"},
		{protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m","metadata":{"required_mcp":` + many + `}}}`, "/agent/metadata/required_mcp"},
		{protocol.TypeSubagentDelegateReq, task(`,"metadata":{"required_capabilities":` + many + `}`), "/task/metadata/required_capabilities"},
		{protocol.TypeSubagentDelegateReq, task(`,"metadata":{"x":"` + strings.Repeat("x", maxTaskBytes) + `"}`), "/task/instruction"},
		{protocol.TypeSubagentDelegateReq, task(`,"success_criteria":[""` + strings.Repeat(`,""`, maxTaskBytes/2) + `]`), "/task/instruction"},
	} {
		if m := s.refused(protocol.CodeSchemaViolation, c.typ, c.fields); m.Problem() != c.path {
			t.Errorf("%s: %.300s", c.path, m.Line)
		}
	}
}

// A task that comes by another protocol nests like a child: each host on the way makes it
// one deeper, and max_depth ends it.
func TestDepthOfATaskWithoutAChild(t *testing.T) {
	for depth, ok := range map[int]bool{1: true, 3: true, 4: false, 9: false} {
		plugin := newPlugin(t, t.TempDir(), options(shell("w", `echo "$A2E_AGENT"`)), Env{Agent: &fleet.Agent{AgentID: "me", Depth: depth, ToolScope: protocol.ToolsShared}})
		for _, as := range []*fleet.Agent{nil, {AgentID: "other", ToolScope: protocol.ToolsShared}} {
			var task host.WorkerTask
			task.Task.TaskID, task.Brief, task.Agent = "t", "go", as
			res, err := plugin.RunTask(t.Context(), task)
			if (err == nil) != ok {
				t.Errorf("at depth %d: %v", depth, err)
			}
			if want := fmt.Sprintf(`"depth":%d`, depth+1); ok && err == nil && !strings.Contains(res.Summary, want) {
				t.Errorf("at depth %d: %s", depth, res.Summary)
			}
		}
	}
}
