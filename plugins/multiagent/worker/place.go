package worker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"a2e/protocol"
)

// nobodyError says that no worker may do a task, or none that has not tried.
type nobodyError struct{ reasons []string }

// Error implements error.
func (e *nobodyError) Error() string { return strings.Join(e.reasons, "; ") }

// downError says that a worker cannot be started.
type downError struct{ reason string }

// Error implements error.
func (e *downError) Error() string { return e.reason }

// queue is the tasks that would take a place of a worker: higher priorities first, equal
// ones in order of arrival. A task may stand in those of several workers.
type queue []*task

func (q *queue) find(t *task) (at int, ok bool) {
	return slices.BinarySearchFunc(*q, t, func(a, b *task) int { return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.number, b.number)) })
}

func (q *queue) add(t *task) {
	at, _ := q.find(t)
	*q = slices.Insert(*q, at, t)
}

func (q *queue) remove(t *task) {
	if at, ok := q.find(t); ok {
		*q = slices.Delete(*q, at, at+1)
	}
}

// place waits for a place at a worker that may do the task; leave gives it back. The error
// is the cause of ctx, a *nobodyError, a *downError, or overloaded.
func (p *Pool) place(ctx context.Context, t *task) (*runner, error) {
	p.mu.Lock()
	r, err := p.assignLocked(t)
	p.mu.Unlock()
	if r != nil || err != nil {
		return r, err
	}
	t.tellStart("")
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

// assignLocked returns the task a place at the best worker that has a free one. Where none
// has, the task waits at all that are as good, and both results are nil.
func (p *Pool) assignLocked(t *task) (*runner, error) {
	best, err := p.bestLocked(t)
	if err != nil {
		return nil, err
	}
	for _, r := range best {
		if r.freeLocked() && len(r.queue) == 0 {
			r.active++
			return r, nil
		}
	}
	if p.waiting >= maxWaiting {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%s waiting for a worker already; send this one again "+
			"later", protocol.Count(p.waiting, "task"))
	}
	p.waiting++
	t.waits = best
	for _, r := range best {
		r.queue.add(t)
	}
	for _, r := range best {
		r.serveLocked() // a rest may be over just now
	}
	return nil, nil
}

// freeLocked reports whether the worker can take a task right now.
func (r *runner) freeLocked() bool {
	return r.active < r.MaxTasks && (r.Mode != ModeFleet || r.child != nil || r.health.Wait(r.pool.env.Now()) <= 0)
}

// wakeLocked has the queue looked at when the worker has rested.
func (r *runner) wakeLocked() {
	rest := r.health.Wait(r.pool.env.Now())
	if r.wake != nil || r.Mode != ModeFleet || r.child != nil || rest <= 0 || r.pool.closed {
		return
	}
	r.wake = time.AfterFunc(rest, func() {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		r.wake = nil
		r.serveLocked()
	})
}

// serveLocked returns free places to the tasks that wait for them.
func (r *runner) serveLocked() {
	for len(r.queue) > 0 && r.freeLocked() {
		t := r.queue[0]
		r.pool.removeLocked(t)
		r.active++
		t.granted <- grant{at: r}
	}
	if len(r.queue) > 0 {
		r.wakeLocked()
	}
}

// leave returns a place back.
func (p *Pool) leave(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.active--
	r.serveLocked()
}

// removeLocked ends the wait of a task.
func (p *Pool) removeLocked(t *task) {
	for _, r := range t.waits {
		r.queue.remove(t)
	}
	t.waits = nil
	p.waiting--
}

// withdraw ends the wait of a task that does not want a place any more. One that it was
// given meanwhile is given back.
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

// evictLocked sends the tasks that wait for a worker elsewhere.
func (r *runner) evictLocked() {
	for _, t := range slices.Clone(r.queue) {
		if t.waits == nil {
			continue // one before it made another worker look at its queue
		}
		r.pool.removeLocked(t)
		if at, err := r.pool.assignLocked(t); at != nil || err != nil {
			t.granted <- grant{at, err}
		}
	}
}
