// Package env is the capability `env`: environments to act in, any number of
// episodes at once.
//
//	env.go         the plugin, its options and routes   world.go       what an environment is; pushes between steps
//	episode.go     an episode; reset, close             counter.go     the environment `counter`
//	find.go        which episode is meant; idle ones    gridworld.go   `gridworld`; maze.go its mazes, drawn
//	step.go        step; batch.go: batch_step           workspace*.go  `workspace`: tasks
//	view.go        observe, render, plan, space         external*.go   `exec`: programs
//	action.go      what an action may be                experience.go  steps taken, in memory; exp/list
//	keep.go        what is saved for later hosts        store.go       the tables in the store
//	journal.go     lines written before answers         data.go        env/data; data_stage.go puts files there
//	former.go      journals of earlier versions
package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// The bounds where the config sets none.
const (
	defaultMaxEpisodes    = 10_000
	defaultMaxExperiences = 100_000
	defaultIdleTimeout    = 24 * 60 * 60 // seconds
)

// Options are the plugin's options in the config.
type Options struct {
	Env            string           `yaml:"env" enum:"counter,gridworld,workspace,exec" doc:"The environment: counter (the default), gridworld, workspace or exec."`
	MaxEpisodes    int              `yaml:"max_episodes" min:"0" doc:"Episodes that may be open at once, and saved ones; 0 = 10000."`
	MaxSteps       int              `yaml:"max_steps" min:"0" doc:"Steps after which an episode is cut short (truncated); 0 = no limit."`
	IdleTimeout    float64          `yaml:"idle_timeout" min:"0" doc:"Seconds after which an episode that nobody asks for is closed; 0 = a day."`
	MaxExperiences int              `yaml:"max_experiences" min:"0" doc:"Steps kept for env/exp/list, the oldest go; 0 = 100000."`
	SaveLater      bool             `yaml:"save_later" doc:"Answer steps before they are in the store: more of them one at a time, and a kill of the host loses those of the last second."`
	Gridworld      GridworldOptions `yaml:"gridworld" doc:"Of the environment gridworld."`
	Workspace      WorkspaceOptions `yaml:"workspace" doc:"Of the environment workspace."`
	Exec           ExecOptions      `yaml:"exec" doc:"Of the environment exec."`
	Data           DataOptions      `yaml:"data" doc:"Of env/data/*: files for tasks, whatever the environment."`
}

func (o *Options) setDefaults() {
	o.Env = cmp.Or(o.Env, "counter")
	o.MaxEpisodes = cmp.Or(o.MaxEpisodes, defaultMaxEpisodes)
	o.MaxExperiences = cmp.Or(o.MaxExperiences, defaultMaxExperiences)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
}

// idle is how long an episode may go without a request.
func (o *Options) idle() time.Duration {
	const most = 100 * 365 * 24 * time.Hour // a Duration can hold this, with room to spare
	return time.Duration(min(o.IdleTimeout*float64(time.Second), float64(most)))
}

// ToolPatterns returns the names and globs of tools, by the key of their option.
func (o *Options) ToolPatterns() map[string][]string {
	return map[string][]string{"workspace.allowed_tools": o.Workspace.AllowedTools, "workspace.deny": o.Workspace.Deny}
}

// environment makes the environment that the options name.
func environment(opts Options, e host.Env) (Environment, error) {
	switch opts.Env {
	case "counter":
		return newCounter(), nil
	case "gridworld":
		return newGridworld(opts.Gridworld)
	case "workspace":
		return newWorkspace(opts.Workspace, e)
	case "exec":
		return newExec(opts.Exec, e)
	}
	return nil, fmt.Errorf("there is no environment %.64q; there are: counter, gridworld, workspace, exec", opts.Env)
}

// Plugin is one `env` plugin: one environment and its episodes. An episode stays
// open until it is closed or idle for too long, whatever session began it.
type Plugin struct {
	name     string
	env      Environment
	quick    bool     // see Quick
	restorer Restorer // the environment; nil = its episodes cannot be saved
	opts     Options
	host.Env

	services *host.Services // set by Start
	actions  actions
	reaping  sync.Once
	recent   recent
	keep     keeper
	data     *dataPlane
	tending  sync.WaitGroup  // goroutines of episodes
	life     context.Context // ends with Close
	stop     context.CancelFunc
	restores chan struct{} // held while an episode is restored

	mu       sync.Mutex // guards the fields below
	closed   bool
	episodes map[string]*episode
	opening  int             // places taken by episodes that are not yet in the map
	past     map[string]bool // ids that the store does not have; true = it was closed as idle; bounded
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, e host.Env) (*Plugin, error) {
	e = e.WithDefaults()
	opts.setDefaults()
	data, err := newDataPlane(opts.Data, e)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	environment, err := environment(opts, e)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	p := newPlugin(name, environment, opts, e)
	p.data = data
	return p, nil
}

