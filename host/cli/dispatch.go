package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
)

// Limits of a dispatch.
const (
	maxWorkers = 256
	maxAtOnce  = 1024 // tasks that one worker does at the same time

	maxRetries = 100 // of one task

	maxTaskTime = 365 * 24 * 3600 // seconds of one task
)

type dispatchCmd struct {
	File     string   `arg:"" help:"A file with tasks: one JSON object on each line, or a list as JSON or YAML; - is stdin."`
	Command  []string `arg:"" optional:"" help:"What each worker starts for a task, behind --. Default: the workers of the config."`
	Workers  int      `short:"w" default:"4" placeholder:"N" help:"How many workers to start, of each one in the config, at least one. Default: ${default}."`
	MaxTasks int      `placeholder:"N" help:"Tasks that each worker does at once. Default: max_tasks of the worker, or of fleet, in the config."`
	workFlags
	Timeout int    `placeholder:"SECONDS" help:"Seconds that one task may take. Default: an hour."`
	Retries *int   `placeholder:"N" help:"How often a task is started again when its worker dies, unless the task says so itself. Default: as the workers have it."`
	Out     string `short:"o" default:"-" placeholder:"FILE" help:"Append the results to this file, which has to be a new one without --resume; - is stdout."`
	Resume  bool   `help:"Continue a run that ended early: tasks with a result in the file of --out are not done again."`
	fleetFlag
	Quiet bool `short:"q" help:"Do not show the progress."`
}

// check returns what is wrong with the command line.
func (d *dispatchCmd) check() error {
	switch err := d.workFlags.check(d.Command); {
	case d.Fleet != "" && (d.LLM != "" || d.Model != "" || len(d.Command) > 0 || d.Network || !d.Contract ||
		d.MaxTasks > 0):
		return errors.New("--fleet: its workers say themselves how they work; --llm, --model, --network, " +
			"--no-contract, --max-tasks and a command are for local ones")
	case d.Workers < 1 || d.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: should be between 1 and %d", d.Workers, maxWorkers)
	case d.MaxTasks < 0 || d.MaxTasks > maxAtOnce:
		return fmt.Errorf("--max-tasks %d: should be between 1 and %d", d.MaxTasks, maxAtOnce)
	case err != nil:
		return err
	case d.Model != "" && !d.own():
		return errors.New("--model: is for --llm, or a command behind --; workers of the config have a model")
	case d.Retries != nil && (*d.Retries < 0 || *d.Retries > maxRetries):
		return fmt.Errorf("--retries %d: should be between 0 and %d", *d.Retries, maxRetries)
	case d.Timeout < 0 || d.Timeout > maxTaskTime:
		return fmt.Errorf("--timeout %d: should be a number of seconds, at most %d", d.Timeout, maxTaskTime)
	case d.Resume && d.Out == "-":
		return errors.New("--resume: needs --out FILE, the file with the results so far")
	case d.Out != "-" && d.File != "-" && sameFile(d.Out, d.File):
		return fmt.Errorf("--out %s: that is the file with the tasks", d.Out)
	}
	return nil
}

// own reports whether the command line defines the workers, and not the config.
func (d *dispatchCmd) own() bool { return d.LLM != "" || len(d.Command) > 0 || d.Fleet != "" }

// Run does all tasks of the file.
func (d dispatchCmd) Run(cmd *commands, sys *System) error {
	if err := d.check(); err != nil {
		return fail(exitUsage, err)
	}
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	_, workers, err := workersOf(cfg)
	if d.Fleet != "" {
		if err := d.reach(sys); err != nil {
			return err
		}
	}
	if err == nil && len(d.Command) == 0 && d.Fleet == "" {
		err = d.equip(cfg, sys, ", a command behind -- as in a2e dispatch tasks.ndjson -- my-agent --print")
	}
	if err := errors.Join(err, tryPlugins(cfg)); err != nil { // once here, not for each task
		return fail(exitConfig, err)
	}
	tasks, err := d.tasks(sys, workers)
	if err != nil {
		return fail(exitUsage, err)
	}
	slices.SortStableFunc(tasks, func(a, b *dispatchTask) int {
		return cmp.Compare(slices.Index(taskPriorities(), a.Task.Priority), slices.Index(taskPriorities(),
			b.Task.Priority))
	})
	live := !d.Quiet && sys.showsLive()
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	if live && cmd.LogFile == "" {
		log = zerolog.Nop() // its lines would mix with the board
	}
	out, err := d.openResults(sys)
	if err != nil {
		return fail(exitUsage, err)
	}
	run := &dispatchRun{dispatchCmd: d, cmd: cmd, sys: sys, cfg: cfg, among: workers, log: log, out: out, live: live}
	if run.todo, run.before, err = out.left(tasks); err != nil {
		return fail(exitUsage, errors.Join(err, out.close()))
	}
	return errors.Join(run.run(), out.close())
}

// tasks reads the tasks from the file, and prints what is wrong with them.
func (d *dispatchCmd) tasks(sys *System, workers []worker.Worker) ([]*dispatchTask, error) {
	var names []string // the workers that a task may name
	for _, w := range workers {
		if !d.own() {
			names = append(names, w.Name)
		}
	}
	tasks, problems, err := readTasks(d.File, sys.In, uuid.NewString()[:8], names)
	if err != nil || len(problems) == 0 {
		return tasks, err
	}
	for _, p := range problems[:min(len(problems), maxMisfits)] {
		say(sys.Err, "%s", p)
	}
	found := protocol.Count(len(problems), "problem")
	if len(problems) >= maxProblems {
		found += " or more"
	}
	where := oneLine(d.File)
	if where == "-" {
		where = "stdin"
	}
	return nil, fmt.Errorf("%s in %s; no task was started", found, where)
}
