package host

import (
	"a2e/protocol"
)

// event sends one event of a streaming call, before its answer.
func (c *call) event(kind protocol.EventKind, data any) {
	c.send(func() protocol.Type { return c.host.eventType(c) }, func(seq int) any {
		return &protocol.EventOf[any]{Kind: kind, Data: data, Seq: seq}
	})
}

// send puts one event in line, if anybody listens and the call is not answered yet.
func (c *call) send(name func() protocol.Type, body func(seq int) any) {
	if !c.streaming {
		return
	}
	h := c.host
	c.out.Lock()
	if c.answered {
		c.out.Unlock()
		return
	}
	msg, err := h.message(nil, name(), c.reqID(), body(c.seq))
	if err == nil {
		c.seq++
		h.out.append(msg)
	}
	c.out.Unlock()
	if err != nil {
		h.opts.Log.Warn().Err(err).Str("type", string(c.dest.typ)).Msg("an event cannot be encoded; it was dropped")
	}
	if !c.onTurn() {
		h.out.flush()
	}
}

// eventType gives the name that the config chose for a call's events.
func (h *Host) eventType(c *call) protocol.Type {
	if h.opts.Namespaced {
		switch c.dest.capability {
		case protocol.CapTools:
			return protocol.TypeToolEvent
		case protocol.CapSkill:
			return protocol.TypeSkillEvent
		}
	}
	return protocol.TypeInvokeEvent
}

// Progress implements Emitter.
func (c *call) Progress(pct float64, message string) {
	c.event(protocol.EventProgress, &protocol.Progress{Pct: min(max(pct, 0), 100), Message: message})
}

// Status implements Emitter.
func (c *call) Status(message string) {
	c.event(protocol.EventStatus, &protocol.Status{Message: message})
}

// Log implements Emitter.
func (c *call) Log(level, message, stream string) {
	c.event(protocol.EventLog, &protocol.Log{Level: level, Message: message, Stream: stream})
}

// Artifact implements Emitter.
func (c *call) Artifact(name, mime string, chunk []byte, final bool) {
	c.event(protocol.EventArtifact, &protocol.Artifact{Name: name, Mime: mime, Chunk: chunk, Final: final})
}

// Streaming implements Emitter.
func (c *call) Streaming() bool { return c.streaming }
