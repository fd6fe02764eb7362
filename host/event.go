package host

import (
	"context"

	"a2e/protocol"
)

// Emit sends an event of a type of its own, such as chain/event, before the answer of the request that ctx belongs
// to, if that request asked for a stream. body makes the event from its number. The type "" means the type of the
// Emitter's events; it is for a kind of event that the Emitter has no method for. Emit does nothing within a Call:
// such events belong to the agent's own request.
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

// event sends one event of a streaming call, before its answer.
func (c *call) event(kind protocol.EventKind, data any) {
	c.send(func() protocol.Type { return c.host.eventType(c) }, func(seq int) any {
		return &protocol.EventOf[any]{Kind: kind, Data: data, Seq: seq}
	})
}

// send adds one event to the output, if the agent asked for events and the call is not answered yet.
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
	if !c.byLeader() {
		h.out.flush()
	}
}

// eventType returns the name that the config chose for a call's events.
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

// Mute is an Emitter that drops all events.
type Mute struct{}

// Progress implements Emitter.
func (Mute) Progress(float64, string) {}

// Status implements Emitter.
func (Mute) Status(string) {}

// Log implements Emitter.
func (Mute) Log(string, string, string) {}

// Artifact implements Emitter.
func (Mute) Artifact(string, string, []byte, bool) {}

// Streaming implements Emitter.
func (Mute) Streaming() bool { return false }
