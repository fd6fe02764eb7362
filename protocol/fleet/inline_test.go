package fleet_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/protocol/fleet"
)

// TestReadInline: fields in a brief fill the fields that the message lacks. Text that is not a field
// stays in the brief.
func TestReadInline(t *testing.T) {
	full := fleet.Dispatch{
		Task:         fleet.Task{TaskID: "t9", Priority: "high", ReplySchema: "json", TokenBudget: 12000},
		Requirements: fleet.Requirements{RequiredMCP: []string{"linear", "db"}, RequiredCapabilities: []string{"file"}},
		Deadline:     "2999-01-01T00:00:00Z",
	}
	const hints = "task_id: t9\n- **Priority:** HIGH\nReply-Schema: json\nToken budget: 12,000 tokens\ndeadline: " +
		"2999-01-01T00:00:00Z\nrequired_mcp: [linear, \"db\"]\nrequired_capabilities: file\n"
	own := full
	own.Task.Priority, own.Task.TokenBudget = "low", 7
	for name, c := range map[string]struct {
		given fleet.Dispatch
		brief string
		want  fleet.Dispatch
		left  string
	}{
		"all": {
			fleet.Dispatch{},
			"TASK DISPATCH (inline)\n" + hints + "\nFix it.\npriority: mine\n", full,
			"Fix it.\npriority: mine",
		},
		"own first": {
			fleet.Dispatch{Task: fleet.Task{Priority: "low", TokenBudget: 7}},
			"\n## TASK DISPATCH (inline):\r\n" + hints, own, "",
		},
		"text": {
			fleet.Dispatch{},
			"TASK DISPATCH (inline)\ncolour: red\nAnd so on\n\nFix it.",
			fleet.Dispatch{},
			"colour: red\nAnd so on\n\nFix it.",
		},
		"no line": {
			fleet.Dispatch{},
			"Write TASK DISPATCH (inline)\npriority: high",
			fleet.Dispatch{},
			"Write TASK DISPATCH (inline)\npriority: high",
		},
		"quoted": {
			fleet.Dispatch{},
			"Explain:\n```\nTASK DISPATCH (inline)\npriority: high\n```",
			fleet.Dispatch{},
			"Explain:\n```\nTASK DISPATCH (inline)\npriority: high\n```",
		},
		"none": {fleet.Dispatch{}, "TASK DISPATCH (inline)\nrequired_mcp: none\ndeadline:\ntoken_budget: " +
			"none\n\nGo.", fleet.Dispatch{}, "Go."},
		"behind text": {
			fleet.Dispatch{},
			"Hello.\nHere is work:\n\n**TASK DISPATCH (inline)**\n" + hints + "\nFix it.",
			full, "Hello.\nHere is work:\n\nFix it.",
		},
		"lists": {fleet.Dispatch{}, strings.NewReplacer("required_mcp: [linear, \"db\"]",
			"required_mcp:\n  - linear # tickets\n  - \"db\"",
			"required_capabilities: file", "required_capabilities: [\n  file,\n]").Replace("TASK DISPATCH (inline)\n" +
			hints + "\nFix it."), full, "Fix it."},
		"bullets": {fleet.Dispatch{}, "TASK DISPATCH (inline)\n- required_mcp:\n- linear\n- db\n- " +
			"required_capabilities: file\n- task_id: t9\n- priority: high\n- reply_schema: json\n- token_budget: " +
			"12000\n- deadline: 2999-01-01T00:00:00Z\n\nFix it.", full, "Fix it."},
		"label": {
			fleet.Dispatch{},
			"TASK DISPATCH (inline)\n" + hints + "\nBrief: Fix it.\n  So.", full,
			"Fix it.\n  So.",
		},
		"label alone": {fleet.Dispatch{}, "TASK DISPATCH (inline)\n\n" + hints +
			"**Brief:**\nFix it.\n\npriority: mine", full, "Fix it.\n\npriority: mine"},
		"a document": {fleet.Dispatch{}, "TASK DISPATCH (inline)\ntask:\n  priority: low\nrequirements:\n  " +
			"required_mcp: [a]\nbrief: |\n  Fix:\n    it\n", fleet.Dispatch{
			Task:         fleet.Task{Priority: "low"},
			Requirements: fleet.Requirements{RequiredMCP: []string{"a"}},
		}, "Fix:\n  it"},
		"in a fence": {fleet.Dispatch{}, "TASK DISPATCH (inline)\n```yaml\npriority: low\n\ntask_id: x # " +
			"y\n```\nFix it.", fleet.Dispatch{Task: fleet.Task{Priority: "low", TaskID: "x # y"}}, "Fix it."},
		"next version": {
			fleet.Dispatch{},
			"TASK DISPATCH (inline)\nprotocol_version: 2.3\n\nGo.",
			fleet.Dispatch{ProtocolVersion: "2.3"},
			"Go.",
		},
	} {
		c.given.Brief, c.want.Brief = c.brief, c.left
		err := c.given.ReadInline()
		assert.That(t, err == nil, "%s: %v", name, err)
		diff := cmp.Diff(c.want, c.given)
		assert.Equal(t, diff, "", "%s", name)
	}
}

// TestInlineWrong: a field that cannot be understood is named, and the brief stays as it was.
func TestInlineWrong(t *testing.T) {
	for hint, want := range map[string]string{
		"priority: asap":                     `priority is "asap"; should be low, normal, high or urgent`,
		"priorty: high":                      `"priorty" is not known; did you mean priority?`,
		"max_cost: 5":                        `"max_cost" is not known; there are protocol_version, task_id, priority,`,
		"isolation: worktree":                "isolation is not a field of the inline form; set it in the message itself",
		"reply_schema: xml":                  `reply_schema is "xml"; should be prose, structured or json`,
		"token_budget: plenty":               `token_budget is "plenty"; should be a whole number`,
		"token_budget: -1":                   `token_budget is -1; should be`,
		"deadline: tomorrow":                 `deadline "tomorrow" is not an RFC 3339 time`,
		"protocol_version: 3.0":              `protocol_version is "3.0"; should be 2.x`,
		"priority: low\npriority: high":      "priority is given twice",
		"required_mcp:\n  - name: linear":    "required_mcp is",
		"required_mcp: [linear":              "required_mcp is",
		"priority: asap\ntoken_budget: many": `high or urgent; token_budget is "many"`,
	} {
		brief := "TASK DISPATCH (inline)\n" + hint + "\ntask_id: t9\n\nFix it."
		d := fleet.Dispatch{Brief: brief}
		err := d.ReadInline()
		if err == nil || !strings.Contains(err.Error(), want) || d.Brief != brief || d.Task.TaskID != "t9" {
			t.Errorf("%s: %v, task %q, brief %q", hint, err, d.Task.TaskID, d.Brief)
		}
	}
}

// TestSpeaks: any minor version of the protocol's major version is understood.
func TestSpeaks(t *testing.T) {
	for version, want := range map[string]bool{
		"2.0": true, "2.1": true, "2.17": true, "2": true, "1.0": false,
		"3.0": false, "20.0": false, "": false,
	} {
		assert.Equal(t, fleet.Speaks(version), want, "%s", version)
	}
}
