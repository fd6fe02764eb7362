package host

import (
	"a2e/host/audit"
	"a2e/protocol"
)

// answer sends a call's response, unless it was answered before. out is a buffer
// to build it in; it gives back one for the next.
func (h *Host) answer(c *call, out []byte, resp any) []byte {
	msg, err := h.message(out[:0], c.dest.response, c.reqID(), resp)
	if err != nil {
		h.answerError(c, protocol.Errorf(protocol.CodeRuntimeError, "the answer to %s cannot be encoded: %w", c.dest.typ, err))
		return out
	}
	failed := protocol.ErrorCode("")
	if o, ok := resp.(interface{ ErrorCode() protocol.ErrorCode }); ok {
		failed = o.ErrorCode()
	}
	out, _ = h.deliver(c, msg, failed)
	return out
}

// answerError answers a call with an error; false means that it was answered
// before.
func (h *Host) answerError(c *call, err error) bool {
	e := *wireError(err)
	if e.CapabilityName == "" && c.dest != nil {
		e.CapabilityName = string(c.dest.capability)
	}
	msg, err := h.message(nil, protocol.TypeError, c.reqID(), &e)
	if err != nil { // a detail that does not encode
		e.Detail = nil
		msg, _ = h.message(nil, protocol.TypeError, c.reqID(), &e)
	}
	_, sent := h.deliver(c, msg, e.Code)
	return sent
}

// message builds one whole line.
func (h *Host) message(dst []byte, t protocol.Type, reqID protocol.Value, body any) ([]byte, error) {
	id := h.ids.next()
	dst = protocol.AppendHeader(dst, t, id[:], h.opts.Now(), reqID)
	dst, err := protocol.AppendBody(dst, body)
	return append(dst, '\n'), err
}

// deliver puts the answer in line, once, and writes the audit entry. code is ""
// for a success.
func (h *Host) deliver(c *call, msg []byte, code protocol.ErrorCode) (next []byte, sent bool) {
	size := len(msg)
	c.out.Lock()
	if c.answered {
		c.out.Unlock()
		return msg, false
	}
	c.answered = true
	next = h.out.append(msg)
	c.out.Unlock()
	h.record(c, size, code)
	if !c.onTurn() {
		h.out.flush()
	}
	return next, true
}

// onTurn tells whether the call runs on the goroutine that reads, which flushes
// the output before it waits for input.
func (c *call) onTurn() bool {
	t := c.reader.Load()
	return t != nil && t.state.Load()&turnTaken == 0
}

func (h *Host) record(c *call, size int, code protocol.ErrorCode) {
	if h.opts.Audit == nil {
		return
	}
	now := h.opts.Now()
	e := audit.Entry{
		Time: now, Duration: h.elapsed() - c.start, Success: code == "", ErrorCode: string(code),
		InputBytes: len(c.line.Raw()), OutputBytes: size, Type: string(c.line.Type),
	}
	e.ReqID, _ = c.reqID().Str()
	e.CorrelationID, _ = c.line.CorrelationID.Str()
	if c.dest != nil {
		e.Capability = string(c.dest.capability)
	}
	switch {
	case h.opts.AuditSession != "":
		e.SessionID = h.opts.AuditSession
	case c.sess != nil:
		e.SessionID = c.sess.ID
	}
	h.opts.Audit.Record(e)
}
