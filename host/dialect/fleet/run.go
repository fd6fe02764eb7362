package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/trace"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// task is one dispatch on its way to its result.
type task struct {
	fleet.Dispatch
	origin
	unread error      // why the fields in its brief cannot be understood
	kept   bool       // the result is that of an earlier dispatch
	late   chan error // why it is to be answered without its worker; takes one

	patience time.Time // until when it waits for MCP servers to connect; zero = not at all

	// Guarded by Front.mu.
	size     int // bytes that it counts for
	answered bool
	began    *view                   // what git said of the workspace when it began
	before   *view                   // the same, or when another one ended
	due      *time.Timer             // its deadline; of a task that is to stop, the end of patience
	stop     context.CancelCauseFunc // set when it starts, as are those below
	steer    chan host.Steering
	over     <-chan struct{} // closed when it is to stop or has ended
}

// Why a task is stopped; these are causes of its context.
var (
	errDeadline  = errors.New("deadline")
	errCancelled = errors.New("cancelled")
	errEnding    = errors.New("the worker is ending (tasks have 10 s after the end of its input); send the task to another one")
)

const (
	// answerGrace is how long the worker of a task that is to stop may take to give its
	// result. Then the task is answered without it.
	answerGrace = 500 * time.Millisecond
	// endGrace is the same when the host ends, which does not wait long.
	endGrace = 100 * time.Millisecond
	// filesTimeout is for each thing that git is asked before a task, and once it has ended.
	filesTimeout = 5 * time.Second
)

// admit starts tasks, or lets them wait for a place until their deadlines. Of those that come
// together the highest priority starts first.
func (f *Front) admit(tasks ...*task) {
	refused := make(map[*task]error)
	f.mu.Lock()
	for _, t := range tasks {
		select {
		case refused[t] = <-t.late:
			continue
		default:
		}
		if f.cut {
			refused[t] = errEnding
			continue
		}
		at, _ := slices.BinarySearchFunc(f.waiting, t.Task.Priority.Rank(), func(other *task, rank int) int { return cmp.Or(rank-other.Task.Priority.Rank(), -1) })
		f.waiting = slices.Insert(f.waiting, at, t) // behind those of its rank
	}
	f.startLocked()
	f.mu.Unlock()
	for t, why := range refused {
		f.conclude(t, unstarted(t, why))
	}
}

// startLocked returns the free places to the tasks that come first.
func (f *Front) startLocked() {
	for f.active < f.opts.MaxTasks && len(f.waiting) > 0 {
		t, _ := dialect.Shift(&f.waiting)
		f.active++
		ctx, stop := context.WithCancelCause(f.ctx)
		t.stop, t.steer, t.over = stop, make(chan host.Steering, maxTexts), ctx.Done()
		f.goes.Go(func() { f.work(ctx, t) })
	}
}

// work has a task done in its place and answers it, before its worker has ended where
// that takes too long.
func (f *Front) work(ctx context.Context, t *task) {
	done := make(chan *fleet.Result, 1)
	f.goes.Go(func() { done <- f.run(ctx, t) })
	var result *fleet.Result
	select {
	case result = <-done:
	case why := <-t.late:
		t.stop(why)
		f.answer(t, stopped(t, why))
		result = <-done
	}
	t.stop(nil)
	f.conclude(t, result) // before the next one starts, so that one place answers in order
	f.mu.Lock()
	f.active--
	f.startLocked()
	f.mu.Unlock()
}

// dueAt has a task end at its deadline; false = it is past.
func (f *Front) dueAt(t *task, at time.Time) bool {
	left := at.Sub(f.opts.Now())
	if left <= 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.due = time.AfterFunc(left, func() { f.end(t, errDeadline) })
	return true
}

// end stops a task, whether it is checked, waits or runs. The workers know of a deadline
// and may have a better result for it.
func (f *Front) end(t *task, why error) {
	f.mu.Lock()
	at := slices.Index(f.waiting, t)
	waits := at >= 0
	switch {
	case waits:
		f.waiting = slices.Delete(f.waiting, at, at+1)
	case t.answered:
	case t.stop == nil:
		t.hurry(why)
	case isOver(t.over): // it is stopped already
	default:
		if why != errDeadline {
			t.stop(why)
		}
		t.hurryAfter(f.pace.late, why)
	}
	f.mu.Unlock()
	if waits {
		f.conclude(t, unstarted(t, why))
	}
}

func isOver(over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
	}
}

