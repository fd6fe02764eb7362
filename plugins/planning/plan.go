package planning

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// create makes a plan, or deletes one.
func (p *Plugin) create(ctx context.Context, req *protocol.PlanCreateRequest, _ host.Emitter) (*protocol.PlanCreateResponse, error) {
	if req.Delete {
		return p.delete(ctx, req)
	}
	if req.PlanID != "" {
		return nil, refusal("/plan_id", "goes with \"delete\": true; a new plan gets its id from the host")
	}
	pl := plan{Name: req.Name, Description: req.Description, Columns: req.Columns, DoneColumn: req.DoneColumn}
	if pl.Name == "" {
		req.SetDefaults()
		pl.Name = req.Name
	}
	if len(pl.Columns) == 0 {
		pl.Columns = defaultColumns()
	}
	pl.DoneColumn = cmp.Or(pl.DoneColumn, pl.usualDone())
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

// delete deletes a plan with its tasks, unless somebody works on one of them.
func (p *Plugin) delete(ctx context.Context, req *protocol.PlanCreateRequest) (*protocol.PlanCreateResponse, error) {
	resp := &protocol.PlanCreateResponse{PlanID: req.PlanID, Columns: []string{}}
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
		resp.Success, resp.Error = false, ""
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.PlanCreateResponse{PlanID: req.PlanID, Columns: []string{}, Error: unknownPlan(req.PlanID)})
		}
		claimed := 0
		if _, err := tx.Get("SELECT count(*) FROM planning_tasks WHERE plan_id = ? AND claimed_until > ?", []any{pl.ID, int64(p.now())}, &claimed); err != nil {
			return err
		}
		if claimed > 0 && !req.Force {
			resp.Error = fmt.Sprintf("%d tasks of the plan %s are claimed, and somebody may work on them; \"force\": true deletes it all the same", claimed, pl.ID)
			return nil
		}
		resp.Success, resp.Columns = true, pl.Columns
		for _, q := range []string{"DELETE FROM planning_tasks WHERE plan_id = ?", "DELETE FROM planning_plans WHERE id = ?"} {
			if _, err := tx.Exec(q, pl.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (p *Plugin) plans(ctx context.Context, _ *protocol.PlanListRequest, _ host.Emitter) (*protocol.PlanListResponse, error) {
	resp := &protocol.PlanListResponse{}
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := findPlans(tx, "")
		for _, pl := range all {
			resp.Plans = append(resp.Plans, map[string]any{
				"plan_id": pl.ID, "name": pl.Name, "columns": pl.Columns, "description": pl.Description,
				"created_at": pl.CreatedAt.Seconds(), "tasks": pl.tasks, "done": pl.done, "done_column": pl.DoneColumn,
			})
		}
		return err
	})
	return resp, err
}

func (p *Plugin) board(ctx context.Context, req *protocol.PlanBoardRequest, _ host.Emitter) (*protocol.PlanBoardResponse, error) {
	resp := &protocol.PlanBoardResponse{}
	if req.Format != "" {
		return resp, p.export(ctx, req, resp)
	}
	now := p.now()
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
			if err := eachTask(tx, &filter{PlanID: pl.ID}, func(t *task) error {
				l.rows[t.Status] = append(l.rows[t.Status], t.row(now))
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
