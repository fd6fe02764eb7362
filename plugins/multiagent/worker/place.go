package worker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"a2e/protocol"
)

// nobodyError is the error for a task that no worker may do, except those that have tried already.
type nobodyError struct{ reasons []string }

// Error implements error.
func (e *nobodyError) Error() string { return strings.Join(e.reasons, "; ") }

// downError is the error for a worker that cannot be started.
type downError struct{ reason string }

// Error implements error.
func (e *downError) Error() string { return e.reason }

// findLocked returns the index of a task in the queue, which has higher priorities first and equal ones in order of
// arrival.
func (p *Pool) findLocked(t *task) (at int, ok bool) {
	return slices.BinarySearchFunc(p.queue, t, func(a, b *task) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.number, b.number))
	})
}

// place waits for a place at a worker that may do the task; leave releases the place. The error
// is the cause of ctx, a *nobodyError, a *downError, or overloaded.
func (p *Pool) place(ctx context.Context, t *task) (*runner, error) {
	p.mu.Lock()
	p.assignLocked(t)
	p.mu.Unlock()
	select {
	case g := <-t.granted:
		return g.at, g.err
	default:
		t.tellStart("")
	}
	steer := t.Steer
	for {
		select {
		case g := <-t.granted:
			return g.at, g.err
		case s, ok := <-steer:
			if !ok {
				steer = nil
				continue
			}
			tell(s, false)
		case <-ctx.Done():
			p.withdraw(t)
			return nil, context.Cause(ctx)
		}
	}
}

// assignLocked queues the task for all workers that are the best for it. The first free place at one of them
// goes to the task, perhaps at once.
func (p *Pool) assignLocked(t *task) {
	best, err := p.bestLocked(t)
	if err != nil {
		t.granted <- grant{err: err}
		return
	}
	at, _ := p.findLocked(t)
	p.queue = slices.Insert(p.queue, at, t)
	t.waits = best
	for _, r := range best {
		r.serveLocked()
	}
	if t.waits != nil && len(p.queue) > maxWaiting {
		p.removeLocked(t)
		err := protocol.Errorf(protocol.CodeOverloaded, "%s waiting for a worker already; send this one again later",
			protocol.Count(len(p.queue), "task"))
		t.granted <- grant{err: err}
	}
}

// rests reports whether a worker of this mode gets no task for a while after it was lost.
func (r *runner) rests() bool { return r.Mode == ModeFleet || r.Mode == ModeA2A }

// freeLocked reports whether the worker can take a task now.
func (r *runner) freeLocked() bool {
	return r.active < r.MaxTasks && (!r.rests() || r.child != nil || r.health.Wait(r.pool.env.Now()) <= 0)
}

// wakeLocked sets a timer that serves the queue when the worker's rest is over.
func (r *runner) wakeLocked() {
	rest := r.health.Wait(r.pool.env.Now())
	if r.wake != nil || !r.rests() || r.child != nil || rest <= 0 || r.pool.closed {
		return
	}
	r.wake = time.AfterFunc(rest, func() {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		r.wake = nil
		r.serveLocked()
	})
}

// serveLocked assigns free places to the tasks that wait for them.
func (r *runner) serveLocked() {
	for r.freeLocked() {
		at := slices.IndexFunc(r.pool.queue, r.awaitedBy)
		if at < 0 {
			return
		}
		t := r.pool.queue[at]
		r.pool.removeLocked(t)
		r.active++
		t.granted <- grant{at: r}
	}
	r.wakeLocked()
}

// awaitedBy reports whether a task waits for a place at the worker. Pool.mu is held.
func (r *runner) awaitedBy(t *task) bool { return slices.Contains(t.waits, r) }

// leave releases a place.
func (p *Pool) leave(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.active--
	r.serveLocked()
}

// removeLocked removes a task from the queue.
func (p *Pool) removeLocked(t *task) {
	at, _ := p.findLocked(t)
	p.queue = slices.Delete(p.queue, at, at+1)
	t.waits = nil
}

// withdraw ends the wait of a task that does not want a place any more. It releases a place that the
// task has got meanwhile.
func (p *Pool) withdraw(t *task) {
	p.mu.Lock()
	waits := t.waits != nil
	if waits {
		p.removeLocked(t)
	}
	p.mu.Unlock()
	if waits {
		return
	}
	if g := <-t.granted; g.at != nil {
		p.leave(g.at)
	}
}

// evictLocked assigns the tasks that wait for a worker again, to other workers.
func (r *runner) evictLocked() {
	for _, t := range slices.Clone(r.pool.queue) {
		if r.awaitedBy(t) { // checked again, as the loop may have assigned it a place
			r.pool.removeLocked(t)
			r.pool.assignLocked(t)
		}
	}
}