// newPlugin makes the plugin of an environment. opts and e have their defaults.
func newPlugin(name string, environment Environment, opts Options, e host.Env) *Plugin {
	p := &Plugin{
		name: name, env: environment, opts: opts, Env: e, restores: make(chan struct{}, 1),
		episodes: make(map[string]*episode), past: make(map[string]bool),
	}
	p.life, p.stop = context.WithCancel(context.Background())
	_, p.quick = environment.(Quick)
	p.restorer, _ = environment.(Restorer)
	p.actions.load = p.space
	p.keep.init(p)
	p.recent.init(environment.Name(), opts.MaxExperiences, e.Store != nil)
	return p
}

// Needs implements host.Needer: it returns the program of the environment exec.
func (p *Plugin) Needs() []host.Need {
	x, ok := p.env.(*external)
	if !ok {
		return nil
	}
	return []host.Need{{
		Of: "environment " + x.opts.EnvName, Option: "exec.command", Look: x.program().Look,
		Wait: x.opts.StartTimeout + time.Second, Live: func(ctx context.Context) (string, error) {
			if _, err := x.running(ctx); err != nil {
				return "", err
			}
			return "it answers, and describes its space", nil
		},
	}}
}

// Start implements host.Starter.
func (p *Plugin) Start(_ context.Context, s *host.Services) error {
	p.services = s
	if w, ok := p.env.(*workspace); ok {
		w.Start(s)
	}
	for _, other := range s.Plugins() {
		if o, ok := host.As[*Plugin](other); ok && o.opts.Data.given() && !p.opts.Data.given() {
			p.data.yields = true
		}
	}
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapEnv, Children: p.opts.Env == "exec" ||
		p.opts.Env == "workspace", Metadata: map[string]any{"env": p.env.Name()}}
}

// Routes implements host.Plugin. Requests of one agent for one episode take effect in the order in which
// they were sent, while other episodes go on in parallel.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeEnvResetReq, p.reset),
		host.Handle(protocol.TypeEnvStepReq, p.step),
		host.Handle(protocol.TypeEnvObserveReq, p.observe),
		host.Handle(protocol.TypeEnvCloseReq, p.close),
		host.Handle(protocol.TypeEnvSpaceReq, p.describe),
		host.Handle(protocol.TypeEnvRenderReq, p.render),
		host.Handle(protocol.TypeEnvPlanReq, p.plan),
		host.Handle(protocol.TypeEnvBatchStepReq, p.batchStep),
		host.List(protocol.TypeEnvExpListReq, p.experiences, mergeExperiences),
		host.Handle(protocol.TypeEnvDataResetReq, p.data.reset), // no episode: they run after all earlier requests
		host.Handle(protocol.TypeEnvDataAddReq, p.data.add),
		host.Handle(protocol.TypeEnvDataGetReq, p.data.get),
	}
}

// EndSession implements host.SessionEnder: it saves what the session did.
func (p *Plugin) EndSession(ctx context.Context, _ *host.Session) {
	p.keep.save(ctx, true)
}

// CloseTimeout implements host.SlowCloser: Close may take as long as saving does, as what is not saved is
// lost.
func (p *Plugin) CloseTimeout() time.Duration { return host.SaveTime }

// Close implements host.Plugin. It saves the episodes that can be saved; the others end.
func (p *Plugin) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.stop()
	saved := p.keep.close(ctx)
	p.mu.Lock()
	all := make([]*episode, 0, len(p.episodes))
	for _, e := range p.episodes {
		all = append(all, e)
	}
	clear(p.episodes)
	p.mu.Unlock()
	errs := make([]error, len(all)+1)
	var ends sync.WaitGroup
	for i, e := range all { // in parallel, as each may take some time
		ends.Go(func() { errs[i] = e.end(ctx) })
	}
	ends.Wait()
	p.tending.Wait()
	errs[len(all)] = errors.Join(saved, p.env.Close(ctx))
	return errors.Join(errs...)
}

// tend runs f on its own goroutine, unless the plugin is closed.
func (p *Plugin) tend(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.tending.Go(f)
	}
}

// detach lets the host read further requests if the world may take some time. A program often answers at
// once; its calls decide that themselves.
func (p *Plugin) detach(ctx context.Context) {
	if _, program := p.env.(*external); !p.quick && !program {
		host.HandOff(ctx)
	}
}

// owns returns nil if a request means this plugin, by its own name or by that of its environment.
func (p *Plugin) owns(name string) error {
	if name == p.name || name == p.env.Name() {
		return nil
	}
	unknown := protocol.Errorf(protocol.CodeUnknownEnv, "unknown environment %.64q", name)
	return host.NotKnown(unknown, name, []string{p.env.Name(), p.name})
}

// space returns the space of the environment.
func (p *Plugin) space(ctx context.Context) (Space, error) {
	s, err := p.env.Space(ctx)
	return s, explained("the environment "+p.env.Name()+" cannot tell its space", err)
}

// micros returns the current time in microseconds since 1970.
func (p *Plugin) micros() int64 { return p.Now().UnixMicro() }

// explained adds to an error what failed, unless the error is an answer already.
func explained(what string, err error) error {
	return explainedAs(protocol.CodeRuntimeError, what, err)
}

func explainedAs(code protocol.ErrorCode, what string, err error) error {
	var refusal *protocol.Error
	if err == nil || errors.As(err, &refusal) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return protocol.Errorf(code, "%s: %w", what, err)
}
