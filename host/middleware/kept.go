package middleware

import (
	"context"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// maxLists is how many answers to tool/list are kept, each for requests with the same filters.
const maxLists = 4

// toolLists has the last answers to tool/list, encoded. They are valid as long as the tools are in the same state.
type toolLists struct {
	mu    sync.Mutex
	state []any              // the result of host.Services.ToolState; guarded by mu
	all   map[string]encoded // by the request's filters; guarded by mu
}

// encoded is an answer as JSON.
type encoded []byte

// AppendJSON implements protocol.Appender.
func (e encoded) AppendJSON(dst []byte) ([]byte, error) { return append(dst, e...), nil }

// keepTools answers a request for the list of tools with the bytes of the last answer, if nothing has changed. It
// does not keep the answer to a query, because its order depends on the weights.
func keepTools(services *host.Services, _ host.Target, next host.Handler) host.Handler {
	kept := &toolLists{all: make(map[string]encoded)}
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (any, error) {
		var req protocol.ToolListRequest
		if err := protocol.Decode(obj, nil, &req); err != nil || req.Query != "" || host.WantsOriginals(ctx) {
			return next(ctx, obj, emit)
		}
		state := services.ToolState(ctx)
		if state == nil {
			return next(ctx, obj, emit)
		}
		filters, err := protocol.AppendJSON(nil, &req)
		if err != nil {
			return nil, err
		}
		if known := kept.get(state, string(filters)); known != nil {
			return known, nil
		}
		answer, err := next(ctx, obj, emit)
		if err != nil {
			return nil, err
		}
		raw, err := protocol.AppendJSON(nil, answer)
		if err != nil {
			return nil, err
		}
		kept.put(state, string(filters), raw)
		return encoded(raw), nil
	}
}

// get returns the answer for some filters, or nil if there is none or the tools have changed.
func (l *toolLists) get(state []any, filters string) encoded {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(state, l.state) {
		return nil
	}
	return l.all[filters]
}

// put keeps an answer. It drops the answers of another state, and all answers if there are maxLists already.
func (l *toolLists) put(state []any, filters string, answer encoded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(state, l.state) || len(l.all) >= maxLists {
		clear(l.all)
	}
	l.state, l.all[filters] = state, answer
}
