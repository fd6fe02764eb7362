package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
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

// rankOf orders priorities; -1 = there is no such one.
func rankOf(p fleet.Priority) int {
	return slices.Index([]fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent}, p)
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
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d tasks wait for a worker already; send this one again later", p.waiting)
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

// candidate is a worker that may do a task. Candidates of another class are asked only when
// there are none of a better one; in one class it is free places that count first.
type candidate struct {
	*runner
	class  class
	free   bool
	weight float64
}

// class orders candidates; false is better, and so is a smaller condition.
type class struct {
	health condition // whether it runs
	unsure bool      // it does not say that it has the wanted capabilities
	tier   bool      // its model is not of the wanted tier
	model  bool      // its model is not that of the default worker
}

// compare is negative where c is better.
func (c class) compare(o class) int {
	return cmp.Or(cmp.Compare(c.health, o.health), worse(c.unsure, o.unsure), worse(c.tier, o.tier), worse(c.model, o.model))
}

// worse compares flags, of which false is better.
func worse(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// bestLocked returns the workers that the task should go to, all of one class, the best
// first: by free places, priority, learned weight and the order of the config. The
// error is a *nobodyError or a *downError.
func (p *Pool) bestLocked(t *task) ([]*runner, error) {
	all, err := p.candidatesLocked(t)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b candidate) int { // which keeps the order of the config
		return cmp.Or(a.class.compare(b.class), worse(!a.free, !b.free), cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.weight, a.weight))
	})
	if all[0].class.health == conditionDown {
		return nil, &downError{all[0].health.Reason(p.env.Now())}
	}
	best := make([]*runner, 0, len(all))
	for _, c := range all {
		if c.class == all[0].class {
			best = append(best, c.runner)
		}
	}
	return best, nil
}

// candidatesLocked returns the workers that may do the task and have not tried yet.
func (p *Pool) candidatesLocked(t *task) ([]candidate, error) {
	among := p.amongLocked(t)
	main := p.defaultModel()
	now := p.env.Now()
	var all []candidate
	none := &nobodyError{}
	for _, r := range among {
		if slices.ContainsFunc(t.setbacks, func(s setback) bool { return s.at == r }) {
			continue
		}
		unsure, lacks := r.fitLocked(&t.Requirements)
		if lacks != "" {
			none.reasons = append(none.reasons, "worker "+r.Name+" "+lacks)
			continue
		}
		c := candidate{runner: r, free: r.freeLocked(), weight: 1}
		if t.weigh != nil && len(among) > 1 {
			c.weight = t.weigh(r.Name)
		}
		c.class = class{unsure: unsure, health: r.health.condition(now), tier: t.Tier != "" && r.tierLocked() != t.Tier, model: r.Model != main}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, none
	}
	return all, nil
}

// amongLocked returns the workers to choose from: the one that the task names, else those
// with its model, else all.
func (p *Pool) amongLocked(t *task) []*runner {
	if t.Worker != "" {
		return []*runner{p.runner(t.Worker)}
	}
	var same []*runner
	for _, r := range p.runners {
		if t.Model != "" && r.modelLocked() == t.Model {
			same = append(same, r)
		}
	}
	if same != nil {
		return same
	}
	return p.runners
}

// runner returns the worker with a name, or nil.
func (p *Pool) runner(name string) *runner {
	for _, r := range p.runners {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// defaultModel returns the model of the default worker, which tasks go to that ask for
// none: that of the first worker, unless others have a higher priority.
func (p *Pool) defaultModel() string {
	return slices.MaxFunc(p.runners, func(a, b *runner) int { return cmp.Compare(a.Priority, b.Priority) }).Model
}

// fitLocked tells what a worker lacks for a task; "" = nothing that is known. It is unsure
// where a child does not announce a capability by name: it may have it all the same, and
// answers blocked before any work otherwise.
func (r *runner) fitLocked(need *fleet.Requirements) (unsure bool, lacks string) {
	a := r.health.announced
	if r.child == nil {
		a = nil // what it has is known again when it runs
	}
	for _, name := range need.RequiredMCP {
		switch {
		case slices.Contains(r.Capabilities, name):
		case a == nil && (r.Mode == ModeFleet || r.Capabilities == nil):
		case a == nil || !slices.Contains(a.Capabilities.MCPServers, name):
			return false, fmt.Sprintf("has no MCP server %.64q", name)
		case a.MCPHealth[name] != "" && a.MCPHealth[name] != fleet.HealthOK:
			return false, fmt.Sprintf("has an MCP server %.64q that does not work (%.16s)", name, a.MCPHealth[name])
		}
	}
	for _, name := range need.RequiredCapabilities {
		switch {
		case slices.Contains(r.Capabilities, name), r.Mode == ModeOneshot && r.Capabilities == nil:
		case r.Mode == ModeOneshot:
			return false, fmt.Sprintf("does not list the capability %.64q", name)
		case a == nil || !slices.Contains(a.Capabilities.Tools, name):
			unsure = true
		}
	}
	return unsure, ""
}

// modelLocked returns the model that the config says, else the one that was announced.
func (r *runner) modelLocked() string {
	if a := r.health.announced; r.Model == "" && a != nil {
		return a.Worker.Model
	}
	return r.Model
}

// tierLocked returns the tier of the model likewise.
func (r *runner) tierLocked() string {
	if a := r.health.announced; r.ModelTier == "" && a != nil {
		return a.Worker.ModelTier
	}
	return r.ModelTier
}
