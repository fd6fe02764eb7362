package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"a2e/host/agent"
	"a2e/host/dialect/fleetdb"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// stopGrace is how long a child may take to send the result of a task that must stop; it
// knows the deadline itself.
const stopGrace = time.Second

// restartError is the cause when a child is killed because it does not stop a task.
type restartError struct {
	task     string
	unwanted bool // the task was cancelled, so the child did not fail
}

// Error implements error.
func (e *restartError) Error() string {
	return fmt.Sprintf("worker was restarted to end its task %.64q", e.task)
}

// delegate lets the child of the worker do a task. The error is the cause of ctx.
func (r *runner) delegate(ctx context.Context, t *task) (outcome, error) {
	c, err := r.greeted(ctx)
	if err != nil {
		return r.unstarted(ctx, t, err)
	}
	if lacks := r.lacks(t); lacks != "" {
		return outcome{res: fleet.Blocked(t.Task.TaskID, lacks), again: true, moot: true}, nil
	}
	job, err := c.dispatch(ctx, t)
	switch {
	case err == nil:
		defer c.jobs.Drop(job.id)
		return r.follow(ctx, t, c, job)
	case errors.Is(err, errClosed):
		return t.stopped(err)
	case errors.Is(err, errEnded):
		<-c.Done()
		return t.lost(c, nil), nil
	}
	return outcome{res: t.failed("%v", err), again: true, moot: true}, nil
}

// follow waits for the result of a task at a child.
func (r *runner) follow(ctx context.Context, t *task, c *peer, job *job) (outcome, error) {
	greeted, steer := c.greeted, (<-chan agent.Steering)(nil) // no text before the child has announced itself
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
			tell(s, r.announces(fleet.ExtensionSteer) &&
				c.send(&fleet.Control{
					Type: fleet.TypeSteer, ProtocolVersion: fleet.Version, TaskID: job.id,
					Text: s.Text,
				}) == nil)
		}
	}
}

// halt ends a task whose time is up or that was cancelled. It kills a child that continues
// the task, with all processes that the child has started.
func (r *runner) halt(ctx context.Context, t *task, c *peer, job *job) (outcome, error) {
	o, err := t.stopped(context.Cause(ctx))
	if err == nil {
		t.estimate(o.res, 0) // the child does not report its tokens any more
	}
	var said *protocol.Object
	var over bool
	if err == nil && !o.moot { // the child knows the deadline, and its own result tells more than one after a cancel
		said, over = r.hears(c, job)
	}
	if !over && r.cancels(c, job) {
		said, over = r.hears(c, job)
	}
	switch _, open := c.jobs.Get(job.id); {
	case !over && !open: // its result has just arrived, or the child has ended
		select {
		case obj := <-job.result:
			if err == nil {
				o = t.told(ctx, obj)
			}
		case <-c.Done():
		}
	case !over:
		c.destroy(&restartError{t.Task.TaskID, err != nil})
	case said != nil && err == nil:
		o = t.told(ctx, *said)
	}
	return o, err
}

// hears waits a moment for the child's result of a task that must stop. said is nil if the child
// ended instead. over is false if neither happens in time.
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

// cancels tells the child to stop a task, if it supports that, and reports whether it did so.
func (r *runner) cancels(c *peer, job *job) bool {
	return r.announces(fleet.ExtensionCancel) && c.send(&fleet.Control{
		Type:            fleet.TypeCancel,
		ProtocolVersion: fleet.Version, TaskID: job.id,
	}) == nil
}

// told returns the outcome of a task from the child's result. If its time was up, the error is that cause and not
// the child's own text, as the child got a timeout as a deadline and may only know of a cancel.
func (t *task) told(ctx context.Context, obj protocol.Object) outcome {
	res := t.read(obj, 0)
	var timeout *timeoutError
	if cause := context.Cause(ctx); res.Status == fleet.StatusError && (errors.Is(cause, errDeadline) ||
		errors.As(cause, &timeout)) {
		res.Error = cause.Error()
	}
	return outcome{res: res, again: res.Status == fleet.StatusBlocked}
}

// lacks returns why the worker is not suitable for the task, now that it may have
// announced itself; "" = it is suitable.
func (r *runner) lacks(t *task) string {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	_, lacks := r.fitLocked(t)
	if lacks == "" && !t.Fallback && !r.wantedLocked(t) {
		lacks = "has " + r.profileLocked()
	}
	if lacks != "" {
		lacks = "worker " + r.Name + " " + lacks
	}
	return lacks
}

