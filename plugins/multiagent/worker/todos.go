package worker

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"a2e/protocol"
)

// The states of a step, which are the columns of the plan of a task's steps.
const (
	todoPending   = "pending"
	todoActive    = "in_progress"
	todoCompleted = "completed"
)

// maxTodos is how many steps a list may have.
const maxTodos = 100

// todos has the steps of a model's task: a plan of the host, which people see while the task runs. The plan of a
// conversation stays until all steps are completed; another plan is deleted at the end of the task.
type todos struct {
	plan  string            // id of the plan; "" = none
	tasks map[string]string // id of each step, by its text
	state map[string]string // state of each step, by its text
	stale bool              // a change failed: the plan is read anew before the next one
}

// todo is a step.
type todo struct {
	Content string `json:"content"`
	Status  string `json:"status"`
}

func (h *hands) todoWrite(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		Todos []todo `json:"todos"`
	}](args)
	if err != nil {
		return nil, err
	}
	if err := checkTodos(in.Todos); err != nil {
		return nil, err
	}
	l := &h.todos
	if err := l.open(ctx, h); err != nil {
		return nil, err
	}
	counts := map[string]int{todoPending: 0, todoActive: 0, todoCompleted: 0}
	wanted := make(map[string]bool)
	for _, t := range in.Todos {
		wanted[t.Content] = true
		counts[t.Status]++
		err = cmp.Or(err, l.put(ctx, h, t))
	}
	for content := range l.tasks {
		if !wanted[content] {
			err = cmp.Or(err, l.remove(ctx, h, content))
		}
	}
	if err != nil { // the other steps were changed
		l.stale = true
		return nil, err
	}
	return told(counts)
}

// checkTodos returns an error if a list of steps is wrong.
func checkTodos(list []todo) error {
	if len(list) > maxTodos {
		return protocol.Errorf(protocol.CodeSchemaViolation, "the list has %d steps; it may have %d", len(list),
			maxTodos)
	}
	seen := make(map[string]bool)
	for i := range list {
		t := &list[i]
		t.Content, t.Status = strings.TrimSpace(t.Content), cmp.Or(t.Status, todoPending)
		switch {
		case t.Content == "":
			return protocol.Errorf(protocol.CodeSchemaViolation, "step %d has no content", i+1)
		case seen[t.Content]:
			return protocol.Errorf(protocol.CodeSchemaViolation, "the step %.64q is there twice", t.Content)
		case !slices.Contains([]string{todoPending, todoActive, todoCompleted}, t.Status):
			return protocol.Errorf(protocol.CodeSchemaViolation, "the status of step %d is %.32q; it should be "+
				"pending, in_progress or completed", i+1, t.Status)
		}
		seen[t.Content] = true
	}
	return nil
}

// open finds the plan of the conversation, or makes one.
func (l *todos) open(ctx context.Context, h *hands) error {
	if l.plan != "" && (!l.stale || l.load(ctx, h, l.plan) == nil) {
		return nil
	}
	name := "todo of " + h.run.Name + ", " + cmp.Or(h.task.Task.ContextID, h.task.Task.TaskID)
	if h.task.talk != nil { // an earlier task of the conversation may have left a plan
		var plans protocol.PlanListResponse
		if err := h.ask(ctx, protocol.TypePlanListReq, &protocol.PlanListRequest{Folder: "."}, &plans); err != nil {
			return err
		}
		for _, p := range plans.Plans {
			if p["name"] == name {
				return l.load(ctx, h, memberText(p["plan_id"]))
			}
		}
	}
	var made protocol.PlanCreateResponse
	err := h.ask(ctx, protocol.TypePlanCreateReq, &protocol.PlanCreateRequest{
		Name: name, Columns: []string{todoPending, todoActive, todoCompleted}, DoneColumn: todoCompleted,
	}, &made)
	if err == nil && !made.Success {
		err = protocol.Errorf(protocol.CodeToolError, "the list could not be made: %s", made.Error)
	}
	l.plan, l.tasks, l.state, l.stale = made.PlanID, make(map[string]string), make(map[string]string), false
	return err
}

// memberText returns a string member of a plan or a task, or "".
func memberText(v any) string {
	s, _ := v.(string)
	return s
}

// load reads the steps of an existing plan.
func (l *todos) load(ctx context.Context, h *hands, plan string) error {
	var all protocol.TaskListResponse
	if err := h.ask(ctx, protocol.TypeTaskListReq, &protocol.TaskListRequest{PlanID: plan}, &all); err != nil {
		return err
	}
	l.plan, l.tasks, l.state, l.stale = plan, make(map[string]string), make(map[string]string), false
	for _, t := range all.Tasks {
		title := memberText(t["title"])
		l.tasks[title], l.state[title] = memberText(t["task_id"]), memberText(t["status"])
	}
	return nil
}

// put adds a step, or moves it to another column.
func (l *todos) put(ctx context.Context, h *hands, t todo) error {
	if _, there := l.tasks[t.Content]; there {
		if l.state[t.Content] == t.Status {
			return nil
		}
		err := l.update(ctx, h, t.Content, protocol.TaskUpdateRequest{Status: t.Status})
		if err == nil {
			l.state[t.Content] = t.Status
		}
		return err
	}
	var added protocol.TaskAddResponse
	req := protocol.TaskAddRequest{PlanID: l.plan, Title: t.Content, Status: t.Status, Assignee: h.run.Name}
	err := h.ask(ctx, protocol.TypeTaskAddReq, &req, &added)
	if err == nil && !added.Success {
		err = protocol.Errorf(protocol.CodeToolError, "the step %.64q was not kept: %s", t.Content, added.Error)
	}
	if err == nil {
		l.tasks[t.Content], l.state[t.Content] = added.TaskID, t.Status
	}
	return err
}

// remove deletes a step.
func (l *todos) remove(ctx context.Context, h *hands, content string) error {
	err := l.update(ctx, h, content, protocol.TaskUpdateRequest{Action: protocol.TaskDelete})
	if err == nil {
		delete(l.tasks, content)
		delete(l.state, content)
	}
	return err
}

func (l *todos) update(ctx context.Context, h *hands, content string, req protocol.TaskUpdateRequest) error {
	req.PlanID, req.TaskID, req.Force = l.plan, l.tasks[content], true
	var resp protocol.TaskUpdateResponse
	err := h.ask(ctx, protocol.TypeTaskUpdateReq, &req, &resp)
	if err == nil && !resp.Success {
		err = protocol.Errorf(protocol.CodeToolError, "the step %.64q was not changed: %s", content, resp.Error)
	}
	return err
}

// end deletes the plan, unless it belongs to a conversation and has a step that is not completed.
func (l *todos) end(ctx context.Context, h *hands) {
	open := false
	for _, state := range l.state {
		open = open || state != todoCompleted
	}
	if l.plan == "" || open && h.task.talk != nil {
		return
	}
	req := protocol.PlanCreateRequest{Delete: true, PlanID: l.plan, Force: true}
	if err := h.ask(ctx, protocol.TypePlanCreateReq, &req, nil); err != nil {
		h.run.pool.env.Log.Warn().Err(err).Str("plan_id", l.plan).Msg("the list of the steps of a task that has " +
			"ended is left")
	}
}
