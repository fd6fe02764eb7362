package planning

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

func (p *Plugin) create(ctx context.Context, req *protocol.PlanCreateRequest, _ host.Emitter) (*protocol.PlanCreateResponse, error) {
	pl := plan{Name: req.Name, Description: req.Description, Columns: req.Columns}
	if pl.Name == "" {
		req.SetDefaults()
		pl.Name = req.Name
	}
	if len(pl.Columns) == 0 {
		pl.Columns = defaultColumns()
	}
	if err := pl.check(); err != nil {
		return nil, err
	}
	err := p.kept.Write(ctx, func(tx *store.Tx) (err error) {
		if err := roomForPlan(tx, &pl); err != nil {
			return err
		}
		if pl.ID, err = newID(tx, "SELECT 1 FROM planning_plans WHERE id = ?"); err != nil {
			return err
		}
		pl.CreatedAt = p.now()
		return pl.insert(tx)
	})
	if err != nil {
		return nil, err
	}
	return &protocol.PlanCreateResponse{Success: true, PlanID: pl.ID, Columns: pl.Columns}, nil
}

func (p *Plugin) plans(ctx context.Context, _ *protocol.PlanListRequest, _ host.Emitter) (*protocol.PlanListResponse, error) {
	resp := &protocol.PlanListResponse{}
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := findPlans(tx, "")
		for _, pl := range all {
			resp.Plans = append(resp.Plans, map[string]any{
				"plan_id": pl.ID, "name": pl.Name, "columns": pl.Columns, "description": pl.Description,
				"created_at": pl.CreatedAt.Seconds(), "tasks": pl.tasks,
			})
		}
		return err
	})
	return resp, err
}

func (p *Plugin) board(ctx context.Context, req *protocol.PlanBoardRequest, _ host.Emitter) (*protocol.PlanBoardResponse, error) {
	resp := &protocol.PlanBoardResponse{}
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := findPlans(tx, req.PlanID)
		if err != nil {
			return err
		}
		var size answer
		for _, pl := range all {
			if err := size.add(pl.size()); err != nil {
				return err
			}
			l := lanes{columns: pl.Columns, rows: make(map[string][]map[string]any, len(pl.Columns))}
			if err := eachTask(tx, pl.ID, "", func(t *task) error {
				l.rows[t.Status] = append(l.rows[t.Status], t.row())
				return size.add(t.size())
			}); err != nil {
				return err
			}
			resp.Boards = append(resp.Boards, map[string]any{
				"plan_id": pl.ID, "name": pl.Name, "description": pl.Description, "columns": pl.Columns, "tasks": l,
			})
		}
		return nil
	})
	return resp, err
}

// lanes are the rows of a board by column. As JSON they are an object whose members
// stand in the order of the columns, as people read a board.
type lanes struct {
	columns []string
	rows    map[string][]map[string]any
}

// MarshalJSONTo implements json.MarshalerTo.
func (l lanes) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, column := range l.columns {
		if err := enc.WriteToken(jsontext.String(column)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, l.rows[column]); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

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
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
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
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
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
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
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
