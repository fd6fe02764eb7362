package host

import (
	"context"
	"slices"

	"a2e/protocol"
)

// Request is a request on its way to the plugins, whoever made it: the agent, a dialect or a plugin.
type Request struct {
	Type   protocol.Type
	Object protocol.Object // its members
	Events Emitter         // takes its events; never nil
	to     *destination
}

// ServedBy reports whether a plugin is one of those that the request goes to.
func (r Request) ServedBy(p Plugin) bool {
	return slices.ContainsFunc(r.to.routes, func(route boundRoute) bool { return route.plugin == p.Info().Name })
}

// Handler serves requests. AnswerOf reads its answers.
type Handler func(ctx context.Context, r Request) (any, error)

// Middleware does something around requests that no plugin can see to alone: it returns a handler that
// serves them by next. It is called once, when the host is made; no plugin has started then.
type Middleware func(s *Services, next Handler) Handler

// Only has a middleware see the requests of one type alone.
func (m Middleware) Only(t protocol.Type) Middleware {
	return func(s *Services, next Handler) Handler {
		own := m(s, next)
		return func(ctx context.Context, r Request) (any, error) {
			if r.Type == t {
				return own(ctx, r)
			}
			return next(ctx, r)
		}
	}
}

// around makes the handler of all requests, once: the groups of tools, the middlewares of the options,
// the plugins.
func (h *Host) around() Handler {
	next := Handler(func(ctx context.Context, r Request) (any, error) {
		return r.to.serve(ctx, r.Object, r.Events)
	})
	for _, wrap := range slices.Backward(h.opts.Middleware) {
		next = wrap(h.services, next)
	}
	return Middleware(h.groupCalls).Only(protocol.TypeToolCallReq)(h.services, next)
}