// cutOff ends all that has not ended.
func (f *Front) cutOff() {
	f.mu.Lock()
	left, waiting := f.incoming, f.waiting
	f.incoming, f.waiting, f.cut = nil, nil, true
	for _, t := range f.tasks {
		if t.stop != nil {
			t.hurryAfter(endGrace, errEnding)
		}
	}
	f.mu.Unlock()
	f.stop(errEnding)
	for _, it := range left {
		f.refuse(it, errEnding.Error())
		f.room.Leave(it.size)
	}
	for _, t := range waiting {
		f.conclude(t, unstarted(t, errEnding))
	}
}

// hurry has the task answered without its worker.
func (t *task) hurry(why error) {
	select {
	case t.late <- why:
	default: // it is on its way
	}
}

// hurryAfter is hurry, unless the task is answered before. Front.mu is held.
func (t *task) hurryAfter(patience time.Duration, why error) {
	if t.due != nil {
		t.due.Stop()
	}
	t.due = time.AfterFunc(patience, func() { t.hurry(why) })
}

// stopped is the result of a task that was stopped.
func stopped(t *task, why error) *fleet.Result {
	r := fleet.NewResult(t.Task.TaskID, fleet.StatusError)
	r.Error = why.Error()
	return r
}

// unstarted is the result of a task that was stopped before it began.
func unstarted(t *task, why error) *fleet.Result {
	if errors.Is(why, errDeadline) {
		return stopped(t, why)
	}
	return fleet.Blocked(t.Task.TaskID, why.Error())
}

// run has the task done and completes its result.
func (f *Front) run(ctx context.Context, t *task) (result *fleet.Result) {
	defer func() {
		if v := recover(); v != nil {
			f.opts.Log.Error().Str("task_id", t.Task.TaskID).Msgf("the workers' plugin panicked: %v", v)
			result = stopped(t, errors.New("the plugin of the workers panicked; the host's log tells more"))
		}
	}()
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
	result = f.have(ctx, t, "")
	f.account(ctx, t, result)
	f.carry(result)
	return result
}

// have has the workers do the task, in a folder of its own or the workspace (""). A task that
// was done in part says what remains.
func (f *Front) have(ctx context.Context, t *task, folder string) *fleet.Result {
	pool := host.ServicesOf(f.ctx).Workers()
	if pool == nil {
		return fleet.Blocked(t.Task.TaskID, host.NoWorker().Message)
	}
	result, err := pool.RunTask(trace.With(f.in(ctx), t.span), host.WorkerTask{Dispatch: t.Dispatch, Workspace: folder, Steer: t.steer})
	result = outcome(ctx, t, result, err)
	if result.Status == fleet.StatusPartial {
		if len(result.Remaining) == 0 {
			result.Remaining = protocol.AppendString(nil, cmp.Or(strings.Join(result.NextSteps, "; "), "the worker does not say what remains"))
		}
		if text, ok := protocol.Value(result.Remaining).Str(); ok && len(result.NextSteps) == 0 {
			result.NextSteps = []string{text}
		}
	}
	return result
}

// account tells what a task has changed in the workspace from what others have: what it says,
// else what its calls wrote and what is found at its end, is its own and not counted for those that go on.
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
	delete(f.running, t)
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

// outcome makes the result of what the workers gave.
func outcome(ctx context.Context, t *task, result *fleet.Result, err error) *fleet.Result {
	if cause := context.Cause(ctx); cause != nil && (err != nil || result == nil || result.Status != fleet.StatusDone) {
		r := stopped(t, cause)
		if result != nil {
			r.TokensSpent, r.TokensEstimated, r.Summary, r.Artifacts = result.TokensSpent, result.TokensEstimated, result.Summary, result.Artifacts
		}
		return r
	}
	var refusal *protocol.Error
	switch {
	case errors.As(err, &refusal):
		return fleet.Blocked(t.Task.TaskID, reason(err)) // nobody has begun with it
	case err != nil:
		return stopped(t, err)
	case result == nil:
		return stopped(t, errors.New("the workers gave no result"))
	}
	return result
}

// answer returns the one result of a task.
func (f *Front) answer(t *task, result *fleet.Result) {
	f.mu.Lock()
	answered := t.answered
	t.answered = true
	if t.due != nil {
		t.due.Stop()
	}
	f.mu.Unlock()
	if answered {
		return
	}
	result.TaskID = t.Task.TaskID
	if result.Status == fleet.StatusDone && !t.kept { // any other may be tried again
		f.results.keep(f.ctx, result)
	}
	f.mu.Lock()
	if f.tasks[t.Task.TaskID] == t {
		delete(f.tasks, t.Task.TaskID)
	}
	f.mu.Unlock()
	f.report(t.origin, result) // after that: who has the result may send the task again at once
}
