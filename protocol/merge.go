package protocol

import (
	"cmp"
	"slices"
	"strings"
)

// A Merge function merges the answers of two plugins to a request for a list: it adds the rows of src, of
// the plugin with lower priority, to dst. Of rows with the same key it keeps the one of dst.

// added appends to dst the rows of src whose keys dst does not have, and returns it.
func added[Row any, Key comparable](dst, src []Row, key func(Row) Key) []Row {
	there := make(map[Key]bool, len(dst))
	for _, row := range dst {
		there[key(row)] = true
	}
	for _, row := range src {
		if k := key(row); !there[k] {
			there[k] = true
			dst = append(dst, row)
		}
	}
	return dst
}

// rowKey returns a function that returns the text of a member of a row, as its key.
func rowKey(name string) func(map[string]any) string {
	return func(row map[string]any) string {
		text, _ := row[name].(string)
		return text
	}
}

// MergeTools adds tools, by name.
func MergeTools(dst, src *ToolListResponse) {
	name := func(t ToolDefinition) string { return t.Name }
	dst.Tools = added(added([]ToolDefinition{}, dst.Tools, name), src.Tools, name)
	slices.SortStableFunc(dst.Tools, func(a, b ToolDefinition) int { return strings.Compare(a.Name, b.Name) })
}

// MergeToolkits adds toolkits, by name.
func MergeToolkits(dst, src *ToolkitListResponse) {
	name := func(t ToolkitDefinition) string { return t.Name }
	dst.Toolkits = added(dst.Toolkits, src.Toolkits, name)
	slices.SortStableFunc(dst.Toolkits, func(a, b ToolkitDefinition) int { return strings.Compare(a.Name, b.Name) })
}

// MergeSkills adds skills, by name.
func MergeSkills(dst, src *SkillDiscoverResponse) {
	name := func(s SkillDefinition) string { return s.Name }
	dst.Skills = added(dst.Skills, src.Skills, name)
	slices.SortStableFunc(dst.Skills, func(a, b SkillDefinition) int { return strings.Compare(a.Name, b.Name) })
}

// MergeProcStatus adds processes. If the request names one process, only one plugin knows it, and the
// result is the answer of that plugin.
func MergeProcStatus(dst, src *ProcStatusResponse) {
	switch {
	case dst.ProcID != "":
		if dst.Status == ProcNotFound {
			*dst = *src
		}
		return
	case src.Status == ProcRunning:
		dst.Status = ProcRunning
	}
	dst.Procs = append(dst.Procs, src.Procs...)
}

// MergeLearnStats adds components; plugins on one store have the same components.
func MergeLearnStats(dst, src *LearnStatsResponse) {
	dst.Components = added(dst.Components, src.Components,
		func(c map[string]any) [2]any { return [2]any{c["kind"], c["component_name"]} })
	dst.History = append(dst.History, src.History...)
}

// MergeRefinements adds entries of the history of refinements.
func MergeRefinements(dst, src *RefinementHistoryResponse) {
	dst.Entries = added(dst.Entries, src.Entries, rowKey("refinement_id"))
}

// MergePlans adds plans.
func MergePlans(dst, src *PlanListResponse) {
	dst.Plans = added(dst.Plans, src.Plans, rowKey("plan_id"))
}

// MergeBoards adds the boards of plans. At most one answer has a text, as a text is of one plan.
func MergeBoards(dst, src *PlanBoardResponse) {
	dst.Text = cmp.Or(dst.Text, src.Text)
	dst.Boards = added(dst.Boards, src.Boards, rowKey("plan_id"))
}

// MergeTasks adds tasks of plans.
func MergeTasks(dst, src *TaskListResponse) {
	dst.Tasks = added(dst.Tasks, src.Tasks, rowKey("task_id"))
}

// MergeAgents adds child agents.
func MergeAgents(dst, src *AgentListResponse) {
	dst.Subagents = added(dst.Subagents, src.Subagents, rowKey("subagent_id"))
}

// MergeSubagents adds child agents of the long spelling.
func MergeSubagents(dst, src *SubagentListResponse) {
	dst.Subagents = added(dst.Subagents, src.Subagents, func(a SubagentInfo) string { return a.SubagentID })
}

// MergeMCPServers adds MCP servers.
func MergeMCPServers(dst, src *MCPServerListResponse) {
	dst.Servers = added(dst.Servers, src.Servers, rowKey("server_id"))
}
