package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// dispatchGrace is the time that the workers have to end.
const dispatchGrace = 10 * time.Second

// maxInPool is how many tasks may wait in the pool for a suitable worker.
const maxInPool = 4096

// dispatchRun is one run of a2e dispatch.
//
//	tasks by priority ─ next ─┬─ RunTask ─ a worker ─ result ─► out
//	                          └─ as many at once as the workers have places
type dispatchRun struct {
	dispatchCmd
	cmd    *commands
	sys    *System
	cfg    *config.Config
	among  []worker.Worker // workers of the config; not used with a command
	todo   []*dispatchTask // in the order in which they start
	before tally           // results of an earlier run
	log    zerolog.Logger
	out    *results
	live   bool

	atOnce int // tasks that are in the pool at the same time
	pool   *worker.Pool
	board  *dispatchBoard
	next   atomic.Int64
	names  map[string][]string // names of the started workers, by the worker of the config whose work they do
	turn   atomic.Int64        // counter that selects one of these
}

// run starts the workers, does the tasks and ends the workers.
func (d *dispatchRun) run() error {
	ctx, stop := interruptible()
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal ends the process at once, even if nobody reads the results
	if !d.Quiet {
		d.tellBefore()
	}
	if len(d.todo) == 0 {
		return d.verdict(false)
	}
	// A worker is another process of this program. It runs outside a sandbox, because it confines
	// its own children and could do this less well from within one. Its process tree still ends
	// with this process.
	launcher, err := sandbox.New(sandbox.Options{Mode: sandbox.Off, Environ: d.sys.Environ})
	if err != nil {
		return err
	}
	workers, err := d.workers()
	if err == nil {
		d.pool, err = worker.NewPool(worker.Options{Workers: workers, Durable: true}, worker.Env{
			Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }, Agent: d.cfg.Agent, Log: d.log,
			Secrets: d.cfg.Secrets,
		})
	}
	if err != nil {
		return errors.Join(err, launcher.Close())
	}
	d.atOnce = maxInPool // each task finds its worker in the pool
	if len(d.among) == 1 {
		d.atOnce = len(workers) * workers[0].MaxTasks
	}
	d.watch(workers)
	err = d.feed(ctx)
	d.board.close()
	patience, enough := context.WithTimeout(context.Background(), dispatchGrace)
	defer enough()
	err = errors.Join(err, d.pool.Close(patience), launcher.Close())
	if err != nil {
		return err
	}
	return d.verdict(ctx.Err() != nil)
}

