package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/plugins"
	"a2e/plugins/multiagent"
	"a2e/protocol"
)

type workerCmd struct {
	AgentID  string   `name:"agent-id" placeholder:"NAME" help:"Name of the worker. Without it: fleet.agent_id of the config, else host_id."`
	Model    string   `placeholder:"MODEL" help:"The model that it says it works with. Without it: fleet.model of the config."`
	MaxTasks int      `placeholder:"N" help:"Tasks that it does at once. Without it: fleet.max_tasks of the config, which is 1 if it says nothing."`
	Network  bool     `help:"Let the command use the network."`
	Command  []string `arg:"" optional:"" passthrough:"partial" help:"What is started for each task, behind --. Without it: the workers of the config."`
}

// Run serves until stdin ends or a signal.
func (w *workerCmd) Run(cmd *commands, sys *System) error {
	if len(w.Command) > 0 && w.Command[0] == "--" { // kong leaves it in
		w.Command = w.Command[1:]
	}
	if w.MaxTasks < 0 || w.MaxTasks > maxAtOnce {
		return fail(exitUsage, fmt.Errorf("--max-tasks %d: should be between 1 and %d", w.MaxTasks, maxAtOnce))
	}
	return cmd.serveStdio(sys, `a2e worker takes tasks of the fleet protocol, one on each line; Ctrl-D ends it, a2e worker --help tells more.`, speakFleet, w.adapt)
}

// speakFleet has a host speak the fleet protocol and nothing else.
func speakFleet(cfg *config.Config, opts *host.Options, shared *plugins.Shared) {
	opts.Dialects, opts.Only = []host.Dialect{fleet.New(fleetOptions(cfg, opts, shared))}, true
}

// adapt has the command line count for more than the config.
func (w *workerCmd) adapt(cfg *config.Config) error {
	cfg.Fleet.Announce = config.AnnounceStartup
	if w.AgentID != "" {
		cfg.Fleet.AgentID = w.AgentID
	}
	if w.Model != "" {
		cfg.Fleet.Model = w.Model
	}
	if w.MaxTasks > 0 {
		cfg.Fleet.MaxTasks = w.MaxTasks
	}
	if len(w.Command) > 0 {
		return w.addCommand(cfg)
	}
	for _, p := range cfg.Plugins {
		if opts := multiagent.DefaultOptions(); p.Enabled && p.Type == string(protocol.CapMultiAgent) && (p.Options.Decode(&opts) != nil || len(opts.Workers) > 0) {
			return nil // what is wrong with the options, the plugin itself says
		}
	}
	return errors.New("there is no worker: give a command for the tasks, as in a2e worker -- my-agent --print, or name workers in the config, in a plugin of type multi_agent")
}

// addCommand puts the command in the place of the config's workers.
func (w *workerCmd) addCommand(cfg *config.Config) error {
	const kind = string(protocol.CapMultiAgent)
	words := slices.Clone(w.Command)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "${", "$${") // it is no variable of a config
	}
	text, err := json.Marshal(map[string]any{"workers": []any{map[string]any{
		"name": "command", "command": words, "max_tasks": cfg.Fleet.MaxTasks, "network": w.Network,
	}}})
	if err != nil {
		return fmt.Errorf("the command: %w", err)
	}
	opts, err := config.ParseOptions("the command line", text, nil)
	if err != nil {
		return err
	}
	cfg.Plugins = slices.DeleteFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Type == kind })
	cfg.Plugins = append(cfg.Plugins, config.Plugin{Name: kind, Type: kind, Enabled: true, Options: opts})
	return nil
}
