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
		HandOff(ctx)
		return sess.ask(ctx, t, req, resp)
	case sess != nil && sess.ofDialect, sess == nil && !h.hasSession():
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: there is no agent in this session "+
			"that answers A2E requests", t)
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
	HandOff(ctx)
	h.out.append(append(msg, '\n'))
	h.out.flush()
	select {
	case obj := <-answer:
		return readAnswer(obj, resp)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readAnswer decodes the agent's answer into resp. An answer of type `error` is returned as the error.
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

// waitsFor reports whether a request of the host waits for the answer with this req_id.
func (h *Host) waitsFor(reqID protocol.Value) bool {
	id, _ := reqID.Str()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[id] != nil
}

// failAsked answers the request of the host that waits for reqID with err, because the agent's answer cannot be
// read.
func (h *Host) failAsked(reqID protocol.Value, err error) {
	id, _ := reqID.Str()
	h.mu.Lock()
	waiting := h.asked[id]
	delete(h.asked, id)
	h.mu.Unlock()
	if waiting == nil {
		return
	}
	msg, _ := h.message(nil, protocol.TypeError, nil, wireError(err))
	answer, _ := protocol.ParseObject(msg) // if the error does not encode, the answer is empty
	waiting <- answer
}

// agentAnswer passes the agent's answer to the request of the host that waits for it.
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
			"no request of the host waits for the answer %.64q; req_id must be the id of the host's request, "+
				"answered once", id)
	}
	waiting <- c.line.Object().Clone()
	return nil, nil
}
