package host

import (
	"context"

	"a2e/protocol"
)

// ask sends a request to the agent for Services.Ask.
func (h *Host) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	sess := SessionFrom(ctx)
	switch {
	case sess != nil && sess.ask != nil:
		Detach(ctx)
		return sess.ask(ctx, t, req, resp)
	case sess != nil && sess.aside, sess == nil && !h.hasSession():
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: there is no agent in this session that answers A2E requests", t)
	}
	id := h.ids.next()
	msg := protocol.AppendHeader(nil, t, id[:], h.opts.Now(), nil)
	msg, err := protocol.AppendBody(msg, req)
	if err != nil {
		return err
	}
	answer := make(chan protocol.Object, 1)
	h.mu.Lock()
	over := sess != nil && sess != h.session
	if !over {
		h.asked[string(id[:])] = answer
	}
	h.mu.Unlock()
	if over { // the agent that is there now is not the one to be asked
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: the session has ended", t)
	}
	defer func() {
		h.mu.Lock()
		delete(h.asked, string(id[:]))
		h.mu.Unlock()
	}()
	Detach(ctx)
	h.out.append(append(msg, '\n'))
	h.out.flush()
	select {
	case obj := <-answer:
		return readAnswer(obj, resp)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readAnswer takes what the agent answered.
func readAnswer(obj protocol.Object, resp any) error {
	if t, ok := obj.Get("type"); ok {
		if name, _ := t.Str(); name == string(protocol.TypeError) {
			refusal := new(protocol.Error)
			if err := protocol.Decode(obj, nil, refusal); err != nil {
				return err
			}
			return refusal
		}
	}
	if o, ok := resp.(*protocol.Object); ok {
		*o = obj
		return nil
	}
	return protocol.Decode(obj, nil, resp)
}

// waitsFor tells whether a request of the host waits for the answer with this req_id.
func (h *Host) waitsFor(reqID protocol.Value) bool {
	id, _ := reqID.Str()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[id] != nil
}

// agentAnswer takes the agent's answer to a request of the host.
func agentAnswer(h *Host, c *call) (any, error) {
	if err := h.gate(c); err != nil {
		return nil, err
	}
	id, _ := c.line.ReqID.Str()
	h.mu.Lock()
	waiting := h.asked[id]
	delete(h.asked, id)
	h.mu.Unlock()
	if waiting == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidMessage,
			"no request of the host waits for the answer %.64q; req_id must be the id of the host's request, answered once", id)
	}
	waiting <- c.line.Object().Clone()
	return nil, nil
}

// push sends a message of Services.Push.
func (h *Host) push(t protocol.Type, body any) error {
	h.pushAside(t, body)
	f := h.pushes(t)
	if f == nil {
		return ErrFeedClosed
	}
	return f.Send(t, body)
}

// pushAside gives a message to the dialects that take such.
func (h *Host) pushAside(t protocol.Type, body any) {
	for _, d := range h.opts.Dialects {
		if p, ok := d.(PushTaker); ok {
			p.Pushed(t, body)
		}
	}
}

// pushes gives the session's feed of messages that belong to no request; nil = there is
// no session, or its agent did not ask for what t belongs to.
func (h *Host) pushes(t protocol.Type) *Feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		return nil
	}
	if info, known := protocol.Lookup(t); known && info.Capability != protocol.CapCore && !h.session.Caps[info.Capability] {
		return nil
	}
	return h.pushed
}

// openPushesLocked makes the feed of a session that begins. It opens after the answer to
// the handshake, which agents read as the first line.
func (h *Host) openPushesLocked(c *call) {
	h.pushed = &Feed{host: h, sess: h.session}
	h.feeds[h.pushed] = struct{}{}
	c.out.Lock()
	c.feeds = append(c.feeds, h.pushed)
	c.out.Unlock()
}

// Emit sends an event of a type of its own, such as chain/event, before the answer of the
// request that ctx belongs to, if that asked for a stream; body makes it from its number.
// The type "" is that of the Emitter's events, for one of a kind that it has no method for.
// It does nothing within a Call: such events belong to the agent's own request.
func Emit(ctx context.Context, t protocol.Type, body func(seq int) any) {
	c := callFrom(ctx)
	if c == nil || nestedFrom(ctx) != nil {
		return
	}
	c.send(func() protocol.Type {
		if t == "" {
			return c.host.eventType(c)
		}
		return t
	}, body)
}
