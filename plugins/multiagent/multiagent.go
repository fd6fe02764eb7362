// Package multiagent is the capability multi_agent: agents that work for agents.
//
//	multiagent.go  the plugin and its routes   session.go  the children of a session
//	spawn.go       start of a child            task.go     tasks, from their start to their end
//	result.go      results: await, cancel, terminate, merge
//	message.go     messages between agents, and the events of each child
//
// A child agent is a record of a session: it has an id, a config, a mailbox and at most one
// task at a time. A worker of the pool does the task.
//
//	spawn ──► READY ──delegate──► WAITING ──place──► RUNNING ──► COMPLETED | FAILED
//	             any of these ──cancel──► CANCELLED   ──terminate──► TERMINATED
//
// A child in any state but TERMINATED can get a task when none is under way. Children are only in
// memory: they end with their session, and a restart of the host loses them.
package multiagent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/child"
	"a2e/host/state/store"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// The defaults of the options.
const (
	defaultMaxDepth     = 3
	defaultMaxSubagents = 64
	defaultMaxOutput    = 1 << 20
)

// maxChildren is the maximum number of children of all sessions together.
const maxChildren = 4096

// Options are the plugin's options in the config. DefaultOptions returns their defaults.
type Options struct {
	Workers      []worker.Worker `yaml:"workers" doc:"Programs that do tasks for other agents. The first is the default."`
	Fallback     bool            `yaml:"fallback" doc:"Whether a task whose model or tier no worker has goes to another one, which its result says, unless the task itself says otherwise. Default: false: such a task is refused."`
	MaxDepth     int             `yaml:"max_depth" min:"0" doc:"How deep child agents may nest, across all hosts; 0 = they have no children of their own. Default: 3."`
	MaxSubagents int             `yaml:"max_subagents" min:"1" max:"4096" doc:"Child agents that a session may have at once. Default: 64."`
	MergeCommand []string        `yaml:"merge_command" doc:"Program, with its arguments, that merges results for the strategy custom. It is run as run_command does, with the results as JSON on its stdin."`
}

// DefaultOptions returns the options of a plugin whose config sets none.
func DefaultOptions() Options {
	return Options{MaxDepth: defaultMaxDepth, MaxSubagents: defaultMaxSubagents}
}

// Env is what the host passes to the plugin.
type Env = host.Env

// Plugin serves the capability multi_agent. It is safe for concurrent use.
type Plugin struct {
	*worker.Pool
	name string
	opts Options
	env  Env

	ctx      context.Context // of the host; set by Start
	services *host.Services  // set by Start

	gate sync.Mutex     // held by begin; taken after mu
	shut bool           // no new goroutine may begin; guarded by gate
	goes sync.WaitGroup // goroutines of tasks and senders

	mu     sync.Mutex // guards the fields below, and the marked fields of groups, children and jobs
	closed bool
	alive  int // number of children in all groups that are not terminated
	groups map[*host.Session]*group
}

var (
	_ agent.WorkerPool  = (*Plugin)(nil)
	_ host.Starter      = (*Plugin)(nil)
	_ host.SessionEnder = (*Plugin)(nil)
)

// errClosed is the cause when children end with the host.
var errClosed = errors.New("the host ends")

// New makes the plugin. The error says which option is wrong.
func New(name string, opts Options, env Env) (*Plugin, error) {
	env = env.WithDefaults()
	switch {
	case opts.MaxDepth < 0:
		return nil, fmt.Errorf("plugin %q: max_depth should be 0 or more", name)
	case opts.MaxSubagents < 0 || opts.MaxSubagents > maxChildren:
		return nil, fmt.Errorf("plugin %q: max_subagents should be between 1 and %d", name, maxChildren)
	case len(opts.MergeCommand) > 0 && opts.MergeCommand[0] == "":
		return nil, fmt.Errorf("plugin %q: merge_command should begin with the name of a program", name)
	}
	if opts.MaxSubagents == 0 {
		opts.MaxSubagents = defaultMaxSubagents
	}
	pool, err := worker.NewPool(worker.Options{Workers: opts.Workers}, env)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	return &Plugin{
		Pool: pool, name: name, opts: opts, env: env, ctx: context.Background(),
		groups: make(map[*host.Session]*group),
	}, nil
}

