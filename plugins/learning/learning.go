// Package learning is the capability `learning`: it counts what becomes of calls, takes
// feedback and experiences in, and finds routing weights from them.
//
//	learning.go    the plugin and its routes    stats.go       what is known of components
//	options.go     what the config says         adapt.go       weights by a strategy
//	recorder.go    calls, added up in memory    custom.go      … or by a command
//	flush.go       … and put into the store     weights.go     weights for other plugins
//	feedback.go    learn/feedback, checked      refine.go      proposals to change things
//	rating.go      … and counted                tables.go      what the store has
//	experience.go  learn/experience             transfer.go    export and import
//	shelf.go       rows with limits             read.go        the same without a host
//
// Package bandit has the strategies, package quantile the sketch of durations.
package learning

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/protocol"
)

// Env is what the plugin gets from outside.
type Env struct {
	// Store gives the store that has Part. It is asked for when it is needed and closed
	// by whoever made it, after the plugin.
	Store store.Opener
	// Kept tells whether there is a store already: looking for weights makes none. nil =
	// there is.
	Kept func() bool
	// Launcher gives what starts custom_command. It stays the caller's to close; nil is
	// for a plugin without one.
	Launcher  func() (*sandbox.Launcher, error)
	Workspace string           // the folder that custom_command runs in; "" = one of its own
	Now       func() time.Time // nil = time.Now
	Log       zerolog.Logger
}

// Plugin is one `learning` plugin. What it knows is in the store, and the same for all
// hosts on it.
type Plugin struct {
	name     string
	opts     Options
	env      Env
	recorder *recorder
	flushing chan struct{} // held by the one who flushes

	weights    atomic.Pointer[weights]
	refreshing sync.Mutex // held by the one who reads the weights

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	goes sync.WaitGroup
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env Env) (*Plugin, error) {
	if env.Store == nil {
		return nil, fmt.Errorf("plugin %q: learning needs a store to keep things in", name)
	}
	if err := opts.check(env); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Workspace != "" {
		workspace, err := filepath.Abs(env.Workspace)
		if err != nil {
			return nil, fmt.Errorf("plugin %q: workspace: %w", name, err)
		}
		env.Workspace = workspace
	}
	p := &Plugin{name: name, opts: opts, env: env, recorder: newRecorder(env.Now), flushing: make(chan struct{}, 1)}
	p.weights.Store(&weights{})
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapLearning, Metadata: map[string]any{
		"strategy": p.opts.strategy(), "trust_agent_env": p.opts.TrustAgentEnv,
	}}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return append([]host.Route{
		host.Handle(protocol.TypeLearnFeedbackReq, p.feedback).Changes(),
		host.Handle(protocol.TypeLearnExperienceReq, p.experience).Changes(),
		host.Handle(protocol.TypeLearnAdaptReq, p.adapt).Changes(),
		host.List(protocol.TypeLearnStatsReq, p.stats, MergeStats).Reads(),
	}, p.refineRoutes()...)
}

func (p *Plugin) read(ctx context.Context, fn func(*store.Tx) error) error {
	return p.noted(ctx, p.env.Store.Read(ctx, fn))
}

func (p *Plugin) write(ctx context.Context, fn func(*store.Tx) error) error {
	return p.noted(ctx, p.env.Store.Write(ctx, fn))
}

// noted logs the failures that are not the request's own.
func (p *Plugin) noted(ctx context.Context, err error) error {
	var refusal *protocol.Error
	if err != nil && ctx.Err() == nil && !errors.As(err, &refusal) {
		p.env.Log.Error().Err(err).Str("plugin", p.name).Msg("the store of the records failed")
	}
	return err
}

// nowMicros is the time as the store keeps it.
func (p *Plugin) nowMicros() int64 { return p.env.Now().UnixMicro() }

// newID gives an id that nothing else has.
func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}