// workers returns the workers to start, or the fleet that does the tasks.
func (d *dispatchRun) workers() ([]worker.Worker, error) {
	if d.Fleet != "" {
		for _, t := range d.todo {
			t.Task.Isolation = cmp.Or(t.Task.Isolation, fleet.Isolation(d.Isolation))
		}
		d.among = []worker.Worker{{}}
		return []worker.Worker{{
			Name: "fleet", Fleet: config.NewSecret(d.Fleet), MaxTasks: maxInPool,
			Timeout: time.Duration(d.Timeout) * time.Second,
		}}, nil
	}
	if d.cfg.AuthToken.Reveal() == "" && len(d.cfg.Auth) > 0 {
		return nil, fail(exitConfig, errors.New("the config has tokens of single agents only, and these tasks "+
			"belong to none: set auth_token too"))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	env := make(map[string]string)
	for _, entry := range d.sys.Environ {
		if name, value, ok := strings.Cut(entry, "="); ok && plainName(name) {
			env[name] = value
		}
	}
	delete(env, "PWD") // it may name another folder
	if d.own() {
		d.among = []worker.Worker{{Model: d.Model}}
	}
	n := len(d.among)
	d.names = make(map[string][]string)
	all := make([]worker.Worker, max(n, d.Workers))
	for i := range all {
		does := &d.among[i%n] // the work is spread evenly over the config's workers
		name := ""
		for number := i/n + 1; name == "" || slices.ContainsFunc(all[:i],
			func(w worker.Worker) bool { return w.Name == name }); number++ {
			name = childName(does.Name, number)
		}
		all[i] = worker.Worker{
			Name: name, Mode: worker.ModeFleet, Model: cmp.Or(does.Model, does.LLM.Model), ModelTier: does.ModelTier,
			ContextWindow: does.ContextWindow,
			Priority:      does.Priority, Env: env, Cwd: here, Network: true,
			MaxTasks: cmp.Or(d.MaxTasks, does.MaxTasks,
				d.cfg.Fleet.MaxTasks, 1),
			Timeout: time.Duration(d.Timeout) * time.Second, AuthToken: d.cfg.AuthToken,
		}
		all[i].Command = d.argv(self, &all[i], does.Name)
		d.names[does.Name] = append(d.names[does.Name], all[i].Name)
	}
	return all, nil
}

// childName returns the name of a started worker: the name of the config's worker whose work it
// does, with a number if there are several, or worker-N if it runs the command line's command or
// model.
func childName(does string, number int) string {
	switch {
	case does == "":
		return fmt.Sprintf("worker-%d", number)
	case number == 1:
		return does
	}
	return fmt.Sprintf("%s-%d", does, number)
}

// argv returns the command line of a worker. only is the worker of the config whose work it does;
// "" = it does what this command line says.
func (d *dispatchRun) argv(self string, w *worker.Worker, only string) []string {
	argv := []string{self, "--log-level", d.cmd.logLevel()}
	if d.cmd.Config != "" {
		argv = append(argv, "--config="+d.cmd.Config)
	}
	argv = append(argv, "worker", "--agent-id="+w.Name, "--max-tasks", strconv.Itoa(w.MaxTasks))
	if only != "" {
		argv = append(argv, "--only="+only)
	}
	return append(argv, d.workFlags.argv(d.Command)...)
}

// plainName reports whether a variable with this name can be passed on.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// watch creates and starts the board.
func (d *dispatchRun) watch(workers []worker.Worker) {
	names := each(workers, func(w worker.Worker) string { return w.Name })
	b := newBoard(nil, time.Now, d.sys.columnsOf(d.sys.Err))
	if d.live {
		b.w = d.sys.Err
	}
	_, b.shared = d.out.Writer.(*seenWriter) // stdout is a terminal, probably the same one
	d.board = newDispatchBoard(b, names, len(d.todo), d.sys.rows()-4)
	b.start()
}

// feed hands the tasks to the workers, as many at a time as they have places, and waits for all
// results. It returns an error if a result cannot be written; this also stops the running tasks.
func (d *dispatchRun) feed(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	var failure error
	var once sync.Once
	for range min(d.atOnce, len(d.todo)) {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(d.next.Add(1)) - 1
				if i >= len(d.todo) {
					return
				}
				if err := d.do(ctx, d.todo[i]); err != nil {
					once.Do(func() { failure = err })
					cancel(err)
				}
			}
		})
	}
	wait.Wait()
	if failure != nil {
		return fail(exitTransport, fmt.Errorf("the results cannot be written: %w", failure))
	}
	return nil
}

// do runs one task and writes its result. A task that was stopped gets no result.
func (d *dispatchRun) do(ctx context.Context, t *dispatchTask) error {
	task := t.WorkerTask
	task.Started = func(worker string) { d.board.placed(t, worker) }
	if task.Retries == nil {
		task.Retries = d.Retries
	}
	if does := d.names[task.Worker]; task.Worker != "" {
		task.Worker = does[int(d.turn.Add(1))%len(does)]
	}
	res, err := d.pool.RunTask(ctx, task)
	switch {
	case err != nil && ctx.Err() != nil:
		d.board.ended(t, nil)
		return nil
	case err != nil:
		res = fleet.NewResult(t.id, fleet.StatusError)
		res.Error = err.Error()
	}
	res.TaskID = t.id
	d.board.ended(t, res)
	return d.board.write(func() error { return d.out.write(t, res) })
}

// tellBefore prints what the file has from an earlier run.
func (d *dispatchRun) tellBefore() {
	if d.out.cut {
		say(d.sys.Err, "the last line of %s was cut off; its task is done again", d.out.name)
	}
	if n := d.before.ended(); n > 0 {
		say(d.sys.Err, "%s has %s of an earlier run: %s", d.out.name, protocol.Count(n, "result"), d.before.String())
	}
}

// verdict prints how the tasks ended. It returns an error if some task is not done, in this run or an earlier one.
func (d *dispatchRun) verdict(interrupted bool) error {
	var now tally
	if d.board != nil {
		now = d.board.all
	}
	if !d.Quiet && !d.live && len(d.todo) > 0 {
		say(d.sys.Err, "%s: %s, in %s", protocol.Count(len(d.todo), "task"), now.String(), d.board.since(d.board.begun))
	}
	total, left := len(d.todo)+d.before.ended(), len(d.todo)-now.ended()
	switch undone := total - now.done - d.before.done; {
	case interrupted && left > 0:
		return fail(exitSignal, fmt.Errorf("interrupted: %d of %s got no result", left, protocol.Count(len(d.todo),
			"task")))
	case undone > 0:
		return fail(exitFailed, fmt.Errorf("%d of %s not done", undone, protocol.Count(total, "task")))
	}
	return nil
}
