package fleet

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// task is one dispatch on its way to its result.
type task struct {
	fleet.Dispatch
	origin
	work   *host.Work
	unread error  // why the fields in its brief cannot be read
	kept   bool   // the result is that of an earlier dispatch
	keptAs string // the id under which its result is kept, see resultID

	patience time.Time   // until when it waits for MCP servers to connect; zero = not at all
	due      *time.Timer // stops it at its deadline

	// The fields below are guarded by Front.mu.
	answered bool
	texts    int                 // bytes of texts that were appended to its brief; 0 once it has started
	began    *view               // the view of the workspace when it began
	before   *view               // began, with the changes of tasks that have ended since
	steer    chan agent.Steering // set when it starts, with over
	over     <-chan struct{}     // closed when it must stop or has ended
}

// Why a task is stopped or refused; the first three are causes of its context.
var (
	errDeadline  = errors.New("deadline")
	errCancelled = errors.New("cancelled")
	errEnding    = errors.New("the worker is ending (tasks have 10 s after the end of its input); send the task to " +
		"another one")
	errFull = errors.New("overloaded: too many tasks wait here; send it again later")
)

const (
	// answerGrace is how long the worker of a stopped task may take to return its result. After that the task is
	// answered without it.
	answerGrace = 500 * time.Millisecond
	// endGrace is how long the store may take for a result when the host ends.
	endGrace = 100 * time.Millisecond
	// filesTimeout bounds each question to git before and after a task.
	filesTimeout = 5 * time.Second
)

// dueAt stops a task at its deadline; false = the deadline is past.
func (f *Front) dueAt(t *task, at time.Time) bool {
	left := at.Sub(f.opts.Now())
	if left <= 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.due = time.AfterFunc(left, func() { t.work.Stop(errDeadline) })
	return true
}

// start marks a task as started; false = it is answered already. within is the context for its workers. They know the
// deadline and may return a better result at that time, so a deadline ends within only pace.late later. Any other stop
// ends it at once.
func (f *Front) start(ctx context.Context, t *task) (within context.Context, end func(), ok bool) {
	within, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.answered {
		stop(nil)
		return nil, nil, false
	}
	f.runs.Add(1)
	f.texts -= t.texts
	t.texts, t.steer, t.over = 0, make(chan agent.Steering, maxTexts), within.Done()
	stopped := func() {
		cause := refusal(context.Cause(ctx))
		if errors.Is(cause, errDeadline) {
			time.AfterFunc(f.pace.late, func() { stop(cause) })
			return
		}
		stop(cause)
	}
	heard := context.AfterFunc(ctx, stopped)
	return within, func() {
		heard()
		stop(nil)
		f.mu.Lock()
		delete(f.running, t)
		f.mu.Unlock()
		f.runs.Done()
	}, true
}

// stopped returns the result of a task that was stopped.
func stopped(t *task, why error) *fleet.Result {
	r := fleet.NewResult(t.Task.TaskID, fleet.StatusError)
	r.Error = reason(why)
	return r
}

// unstarted returns the result of a task that was stopped before it began.
func unstarted(t *task, why error) *fleet.Result {
	if errors.Is(why, errDeadline) {
		return stopped(t, why)
	}
	return fleet.Blocked(t.Task.TaskID, reason(why))
}

// run has a task done and completes its result.
func (f *Front) run(ctx context.Context, t *task) *fleet.Result {
	ctx, end, ok := f.start(ctx, t)
	if !ok {
		return stopped(t, errEnding) // nobody receives it
	}
	defer end()
	before := f.repo.look(ctx)
	f.announce(f.ctx, before)
	if f.opts.RequireClean && t.Writes() && f.repo.there() && (before == nil || len(before.dirty) > 0) {
		return fleet.Blocked(t.Task.TaskID, "the task is marked as writing, and the workspace has changes that are "+
			"not committed (require_clean); commit or stash them")
	}
	if t.Task.Isolation == fleet.IsolationWorktree || t.Task.Isolation == "" && f.opts.Isolated {
		return f.runIsolated(ctx, t)
	}
	f.mu.Lock()
	t.began, t.before = before, before
	f.running[t] = true
	f.mu.Unlock()
	result := f.have(ctx, t, "")
	f.account(ctx, t, result)
	f.carry(result)
	return result
}

// have has the workers do a task in a folder; "" = the workspace. A partial result says what remains.
func (f *Front) have(ctx context.Context, t *task, folder string) *fleet.Result {
	pool := agent.Workers(host.ServicesOf(f.ctx))
	if pool == nil {
		return fleet.Blocked(t.Task.TaskID, agent.NoWorker().Message)
	}
	result, err := pool.RunTask(f.in(ctx), agent.WorkerTask{Dispatch: t.Dispatch, Workspace: folder, Steer: t.steer})
	result = outcome(ctx, t, result, err)
	if result.Status == fleet.StatusPartial {
		if len(result.Remaining) == 0 {
			result.Remaining = protocol.AppendString(nil, cmp.Or(strings.Join(result.NextSteps, "; "),
				"the worker does not say what remains"))
		}
		if text, ok := protocol.Value(result.Remaining).Str(); ok && len(result.NextSteps) == 0 {
			result.NextSteps = []string{text}
		}
	}
	return result
}

// account finds out which files of the workspace a task has changed. If the worker does not name them itself, they are
// what the task's calls wrote and what has changed at its end. They are not counted for tasks that are still running.
func (f *Front) account(ctx context.Context, t *task, result *fleet.Result) {
	f.looking.Lock()
	defer f.looking.Unlock()
	ctx = context.WithoutCancel(ctx)
	after := f.repo.look(ctx)
	changed, known := f.repo.since(ctx, t.before, after)
	files, said := &result.Artifacts.FilesChanged, len(result.Artifacts.FilesChanged) > len(result.Artifacts.Written)
	if result.Status != fleet.StatusBlocked && !said {
		*files = joined(changed, f.repo.really(ctx, *files, t.began, after))
		if !known && (result.Status == fleet.StatusDone || result.Status == fleet.StatusPartial) {
			result.NextSteps = append(result.NextSteps, "look for changes in the worker's workspace, as git could "+
				"not list them all")
		}
	}
	f.mu.Lock()
	if after != nil {
		for other := range f.running {
			other.before = other.before.without(result.Artifacts.FilesChanged, after)
		}
	}
	f.mu.Unlock()
	if after != nil && f.ctx.Err() == nil {
		f.announce(f.ctx, after)
	}
}

// outcome makes the result of a task from what the workers returned.
func outcome(ctx context.Context, t *task, result *fleet.Result, err error) *fleet.Result {
	if cause := context.Cause(ctx); cause != nil && (err != nil || result == nil || result.Status != fleet.StatusDone) {
		r := stopped(t, cause)
		if result != nil {
			r.TokensSpent, r.TokensEstimated, r.Summary, r.Artifacts = result.TokensSpent, result.TokensEstimated,
				result.Summary, result.Artifacts
		}
		return r
	}
	_, refused := errors.AsType[*protocol.Error](err)
	switch {
	case refused:
		return fleet.Blocked(t.Task.TaskID, reason(err)) // no worker has begun
	case err != nil:
		return stopped(t, err)
	case result == nil:
		return stopped(t, errors.New("the workers gave no result"))
	}
	return result
}

// answer returns the line of the one result of a task. It stores only results of tasks that are done; a task with any
// other result may be tried again.
func (f *Front) answer(t *task, resp any, err error) []byte {
	f.mu.Lock()
	began := t.steer != nil
	t.answered = true
	f.texts -= t.texts
	t.texts = 0
	if t.due != nil {
		t.due.Stop()
	}
	f.mu.Unlock()
	result, _ := resp.(*fleet.Result)
	switch {
	case err != nil && began:
		result = stopped(t, refusal(err))
	case err != nil:
		result = unstarted(t, refusal(err))
	}
	result.TaskID = t.Task.TaskID
	if result.Status == fleet.StatusDone && !t.kept {
		f.results.keep(f.ctx, t.keptAs, result)
	}
	f.mu.Lock()
	if f.tasks[t.Task.TaskID] == t { // before the answer, after which the peer may send the task again
		delete(f.tasks, t.Task.TaskID)
	}
	f.mu.Unlock()
	return ended(f.report(t.origin, result))
}
