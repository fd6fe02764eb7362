// Package env is the capability `env`: environments to act in, any number of
// episodes at once.
//
//	env.go          the plugin and its routes     counter.go   the environment `counter`
//	episode.go      reset, step, observe, close   batch.go     batch_step
//	environment.go  what an environment is        record.go    experiences
package env

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// defaultMaxEpisodes bounds the open episodes where the config does not.
const defaultMaxEpisodes = 10_000

// Options are the plugin's options in the config.
type Options struct {
	Env         string `yaml:"env" enum:"counter" doc:"The environment: counter (the default)."`
	MaxEpisodes int    `yaml:"max_episodes" min:"0" doc:"Episodes that may be open at once; 0 = 10000."`
}

// Plugin is one `env` plugin: one environment and its episodes. An episode stays
// open until it is closed, whatever session began it.
type Plugin struct {
	name        string
	env         Environment
	maxEpisodes int

	mu       sync.Mutex // guards the fields below
	episodes map[string]*episode
	record   record
}

// New makes the plugin called name. The error names the environments there are.
func New(name string, opts Options) (*Plugin, error) {
	env, err := environment(opts.Env)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	p := &Plugin{name: name, env: env, maxEpisodes: opts.MaxEpisodes, episodes: make(map[string]*episode)}
	if p.maxEpisodes <= 0 {
		p.maxEpisodes = defaultMaxEpisodes
	}
	return p, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapEnv, Metadata: map[string]any{"env": p.env.Name()}}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeEnvResetReq, p.reset),
		host.Handle(protocol.TypeEnvStepReq, p.step),
		host.Handle(protocol.TypeEnvObserveReq, p.observe),
		host.Handle(protocol.TypeEnvCloseReq, p.close),
		host.Handle(protocol.TypeEnvSpaceReq, p.space),
		host.Handle(protocol.TypeEnvRenderReq, p.render),
		host.Handle(protocol.TypeEnvPlanReq, p.plan),
		host.Handle(protocol.TypeEnvBatchStepReq, p.batchStep),
		host.List(protocol.TypeEnvExpListReq, p.experiences, mergeExperiences),
	}
}

// Close implements host.Plugin.
func (p *Plugin) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.episodes)
	return nil
}

// owns tells whether a request means this plugin: by its own name or by that of
// its environment.
func (p *Plugin) owns(name string) error {
	if name == p.name || name == p.env.Name() {
		return nil
	}
	known := []string{p.env.Name(), p.name}
	slices.Sort(known)
	return host.NotMine(protocol.Errorf(protocol.CodeUnknownEnv, "unknown environment %.64q", name).With("known", slices.Compact(known)))
}

func (p *Plugin) space(_ context.Context, req *protocol.EnvSpaceRequest, _ host.Emitter) (*protocol.EnvSpaceResponse, error) {
	if err := p.owns(req.EnvName); err != nil {
		return nil, err
	}
	return &protocol.EnvSpaceResponse{ActionSpace: actionSpace(p.env.Actions()), StateSchema: p.env.StateSchema()}, nil
}

// actionSpace is the JSON Schema of an action.
func actionSpace(actions []string) map[string]any {
	choice := map[string]any{"type": "string", "enum": actions}
	return map[string]any{
		"type":       "object",
		"properties": map[string]any{"type": choice, "action_type": choice, "payload": map[string]any{"type": "object"}},
		"anyOf":      []any{map[string]any{"required": []string{"type"}}, map[string]any{"required": []string{"action_type"}}},
	}
}

// actionType reads the name of an action: {"type":…} or {"action_type":…,"payload":{}}.
func (p *Plugin) actionType(action protocol.Object) (string, error) {
	for _, key := range []string{"action_type", "type"} {
		val, ok := action.Get(key)
		if !ok {
			continue
		}
		name, isText := val.Str()
		if !isText {
			return "", protocol.Violation(protocol.FieldError{Path: "/action/" + key, Message: "should be a string"})
		}
		if !slices.Contains(p.env.Actions(), name) {
			return "", protocol.Errorf(protocol.CodeUnknownAction, "unknown action %.64q of %s; there are: %s", name, p.env.Name(), strings.Join(p.env.Actions(), ", ")).
				With("known", p.env.Actions())
		}
		return name, nil
	}
	return "", protocol.Errorf(protocol.CodeUnknownAction, "the action has no \"type\"; send {\"type\":%q} for one of: %s", p.env.Actions()[0], strings.Join(p.env.Actions(), ", ")).
		With("known", p.env.Actions())
}

// now is the time as messages carry it.
func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }
