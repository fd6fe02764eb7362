// Package learning implements the capability `learning`: it counts the results of calls, stores feedback
// and experiences, and computes routing weights from them.
//
//	learning.go  the plugin, its options and routes  stats.go    what is known about components
//	calls.go     calls, added up and put into the    adapt.go    weights by a strategy, or by a command
//	             store                               choose.go   one of several tools for a call
//	feedback.go  learn/feedback, learn/experience    weights.go  weights for other plugins
//	about.go     which component these are about     refine.go   proposals to change things, and refine_*
//	evidence.go  what a component is worth           durations.go  how long calls take
//	export.go    export and import
//
// Package bandit has the strategies.
package learning

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/plugins/learning/bandit"
	"a2e/protocol"
)

// Plugin is one `learning` plugin. What it knows is in the store, which all hosts on the store share.
type Plugin struct {
	name     string
	opts     Options
	env      host.Env
	kept     host.Kept
	buffer   *callBuffer
	services *host.Services // set by Start; nil = there is no host
	flushing chan struct{}  // held by the goroutine that flushes

	weights    atomic.Pointer[weights]
	refreshing sync.Mutex // held by the goroutine that reads the weights
	choosing   sync.Mutex // held by the goroutine that reads the arms

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	goes sync.WaitGroup
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	if env.Store == nil {
		return nil, fmt.Errorf("plugin %q: learning needs a store to keep things in", name)
	}
	if err := opts.check(env); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	env = env.WithDefaults()
	if env.Workspace != "" {
		workspace, err := filepath.Abs(env.Workspace)
		if err != nil {
			return nil, fmt.Errorf("plugin %q: workspace: %w", name, err)
		}
		env.Workspace = workspace
	}
	p := &Plugin{
		name: name, opts: opts, env: env, kept: env.Kept(name), buffer: newCallBuffer(),
		flushing: make(chan struct{}, 1),
	}
	p.weights.Store(&weights{})
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: p.name, Capability: protocol.CapLearning, Stored: true,
		Children: len(p.opts.CustomCommand) > 0, Metadata: map[string]any{
			"strategy": p.opts.strategy(), "trust_agent_env": p.opts.TrustAgentEnv,
		},
	}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return append([]host.Route{
		host.Handle(protocol.TypeLearnFeedbackReq, p.feedback),
		host.Handle(protocol.TypeLearnExperienceReq, p.experience),
		host.Handle(protocol.TypeLearnAdaptReq, p.adapt),
		host.List(protocol.TypeLearnStatsReq, p.stats, protocol.MergeLearnStats),
	}, p.refineRoutes()...)
}

// nowMicros returns the current time in microseconds since 1970, as the store keeps it.
func (p *Plugin) nowMicros() int64 { return p.env.Now().UnixMicro() }

// newID returns a unique id.
func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// Options are the plugin's options in the config.
type Options struct {
	Strategy       string               `yaml:"strategy" enum:"thompson,ucb1,epsilon_greedy,softmax,ppo,custom" doc:"How one of several tools that serve the same purpose is chosen, and how learn/adapt finds weights where the request does not say: thompson (the default), ucb1, epsilon_greedy, softmax, ppo or custom."`
	TrustAgentEnv  bool                 `yaml:"trust_agent_env" doc:"Keep the source env of feedback from agents. Without it only the host itself speaks for environments, and such feedback counts as the agent's own (self)."`
	FeedbackShare  float64              `yaml:"feedback_share" min:"0" max:"1" doc:"How much of a component's reward its feedback makes, once there is plenty; the rest is what came of its calls and experiences."`
	MaxFeedback    int                  `yaml:"max_feedback" min:"1" doc:"How many feedbacks are kept; the oldest are deleted, and no longer count."`
	MaxExperiences int                  `yaml:"max_experiences" min:"1" doc:"How many experiences are kept; the oldest are deleted."`
	RefineTexts    bool                 `yaml:"refine_texts" doc:"Whether refinements may change the descriptions of tools, the instructions of skills and prompts. What one agent changes holds for all agents on the store; with false no such change has an effect."`
	CustomCommand  []string             `yaml:"custom_command" doc:"The program of the strategy custom and its arguments. It gets {\"components\":[records]} on stdin and prints {component: weight}."`
	CustomTimeout  float64              `yaml:"custom_timeout" min:"0" max:"3600" doc:"Seconds that custom_command may take; 0 = 30."`
	EpsilonGreedy  bandit.EpsilonGreedy `yaml:"epsilon_greedy" doc:"Parameters of epsilon_greedy."`
	Softmax        bandit.Softmax       `yaml:"softmax" doc:"Parameters of softmax."`
	PPO            bandit.PPO           `yaml:"ppo" doc:"Parameters of ppo."`
	Thompson       bandit.Thompson      `yaml:"thompson" doc:"Parameters of thompson."`
}

// DefaultOptions returns the options where the config sets none.
func DefaultOptions() Options {
	return Options{
		FeedbackShare: 0.5, RefineTexts: true, MaxFeedback: 100_000, MaxExperiences: 100_000,
		PPO: bandit.PPO{Entropy: 0.01}, // that of the paper
	}
}

// check returns an error that says which option does not fit.
func (o *Options) check(env host.Env) error {
	if len(o.CustomCommand) > 0 && o.CustomCommand[0] == "" {
		return errors.New("custom_command: the program is missing; write its name or absolute path first")
	}
	if len(o.CustomCommand) > 0 && env.Launcher == nil {
		return errors.New("custom_command: there is nothing here to start programs with")
	}
	if o.strategy() == protocol.StrategyCustom && len(o.CustomCommand) == 0 {
		return errors.New("strategy: custom needs a custom_command")
	}
	if o.MaxFeedback <= 0 || o.MaxExperiences <= 0 {
		return errors.New("max_feedback and max_experiences should be 1 or more")
	}
	return nil
}

// strategy returns the strategy that learn/adapt uses if the request names none.
func (o *Options) strategy() protocol.AdaptStrategy {
	return cmp.Or(protocol.AdaptStrategy(o.Strategy), protocol.StrategyThompson)
}

func (o *Options) customTimeout() time.Duration {
	return time.Duration(cmp.Or(o.CustomTimeout, 30) * float64(time.Second))
}

// bandit returns a strategy with its parameters.
func (o *Options) bandit(name protocol.AdaptStrategy) bandit.Strategy {
	switch name {
	case protocol.StrategyUCB1:
		return bandit.UCB1{}
	case protocol.StrategyEpsilonGreedy:
		return o.EpsilonGreedy
	case protocol.StrategySoftmax:
		return o.Softmax
	case protocol.StrategyPPO:
		return o.PPO
	case protocol.StrategyCustom:
		return bandit.Given{}
	}
	return o.Thompson
}

// strategies lists the strategies of learn/adapt.
func strategies() []protocol.AdaptStrategy {
	return []protocol.AdaptStrategy{
		protocol.StrategyThompson, protocol.StrategyUCB1, protocol.StrategyEpsilonGreedy, protocol.StrategySoftmax,
		protocol.StrategyPPO, protocol.StrategyCustom,
	}
}
