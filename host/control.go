package host

import (
	"slices"
	"strconv"
	"time"

	"a2e/protocol"
)

// control answers one of the host's own message types. A nil answer without an error means that the type has no
// answer.
type control func(*Host, *call) (any, error)

// controls returns the types that the host answers itself. All but the handshake run on the reading goroutine,
// before every other request.
func controls() map[protocol.Type]control {
	return map[protocol.Type]control{
		protocol.TypeHandshakeReq:    handshake,
		protocol.TypePing:            ping,
		protocol.TypeShutdown:        shutdown,
		protocol.TypeCancel:          cancel,
		protocol.TypeMCPSampleResp:   agentAnswer,
		protocol.TypeMCPRootListResp: agentAnswer,
		protocol.TypeMCPElicitResp:   agentAnswer,
	}
}

func ping(_ *Host, c *call) (any, error) { return pong(c.start.Seconds()), nil }

// pong is a protocol.Pong that encodes itself, because there may be very many pings.
type pong float64

func (p pong) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"uptime_seconds":`...)
	dst = strconv.AppendFloat(dst, float64(p), 'f', 6, 64)
	return append(dst, '}'), nil
}

func shutdown(h *Host, c *call) (any, error) {
	var req protocol.Shutdown
	if err := protocol.Decode(c.line.Object(), nil, &req); err != nil {
		return nil, err
	}
	timeout := time.Duration(req.Timeout) * time.Second
	h.Shutdown(min(max(timeout, 0), maxShutdown))
	h.reportCall(c, 0, "")
	return nil, nil
}

// cancel stops the requests with an id, whether they run or wait. Each of them is answered with the error
// `cancelled`; the cancel message itself has no answer.
func cancel(h *Host, c *call) (any, error) {
	if err := h.gate(c); err != nil && !h.hasSession() { // requests behind the handshake may be cancelled too
		return nil, err
	}
	var req protocol.Cancel
	if err := protocol.Decode(c.line.Object(), []string{"req_id"}, &req); err != nil {
		return nil, err
	}
	matches := func(c *call) bool {
		id, _ := c.reqID().Str()
		return c.work == nil && id == req.ReqID && !c.dest.barrier
	}
	h.mu.Lock()
	waiting, next := h.stopWaitingLocked(matches)
	running := slices.DeleteFunc(h.runningLocked(), func(r *call) bool { return !matches(r) })
	h.mu.Unlock()
	h.startAll(next)
	for _, r := range running {
		r.stop(errCancelled)
	}
	for _, q := range waiting {
		h.answerError(q, errCancelled)
	}
	return nil, nil
}

// refuseLong answers a line that is longer than the limit. If the part that was read contains the id, the answer
// has it, so that the agent knows which request it was. False means that another goroutine is the leader.
func (h *Host) refuseLong(t *leader, head []byte) bool {
	_ = t.line.Scan(head) // the line is incomplete; only its id is needed
	err := protocol.Errorf(protocol.CodeInvalidMessage,
		"the line is longer than limits.max_line_bytes (%d bytes); it was skipped",
		h.opts.Limits.LineBytes).With("limit", h.opts.Limits.LineBytes)
	if mine, other := h.routeToDialect(t, err); other {
		return mine
	}
	c := &t.control
	c.reset(h, t)
	h.answerError(c, err)
	return true
}
