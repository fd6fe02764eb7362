package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"a2e/protocol"
)

// CallOption is an option of one call.
type CallOption func(*Pending)

// OnEvent passes each event of the call to fn, in order, before the answer. fn runs
// on the goroutine that called Call or Wait. While fn runs, further events wait in
// memory; nothing else waits for fn. The request itself must ask for a stream.
func OnEvent(fn func(Message)) CallOption { return func(p *Pending) { p.onEvent = fn } }

// Pending is a request that was sent. Wait waits for its answer.
type Pending struct {
	client  *Client
	id      string
	want    protocol.Type // type of the answer; "" = any
	onEvent func(Message)
	more    chan struct{} // has a token when there are events
	done    chan struct{} // closed when answer or err is set

	events []Message // guarded by client.mu
	answer Message   // valid after done, like err
	err    error
}

// Call sends a request and reads its answer into resp: a pointer to the response
// struct, a *Message for the unchanged message, or nil. It returns an `error`
// message as *protocol.Error.
//
// Call sends all fields of req, also zero ones: call its SetDefaults first if it
// has that method, or send a map.
//
// When ctx ends, Call tells the host to cancel and waits up to CancelWait for
// the answer. If a response arrives, Call takes it; otherwise the error wraps the
// error of ctx and, if the host sent one, the host's error. A write to a host that
// does not read ends only with Close, not with ctx.
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

// Go sends a request and does not wait for the answer. A caller that passes OnEvent
// must call Wait.
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

// ID returns the request's id, for Cancel.
func (p *Pending) ID() string { return p.id }

// Done returns a channel that is closed when the request has ended.
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

// abandon tells the host to cancel and waits up to CancelWait for the answer.
func (p *Pending) abandon(ctx context.Context, resp any) error {
	c := p.client
	c.mu.Lock()
	c.startLocked(func() { _ = c.Cancel(p.id) }) // if this fails, the reader ends and closes p.done
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

// result reads the answer into resp. p.done must be closed.
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

// Handler handles messages that the host sends on its own. Its result is the answer
// to a request of the host (`mcp/sample/req`, `mcp/root/list/req`); for other
// messages it is ignored. ctx ends with the connection. A Handler must end soon
// after that, since Close waits for it, and it must not call Close.
type Handler func(ctx context.Context, m Message) (any, error)

// route is the handler of one type.
type route struct {
	fn    Handler
	queue []Message // messages that wait for fn; guarded by Client.mu
	busy  bool      // a goroutine runs take; guarded by Client.mu
}

// Handle registers fn for the messages of a type, such as `env/state/push`,
// `proc/read/event` or `mcp/sample/req`. Call it before the handshake. fn gets all
// pushes and events of the type, one at a time and in order, even those of a call
// with OnEvent. Several requests may run at the same time.
func (c *Client) Handle(t protocol.Type, fn Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes[protocol.Canonical(t)] = &route{fn: fn}
}

// pushLocked queues a message for its handler, and starts take if it is not running.
func (c *Client) pushLocked(r *route, m Message) {
	r.queue = append(r.queue, m)
	if !r.busy {
		r.busy = c.startLocked(func() { c.take(r) })
	}
}

// take runs a handler until its queue is empty.
func (c *Client) take(r *route) {
	for {
		c.mu.Lock()
		queue := r.queue
		r.queue = nil
		if len(queue) == 0 {
			r.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for _, m := range queue {
			_, _ = r.fn(c.ctx, m) // pushes and events have no answer
		}
	}
}

// answer runs the handler of a host's request and sends its result. If the handler
// fails or is missing, it sends an answer with the field `error`.
func (c *Client) answer(response protocol.Type, r *route, m Message) {
	var body any
	err := error(protocol.Errorf(protocol.CodeInvalidMessage, "this agent has no handler for %s", m.Type))
	if r != nil {
		body, err = r.fn(c.ctx, m)
	}
	if err != nil {
		var asked protocol.MCPRootListRequest // has the fields that all requests of the host have
		_ = m.Decode(&asked)                  // missing fields stay empty
		body = map[string]any{"server_id": asked.ServerID, "mcp_request_id": asked.MCPRequestID, "error": err.Error()}
	}
	_, _ = c.send(response, body, protocol.AppendString(nil, m.ID), nil) // fails only when the connection ends
}

// Message is one message from the host.
type Message struct {
	Type  protocol.Type // "" on a line without a type, such as JSON-RPC
	ID    string
	ReqID string // the id of the request that it belongs to; "" = none
	Seq   int    // number of an event: 0,1,2… within its request
	Raw   []byte // the whole line; owned by the Message

	object protocol.Object
}

// Decode reads the message into dst, a pointer to the struct of its type or to
// any other struct with json tags. Absent fields get the schema's defaults.
func (m Message) Decode(dst any) error {
	if err := protocol.Decode(m.object, nil, dst); err != nil {
		return fmt.Errorf("client: %s from the host: %w", m.Type, err)
	}
	return nil
}

// Field returns the raw JSON of one field.
func (m Message) Field(name string) (protocol.Value, bool) { return m.object.Get(name) }

// parse reads a line as a message, which keeps the line.
func parse(raw []byte) (Message, error) {
	var line protocol.Line
	if err := line.Scan(raw); err != nil {
		return Message{}, fmt.Errorf("it wrote a line that is not a message (%.80q): %w", raw, err)
	}
	m := Message{Type: protocol.Type(line.Type), Raw: raw, object: line.Object()}
	m.ID, _ = line.ID.Str()
	m.ReqID, _ = line.ReqID.Str()
	if seq, ok := m.object.Get("seq"); ok {
		m.Seq, _ = strconv.Atoi(string(seq)) // anything but an integer counts as 0
	}
	return m, nil
}

// RefusedError is the error for a handshake that the host answered with ok:false.
type RefusedError struct {
	Reason protocol.HandshakeReason
}

// Error implements error.
func (e *RefusedError) Error() string {
	return "client: the host refused the handshake: " + string(e.Reason)
}

// Handshake opens a session; token is "" for a host without authentication. If the host
// refuses, Handshake returns its answer and a *RefusedError.
func (c *Client) Handshake(ctx context.Context, agentID string, caps []protocol.Capability,
	token string,
) (*protocol.HandshakeResponse, error) {
	req := protocol.HandshakeRequest{AgentID: agentID, AgentCaps: caps, AuthToken: token}
	resp := new(protocol.HandshakeResponse)
	if err := c.Call(ctx, protocol.TypeHandshakeReq, req, resp); err != nil {
		return nil, err
	}
	if !resp.OK {
		return resp, &RefusedError{Reason: resp.Reason}
	}
	return resp, nil
}

// Ping asks whether the host is alive and returns its uptime.
func (c *Client) Ping(ctx context.Context) (uptime time.Duration, err error) {
	var pong protocol.Pong
	err = c.Call(ctx, protocol.TypePing, nil, &pong)
	return time.Duration(pong.UptimeSeconds * float64(time.Second)), err
}

// Cancel asks the host to stop a request, by the id of its Pending. The host then
// answers the request with the error `cancelled`, unless it had ended already.
func (c *Client) Cancel(id string) error {
	_, err := c.Send(protocol.TypeCancel, protocol.Cancel{ReqID: id})
	return err
}

// Shutdown tells the host to stop and waits until it has closed its output, or
// ctx ends. timeout is the time that running requests get to finish; fractions of a
// second are dropped. The caller must still call Close.
func (c *Client) Shutdown(ctx context.Context, timeout time.Duration) error {
	if _, err := c.Send(protocol.TypeShutdown, protocol.Shutdown{Timeout: int(timeout / time.Second)}); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