// lost returns the outcome of a task whose child ended, perhaps because of another task; job is nil
// if the child did not get the task.
func (t *task) lost(c *peer, job *job) outcome {
	res := t.failed("%v", c.why())
	if job != nil {
		select {
		case obj := <-job.result: // the result arrived just before the end
			return t.told(context.Background(), obj)
		default:
		}
		t.estimate(res, 0)
	}
	var restart *restartError
	ends := errors.Is(c.End().Cause, errClosed)
	return outcome{res: res, lost: !ends, fresh: job == nil, moot: ends || errors.As(c.End().Cause, &restart)}
}

// dispatchOf returns the message that hands a task to a child. Its deadline includes the worker's
// timeout.
func (r *runner) dispatchOf(ctx context.Context, t *task, id string) *fleet.Dispatch {
	d := t.Dispatch
	d.Brief = t.brief(r.pool.workspace) // without a contract, as the message has fields for it
	d.Type, d.ProtocolVersion, d.AuthToken = fleet.TypeDispatch, fleet.Version, r.AuthToken.Reveal()
	d.Task.TaskID, d.Task.TokenBudget, d.Deadline = id, t.budget(), r.due(ctx, t)
	return &d
}

// announces reports whether the child has announced an extension of the protocol.
func (r *runner) announces(extension string) bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	a := r.toldLocked()
	return a != nil && slices.Contains(a.Capabilities.Extensions, extension)
}

// queued reports whether a fleet does the worker's tasks.
func (w *Worker) queued() bool { return w.Fleet.Reveal() != "" }

// validateQueue returns an error if the config of a worker that is a fleet is wrong.
func (w *Worker) validateQueue() error {
	_, err := fleetdb.Open(w.Fleet.Reveal())
	switch {
	case err != nil:
		return fmt.Errorf("worker %q: %w", w.Name, err)
	case len(w.Command) > 0 || !w.LLM.IsZero():
		return fmt.Errorf("worker %q has a fleet and a command or an llm; it should have one of them", w.Name)
	case w.Mode != "" && w.Mode != ModeQueue:
		return fmt.Errorf("worker %q: mode %s is for a command; leave mode out beside fleet", w.Name, w.Mode)
	case len(w.Env)+len(w.Read)+len(w.Write)+len(w.Tools) > 0 || w.Cwd+w.SystemPrompt+w.AuthToken.Reveal() != "" ||
		w.ShareState || w.Network || w.Contract != nil || w.MaxTurns+w.TokenBudget != 0:
		return fmt.Errorf("worker %q: beside fleet there are model, model_tier, context_window, capabilities, "+
			"max_tasks, retries, timeout and priority; all else is up to the workers of the fleet", w.Name)
	}
	return nil
}

// mostQueued is how many tasks of one host a fleet may have at once.
const mostQueued = 4096

// mostTasks returns the largest max_tasks that the worker may have.
func (w *Worker) mostTasks() int {
	if w.queued() {
		return mostQueued
	}
	return maxPlaces
}

// queueUp lets the fleet do a task. The error is the cause of ctx, or store_unavailable.
func (r *runner) queueUp(ctx context.Context, t *task) (outcome, error) {
	s, err := r.sends()
	if err != nil {
		return outcome{}, err
	}
	d := t.Dispatch
	d.Brief, d.Task.TokenBudget = t.brief(r.pool.workspace), t.budget()
	if !r.pool.durable {
		d.Task.TaskID = fmt.Sprintf("%.200s-%s-%d", t.Task.TaskID, r.pool.instance, t.number)
	}
	retries := defaultRetries
	if own := cmp.Or(t.Retries, r.Retries); own != nil {
		retries = *own
	}
	var obj protocol.Object
	over := make(chan struct{})
	go func() {
		defer close(over)
		obj, err = s.Do(ctx, fleetdb.Task{
			Dispatch: d, Model: cmp.Or(t.Model, r.Model), Tier: cmp.Or(t.Tier, r.ModelTier), Fallback: t.Fallback,
			Retries: retries, Timeout: r.Timeout,
		})
	}()
	t.idle(over) // no text reaches a worker of the fleet
	switch {
	case err == nil:
		return t.told(ctx, obj), nil
	case ctx.Err() != nil:
		return t.stopped(err)
	}
	return outcome{}, err
}

// sends returns the sender to the fleet, and makes it at the first task.
func (r *runner) sends() (*fleetdb.Sender, error) {
	r.starts.Lock()
	defer r.starts.Unlock()
	if r.sender == nil {
		f, err := fleetdb.Open(r.Fleet.Reveal())
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeSchemaViolation, "worker %q: %w", r.Name, err)
		}
		r.sender = f.NewSender(r.pool.env.Log)
	}
	return r.sender, nil
}

// unqueue closes the sender to the fleet.
func (r *runner) unqueue(ctx context.Context) {
	r.starts.Lock()
	defer r.starts.Unlock()
	if r.sender != nil {
		r.sender.Close(ctx)
		r.sender = nil
	}
}
