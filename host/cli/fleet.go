package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/fleetdb"
	"a2e/plugins"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
)

// fleetEnv is the variable with the URL of a fleet. Other users of the machine cannot see the password in it.
const fleetEnv = "A2E_FLEET"

// fleetFlag is the flag that names a fleet.
type fleetFlag struct {
	Fleet string `placeholder:"URL" help:"A fleet on a PostgreSQL server, such as postgres://user@host/database?fleet=team; - is the variable A2E_FLEET."`
}

// open opens the fleet, and hides its password in all output.
func (f *fleetFlag) open(sys *System) (*fleetdb.Fleet, error) {
	if f.Fleet == "-" {
		if f.Fleet = sys.getenv(fleetEnv); f.Fleet == "" {
			return nil, fail(exitUsage, fmt.Errorf("--fleet -: the variable %s is not set", fleetEnv))
		}
	}
	sys.secrets.AddURL(f.Fleet)
	sys.secrets.AddSecret(sys.getenv("PGPASSWORD"))
	at, err := fleetdb.Open(f.Fleet)
	return at, fail(exitUsage, err)
}

// reach checks that the server of the fleet answers, before anything is started.
func (f *fleetFlag) reach(sys *System) error {
	at, err := f.open(sys)
	if err != nil {
		return err
	}
	defer at.Close()
	return fail(exitTransport, at.Ping(context.Background()))
}

type fleetCmd struct {
	Ls    fleetLsCmd    `cmd:"" help:"List the workers of a fleet, what waits, and the agents of A2A in the config."`
	Show  fleetShowCmd  `cmd:"" help:"Show a worker or a task of a fleet as JSON."`
	Drain fleetDrainCmd `cmd:"" help:"Let workers of a fleet finish their tasks, and take no more."`
}

// fleetTime is how long a command waits for the server.
const fleetTime = 15 * time.Second

// with runs do on an existing fleet: the one of --fleet, or else of the variable fleetEnv.
func (f *fleetFlag) with(sys *System, do func(ctx context.Context, at *fleetdb.Fleet) error) error {
	if f.Fleet = cmp.Or(f.Fleet, sys.getenv(fleetEnv)); f.Fleet == "" {
		return fail(exitUsage, fmt.Errorf("which fleet? give --fleet %s, or set %s; agents of A2A are workers with "+
			"a url in the config", fleetdb.Example, fleetEnv))
	}
	at, err := f.open(sys)
	if err != nil {
		return err
	}
	defer at.Close()
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, fleetTime)
	defer cancel()
	if err := do(ctx, at.Existing()); err != nil {
		if exit, ok := errors.AsType[exitError](err); ok { // the error already has its exit code
			return exit
		}
		return fail(exitTransport, err)
	}
	return nil
}

type fleetLsCmd struct {
	fleetFlag
	JSON bool `name:"json" help:"Print them as JSON."`
}

// Run lists the workers and the queue of a fleet, and the A2A agents of the config.
func (l fleetLsCmd) Run(cmd *commands, sys *System) error {
	agents, err := cmd.agents(sys)
	if err != nil {
		return err
	}
	if l.Fleet == "" && sys.getenv(fleetEnv) == "" && len(agents) > 0 {
		return l.show(sys, agents, []fleetdb.WorkerState{}, []fleetdb.QueueState{})
	}
	return l.with(sys, func(ctx context.Context, at *fleetdb.Fleet) error {
		workers, err := at.Workers(ctx)
		if err != nil {
			return err
		}
		queue, err := at.Queue(ctx)
		if err != nil {
			return err
		}
		return l.show(sys, agents, workers, queue)
	})
}

// agents returns the state of the config's workers that are A2A agents.
func (cmd *commands) agents(sys *System) ([]worker.AgentInfo, error) {
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return nil, err
	}
	_, all, err := workersOf(cfg)
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	remote := slices.DeleteFunc(slices.Clone(all), func(w worker.Worker) bool { return w.URL == "" })
	if len(remote) == 0 {
		return []worker.AgentInfo{}, nil
	}
	pool, err := worker.NewPool(worker.Options{Workers: remote}, worker.Env{Log: zerolog.Nop(), Secrets: cfg.Secrets})
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	ctx, stop := interruptible()
	defer stop()
	return pool.Agents(ctx), pool.Close(ctx)
}

