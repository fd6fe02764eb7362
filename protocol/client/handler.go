package client

import (
	"context"

	"a2e/protocol"
)

// Handler takes what the host sends by itself. What it returns is the answer to a
// request of the host (`mcp/sample/req`, `mcp/root/list/req`) and ignored for
// everything else. ctx ends with the connection; a Handler must end soon after,
// since Close waits for it, and must not call Close.
type Handler func(ctx context.Context, m Message) (any, error)

// route is the handler of one type.
type route struct {
	fn    Handler
	queue []Message // pushes not yet taken; guarded by Client.mu
	busy  bool      // a goroutine takes them; guarded by Client.mu
}

// Handle has fn take the messages of a type, such as `env/state/push`,
// `proc/read/event` or `mcp/sample/req`; register before the handshake. Pushes and
// events are taken one at a time, in order, all those of the type, even with a
// call that has OnEvent. Requests run side by side.
func (c *Client) Handle(t protocol.Type, fn Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes[protocol.Canonical(t)] = &route{fn: fn}
}

// pushLocked queues a message for its handler, and starts taking if nobody does.
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
			_, _ = r.fn(c.ctx, m) // nobody waits for an answer
		}
	}
}

// answer runs the handler of a host's request and sends what it returns. The host
// always gets an answer: an error, or no handler, becomes the field `error`.
func (c *Client) answer(info *protocol.Info, r *route, m Message) {
	var body any
	err := error(protocol.Errorf(protocol.CodeInvalidMessage, "this agent has no handler for %s", m.Type))
	if r != nil {
		body, err = r.fn(c.ctx, m)
	}
	if err != nil {
		var asked protocol.MCPRootListRequest // the fields that all requests of the host have
		_ = m.Decode(&asked)                  // what is missing stays empty
		body = map[string]any{"server_id": asked.ServerID, "mcp_request_id": asked.MCPRequestID, "error": err.Error()}
	}
	_, _ = c.send(info.Response, body, protocol.AppendString(nil, m.ID), nil) // fails only when the connection ends
}
