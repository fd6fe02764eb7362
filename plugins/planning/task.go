package planning

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// unknownPlan is what a refusal says of a plan that nobody has.
func unknownPlan(id string) string {
	return fmt.Sprintf("there is no plan %.64q; planning/plan/list names those there are, planning/plan/create makes one", id)
}

func (p *Plugin) add(ctx context.Context, req *protocol.TaskAddRequest, _ host.Emitter) (*protocol.TaskAddResponse, error) {
	t := task{
		PlanID: req.PlanID, Title: req.Title, Assignee: req.Assignee, Description: req.Description,
		Deps: req.Deps, Metadata: jsontext.Value(req.Metadata.Raw()),
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	t.Deps = once(req.Deps)
	err := p.write(ctx, func(tx *store.Tx) error {
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.TaskAddResponse{Error: unknownPlan(req.PlanID)})
		}
		t.Status = pl.entry(req.Status)
		var wrong problems
		wrong.status(pl, t.Status)
		if err := wrong.deps(tx, pl, req.Deps); err != nil {
			return err
		}
		if wrong != nil {
			return wrong.err()
		}
		if t.ID, err = newID(tx, "SELECT 1 FROM planning_tasks WHERE id = ?"); err != nil {
			return err
		}
		t.Place, t.CreatedAt = pl.tasks, p.now()
		t.UpdatedAt = t.CreatedAt
		return t.put(tx, pl, nil)
	})
	if err != nil {
		return nil, err
	}
	return &protocol.TaskAddResponse{Success: true, TaskID: t.ID, Status: t.Status}, nil
}

// update changes a task. A refusal that concerns the plan or the task is no error
// but an answer without success, which is what agents of this protocol look for.
func (p *Plugin) update(ctx context.Context, req *protocol.TaskUpdateRequest, _ host.Emitter) (*protocol.TaskUpdateResponse, error) {
	resp := &protocol.TaskUpdateResponse{TaskID: req.TaskID}
	err := p.write(ctx, func(tx *store.Tx) error {
		resp.Success, resp.Error = false, ""
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.TaskUpdateResponse{TaskID: req.TaskID, Error: unknownPlan(req.PlanID)})
		}
		old, err := findTask(tx, req.TaskID)
		switch {
		case err != nil:
			return err
		case old == nil:
			resp.Error = fmt.Sprintf("there is no task %.64q; planning/task/list names those of the plan %s", req.TaskID, pl.ID)
			return nil
		case old.PlanID != pl.ID:
			resp.Error = fmt.Sprintf("the task %s belongs to the plan %s, not to %s", old.ID, old.PlanID, pl.ID)
			return nil
		}
		resp.Success = true
		return p.change(tx, pl, old, req)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// change writes what the request gives; what is empty in it stays.
func (p *Plugin) change(tx *store.Tx, pl *plan, old *task, req *protocol.TaskUpdateRequest) error {
	t := *old
	var wrong problems
	if req.Status != "" {
		wrong.status(pl, req.Status)
		t.Status = req.Status
	}
	if req.Assignee != "" {
		t.Assignee = req.Assignee
	}
	if len(req.Deps) > 0 {
		t.Deps = req.Deps
	}
	if err := t.check(); err != nil {
		return err
	}
	if len(req.Deps) > 0 {
		t.Deps = once(req.Deps)
		if err := wrong.newDeps(tx, pl, t.ID, req.Deps); err != nil {
			return err
		}
	}
	if wrong != nil {
		return wrong.err()
	}
	if reflect.DeepEqual(&t, old) {
		return nil // nothing was updated
	}
	t.UpdatedAt = p.now()
	return t.put(tx, pl, old)
}

func (p *Plugin) tasks(ctx context.Context, req *protocol.TaskListRequest, _ host.Emitter) (*protocol.TaskListResponse, error) {
	resp := &protocol.TaskListResponse{}
	err := p.read(ctx, func(tx *store.Tx) error {
		var size answer
		return eachTask(tx, req.PlanID, req.Status, func(t *task) error {
			resp.Tasks = append(resp.Tasks, t.row())
			return size.add(t.size())
		})
	})
	return resp, err
}

// row is the task as answers show it.
func (t *task) row() map[string]any {
	return map[string]any{
		"task_id": t.ID, "plan_id": t.PlanID, "title": t.Title, "status": t.Status, "assignee": t.Assignee,
		"description": t.Description, "deps": t.Deps, "metadata": t.Metadata,
		"created_at": t.CreatedAt.Seconds(), "updated_at": t.UpdatedAt.Seconds(),
	}
}
