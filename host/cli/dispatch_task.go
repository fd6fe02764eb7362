package cli

import (
	"fmt"
	"slices"
	"strings"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxTaskID is how long the id of a task may be, in bytes: what a worker takes.
const maxTaskID = 256

// dispatchTask is a task of the file.
type dispatchTask struct {
	fleet.Dispatch
	id   string // that its result has; the worker may know it by another one
	line int    // where it stands
}

// shortTask is a task as a person writes it.
type shortTask struct {
	Brief                string            `json:"brief"`
	TaskID               string            `json:"task_id"`
	Priority             fleet.Priority    `json:"priority"`
	ReplySchema          fleet.ReplySchema `json:"reply_schema"`
	Deadline             string            `json:"deadline"`
	TokenBudget          int               `json:"token_budget"`
	RequiredMCP          []string          `json:"required_mcp"`
	RequiredCapabilities []string          `json:"required_capabilities"`
}

// shortFields lists the members of a shortTask.
func shortFields() []string {
	return []string{"brief", "task_id", "priority", "reply_schema", "deadline", "token_budget", "required_mcp", "required_capabilities"}
}

// whole reads a TASK_DISPATCH. What stands beside its task and belongs into it, a worker would
// pass over without a word.
func (t *dispatchTask) whole(obj protocol.Object) error {
	var bad []protocol.FieldError
	for key := range obj.All() {
		switch name := string(key); name {
		case "task_id", "priority", "reply_schema", "token_budget":
			bad = append(bad, protocol.FieldError{Path: "/" + name, Message: "belongs into task"})
		case "required_mcp", "required_capabilities":
			bad = append(bad, protocol.FieldError{Path: "/" + name, Message: "belongs into requirements"})
		}
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	if err := protocol.Decode(obj, []string{"task"}, &t.Dispatch); err != nil {
		return err
	}
	switch {
	case t.Type != "" && t.Type != fleet.TypeDispatch:
		return protocol.Violation(protocol.FieldError{Path: "/type", Message: fmt.Sprintf("is %.64q; should be %s", t.Type, fleet.TypeDispatch)})
	case t.ProtocolVersion != "" && t.ProtocolVersion != fleet.Version:
		return protocol.Violation(protocol.FieldError{Path: "/protocol_version", Message: fmt.Sprintf("is %.32q; should be %q", t.ProtocolVersion, fleet.Version)})
	}
	return nil
}

// short reads a short form, in which each member that is not known is a slip of the pen.
func (t *dispatchTask) short(obj protocol.Object) error {
	var bad []protocol.FieldError
	for key := range obj.All() {
		if name := string(key); !slices.Contains(shortFields(), name) {
			bad = append(bad, protocol.FieldError{Path: "/" + name, Message: "is not known; there are: " + strings.Join(shortFields(), ", ")})
		}
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	var s shortTask
	if err := protocol.Decode(obj, []string{"brief"}, &s); err != nil {
		return err
	}
	t.Brief, t.Deadline = s.Brief, s.Deadline
	t.Task = fleet.Task{TaskID: s.TaskID, Priority: s.Priority, ReplySchema: s.ReplySchema, TokenBudget: s.TokenBudget}
	t.Requirements = fleet.Requirements{RequiredMCP: s.RequiredMCP, RequiredCapabilities: s.RequiredCapabilities}
	return nil
}

// check sets defaults and tells all that is wrong with the task. nested says that it is a
// whole message.
func (t *dispatchTask) check(nested bool) error {
	var bad []protocol.FieldError
	within := "/"
	if nested {
		within = "/task/"
	}
	wrong := func(path, format string, args ...any) {
		bad = append(bad, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if t.Task.Priority == "" {
		t.Task.Priority = fleet.PriorityNormal
	}
	if t.Task.ReplySchema == "" {
		t.Task.ReplySchema = fleet.ReplyProse
	}
	if strings.TrimSpace(t.Brief) == "" {
		wrong("/brief", "is empty; it says what is to be done")
	}
	if len(t.Task.TaskID) > maxTaskID {
		wrong(within+"task_id", "has %d bytes; at most %d are possible", len(t.Task.TaskID), maxTaskID)
	}
	if !slices.Contains(taskPriorities(), t.Task.Priority) {
		wrong(within+"priority", "is %.32q; should be low, normal, high or urgent", t.Task.Priority)
	}
	if !slices.Contains([]fleet.ReplySchema{fleet.ReplyProse, fleet.ReplyStructured, fleet.ReplyJSON}, t.Task.ReplySchema) {
		wrong(within+"reply_schema", "is %.32q; should be prose, structured or json", t.Task.ReplySchema)
	}
	if t.Task.TokenBudget < 0 {
		wrong(within+"token_budget", "is %d; should be 0 for none, or more", t.Task.TokenBudget)
	}
	if _, _, err := t.DeadlineTime(); err != nil {
		wrong("/deadline", "%.64q is no RFC 3339 time, such as 2026-11-21T15:04:05Z", t.Deadline)
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	return nil
}

// taskPriorities lists the priorities, highest first.
func taskPriorities() []fleet.Priority {
	return []fleet.Priority{fleet.PriorityUrgent, fleet.PriorityHigh, fleet.PriorityNormal, fleet.PriorityLow}
}
