package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

// process has one process of the worker do a task. The error is the cause of ctx.
func (r *runner) process(ctx context.Context, t *task) (outcome, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	said := newStdout(func(line []byte) { t.out.say("stdout", r.hide(line)) })
	said.budget, said.stop = t.budget(), stop
	words := child.Tail{Size: maxWords}
	errs := newWords(func(line []byte) {
		line = r.hide(line) // before its begin is cut off
		words.Add(line)
		t.out.say("stderr", line)
	})
	proc, err := r.start(ctx, t, said, errs)
	if err != nil {
		return r.unstarted(ctx, t, err)
	}
	r.runs()
	awaitEnd(proc, t.Steer)
	state, err := proc.Wait()
	said.lines.End()
	errs.End()
	var over *budgetError // then what it printed counts, not how soon it ended
	if cause := context.Cause(ctx); cause != nil && (err != nil || errors.As(cause, &over)) {
		o, err := t.stopped(cause)
		if err == nil {
			t.left(o.res, said)
		}
		return o, err
	}
	return t.ended(state, err, said, &words), nil
}

// awaitEnd waits for the end of a process; texts that steer it are not taken.
func awaitEnd(proc *sandbox.Process, steer <-chan host.Steering) {
	for {
		select {
		case <-proc.Done():
			return
		case s, ok := <-steer:
			if !ok {
				steer = nil
				continue
			}
			decline(s)
		}
	}
}

// ended makes the result of a process that ended by itself, or that died. One that gave a
// result has had its say, whatever its exit status.
func (t *task) ended(state sandbox.State, err error, said *stdout, words *child.Tail) outcome {
	if obj, ok := resultIn(said.last); ok && err == nil && state.Signal == 0 {
		res := t.read(obj, max(0, said.chars-utf8.RuneCount(said.last)-1))
		return outcome{res: res, again: res.Status == fleet.StatusBlocked}
	}
	if err == nil && state.Signal == 0 && state.Code == 0 {
		res := fleet.NewResult(t.Task.TaskID, fleet.StatusDone)
		t.left(res, said)
		return outcome{res: res}
	}
	how := state.String()
	if err != nil {
		how = err.Error()
	}
	res := t.failed("%s", epitaph("the worker ended: "+how, words))
	t.left(res, said)
	return outcome{res: res}
}

// left puts what a worker without a result has printed into one.
func (t *task) left(res *fleet.Result, said *stdout) {
	res.Summary = said.text()
	t.estimate(res, said.chars)
	if t.Task.ReplySchema == fleet.ReplyStructured {
		res.Summary = wrapped(res.Summary, res.Status)
	}
}

// epitaph adds the end of its stderr to how a worker ended.
func epitaph(how string, words *child.Tail) string {
	if text := words.String(); text != "" {
		return how + "; its stderr ends with: " + text
	}
	return how
}

// variables are what a process is told of its task in its environment.
func (t *task) variables() map[string]string {
	vars := map[string]string{
		"A2E_TASK_ID":      t.Task.TaskID,
		"A2E_PRIORITY":     string(t.Task.Priority),
		"A2E_TOKEN_BUDGET": strconv.Itoa(t.budget()),
		"A2E_REPLY_SCHEMA": string(t.Task.ReplySchema),
		"A2E_DEADLINE":     t.Deadline,
	}
	maps.Copy(vars, t.Env)
	return vars
}

// unstarted is what a task comes to at a worker that cannot be started: another may take it,
// unless it is the task's own fault.
func (r *runner) unstarted(ctx context.Context, t *task, err error) (outcome, error) {
	if cause := context.Cause(ctx); cause != nil {
		return t.stopped(cause)
	}
	if errors.Is(err, errClosed) {
		return t.stopped(errClosed)
	}
	var variable *sandbox.EnvError
	if errors.As(err, &variable) || errors.Is(err, syscall.E2BIG) {
		return outcome{res: t.failed("worker %s cannot be started for this task: %v", r.Name, err), moot: true}, nil
	}
	err = fmt.Errorf("worker %s was not started: %w", r.Name, err)
	r.fails(err)
	return outcome{res: t.failed("%v", err), again: true, moot: true}, nil
}

// start starts a process for a task, which is killed when ctx ends.
func (r *runner) start(ctx context.Context, t *task, stdout, stderr io.Writer) (*sandbox.Process, error) {
	policy, err := r.policy(t.variables(), t.Agent)
	if err != nil {
		return nil, err
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	policy.Stdin, policy.Stdout, policy.Stderr = strings.NewReader(t.Brief), stdout, stderr
	launcher, err := r.pool.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("programs cannot be started: %w", err)
	}
	return launcher.Command(ctx, policy)
}
