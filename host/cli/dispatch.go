package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/google/uuid"
	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/plugins/multiagent"
	"a2e/protocol"
)

// Bounds of a dispatch.
const (
	maxWorkers = 256
	maxAtOnce  = 1024 // tasks of one worker

	maxTaskTime = 365 * 24 * 3600 // seconds of one task
)

type dispatchCmd struct {
	File     string   `arg:"" help:"A file with tasks: one JSON object on each line, or a list as JSON or YAML; - is stdin."`
	Command  []string `arg:"" optional:"" help:"What each worker starts for a task, behind --. Without it: the workers of the config."`
	Workers  int      `short:"w" default:"4" placeholder:"N" help:"Workers to start; default: ${default}."`
	MaxTasks int      `placeholder:"N" help:"Tasks that each worker does at once. Without it: fleet.max_tasks of the config."`
	Model    string   `placeholder:"MODEL" help:"The model that the workers say they have."`
	Network  bool     `help:"Let the command use the network."`
	Timeout  int      `placeholder:"SECONDS" help:"Seconds that one task may take. Without it: an hour."`
	Out      string   `short:"o" default:"-" placeholder:"FILE" help:"Write the results to this file; - is stdout."`
	Quiet    bool     `short:"q" help:"Do not show the progress."`
}

// check tells what is wrong with the command line.
func (d *dispatchCmd) check() error {
	switch {
	case d.Workers < 1 || d.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: should be between 1 and %d", d.Workers, maxWorkers)
	case d.MaxTasks < 0 || d.MaxTasks > maxAtOnce:
		return fmt.Errorf("--max-tasks %d: should be between 1 and %d", d.MaxTasks, maxAtOnce)
	case d.Network && len(d.Command) == 0:
		return errors.New("--network: is for a command behind --; workers of the config have network: true")
	case d.Timeout < 0 || d.Timeout > maxTaskTime:
		return fmt.Errorf("--timeout %d: should be a number of seconds, at most %d", d.Timeout, maxTaskTime)
	case d.Out != "-" && d.File != "-" && sameFile(d.Out, d.File):
		return fmt.Errorf("--out %s: that is the file with the tasks", d.Out)
	}
	return nil
}

// Run has all tasks done.
func (d dispatchCmd) Run(cmd *commands, sys *System) error {
	if err := d.check(); err != nil {
		return fail(exitUsage, err)
	}
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	if err := errors.Join(d.equipped(cfg), tryPlugins(cfg)); err != nil { // once, not for each task
		return fail(exitConfig, err)
	}
	tasks, err := d.tasks(sys)
	if err != nil {
		return fail(exitUsage, err)
	}
	slices.SortStableFunc(tasks, func(a, b *dispatchTask) int {
		return cmp.Compare(slices.Index(taskPriorities(), a.Task.Priority), slices.Index(taskPriorities(), b.Task.Priority))
	})
	live := !d.Quiet && sys.showsLive()
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	if live && cmd.LogFile == "" {
		log = zerolog.Nop() // its lines would run through the picture
	}
	out, closeOut, err := d.output(sys)
	if err != nil {
		return fail(exitUsage, err)
	}
	run := &dispatchRun{dispatchCmd: d, cmd: cmd, sys: sys, cfg: cfg, todo: tasks, log: log, out: out, live: live}
	return errors.Join(run.run(), closeOut())
}

// tasks reads the file. What is wrong with it is told.
func (d *dispatchCmd) tasks(sys *System) ([]*dispatchTask, error) {
	tasks, problems, err := readTasks(d.File, sys.In, uuid.NewString()[:8])
	if err != nil || len(problems) == 0 {
		return tasks, err
	}
	for _, p := range problems[:min(len(problems), maxMisfits)] {
		say(sys.Err, "%s", p)
	}
	found := plural(len(problems), "problem")
	if len(problems) >= maxProblems {
		found += " or more"
	}
	return nil, fmt.Errorf("%s in %s; no task was started", found, oneLine(d.File))
}

// equipped reports whether the workers will have something to do tasks with.
func (d *dispatchCmd) equipped(cfg *config.Config) error {
	if len(d.Command) > 0 {
		return nil
	}
	for _, p := range cfg.Plugins {
		if !p.Enabled || p.Type != string(protocol.CapMultiAgent) {
			continue
		}
		opts := multiagent.DefaultOptions()
		if err := p.Options.Decode(&opts); err != nil {
			return err
		}
		if len(opts.Workers) > 0 {
			return nil
		}
	}
	return errors.New("nothing is there to do the tasks: give a command behind --, as in a2e dispatch tasks.ndjson -- my-agent --print, or name workers in the config, in a plugin of type multi_agent")
}

// output opens where the results go.
func (d *dispatchCmd) output(sys *System) (out io.Writer, done func() error, err error) {
	none := func() error { return nil }
	switch {
	case d.Out != "-":
		file, err := os.Create(d.Out)
		if err != nil {
			return nil, nil, err
		}
		return file, file.Close, nil
	case isatty.IsTerminal(sys.Out.Fd()):
		return &seenWriter{w: sys.Out}, none, nil
	}
	return sys.Out, none, nil
}
