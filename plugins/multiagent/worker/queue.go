package worker

import (
	"container/heap"
	"context"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// entry is a task in the queue of one worker; it may stand in those of several.
type entry struct {
	task *task
	at   *runner
	rank int // of its priority
	i    int // in the queue
}

// queue is the tasks that would take a place of a worker, as a heap.
type queue []*entry

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface: higher priorities first, equal ones in order of arrival.
func (q queue) Less(i, j int) bool {
	if q[i].rank != q[j].rank {
		return q[i].rank > q[j].rank
	}
	return q[i].task.number < q[j].task.number
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].i, q[j].i = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.i = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// rankOf orders priorities; ok is false for one that there is not.
func rankOf(p fleet.Priority) (rank int, ok bool) {
	switch p {
	case fleet.PriorityLow:
		return 0, true
	case fleet.PriorityNormal:
		return 1, true
	case fleet.PriorityHigh:
		return 2, true
	case fleet.PriorityUrgent:
		return 3, true
	}
	return 0, false
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
			decline(s)
		case <-ctx.Done():
			p.withdraw(t)
			return nil, context.Cause(ctx)
		}
	}
}

// assignLocked gives the task a place at the best worker that has a free one. Where none
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
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d tasks wait for a worker already; send this one again later", p.waiting)
	}
	p.waiting++
	rank, _ := rankOf(t.Task.Priority)
	for _, r := range best {
		e := &entry{task: t, at: r, rank: rank}
		t.entries = append(t.entries, e)
		heap.Push(&r.queue, e)
	}
	for _, r := range best {
		r.serveLocked() // a rest may be over just now
	}
	return nil, nil
}

// freeLocked tells whether the worker can take a task right now.
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

// serveLocked gives free places to the tasks that wait for them.
func (r *runner) serveLocked() {
	for len(r.queue) > 0 && r.freeLocked() {
		t := r.queue[0].task
		r.pool.removeLocked(t)
		r.active++
		t.granted <- grant{at: r}
	}
	if len(r.queue) > 0 {
		r.wakeLocked()
	}
}

// leave gives a place back.
func (p *Pool) leave(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.active--
	r.serveLocked()
}

// removeLocked ends the wait of a task.
func (p *Pool) removeLocked(t *task) {
	for _, e := range t.entries {
		heap.Remove(&e.at.queue, e.i)
	}
	t.entries = nil
	p.waiting--
}

// withdraw ends the wait of a task that does not want a place any more. One that it was
// given meanwhile is given back.
func (p *Pool) withdraw(t *task) {
	p.mu.Lock()
	waits := t.entries != nil
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
	all := make([]*task, len(r.queue))
	for i, e := range r.queue {
		all[i] = e.task
	}
	for _, t := range all {
		if t.entries == nil {
			continue // one before it made another worker look at its queue
		}
		r.pool.removeLocked(t)
		if at, err := r.pool.assignLocked(t); at != nil || err != nil {
			t.granted <- grant{at, err}
		}
	}
}
