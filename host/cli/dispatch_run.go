package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// dispatchGrace is how long the workers may take to end.
const dispatchGrace = 10 * time.Second

// dispatchRun is one run of a2e dispatch.
//
//	tasks by priority ─ next ─┬─ RunTask ─ a worker ─ result ─► out
//	                          └─ as many at once as the workers have places
type dispatchRun struct {
	dispatchCmd
	cmd  *commands
	sys  *System
	cfg  *config.Config
	todo []*dispatchTask // in the order in which they start
	log  zerolog.Logger
	out  io.Writer
	live bool

	pool  *worker.Pool
	board *dispatchBoard
	next  atomic.Int64
}

// run starts the workers, has the tasks done and ends the workers.
func (d *dispatchRun) run() error {
	ctx, stop := interruptible()
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal ends it at once, also where nobody reads the results
	d.Workers = min(d.Workers, len(d.todo))
	// A worker is this very program: it confines what it starts itself, which it could not
	// do as well from within a sandbox. Its tree dies with this process all the same.
	launcher, err := sandbox.New(sandbox.Options{Mode: sandbox.Off, Environ: d.sys.Environ})
	if err != nil {
		return err
	}
	workers, err := d.workers()
	if err == nil {
		d.pool, err = worker.NewPool(worker.Options{Workers: workers}, worker.Env{
			Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }, Agent: d.cfg.Agent, Log: d.log, Secrets: d.cfg.Secrets,
		})
	}
	if err != nil {
		return errors.Join(err, launcher.Close())
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

// workers says what to start.
func (d *dispatchRun) workers() ([]worker.Worker, error) {
	if d.cfg.AuthToken.Reveal() == "" && len(d.cfg.Auth) > 0 {
		return nil, fail(exitConfig, errors.New("the config has tokens for agents only, and these tasks are no agent's: set auth_token as well"))
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
	delete(env, "PWD") // it may be of another folder
	all := make([]worker.Worker, d.Workers)
	for i := range all {
		name := fmt.Sprintf("worker-%d", i+1)
		all[i] = worker.Worker{
			Name: name, Mode: worker.ModeFleet, Command: d.argv(self, name), Env: env, Cwd: here, Network: true,
			MaxTasks: d.places(), Timeout: time.Duration(d.Timeout) * time.Second, AuthToken: d.cfg.AuthToken,
		}
	}
	return all, nil
}

// argv is the command line of a worker.
func (d *dispatchRun) argv(self, name string) []string {
	argv := []string{self, "--log-level", d.cmd.LogLevel}
	if d.cmd.Config != "" {
		argv = append(argv, "--config="+d.cmd.Config)
	}
	argv = append(argv, "worker", "--agent-id", name)
	if d.Model != "" {
		argv = append(argv, "--model="+d.Model)
	}
	if d.MaxTasks > 0 {
		argv = append(argv, "--max-tasks", strconv.Itoa(d.MaxTasks))
	}
	if d.Network {
		argv = append(argv, "--network")
	}
	if len(d.Command) > 0 {
		argv = append(append(argv, "--"), d.Command...)
	}
	return argv
}

// places is how many tasks a worker does at once.
func (d *dispatchRun) places() int {
	if d.MaxTasks > 0 {
		return d.MaxTasks
	}
	return min(max(d.cfg.Fleet.MaxTasks, 1), maxAtOnce)
}

// plainName reports whether a variable of this process can be passed on.
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

// watch makes the board.
func (d *dispatchRun) watch(workers []worker.Worker) {
	names := make([]string, len(workers))
	for i, w := range workers {
		names[i] = w.Name
	}
	b := newBoard(nil, time.Now, d.sys.columns())
	if d.live {
		b.w = d.sys.Err
	}
	_, b.shared = d.out.(*seenWriter) // stdout is a terminal, most likely the same
	d.board = newDispatchBoard(b, names, len(d.todo), d.sys.rows()-4)
	b.start()
}

// feed returns the tasks to the workers, as many at once as they have places, and waits for
// all. The error is that of writing a result, which ends what still runs.
func (d *dispatchRun) feed(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	var failure error
	var once sync.Once
	for range min(d.Workers*d.places(), len(d.todo)) {
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

// do has one task done and writes its result. A task that was stopped has none.
func (d *dispatchRun) do(ctx context.Context, t *dispatchTask) error {
	res, err := d.pool.RunTask(ctx, host.WorkerTask{Dispatch: t.Dispatch, Started: func(worker string) { d.board.placed(t, worker) }})
	switch {
	case err != nil && ctx.Err() != nil:
		d.board.ended(t, nil)
		return nil
	case err != nil:
		res = fleet.NewResult(t.id, fleet.StatusError)
		res.Error = err.Error()
	}
	res.TaskID = t.id
	line, err := protocol.AppendJSON(nil, res)
	if err != nil {
		return err
	}
	d.board.ended(t, res)
	return d.board.write(func() error {
		_, err := d.out.Write(append(line, '\n'))
		return err
	})
}

// verdict tells how it went, and is the error where some task is not done.
func (d *dispatchRun) verdict(interrupted bool) error {
	all := d.board.all
	left := len(d.todo) - all.ended()
	if !d.Quiet && !d.live {
		say(d.sys.Err, "%s: %s, in %s", plural(len(d.todo), "task"), all.String(), d.board.since(d.board.begun))
	}
	switch {
	case interrupted && left > 0:
		return fail(exitSignal, fmt.Errorf("interrupted: %d of %s got no result", left, plural(len(d.todo), "task")))
	case all.done < len(d.todo):
		return fail(exitFailed, fmt.Errorf("%d of %s not done", len(d.todo)-all.done, plural(len(d.todo), "task")))
	}
	return nil
}
