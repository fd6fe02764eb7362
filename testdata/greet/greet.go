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
	opts Options
	*tools.Set
}

// New makes the plugin. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	set := tools.NewSet(tools.SetOptions{Name: name, MaxOutputBytes: env.MaxOutputBytes, StateDir: env.StateDir})
	p := &Plugin{name, opts, set}
	return p, p.Replace([]tools.Tool{
		tools.Typed[greetArgs, greetData](protocol.ToolDefinition{
			Name: "greet", Description: "Greet somebody.",
		}, host.ToolDetail{ReadOnly: true}, p.greet),
	})
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapTools}
}

type greetArgs struct {
	Who string `json:"who" need:"Name of the person to greet."`
}

type greetData struct {
	Text string `json:"text" need:"The greeting."`
}

func (p *Plugin) greet(_ context.Context, args *greetArgs) (*tools.Outcome, error) {
	return &tools.Outcome{Data: greetData{p.opts.Greeting + ", " + args.Who}}, nil
}
