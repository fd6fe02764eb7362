package host

import (
	"context"

	"a2e/host/observe/event"
	"a2e/host/observe/trace"
	"a2e/protocol"
)

// reportCall reports a request that was answered, as an event and a span; code is "" for a success.
func (h *Host) reportCall(c *call, size int, code protocol.ErrorCode) {
	e := event.Event{
		Kind: event.Request, Time: h.opts.Now(), Duration: h.elapsed() - c.start, ErrorCode: string(code),
		InputBytes: len(c.line.Raw()), OutputBytes: size, Type: string(c.line.Type), Name: subject(c.line.Object()),
	}
	if chosen := c.chosen.Load(); chosen != nil {
		e.Name = *chosen
	}
	e.ReqID, _ = c.reqID().Str()
	e.CorrelationID, _ = c.line.CorrelationID.Str()
	if c.dest != nil {
		e.Capability = string(c.dest.capability)
	}
	if sess := c.sess.Load(); sess != nil {
		e.SessionID = sess.ID
	}
	h.trail(e, c.span)
}

// hear reports a line of size bytes that was read, or the head of a line that is too long.
func (h *Host) hear(line []byte, size int) {
	if h.opts.Events.Wants(event.In) {
		h.opts.Events.Take(event.Event{Kind: event.In, InputBytes: size, Message: line})
	}
}

// subject returns the name of what a request is for: a tool, a skill, an environment; "" where
// it names none.
func subject(obj protocol.Object) string {
	for _, field := range [...]string{"tool_name", "toolkit_name", "env_name", "component_name", "name", "server_id"} {
		if v, ok := obj.Get(field); ok {
			name, _ := v.Str()
			return name
		}
	}
	return ""
}

// Trail reports a request of a dialect that was answered, in the session that e names. ctx is that of Dialect.Open;
// span is what Trace returned.
func Trail(ctx context.Context, e event.Event, span context.Context) {
	if h, _ := ctx.Value(hostKey{}).(*Host); h != nil && (h.opts.Events.Wants(event.Request) || span != nil) {
		e.Kind, e.Time = event.Request, h.opts.Now()
		h.trail(e, span)
	}
}

// Trace begins the span of a request of a dialect, which Trail ends. It returns nil if nothing is traced. name is
// the tool, or what else the request is for. parent returns the request's traceparent, "" = none.
func Trace(ctx context.Context, method, name string, parent func() string) context.Context {
	h, _ := ctx.Value(hostKey{}).(*Host)
	if h == nil || h.opts.Tracer == nil {
		return nil
	}
	return h.opts.Tracer.Start(trace.Server, method, name, parent())
}

// beginSpan begins the span of a request of A2E, which reportCall ends.
func (h *Host) beginSpan(c *call) {
	parent, _ := c.line.CorrelationID.Str()
	c.span = h.opts.Tracer.Start(trace.Server, string(c.line.Type), subject(c.line.Object()), parent)
}

// trail reports a request that was answered: what was asked for and the outcome, never the content.
func (h *Host) trail(e event.Event, span context.Context) {
	trace.EndRequest(span, e)
	h.opts.Events.Take(e)
}
