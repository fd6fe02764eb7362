// Package env is the capability `env`: environments to act in, any number of
// episodes at once.
//
//	env.go          the plugin and its routes     environment.go  what an environment is
//	options.go      the config's options          counter.go      the environment `counter`
//	episode.go      an episode; reset, close      gridworld.go    `gridworld`: the world
//	find.go         which episode is meant        maze.go         its mazes
//	step.go         one step                      draw.go         its pictures
//	batch.go        batch_step                    workspace.go    `workspace`
//	view.go         observe, render, plan, space  exec.go         `exec`
//	action.go       what an action may be         reap.go         the end of idle episodes
//	observation.go  answers, written by append    push.go         changes between steps
//	experience.go   steps taken, in memory        listing.go      exp/list
//	keep.go         what outlives the host        part.go, tables.go, pack.go  how the store has it
package env

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// Plugin is one `env` plugin: one environment and its episodes. An episode stays
// open until it is closed or idle for too long, whatever session began it.
type Plugin struct {
	name  string
	env   Environment
	quick bool // see Quick
	opts  Options
	Env

	services *host.Services // set by Start
	actions  actions
	reaping  sync.Once
	recent   recent
	keep     keeper
	tending  sync.WaitGroup  // goroutines that look after episodes
	life     context.Context // ends with Close
	stop     context.CancelFunc
	restores chan struct{} // held while an episode is restored

	mu       sync.Mutex // guards the fields below
	closed   bool
	episodes map[string]*episode
	opening  int             // places that episodes not yet in the map have
	reaped   map[string]bool // ids of episodes that were idle for too long; bounded
	absent   map[string]bool // ids that the store does not have; bounded
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, e Env) (*Plugin, error) {
	if e.Now == nil {
		e.Now = time.Now
	}
	opts.setDefaults()
	environment, err := environment(opts, e)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	return newPlugin(name, environment, opts, e), nil
}

// newPlugin makes the plugin of an environment. opts and e have their defaults.
func newPlugin(name string, environment Environment, opts Options, e Env) *Plugin {
	p := &Plugin{
		name: name, env: environment, opts: opts, Env: e, restores: make(chan struct{}, 1),
		episodes: make(map[string]*episode), reaped: make(map[string]bool), absent: make(map[string]bool),
	}
	p.life, p.stop = context.WithCancel(context.Background())
	_, p.quick = environment.(Quick)
	p.actions.load = p.space
	p.keep.init(p)
	p.recent.init(environment.Name(), opts.MaxExperiences, e.Store != nil)
	return p
}

// Start implements host.Starter.
func (p *Plugin) Start(_ context.Context, s *host.Services) error {
	p.services = s
	if w, ok := p.env.(*workspace); ok {
		w.Start(s)
	}
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapEnv, Metadata: map[string]any{"env": p.env.Name()}}
}

// Routes implements host.Plugin. What an agent sends for one episode takes effect in that
// order, while other episodes go on beside it.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeEnvResetReq, p.reset),
		host.Handle(protocol.TypeEnvStepReq, p.step).InOrderOf("episode_id"),
		host.Handle(protocol.TypeEnvObserveReq, p.observe).InOrderOf("episode_id"),
		host.Handle(protocol.TypeEnvCloseReq, p.close).InOrderOf("episode_id"),
		host.Handle(protocol.TypeEnvSpaceReq, p.describe),
		host.Handle(protocol.TypeEnvRenderReq, p.render).InOrderOf("episode_id"),
		host.Handle(protocol.TypeEnvPlanReq, p.plan).InOrderOf("episode_id"),
		host.Handle(protocol.TypeEnvBatchStepReq, p.batchStep).InOrderOf("episode_ids"),
		host.List(protocol.TypeEnvExpListReq, p.experiences, mergeExperiences).InOrderOf("episode_id"),
	}
}

// EndSession implements host.SessionEnder: what the session did outlives it.
func (p *Plugin) EndSession(ctx context.Context, _ *host.Session) {
	p.keep.save(ctx, true)
}

// Close implements host.Plugin. Episodes that can be saved are; the others end.
func (p *Plugin) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.keep.save(ctx, true)
	p.mu.Lock()
	all := make([]*episode, 0, len(p.episodes))
	for _, e := range p.episodes {
		all = append(all, e)
	}
	clear(p.episodes)
	p.mu.Unlock()
	var errs []error
	if p.quick {
		for _, e := range all {
			errs = append(errs, e.end(ctx, true))
		}
	} else {
		errs = endAll(ctx, all)
	}
	p.tending.Wait()
	return errors.Join(append(errs, p.env.Close(ctx))...)
}

// endAll ends episodes side by side, as each may take its time.
func endAll(ctx context.Context, all []*episode) []error {
	errs := make([]error, len(all))
	var ends sync.WaitGroup
	for i, e := range all {
		ends.Go(func() { errs[i] = e.end(ctx, true) })
	}
	ends.Wait()
	return errs
}

// tend runs f on a goroutine of its own, unless the plugin is closed.
func (p *Plugin) tend(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.tending.Go(f)
	}
}

// detach lets the reading of requests go on, where a world may take its time.
func (p *Plugin) detach(ctx context.Context) {
	if !p.quick {
		host.Detach(ctx)
	}
}

// owns reports whether a request means this plugin: by its own name or by that of
// its environment.
func (p *Plugin) owns(name string) error {
	if name == p.name || name == p.env.Name() {
		return nil
	}
	known := []string{p.env.Name(), p.name}
	slices.Sort(known)
	return host.NotMine(protocol.Errorf(protocol.CodeUnknownEnv, "unknown environment %.64q", name).With("known", slices.Compact(known)))
}

// space gives the environment's actions and states.
func (p *Plugin) space(ctx context.Context) (Space, error) {
	l, ok := p.env.(SpaceLoader)
	if !ok {
		return p.env.Space(), nil
	}
	host.Detach(ctx)
	s, err := l.LoadSpace(ctx)
	return s, explained("the environment "+p.env.Name()+" cannot tell its space", err)
}

// micros is the time in microseconds since 1970.
func (p *Plugin) micros() int64 { return p.Now().UnixMicro() }

// explained says what failed, unless the error is an answer already.
func explained(what string, err error) error {
	var refusal *protocol.Error
	if err == nil || errors.As(err, &refusal) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "%s: %w", what, err)
}
