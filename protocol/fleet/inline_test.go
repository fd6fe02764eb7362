package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/protocol/fleet"
)

// TestReadInline: hints of a brief fill what the message does not say. What is none, or has
// a value that does not fit, stays in the brief.
func TestReadInline(t *testing.T) {
	full := fleet.Dispatch{
		Task:         fleet.Task{TaskID: "t9", Priority: "high", ReplySchema: "json", TokenBudget: 12000},
		Requirements: fleet.Requirements{RequiredMCP: []string{"linear", "db"}, RequiredCapabilities: []string{"file"}}, Deadline: "2999-01-01T00:00:00Z",
	}
	const hints = "task_id: t9\n- **Priority:** HIGH\nReply-Schema: json\nToken budget: 12,000 tokens\ndeadline: 2999-01-01T00:00:00Z\nrequired_mcp: [linear, \"db\"]\nrequired_capabilities: file\n"
	own := full
	own.Task.Priority, own.Task.TokenBudget = "low", 7
	for name, c := range map[string]struct {
		given fleet.Dispatch
		brief string
		want  fleet.Dispatch
		left  string
	}{
		"all":       {fleet.Dispatch{}, "TASK DISPATCH (inline)\n" + hints + "\nFix it.\npriority: mine\n", full, "Fix it.\npriority: mine"},
		"own first": {fleet.Dispatch{Task: fleet.Task{Priority: "low", TokenBudget: 7}}, "\n## TASK DISPATCH (inline):\r\n" + hints, own, ""},
		"unknown":   {fleet.Dispatch{}, "TASK DISPATCH (inline)\npriority: asap\ncolour: red\nAnd so on\n\nFix it.", fleet.Dispatch{}, "priority: asap\ncolour: red\nAnd so on\n\nFix it."},
		"no hints":  {fleet.Dispatch{}, "Write TASK DISPATCH (inline)\npriority: high", fleet.Dispatch{}, "Write TASK DISPATCH (inline)\npriority: high"},
		"none":      {fleet.Dispatch{}, "TASK DISPATCH (inline)\nrequired_mcp: none\n\nGo.", fleet.Dispatch{}, "Go."},
	} {
		c.given.Brief, c.want.Brief = c.brief, c.left
		c.given.ReadInline()
		diff := cmp.Diff(c.want, c.given)
		assert.Equal(t, diff, "", "%s", name)
	}
}
