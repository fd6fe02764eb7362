package host

import (
	"context"
	"slices"

	"a2e/protocol"
)

// handler serves a request of one type, whoever made it: the agent, a dialect or a plugin.
type handler func(ctx context.Context, d *destination, obj protocol.Object, emit Emitter) (any, error)

// middleware does something around a request that no plugin can see to alone.
type middleware func(next handler) handler

// around makes the handler of all requests, once: the middlewares that this host needs, the outermost
// first, around the plugins. What is measured of a request (log, audit, trace) comes with its answer: see
// trail.go.
//
//	groups ─ lists ─ checkpoint ─ overrides ─ plugins
func (h *Host) around() handler {
	all := []middleware{
		middleware(h.groupCalls).of(protocol.TypeToolCallReq),
		middleware(h.searchTools).of(protocol.TypeToolListReq),
		middleware(h.searchSkills).of(protocol.TypeSkillDiscoverReq),
	}
	if h.opts.Checkpoints != nil {
		all = append(all, h.keepFiles)
	}
	if h.services.overrider != nil {
		all = append(all, h.override)
	}
	next := handler(func(ctx context.Context, d *destination, obj protocol.Object, emit Emitter) (any, error) {
		return d.serve(ctx, obj, emit)
	})
	for _, wrap := range slices.Backward(all) {
		next = wrap(next)
	}
	return next
}

// of has a middleware see the requests of one type alone.
func (m middleware) of(t protocol.Type) middleware {
	return func(next handler) handler {
		own := m(next)
		return func(ctx context.Context, d *destination, obj protocol.Object, emit Emitter) (any, error) {
			if d.typ == t {
				return own(ctx, d, obj, emit)
			}
			return next(ctx, d, obj, emit)
		}
	}
}
