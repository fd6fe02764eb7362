package host

import (
	"time"

	"a2e/host/schema"
	"a2e/protocol"
)

// read is the loop. The leader takes one line after the other and runs each request to its answer:
//
//	next line ─► take ─► scan, route ─┬─► control: answered here
//	   ▲                              └─► gate ─┬─► slot free: run here ──► answer
//	   │                                        └─► queue: another goroutine runs it later
//	   └── no line left: flush the answers, wait for room, read more ◄──┘
//
// read returns when the leader was replaced (see leader) or the host stops.
func (h *Host) read(t *leader) {
	kept := false
	defer func() {
		if !kept && t.end() { // a handler ended this goroutine: another one reads on
			h.goes.Go(func() { h.read(t) })
		}
	}()
	for !h.stopping.Load() {
		line, kind := t.lines.next()
		mine := true
		switch kind {
		case lineText:
			h.hear(line, len(line))
			mine = h.take(t, line)
		case lineLong:
			mine = h.refuseLong(t, line)
		case lineLongEnd:
			h.hear(t.lines.head, t.lines.size)
		case lineNone:
			if mine = h.flush(t); mine {
				h.out.waitRoom()
				t.lines.fill()
			}
		case lineEnd:
			h.inputEnded(t.lines.err)
		}
		if !mine {
			kept = true
			return
		}
	}
	kept = true
	h.flush(t)
}

// growStack has a frame of 10 KiB, which it does not touch if text is empty: Go makes the stack of the goroutine
// that large at once. Otherwise Go would double the stack several times, and look up each frame on it in tables
// that are not in memory at the first answer.
//
//go:noinline
func growStack(text string) byte {
	if text == "" {
		return 0
	}
	var frame [10 << 10]byte
	return frame[copy(frame[:], text)-1]
}

// flush writes the pending answers. False means that this took so long that another goroutine is the leader now.
func (h *Host) flush(t *leader) bool {
	t.begin(h, nil)
	h.out.flush()
	return t.end()
}

// take handles one line: it answers it here, runs it here, or queues it. False means that this goroutine is not the
// leader any more.
func (h *Host) take(t *leader, raw []byte) bool {
	err := t.line.Scan(raw)
	dest := h.router.find(t.line.Type)
	switch {
	case err == nil && dest != nil && dest != h.router.any && !t.line.RPC && !h.opts.Only: // it is A2E's own
		h.spoken, h.heard = nil, true
	case len(h.opts.Dialects) > 0:
		if mine, other := h.routeToDialect(t, err); other {
			return mine
		}
	}
	if err != nil {
		dest = nil
	} else {
		dest, err = h.route(t.line, dest)
	}
	c := &t.control // a line that is answered here needs no call of its own
	if own := dest != nil && (dest.control == nil || dest.barrier); own {
		c = new(call)
	}
	c.reset(h, t)
	c.dest = dest
	if err == nil {
		c.readOptions()
	}
	switch {
	case err != nil:
		h.failAsked(t.line.ReqID, err)
		h.answerError(c, err)
	case c == &t.control:
		t.out = h.run(c, t.out)
	default:
		if h.opts.Tracer != nil {
			h.beginSpan(c)
		}
		return h.dispatch(t, c)
	}
	return !h.out.due() || h.flush(t)
}

// readOptions reads the fields of a request that the host itself uses: timeout and streaming.
func (c *call) readOptions() {
	c.limit, c.streaming = c.dest.timeout, c.dest.streams
	if c.limit > 0 {
		if seconds, ok := c.line.Timeout.Int(); ok && seconds > 0 {
			c.limit = time.Duration(min(seconds, maxTimeout)) * time.Second
		}
	}
	if kind := c.line.Streaming.Kind(); kind != 0 && kind != 'n' {
		c.streaming = kind == 't'
	}
}

// route returns where a message goes. dest is the destination of its type; nil = the type is unknown.
func (h *Host) route(line *protocol.Line, dest *destination) (*destination, error) {
	err := line.Check()
	if err != nil {
		if dest != nil && dest.barrier && codeOf(err) == protocol.CodeVersionMismatch {
			return dest, nil // the handshake reports this in its own answer
		}
		return nil, err
	}
	if dest != nil && dest.fromHost {
		switch {
		case dest.typ == protocol.TypeEnvPlanResp:
			dest = h.router.at(protocol.TypeEnvPlanReq)
		case dest.typ == protocol.TypeMCPSampleReq && line.ReqID != nil:
			dest = h.router.at(protocol.TypeMCPSampleResp)
		}
	}
	if dest == nil || dest.answers() {
		if line.ReqID != nil && h.waitsFor(line.ReqID) {
			return h.router.answer, nil
		}
	}
	switch {
	case dest != nil && !dest.fromHost:
		return dest, nil
	case !h.hasSession():
		return nil, h.noSession()
	case dest == nil:
		return nil, unknownType(string(line.Type))
	}
	return nil, protocol.Errorf(protocol.CodeInvalidMessage, "%s goes from the host to the agent, not the other way",
		dest.typ)
}

// answers reports whether a message of this type may be the agent's answer to a request of the host. Such an answer
// needs no capability of the session.
func (d *destination) answers() bool {
	switch d.typ {
	case protocol.TypeError, protocol.TypeMCPSampleResp, protocol.TypeMCPRootListResp, protocol.TypeMCPElicitResp,
		CatchAll:
		return true
	}
	return false
}

// unknownType returns the error for a type that does not exist. It names the types that may be meant.
func unknownType(name string) error {
	var known []string
	for _, info := range protocol.Types() {
		if info.Direction == protocol.AgentRequest {
			known = append(known, string(info.Type))
		}
	}
	hint := schema.DidYouMean(name, known)
	if hint != "" {
		hint += " "
	}
	return protocol.Errorf(protocol.CodeInvalidMessage,
		"unknown type %.64q; %s`a2e schema protocol` lists the types", name, hint)
}
