// Package greet is a whole plugin with one tool.
package greet

import (
	"context"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// Options stand under the plugin's name in the config.
type Options struct {
	Greeting string `yaml:"greeting" doc:"What a greeting begins with."`
}

// Plugin answers tool/list/req and tool/call/req.
type Plugin struct {
	name string
	*tools.Set
}

// New makes the plugin. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	p := &Plugin{name, tools.NewSet(tools.SetOptions{Name: name, MaxOutputBytes: env.MaxOutputBytes, StateDir: env.StateDir})}
	return p, p.Replace([]tools.Tool{{
		Def: protocol.ToolDefinition{Name: "greet", Description: "Greet somebody", InputParameters: []protocol.ToolParameter{{Name: "who", Type: "string", Required: true}}},
		Call: func(_ context.Context, args protocol.Object, _ host.Emitter) (*tools.Outcome, error) {
			return &tools.Outcome{Data: map[string]string{"text": opts.Greeting + ", " + args.Text("who")}}, nil
		},
	}})
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapTools}
}
