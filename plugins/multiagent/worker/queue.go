package worker

import (
	"cmp"
	"context"
	"fmt"

	"a2e/host/fleetdb"
	"a2e/protocol"
)

// queued reports whether it is a fleet that does the tasks.
func (w *Worker) queued() bool { return w.Fleet.Reveal() != "" }

// validateQueue tells what is wrong with a worker that is a fleet.
func (w *Worker) validateQueue() error {
	_, err := fleetdb.Open(w.Fleet.Reveal())
	switch {
	case err != nil:
		return fmt.Errorf("worker %q: %w", w.Name, err)
	case len(w.Command) > 0 || !w.LLM.IsZero():
		return fmt.Errorf("worker %q has a fleet and a command or an llm; it should have one of them", w.Name)
	case w.Mode != "" && w.Mode != ModeQueue:
		return fmt.Errorf("worker %q: mode %s is for a command; leave mode out beside fleet", w.Name, w.Mode)
	case w.MaxTasks < 0 || w.MaxTasks > mostQueued:
		return fmt.Errorf("worker %q: max_tasks should be between 1 and %d", w.Name, mostQueued)
	case w.Retries != nil && (*w.Retries < 0 || *w.Retries > MaxRetries):
		return fmt.Errorf("worker %q: retries should be between 0 and %d", w.Name, MaxRetries)
	case w.Timeout < 0 || w.ContextWindow < 0:
		return fmt.Errorf("worker %q: timeout and context_window should be 0 or more", w.Name)
	case len(w.Env)+len(w.Read)+len(w.Write)+len(w.Tools) > 0 || w.Cwd+w.SystemPrompt+w.AuthToken.Reveal() != "" || w.ShareState || w.Network || w.Contract != nil || w.MaxTurns+w.TokenBudget != 0:
		return fmt.Errorf("worker %q: beside fleet there are model, model_tier, context_window, capabilities, max_tasks, retries, timeout and priority; all else is up to the workers of the fleet", w.Name)
	}
	return nil
}

// mostQueued is how many tasks of one host a fleet may have at once.
const mostQueued = 4096

// queueUp has the fleet do a task. The error is the cause of ctx, or store_unavailable.
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
			Dispatch: d, Model: cmp.Or(t.Model, r.Model), Tier: cmp.Or(t.Tier, r.ModelTier), Fallback: t.Fallback, Retries: retries, Timeout: r.Timeout,
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

// sends returns the sender to the fleet, which connects with its first task.
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

// unqueue ends the sender.
func (r *runner) unqueue() {
	r.starts.Lock()
	defer r.starts.Unlock()
	if r.sender != nil {
		r.sender.Close()
		r.sender = nil
	}
}
