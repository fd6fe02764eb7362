package planning

import (
	"context"

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
	err := p.write(ctx, func(tx *store.Tx) (err error) {
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
	err := p.read(ctx, func(tx *store.Tx) error {
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
	err := p.read(ctx, func(tx *store.Tx) error {
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
