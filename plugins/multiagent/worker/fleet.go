package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// stopGrace is how long a child may take to give the result of a task that is to stop; it
// knows the deadline itself.
const stopGrace = time.Second

// freshTries is how often a task is given to a child anew that ended before it got it.
const freshTries = 3

// restartError is why a child is killed that does not stop a task.
type restartError struct {
	task     string
	unwanted bool // nobody wants the task any more, which is no fault of the child
}

// Error implements error.
func (e *restartError) Error() string {
	return fmt.Sprintf("worker was restarted to end its task %.64q", e.task)
}

// delegate has the child of the worker do a task. The error is the cause of ctx.
func (r *runner) delegate(ctx context.Context, t *task) (outcome, error) {
	for try := 1; ; try++ {
		c, err := r.running(ctx)
		if err != nil {
			return r.unstarted(ctx, t, err)
		}
		job, err := c.dispatch(ctx, t)
		switch {
		case err == nil:
			defer c.jobs.Drop(job.id)
			return r.follow(ctx, t, c, job)
		case errors.Is(err, errClosed):
			return t.stopped(err)
		case !errors.Is(err, errEnded) || try == freshTries:
			return outcome{res: t.failed("%v", err), again: true, moot: true}, nil
		}
		<-c.Done()
	}
}

// follow waits for the result of a task at a child.
func (r *runner) follow(ctx context.Context, t *task, c *peer, job *job) (outcome, error) {
	greeted, steer := c.greeted, (<-chan host.Steering)(nil) // no text before it is known whether the child takes any
	for {
		select {
		case <-greeted:
			greeted, steer = nil, t.Steer
		case obj := <-job.result:
			return t.told(ctx, obj), nil
		case <-c.Done():
			return t.lost(c, job), nil
		case <-ctx.Done():
			return r.halt(ctx, t, c, job)
		case s, ok := <-steer:
			if !ok {
				steer = nil
				continue
			}
			tell(s, r.announces(fleet.ExtensionSteer) && c.send(&fleet.Control{Type: fleet.TypeSteer, ProtocolVersion: fleet.Version, TaskID: job.id, Text: s.Text}) == nil)
		}
	}
}

// halt ends a task whose time is up, or that nobody wants any more. A child that goes on with
// it is killed: what it has started dies with it.
func (r *runner) halt(ctx context.Context, t *task, c *peer, job *job) (outcome, error) {
	o, err := t.stopped(context.Cause(ctx))
	if err == nil {
		t.estimate(o.res, 0) // what the child has spent it does not tell any more
	}
	var said *protocol.Object
	var over bool
	if err == nil && !o.moot { // it was told when, and has more to say of it than of a cancel
		said, over = r.hears(c, job)
	}
	if !over && r.cancels(c, job) {
		said, over = r.hears(c, job)
	}
	switch {
	case !over:
		c.destroy(&restartError{t.Task.TaskID, err != nil})
	case said != nil && err == nil:
		o = t.told(ctx, *said)
	}
	return o, err
}

// hears returns a child a moment for the result of a task that is to stop; nil = it ended
// instead. False means that it does neither.
func (r *runner) hears(c *peer, job *job) (said *protocol.Object, over bool) {
	grace := time.NewTimer(r.pool.pace.stop)
	defer grace.Stop()
	select {
	case obj := <-job.result:
		return &obj, true
	case <-c.Done():
		return nil, true
	case <-grace.C:
		return nil, false
	}
}

// cancels tells the child to stop a task, if it takes that.
func (r *runner) cancels(c *peer, job *job) bool {
	return r.announces(fleet.ExtensionCancel) && c.send(&fleet.Control{Type: fleet.TypeCancel, ProtocolVersion: fleet.Version, TaskID: job.id}) == nil
}

// told makes the result of a task of what the child says. That its time was up counts for more
// than what the child calls it: it was told a timeout as a deadline, and may know of a cancel
// alone.
func (t *task) told(ctx context.Context, obj protocol.Object) outcome {
	res := t.read(obj, 0)
	var timeout *timeoutError
	if cause := context.Cause(ctx); res.Status == fleet.StatusError && (errors.Is(cause, errDeadline) || errors.As(cause, &timeout)) {
		res.Error = cause.Error()
	}
	return outcome{res: res, again: res.Status == fleet.StatusBlocked}
}

// lost is what a task comes to whose child ended. Another worker may take it up where that
// was not the task's doing.
func (t *task) lost(c *peer, job *job) outcome {
	select {
	case obj := <-job.result: // it came at the last moment
		return t.told(context.Background(), obj)
	default:
	}
	res := t.failed("%v", c.why())
	t.estimate(res, 0)
	var restart *restartError
	if errors.As(c.End().Cause, &restart) {
		res.Error = restart.Error() + "; dispatch this task again"
		return outcome{res: res, again: true, moot: true}
	}
	return outcome{res: res, moot: errors.Is(c.End().Cause, errClosed)}
}

// dispatchOf is the message that gives a task to a child, which learns of the worker's
// timeout as a deadline.
func (r *runner) dispatchOf(ctx context.Context, t *task, id string) *fleet.Dispatch {
	d := t.Dispatch
	d.Type, d.ProtocolVersion, d.AuthToken = fleet.TypeDispatch, fleet.Version, r.AuthToken.Reveal()
	d.Task.TaskID, d.Task.TokenBudget = id, t.budget()
	if end, ok := ctx.Deadline(); ok {
		at := r.pool.env.Now().Add(time.Until(end)).Add(time.Millisecond) // as the text has no more digits
		if t.deadline.IsZero() || at.Before(t.deadline) {
			d.Deadline = at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
	}
	return &d
}

// announces reports whether the child said that it takes an extension of the protocol.
func (r *runner) announces(extension string) bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	a := r.health.announced
	return a != nil && r.child != nil && slices.Contains(a.Capabilities.Extensions, extension)
}