// show prints the lists of workers, agents and waiting tasks.
func (l fleetLsCmd) show(sys *System, agents []worker.AgentInfo, workers []fleetdb.WorkerState,
	queue []fleetdb.QueueState,
) error {
	if l.JSON {
		return printJSON(sys.Out, map[string]any{"workers": workers, "queue": queue, "agents": agents})
	}
	var t table
	t.header("WORKER", "STATE", "TASKS", "MODEL", "HOST", "ID")
	for _, w := range workers {
		model := cmp.Or(strings.TrimSpace(w.Model+" "+w.ModelTier), "-")
		t.row(w.Name, w.State, fmt.Sprintf("%d of %d", w.Active, w.MaxTasks), model, w.Host, w.ID)
	}
	for _, a := range agents {
		t.row(a.Name, a.State, "-", cmp.Or(a.Model, "-"), a.URL, cmp.Or(a.Agent, "-"))
	}
	if err := t.show(sys); err != nil {
		return err
	}
	for _, a := range agents {
		if a.Reason != "" {
			say(sys.Err, "%s: %s", a.Name, a.Reason)
		}
	}
	if len(workers)+len(agents) == 0 {
		say(sys.Err, "no worker; start one with a2e worker --fleet URL")
	}
	return showQueue(sys, queue)
}

// showQueue prints the waiting tasks.
func showQueue(sys *System, queue []fleetdb.QueueState) error {
	if len(queue) == 0 {
		return nil
	}
	var q table
	q.header("PRIORITY", "WAITING", "UNFIT", "OLDEST", "RUNNING", "DONE/H", "FAILED/H")
	unfit := 0
	for _, r := range queue {
		unfit += r.Unfit
		q.row(r.Priority, fmt.Sprint(r.Waiting), fmt.Sprint(r.Unfit), (time.Duration(r.Oldest) * time.Second).String(),
			fmt.Sprint(r.Running), fmt.Sprint(r.Done), fmt.Sprint(r.Failed))
	}
	if unfit > 0 {
		say(sys.Err, "%s: no worker has what they require", protocol.Count(unfit, "task"))
	}
	return q.show(sys)
}

type fleetShowCmd struct {
	fleetFlag
	Name string `arg:"" help:"The task_id of a task, or the name or id of a worker."`
}

// Run shows one task or worker.
func (s fleetShowCmd) Run(sys *System) error {
	return s.with(sys, func(ctx context.Context, at *fleetdb.Fleet) error {
		task, err := at.Task(ctx, s.Name)
		if err != nil {
			return err
		}
		if task != nil {
			return printJSON(sys.Out, task)
		}
		workers, err := at.Workers(ctx)
		if err != nil {
			return err
		}
		var names []string
		for _, w := range workers {
			if w.Name == s.Name || w.ID == s.Name {
				return printJSON(sys.Out, w)
			}
			names = append(names, w.Name)
		}
		return fail(exitFailed, unknown("task and no worker", s.Name, names))
	})
}

type fleetDrainCmd struct {
	fleetFlag
	Worker string `arg:"" optional:"" help:"The name of workers, or the id of one."`
	All    bool   `help:"All workers."`
}

// Run makes the workers drain and prints their names.
func (d fleetDrainCmd) Run(sys *System) error {
	if d.All == (d.Worker != "") {
		return fail(exitUsage, errors.New("which workers? give a name, an id, or --all"))
	}
	return d.with(sys, func(ctx context.Context, at *fleetdb.Fleet) error {
		names, err := at.Drain(ctx, d.Worker)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, err := fmt.Fprintln(sys.Out, oneLine(name)); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			return fail(exitFailed, errors.New("no such worker; a2e fleet ls lists them"))
		}
		return nil
	})
}

// serveFleet makes the workers of the config work for a fleet, until a signal or a drain.
func (cmd *commands) serveFleet(sys *System, w *workerCmd) (err error) {
	at, err := w.open(sys)
	if err != nil {
		return err
	}
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	cfg, err := cmd.load(sys, func(text string) { log.Warn().Msg(text) })
	if err != nil {
		return err
	}
	if err := w.adapt(cfg, sys); err != nil {
		return fail(exitConfig, err)
	}
	opts := hostOptions(cfg, log)
	opts.Tokens = nil // everyone with access to the database may give tasks
	shared, closeShared, err := equip(&opts, cfg, sys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShared()) }()
	worker := at.NewWorker(max(cfg.Fleet.MaxTasks, 1), log)
	speak := func(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
		own := fleetOptions(cfg, opts, deps.Shared)
		own.Announced, own.Carry, own.Wall = worker.Announced, true, cfg.Wall
		opts.Dialects, opts.Only = []host.Dialect{fleet.New(own)}, true
	}
	h, err := newHost(cfg, opts, speak, shared)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	defer handleSignals(stop, sys.Exit)()
	say(sys.Err, "a2e works for the fleet %s; Ctrl-C ends it, a2e fleet drain lets it finish first", at.Name())
	return fail(exitTransport, worker.Run(ctx, h))
}
