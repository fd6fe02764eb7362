package chains

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/semaphore"

	"a2e/protocol"
)

// What a running chain takes besides its outputs: the values that its expressions make, and what its calls
// hold while they run.
const (
	callRoom   = 16 << 20 // bytes of input of the calls of one request that run at once; a larger call runs alone
	callCopies = 4        // copies of a call's input: the request, the tool's view of it, its result, the answer
)

// memory counts what all chains of a plugin hold together.
type memory struct {
	most       int64
	held       atomic.Int64
	evaluating chan struct{} // has room for as many expressions as are evaluated at once
}

func newMemory(maxState int) *memory {
	return &memory{most: 2*int64(maxState) + callCopies*callRoom, evaluating: make(chan struct{},
		runtime.GOMAXPROCS(0))}
}

// take counts n bytes, unless they are too many.
func (m *memory) take(n int) error {
	if m.held.Add(int64(n)) > m.most {
		m.give(n)
		err := protocol.Errorf(protocol.CodeOverloaded, "the chains that run now take more than %d bytes together; "+
			"run fewer at once, or pass less from node to node", m.most)
		err.Retryable = true
		return err
	}
	return nil
}

func (m *memory) give(n int) { m.held.Add(int64(-n)) }

// evaluate runs f, which computes values, while there is room for it. f must not block and must end by
// itself.
func (m *memory) evaluate(ctx context.Context, f func() error) error {
	select {
	case m.evaluating <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.evaluating }()
	return f()
}

// calls lets the calls of one request wait until others have ended, so that their inputs have room in
// memory. A call that runs never waits for another one.
type calls struct {
	next chan struct{}       // room for one node, which computes its input and waits for room
	room *semaphore.Weighted // callRoom bytes
}

func newCalls() calls {
	return calls{next: make(chan struct{}, 1), room: semaphore.NewWeighted(callRoom)}
}

// given computes the input of a node. leave drops the input; it must be called before anything of the same
// request waits for the node.
func (r *run) given(ctx context.Context, n *node, it *item) (args []byte, leave func(), err error) {
	select {
	case r.calls.next <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-r.calls.next }()
	err = r.plugin.memory.evaluate(ctx, func() (err error) {
		args, err = r.arguments(ctx, n, it)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if n.kind == KindChain || n.kind == KindWhile { // its nodes make calls themselves
		return args, func() { r.drop(len(args)) }, r.keep(len(args))
	}
	cost, room := callCopies*len(args), int64(min(len(args), callRoom))
	if r.calls.room.Acquire(ctx, room) != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err := r.plugin.memory.take(cost); err != nil {
		r.calls.room.Release(room)
		return nil, nil, err
	}
	return args, func() {
		r.plugin.memory.give(cost)
		r.calls.room.Release(room)
	}, nil
}

// call computes the input of a node, and runs its tool, skill, program or saved chain with it.
func (r *run) call(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	args, leave, err := r.given(ctx, n, it)
	if err != nil {
		return nil, err
	}
	defer leave()
	if n.kind == KindChain {
		return r.nested(ctx, n, r.path(n, it), args)
	}
	return r.leaf(ctx, n, it, args)
}

// pool is the goroutines that the nodes and items of one request share, besides that of the request
// itself. Nobody waits for a goroutine: a group works on without it, and gets one when one is free.
type pool struct {
	all sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	free    int        // goroutines that may still be started
	waiting []*group   // groups that asked while no goroutine was free, each once at most
}

// ask sends a goroutine to help a group, now or when one is free.
func (p *pool) ask(c *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		p.waiting = append(p.waiting, c)
		return
	}
	p.free--
	p.all.Go(func() { p.serve(c) })
}

// serve is the work of one goroutine: it helps groups until none waits.
func (p *pool) serve(c *group) {
	for ; c != nil; c = p.next() {
		c.help()
	}
}

// next returns the group that has waited longest; nil = none waits, so the goroutine ends.
func (p *pool) next() *group {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.free++
		return nil
	}
	c := p.waiting[0]
	p.waiting = slices.Delete(p.waiting, 0, 1)
	return c
}

// forget removes a group from the list that ended before a goroutine came: otherwise its data would stay
// in memory until its turn.
func (p *pool) forget(c *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = slices.DeleteFunc(p.waiting, func(other *group) bool { return other == c })
}

// group does tasks, with as many goroutines as the number of tasks, most and the pool allow.
//
//	run ─ work ─┬─ next ─ more? ask the pool ─ do ─┐
//	            └──────────────◄──────────────────-┘  … until next has none
type group struct {
	pool *pool
	most int                // goroutines at once
	next func() (int, bool) // returns a task; mu is held
	more func() bool        // reports whether there is another task; mu is held
	do   func(task int)     // mu is not held

	mu     sync.Mutex // guards the fields below, and what next and more look at
	active int
	asked  bool // the pool has been asked, and no goroutine has come yet
	closed bool
	done   chan struct{} // closed when no goroutine works any more
}

// run does all tasks, also those that are added meanwhile.
func (c *group) run() {
	c.done = make(chan struct{})
	c.active = 1
	c.work()
	<-c.done
}

// help works on the tasks, unless all are done.
func (c *group) help() {
	c.mu.Lock()
	c.asked = false
	closed := c.closed
	if !closed {
		c.active++
	}
	c.mu.Unlock()
	if !closed {
		c.work()
	}
}

func (c *group) work() {
	c.mu.Lock()
	for {
		task, ok := c.next()
		if !ok {
			break
		}
		if !c.asked && c.active < c.most && c.more() {
			c.asked = true
			c.pool.ask(c)
		}
		c.mu.Unlock()
		c.do(task)
		c.mu.Lock()
	}
	last := c.active == 1
	if c.active--; last {
		c.closed = true
		close(c.done)
	}
	asked := c.asked
	c.mu.Unlock()
	if last && asked {
		c.pool.forget(c)
	}
}
