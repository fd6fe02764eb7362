// Package planning is the capability `planning`: plans with columns, and tasks
// that wait for each other. Plans are in the store: they outlive the host, and
// all hosts on one store have the same plans.
//
//	planning.go  the plugin, its routes, plan/*  deps.go      dependencies of tasks
//	task.go      task/*                          tables.go    plans and tasks in the store
//	claim.go     claims and deletion of tasks    values.go    priorities, times and estimates
//	export.go    a plan as Markdown, Mermaid     transfer.go  export and import
//	limits.go    limits and their checks
package planning

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
)

// Options are the plugin's options in the config: there are none.
type Options struct{}

// Plugin is one `planning` plugin. All its state is in the store: two plugins on one
// store have the same plans.
type Plugin struct {
	name string
	env  host.Env
	kept host.Kept
}

// New makes the plugin with the name name. It returns an error if the host has no store.
func New(name string, _ Options, env host.Env) (*Plugin, error) {
	if env.Store == nil {
		return nil, fmt.Errorf("plugin %q: plans need a store to be kept in", name)
	}
	env = env.WithDefaults()
	return &Plugin{name: name, env: env, kept: env.Kept(name)}, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapPlanning, Stored: true}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypePlanCreateReq, p.create).Wrap(p.knowing("name", "columns", "description",
			"done_column", "delete", "plan_id", "force")),
		host.List(protocol.TypePlanListReq, p.plans, protocol.MergePlans),
		host.List(protocol.TypePlanBoardReq, p.board, protocol.MergeBoards).Wrap(p.knowing("plan_id", "format")),
		host.Handle(protocol.TypeTaskAddReq, p.add).Wrap(p.knowing("plan_id", "title", "status", "description",
			"assignee", "deps", "metadata",
			"priority", "due", "estimate", "force")),
		host.Handle(protocol.TypeTaskUpdateReq, p.update).Wrap(p.knowing("plan_id", "task_id", "status", "assignee",
			"deps", "title", "description",
			"metadata", "priority", "due", "estimate", "comment", "clear", "action", "owner", "lease", "if_version",
			"force")),
		host.List(protocol.TypeTaskListReq, p.tasks, protocol.MergeTasks).Wrap(p.knowing("plan_id", "status",
			"task_id", "assignee", "ready", "limit")),
	}
}

// knowing returns a middleware that refuses a request with a field that is not in fields: ignoring it could
// change the wrong thing or select the wrong tasks. It lets a request for an unknown plan through, as
// another plugin may have the plan.
func (p *Plugin) knowing(fields ...string) func(context.Context, protocol.Object, func() (any, error)) (any, error) {
	return func(ctx context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
		err := host.KnownFields(obj, fields)
		if err == nil {
			return next()
		}
		if name := obj.Text("plan_id"); name != "" {
			var pl *plan
			if failed := p.kept.Read(ctx, func(tx *store.Tx) (err error) {
				pl, err = findPlan(tx, name)
				return err
			}); failed != nil || pl == nil {
				return next() // next reports the unknown plan
			}
		}
		return nil, err
	}
}

// Close implements host.Plugin.
func (p *Plugin) Close(context.Context) error { return nil }

// now returns the time as the store has it.
func (p *Plugin) now() store.Micros { return store.Micros(p.env.Now().UnixMicro()) }

// create makes a plan, or deletes one.
func (p *Plugin) create(ctx context.Context, req *protocol.PlanCreateRequest,
	_ host.Emitter,
) (*protocol.PlanCreateResponse, error) {
	if req.Delete {
		return p.delete(ctx, req)
	}
	if req.PlanID != "" {
		return nil, protocol.Wrong("/plan_id", "goes with \"delete\": true; a new plan gets its id from the host")
	}
	pl := plan{
		Name: req.Name, Description: req.Description, Columns: req.Columns, DoneColumn: req.DoneColumn,
		Folder: wall.CanonicalIn(p.env.Workspace, "."),
	}
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
		if pl.ID, err = newID(tx, "SELECT 1 FROM planning_plans WHERE id = $1"); err != nil {
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

// delete deletes a plan with its tasks. If a task is claimed, it refuses unless force is set.
func (p *Plugin) delete(ctx context.Context, req *protocol.PlanCreateRequest) (*protocol.PlanCreateResponse, error) {
	resp := &protocol.PlanCreateResponse{PlanID: req.PlanID, Columns: []string{}}
	var holders []string
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
		resp.Success, resp.Error = false, ""
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.PlanCreateResponse{
				PlanID: req.PlanID, Columns: []string{},
				Error: unknownPlan(req.PlanID),
			})
		}
		holders, err = store.Column[string](tx, "SELECT claimed_by FROM planning_tasks WHERE plan_id = $1 AND "+
			"claimed_until > $2", pl.ID, p.now())
		if err != nil {
			return err
		}
		if len(holders) > 0 && !req.Force {
			resp.Error = fmt.Sprintf("the plan %s has %s; \"force\": true deletes it anyway",
				pl.ID, protocol.Count(len(holders), "claimed task"))
			return nil
		}
		resp.Success, resp.Columns = true, pl.Columns
		for _, q := range []string{
			"DELETE FROM planning_tasks WHERE plan_id = $1",
			"DELETE FROM planning_plans WHERE id = $1",
		} {
			if _, err := tx.Exec(q, pl.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if resp.Success && len(holders) > 0 {
		who := ""
		if s := host.SessionFrom(ctx); s != nil {
			who = s.AgentID
		}
		p.recordForce(ctx, "the plan "+req.PlanID, strings.Join(holders, ", "), who)
	}
	return resp, nil
}

func (p *Plugin) plans(
	ctx context.Context, req *protocol.PlanListRequest, _ host.Emitter,
) (*protocol.PlanListResponse, error) {
	resp := &protocol.PlanListResponse{}
	folder := wall.CanonicalIn(p.env.Workspace, req.Folder)
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := findPlans(tx, "")
		for _, pl := range all {
			if folder != "" && pl.Folder != folder {
				continue
			}
			row := map[string]any{
				"plan_id": pl.ID, "name": pl.Name, "columns": pl.Columns, "description": pl.Description,
				"created_at": pl.CreatedAt.Seconds(), "tasks": pl.tasks, "done": pl.done, "done_column": pl.DoneColumn,
			}
			if pl.Folder != "" {
				row["folder"] = pl.Folder
			}
			resp.Plans = append(resp.Plans, row)
		}
		return err
	})
	return resp, err
}

func (p *Plugin) board(ctx context.Context, req *protocol.PlanBoardRequest,
	_ host.Emitter,
) (*protocol.PlanBoardResponse, error) {
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

// lanes has the rows of a board by column. Its JSON is an object with one member per
// column, in the order of the columns.
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
