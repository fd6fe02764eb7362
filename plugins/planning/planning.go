// Package planning is the capability `planning`: plans with columns, and tasks
// that wait for each other. All of it is in the store, so it outlives the host and
// is the same for all hosts on one file.
//
//	planning.go  the plugin and its routes      deps.go      what a task waits for
//	plan.go      what plan/* and task/* do      tables.go    plans and tasks in the store
//	limits.go    what is refused, and why       transfer.go  export and import
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
		host.Handle(protocol.TypePlanCreateReq, p.create).Changes(),
		host.List(protocol.TypePlanListReq, p.plans, protocol.MergePlans).Reads(),
		host.List(protocol.TypePlanBoardReq, p.board, protocol.MergeBoards).Reads(),
		host.Handle(protocol.TypeTaskAddReq, p.add).Changes(),
		host.Handle(protocol.TypeTaskUpdateReq, p.update).Changes(),
		host.List(protocol.TypeTaskListReq, p.tasks, protocol.MergeTasks).Reads(),
	}
}

// Close implements host.Plugin.
func (p *Plugin) Close(context.Context) error { return nil }

// now is the time as the store keeps it.
func (p *Plugin) now() store.Micros { return store.Micros(p.env.Now().UnixMicro()) }
