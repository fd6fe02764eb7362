// Package planning is the capability `planning`: plans with columns, and tasks
// that wait for each other. All of it is in the store, so it outlives the host and
// is the same for all hosts on one file.
//
//	planning.go  the plugin and its routes      deps.go      what a task waits for
//	plan.go      what plan/* does               tables.go    plans and tasks in the store
//	task.go      what task/* does               values.go    priorities, times and estimates
//	claim.go     whose a task is, and deleting  transfer.go  export and import
//	export.go    a plan as Markdown, Mermaid    limits.go    what is refused, and why
package planning

import (
	"context"
	"fmt"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// Options are the plugin's options in the config: there are none.
type Options struct{}

// Plugin is one `planning` plugin. It holds no state of its own: two of them on one
// store have the same plans.
type Plugin struct {
	name string
	env  host.Env
	kept host.Kept
}

// New makes the plugin called name.
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
		host.Handle(protocol.TypePlanCreateReq, p.create).Changes().Wrap(p.knowing("name", "columns", "description", "done_column", "delete", "plan_id", "force")),
		host.List(protocol.TypePlanListReq, p.plans, protocol.MergePlans).Reads(),
		host.List(protocol.TypePlanBoardReq, p.board, protocol.MergeBoards).Reads().Wrap(p.knowing("plan_id", "format")),
		host.Handle(protocol.TypeTaskAddReq, p.add).Changes().Wrap(p.knowing("plan_id", "title", "status", "description", "assignee", "deps", "metadata",
			"priority", "due", "estimate", "force")),
		host.Handle(protocol.TypeTaskUpdateReq, p.update).Changes().Wrap(p.knowing("plan_id", "task_id", "status", "assignee", "deps", "title", "description",
			"metadata", "priority", "due", "estimate", "comment", "clear", "action", "owner", "lease", "if_version", "force")),
		host.List(protocol.TypeTaskListReq, p.tasks, protocol.MergeTasks).Reads().Wrap(p.knowing("plan_id", "status", "task_id", "assignee", "ready", "limit")),
	}
}

// knowing lets a request through if its fields are known: one that is overlooked might have said
// what to change, or which tasks are meant. What names a plan of another plugin is for that to judge.
func (p *Plugin) knowing(fields ...string) func(context.Context, protocol.Object, func() (any, error)) (any, error) {
	return func(ctx context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
		err := host.KnownFields(obj, fields)
		if err == nil {
			return next()
		}
		id, _ := obj.Get("plan_id")
		if name, _ := id.Str(); name != "" {
			var pl *plan
			if failed := p.kept.Read(ctx, func(tx *store.Tx) (err error) {
				pl, err = findPlan(tx, name)
				return err
			}); failed != nil || pl == nil {
				return next() // which says so
			}
		}
		return nil, err
	}
}

// Close implements host.Plugin.
func (p *Plugin) Close(context.Context) error { return nil }

// now is the time as the store keeps it.
func (p *Plugin) now() store.Micros { return store.Micros(p.env.Now().UnixMicro()) }
