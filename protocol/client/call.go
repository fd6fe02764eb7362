package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"a2e/protocol"
)

// CallOption tunes one call.
type CallOption func(*Pending)

// OnEvent has fn see each event of the call, in order, before its answer. It runs
// on the goroutine that called Call or Wait; events wait in memory meanwhile, and
// nothing else waits for it. The request itself must ask for a stream.
func OnEvent(fn func(Message)) CallOption { return func(p *Pending) { p.onEvent = fn } }

// Pending is a request that was sent. Wait gives its answer.
type Pending struct {
	client  *Client
	id      string
	want    protocol.Type // type of the answer; "" = any
	onEvent func(Message)
	more    chan struct{} // holds a token when there are events
	done    chan struct{} // closed when there is an answer or an err

	events []Message // guarded by client.mu
	answer Message   // read it after done, as err
	err    error
}

// Call sends a request and reads its answer into resp: a pointer to the response
// struct, a *Message to have it as it came, or nil. An `error` message comes back
// as *protocol.Error.
//
// The fields of req are sent as they are, zeros too: call its SetDefaults first
// where it has one, or send a map.
//
// When ctx ends the host is told to cancel, and Call waits up to CancelWait for
// the answer: a response that was under way is still taken, else the error wraps
// the context's and, if one came, the host's. A write to a host that reads nothing
// does not end with ctx, but with Close.
func (c *Client) Call(ctx context.Context, t protocol.Type, req, resp any, opts ...CallOption) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("client: %s was not sent: %w", t, err)
	}
	p, err := c.Go(t, req, opts...)
	if err != nil {
		return err
	}
	return p.Wait(ctx, resp)
}

// Go sends a request and comes back at once. Whoever passes OnEvent must Wait.
func (c *Client) Go(t protocol.Type, req any, opts ...CallOption) (*Pending, error) {
	p := &Pending{client: c, more: make(chan struct{}, 1), done: make(chan struct{})}
	if info, ok := protocol.Lookup(t); ok {
		p.want = info.Response
	}
	for _, opt := range opts {
		opt(p)
	}
	if _, err := c.send(t, req, nil, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ID is the request's id, as Cancel takes it.
func (p *Pending) ID() string { return p.id }

// Done is closed when Wait would not wait any more.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait waits for the answer as Call does.
func (p *Pending) Wait(ctx context.Context, resp any) error {
	for {
		select {
		case <-p.more:
			p.takeEvents()
		case <-p.done:
			p.takeEvents()
			return p.result(resp)
		case <-ctx.Done():
			return p.abandon(ctx, resp)
		}
	}
}

// eventLocked keeps an event for Wait.
func (p *Pending) eventLocked(m Message) {
	if p.onEvent == nil {
		return
	}
	p.events = append(p.events, m)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *Pending) takeEvents() {
	p.client.mu.Lock()
	events := p.events
	p.events = nil
	p.client.mu.Unlock()
	for _, m := range events {
		p.onEvent(m)
	}
}

// abandon tells the host to cancel and gives its answer a little time.
func (p *Pending) abandon(ctx context.Context, resp any) error {
	c := p.client
	c.mu.Lock()
	c.startLocked(func() { _ = c.Cancel(p.id) }) // when it fails the reader ends too, and with it this wait
	c.mu.Unlock()
	wait := time.NewTimer(c.opts.CancelWait)
	defer wait.Stop()
	cause := fmt.Errorf("client: request %s: %w", p.id, context.Cause(ctx))
	select {
	case <-p.done:
		p.takeEvents()
		if err := p.result(resp); err != nil {
			return errors.Join(cause, err)
		}
		return nil
	case <-wait.C:
		c.forget(p)
		return cause
	}
}

// result reads the answer; done is closed.
func (p *Pending) result(resp any) error {
	switch {
	case p.err != nil:
		return p.err
	case p.answer.Type == protocol.TypeError:
		answer := new(protocol.Error)
		if err := p.answer.Decode(answer); err != nil {
			return err
		}
		return answer
	case p.want != "" && protocol.Canonical(p.answer.Type) != p.want:
		return fmt.Errorf("client: request %s was answered by %q, should be %q", p.id, p.answer.Type, p.want)
	}
	switch resp := resp.(type) {
	case nil:
		return nil
	case *Message:
		*resp = p.answer
		return nil
	default:
		return p.answer.Decode(resp)
	}
}
