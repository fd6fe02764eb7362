package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"a2e/host/config"
	"a2e/plugins/multiagent/worker"
	wire "a2e/protocol/fleet"
)

type workerCmd struct {
	AgentID  string `name:"agent-id" placeholder:"NAME" help:"Name of the worker. Default: fleet.agent_id of the config, else host_id."`
	MaxTasks int    `placeholder:"N" help:"Tasks that it does at once. Default: fleet.max_tasks of the config, which is 1 if it says nothing."`
	Only     string `complete:"worker" placeholder:"NAME" help:"Only the worker of the config with this name."`
	HTTP     string `name:"http" xor:"pipe" placeholder:"HOST:PORT" help:"Take tasks over HTTP at this address, such as 127.0.0.1:8766, from orchestrators that speak A2A, instead of stdin. Addresses of other machines need http.token in the config."`
	workFlags
	fleetFlag
	recordFlag
	Command []string `arg:"" optional:"" passthrough:"partial" help:"What is started for each task, behind --. Default: the workers of the config."`
}

// Run serves until stdin ends or a signal arrives. The tasks come from stdin, over HTTP or from a fleet.
func (w *workerCmd) Run(cmd *commands, sys *System) error {
	if len(w.Command) > 0 && w.Command[0] == "--" { // kong leaves the -- in
		w.Command = w.Command[1:]
	}
	if w.MaxTasks < 0 || w.MaxTasks > maxAtOnce {
		return fail(exitUsage, fmt.Errorf("--max-tasks %d: should be between 1 and %d", w.MaxTasks, maxAtOnce))
	}
	err := w.check(w.Command)
	switch {
	case w.Only != "" && (w.LLM != "" || len(w.Command) > 0):
		err = errors.New("--only: selects a worker of the config; leave it out beside --llm or a command")
	case w.Fleet != "" && w.HTTP != "":
		err = errors.New("--http: is for tasks that orchestrators send, --fleet for those of a fleet; start one " +
			"worker for each")
	case w.Fleet != "" && w.Record != "":
		err = errors.New("--record: is for tasks that come on stdin; those of a fleet are in its database")
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	if w.Fleet != "" {
		return cmd.serveFleet(sys, w)
	}
	if w.HTTP != "" {
		return cmd.serveHTTP(sys, w.HTTP, true, func(cfg *config.Config) error { return w.adapt(cfg, sys) })
	}
	const hint = "a2e worker takes tasks of the fleet protocol, one on each line; Ctrl-D ends it, " +
		"a2e worker --help tells more."
	return cmd.serveStdio(sys, w.recordFlag, hint, speakFleet,
		func(cfg *config.Config) error { return w.adapt(cfg, sys) })
}

// adapt changes the config by the command line, which takes precedence.
func (w *workerCmd) adapt(cfg *config.Config, sys *System) error {
	cfg.Fleet.Announce = config.AnnounceStartup
	cfg.Fleet.AgentID = cmp.Or(w.AgentID, cfg.Fleet.AgentID)
	cfg.Fleet.Model = cmp.Or(w.Model, cfg.Fleet.Model)
	cfg.Fleet.MaxTasks = cmp.Or(w.MaxTasks, cfg.Fleet.MaxTasks)
	cfg.Fleet.Isolation = cmp.Or(wire.Isolation(w.Isolation), cfg.Fleet.Isolation)
	switch {
	case len(w.Command) > 0:
		return setWorker(cfg, map[string]any{
			"name": "command", "command": each(w.Command, literal), "max_tasks": cfg.Fleet.MaxTasks,
			"network": w.Network, "contract": w.Contract,
		})
	case w.Only != "":
		return onlyWorker(cfg, w.Only)
	}
	return w.equip(cfg, sys, ", a command as in a2e worker -- my-agent --print")
}

// onlyWorker removes all other workers from the config.
func onlyWorker(cfg *config.Config, name string) error {
	plugin, workers, err := workersOf(cfg)
	if err != nil {
		return err
	}
	names := each(workers, func(w worker.Worker) string { return w.Name })
	if !slices.Contains(names, name) {
		return unknown("worker", name, names)
	}
	plugin.Options = plugin.Options.Keep("workers", func(i int) bool { return names[i] == name })
	return nil
}
