package host

import (
	"context"
	"slices"

	"a2e/host/observe/event"
	"a2e/protocol"
)

// Handler serves requests of one type, whoever made them: the agent, a dialect or a plugin. AnswerOf reads
// its answers. emit takes the events of the request; it is never nil.
type Handler func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error)

// Target is where requests of one type go.
type Target struct {
	Type    protocol.Type
	Plugins []Plugin // that serve it, in the order in which they are asked
}

// Middleware does something around requests that no single plugin can do. It returns a handler that serves them by
// next, or next itself if it has nothing to do for this target. It is called for each target when the host is made;
// no plugin has started then.
type Middleware func(s *Services, to Target, next Handler) Handler

// Only limits a middleware to the requests of one type.
func (m Middleware) Only(t protocol.Type) Middleware {
	return func(s *Services, to Target, next Handler) Handler {
		if to.Type != t {
			return next
		}
		return m(s, to, next)
	}
}

// denials sends an event when the plugins deny a request, because of the sandbox, a list or a permission.
func (h *Host) denials(to Target, next Handler) Handler {
	if !h.opts.Events.Wants(event.Denied) {
		return next
	}
	return func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
		resp, err := next(ctx, obj, emit)
		if err != nil && codeOf(err) == protocol.CodeToolDenied {
			e := event.Event{Kind: event.Denied, Type: string(to.Type), Name: subject(obj), Text: err.Error()}
			e.ErrorCode = string(protocol.CodeToolDenied)
			if sess := SessionFrom(ctx); sess != nil {
				e.SessionID = sess.ID
			}
			h.opts.Events.Take(e)
		}
		return resp, err
	}
}

// wrap makes the handler of a destination, from the outside to the inside: the groups of tools, the middlewares of
// the options, the plugins.
func (h *Host) wrap(d *destination) {
	if len(d.routes) == 0 {
		return
	}
	to := Target{Type: d.typ}
	for _, route := range d.routes {
		to.Plugins = append(to.Plugins, route.plugin)
	}
	d.handler = h.denials(to, d.serve)
	for _, wrap := range slices.Backward(h.opts.Middleware) {
		d.handler = wrap(h.services, to, d.handler)
	}
	d.handler = Middleware(h.groupCalls).Only(protocol.TypeToolCallReq)(h.services, to, d.handler)
}
