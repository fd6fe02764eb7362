package mcp

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

const (
	// grace is how long a handler that was stopped may take to answer for itself.
	grace = 250 * time.Millisecond
	// listTimeout bounds a list.
	listTimeout = time.Minute
	// noTimeout is that of what lasts as long as the client.
	noTimeout = 100 * 365 * 24 * time.Hour
	// maxAbandoned is how many handlers that do not stop are borne before new requests are
	// refused: each may hold a processor and what it works on.
	maxAbandoned = 100
)

// handler answers the requests of one method.
type handler func(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error)

// handlers lists the methods that the go-sdk does not answer itself.
func (s *server) handlers() map[string]handler {
	return map[string]handler{
		methodTools:        s.listTools,
		methodCallTool:     s.callTool,
		methodResources:    s.listResources,
		methodTemplates:    s.listTemplates,
		methodReadResource: s.readResource,
		methodSubscribe:    s.subscribe,
		methodUnsubscribe:  s.unsubscribe,
		methodComplete:     s.forward,
		methodListen:       s.listen,
		methodGetTask:      s.forward,
		methodTaskResult:   s.forward,
		methodTasks:        s.forward,
		methodCancelTask:   s.forward,
		methodPrompts:      s.listPrompts,
		methodGetPrompt:    s.getPrompt,
	}
}

// receive is the go-sdk's middleware: it puts the handlers in place of the go-sdk's own.
func (s *server) receive(next mcp.MethodHandler) mcp.MethodHandler {
	all := s.handlers()
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		handle, r := all[method], s.requestOf(req)
		if handle == nil || r == nil {
			return next(ctx, method, req)
		}
		res, err := s.run(ctx, r, func(ctx context.Context) (mcp.Result, error) { return handle(ctx, r, req.GetParams()) })
		if c, ok := res.(interface{ complete() }); ok && err == nil && r.meta != nil {
			c.complete()
		}
		return res, err
	}
}

// outcome is what came of a handler.
type outcome struct {
	result mcp.Result
	err    error
}

// run runs a handler on a goroutine of its own: one that panics, ends its goroutine or
// does not stop harms only its own request.
func (s *server) run(ctx context.Context, r *request, handle func(context.Context) (mcp.Result, error)) (mcp.Result, error) {
	if n := s.abandoned.Load(); n >= maxAbandoned {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d requests did not stop when their time was up; restart the host", n)
	}
	if r.meta != nil && asksBack(r.method) {
		return s.inRounds(ctx, r, handle)
	}
	limit := map[laneName]time.Duration{laneLists: listTimeout, laneCalls: s.opts.CallTimeout + grace, laneListen: noTimeout}[r.lane]
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	s.desk.attach(r, stop)
	done := make(chan outcome, 1)
	s.start(ctx, r.method, done, handle)
	out := s.wait(ctx, done)
	if cause := context.Cause(ctx); errors.Is(cause, errCancelled) || errors.Is(cause, errShutdown) {
		return nil, cause
	}
	return out.result, out.err
}

// start runs a handler, whose outcome done has room for.
func (s *server) start(ctx context.Context, method string, done chan<- outcome, handle func(context.Context) (mcp.Result, error)) {
	go func() {
		out := outcome{err: protocol.Errorf(protocol.CodeRuntimeError, "the plugin broke off %s", method)} // if handle ends the goroutine
		defer func() {
			if v := recover(); v != nil {
				s.opts.Log.Error().Str("method", method).Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a handler panicked")
				out = outcome{err: protocol.Errorf(protocol.CodeRuntimeError, "the host failed while it handled %s; its log has the details", method)}
			}
			done <- out
		}()
		result, err := handle(ctx)
		out = outcome{result, err}
	}()
}

// wait waits for a handler, but not much longer than its context.
func (s *server) wait(ctx context.Context, done <-chan outcome) outcome {
	select {
	case out := <-done:
		return out
	case <-ctx.Done():
	}
	clock := time.NewTimer(grace)
	defer clock.Stop()
	select {
	case out := <-done:
		return out
	case <-clock.C:
	}
	s.abandoned.Add(1)
	go func() { // ends with the handler
		<-done
		s.abandoned.Add(-1)
	}()
	return outcome{err: context.Cause(ctx)}
}
