package host

import (
	"errors"

	"a2e/host/audit"
	"a2e/protocol"
)

// answer sends a call's response, unless it was answered before. out is a buffer
// to build it in; it gives back one for the next.
func (h *Host) answer(c *call, out []byte, resp any) []byte {
	msg, err := h.message(out[:0], c.responseType(), c.reqID(), resp)
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

// responseType gives the type of the call's response, ready to stand in a line.
// A catch-all's follows from what the request says.
func (c *call) responseType() protocol.Type {
	if c.dest.response != "" {
		return c.dest.response
	}
	quoted := protocol.AppendString(nil, foreignResponse(protocol.Type(c.line.Type)))
	return protocol.Type(quoted[1 : len(quoted)-1])
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

// message builds one whole line. A body that panics while it is encoded, as a
// plugin's types may, is an error like any other that does not encode.
func (h *Host) message(dst []byte, t protocol.Type, reqID protocol.Value, body any) (msg []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			h.logPanic("encoding "+string(t), v)
			err = errEncodePanic
		}
	}()
	id := h.ids.next()
	dst = protocol.AppendHeader(dst, t, id[:], h.opts.Now(), reqID)
	dst, err = protocol.AppendBody(dst, body)
	return append(dst, '\n'), err
}

var errEncodePanic = errors.New("the plugin panicked; the log has the details")

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
	feeds := c.feeds
	c.out.Unlock()
	for _, f := range feeds {
		if code == "" {
			f.begin()
		} else {
			f.Close()
		}
	}
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
	default:
		if sess := c.sess.Load(); sess != nil {
			e.SessionID = sess.ID
		}
	}
	h.opts.Audit.Record(e)
}
