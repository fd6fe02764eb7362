package chains

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// What a running chain takes beside the outputs that it keeps: the values that its
// expressions make, and what its calls hold while they run.
const (
	callRoom   = 16 << 20 // bytes that the calls of one request are given at once; a larger one runs alone
	callCopies = 4        // of what a call is given: the request, the tool's view of it, its result, the answer
)

// memory is what all chains of a plugin hold together.
type memory struct {
	most       int64
	held       atomic.Int64
	evaluating chan struct{} // has room for the expressions that are evaluated at once
}

func newMemory(maxState int) *memory {
	return &memory{most: 2*int64(maxState) + callCopies*callRoom, evaluating: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// take counts bytes, unless they are too many.
func (m *memory) take(n int) error {
	if m.held.Add(int64(n)) > m.most {
		m.give(n)
		err := protocol.Errorf(protocol.CodeOverloaded, "the chains that run now take more than %d bytes together; run fewer at once, or pass less from node to node", m.most)
		err.Retryable = true
		return err
	}
	return nil
}

func (m *memory) give(n int) { m.held.Add(int64(-n)) }

// evaluate does what computes values; that blocks nothing and ends by itself.
func (m *memory) evaluate(ctx context.Context, f func() error) error {
	select {
	case m.evaluating <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.evaluating }()
	return f()
}

// calls lets the calls of one request wait until others have ended, so that what they were
// given has room. None of them waits for another one.
type calls struct {
	next chan struct{} // has room for who computes what it will be given, and waits for room

	mu   sync.Mutex    // guards the fields below
	used int           // bytes
	left chan struct{} // closed when a call has ended; nil = nobody waits
}

// enter waits until there is room.
func (c *calls) enter(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		if c.used == 0 || c.used+n <= callRoom {
			c.used += n
			c.mu.Unlock()
			return nil
		}
		if c.left == nil {
			c.left = make(chan struct{})
		}
		left := c.left
		c.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *calls) leave(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used -= n; c.left != nil {
		close(c.left)
		c.left = nil
	}
}

// given computes what a node is called with. It is the node's until leave, which must be
// called before anything of the same request waits for the node.
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
	if n.kind == KindChain { // its nodes make calls themselves
		return args, func() { r.drop(len(args)) }, r.keep(len(args))
	}
	cost := callCopies * len(args)
	if err := r.calls.enter(ctx, len(args)); err != nil {
		return nil, nil, err
	}
	if err := r.plugin.memory.take(cost); err != nil {
		r.calls.leave(len(args))
		return nil, nil, err
	}
	return args, func() {
		r.plugin.memory.give(cost)
		r.calls.leave(len(args))
	}, nil
}

// call runs a tool, a skill or a program with what the node is given.
func (r *run) call(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	args, leave, err := r.given(ctx, n, it)
	if err != nil {
		return nil, err
	}
	defer leave()
	if n.kind == KindChain {
		return r.nested(ctx, n, args)
	}
	return r.leaf(ctx, n, it, args)
}