// Part returns the part of a store that the plugins of this type use.
func Part() store.Part { return worker.Part() }

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	names := make([]string, 0, len(p.opts.Workers))
	for _, w := range p.opts.Workers {
		names = append(names, w.Name)
	}
	return host.PluginInfo{Name: p.name, Capability: protocol.CapMultiAgent, Children: true, Metadata: map[string]any{
		"workers": names, "max_depth": p.opts.MaxDepth, "max_subagents": p.opts.MaxSubagents,
	}}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeAgentSpawnReq, p.spawnShort),
		host.Handle(protocol.TypeSubagentSpawnReq, p.spawnLong),
		host.Handle(protocol.TypeAgentDelegateReq, p.delegateShort),
		host.Handle(protocol.TypeSubagentDelegateReq, p.delegateLong),
		host.Handle(protocol.TypeAgentAwaitReq, p.await),
		host.Handle(protocol.TypeSubagentAwaitReq, func(ctx context.Context, r *protocol.SubagentAwaitRequest,
			e host.Emitter,
		) (*protocol.SubagentAwaitResponse, error) {
			resp, err := p.await(ctx, (*protocol.AgentAwaitRequest)(r), e)
			return (*protocol.SubagentAwaitResponse)(resp), err
		}),
		host.List(protocol.TypeAgentListReq, p.listShort, protocol.MergeAgents),
		host.List(protocol.TypeSubagentListReq, p.listLong, protocol.MergeSubagents),
		host.Handle(protocol.TypeSubagentMessageReq, p.message),
		host.Handle(protocol.TypeSubagentMergeReq, p.merge),
		host.Handle(protocol.TypeSubagentCancelReq, p.cancel),
		host.Handle(protocol.TypeAgentTerminateReq, p.terminate),
		host.Handle(protocol.TypeSubagentTerminateReq, func(ctx context.Context, r *protocol.SubagentTerminateRequest,
			e host.Emitter,
		) (*protocol.AgentTerminateResponse, error) {
			return p.terminate(ctx, (*protocol.AgentTerminateRequest)(r), e)
		}),
	}
}

// RunTask implements agent.WorkerPool. Its errors include subagent_limit, as tasks of other
// protocols also count for max_depth.
func (p *Plugin) RunTask(ctx context.Context, task agent.WorkerTask) (*fleet.Result, error) {
	if self := p.env.Agent; self != nil && self.Depth > p.opts.MaxDepth {
		return nil, protocol.Errorf(protocol.CodeSubagentLimit, "the task would be at depth %d, and max_depth "+
			"allows %d; do it where you are, or raise max_depth in the config", self.Depth, p.opts.MaxDepth)
	}
	if err := p.services.Checkpoint(ctx, "task "+task.Task.TaskID); err != nil {
		return nil, err
	}
	return p.Pool.RunTask(ctx, task)
}

// Start implements host.Starter.
func (p *Plugin) Start(ctx context.Context, s *host.Services) error {
	p.ctx, p.services = ctx, s
	return p.Pool.Start(ctx, s)
}

// EndSession implements host.SessionEnder. It terminates the session's children and waits
// for the end of their tasks, until ctx ends.
func (p *Plugin) EndSession(ctx context.Context, s *host.Session) {
	p.mu.Lock()
	g := p.groups[s]
	var tasks []*job
	if g != nil {
		tasks = p.dissolveLocked(g, errSessionEnded)
	}
	p.mu.Unlock()
	waitJobs(ctx, tasks)
}

// Close implements host.Plugin. It ends all children and workers and waits for their end, until
// ctx ends.
func (p *Plugin) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	for _, g := range p.groups {
		p.dissolveLocked(g, errClosed)
	}
	p.mu.Unlock()
	p.gate.Lock()
	p.shut = true
	p.gate.Unlock()
	err := p.Pool.Close(ctx)
	return errors.Join(err, child.WaitFor(ctx, fmt.Sprintf("plugin %q: child agents", p.name), &p.goes))
}

// begin counts one more goroutine in goes. It returns false if the plugin is closed.
func (p *Plugin) begin() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.shut {
		return false
	}
	p.goes.Add(1)
	return true
}
