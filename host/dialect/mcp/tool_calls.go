package mcp

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// quickCall makes the host.Work of a call of a tool straight from the line, without the go-sdk. A nil w with answered
// false = the call must go through the go-sdk. answered = the request was answered already.
//
//	tools/call of an initialised session ─► quickCall ─► host.Work ─► plugin ─► callDone ─► line
func (s *server) quickCall(m message, params protocol.Object, from origin) (w *host.Work, answered bool) {
	if !s.greeted.Load() || m.method != methodCallTool || from.batch != nil {
		return nil, false
	}
	args, meta, ok := plainParams(params)
	if !ok || from.name == "" {
		return nil, false
	}
	r := &request{origin: from, key: jsonrpc.Key(m.id)}
	r.id = from.id.Clone()
	if meta != nil {
		r.params = m.params.Clone()
		r.token = progressToken(r.params)
	}
	emit := s.emitter(r, from.name)
	obj, err := s.toolCall(from.name, args, emit.Streaming())
	if err != nil {
		return nil, false
	}
	r.span = host.Trace(s.ctx, m.method, from.name, func() string { return traceparent(m.params) })
	if err := s.pending.begin(r); err != nil {
		s.reply(r.origin, nil, toRPC(err))
		return nil, true
	}
	var values host.Valuer
	if meta != nil {
		said := &dialect.MCPCall{Tool: from.name, Meta: metaFor(r.params)}
		if r.token != nil {
			said.Progress = emit.exact
		}
		values = said
	}
	r.work = &host.Work{
		Type: protocol.TypeToolCallReq, Object: obj, Session: s.session.host, Limit: s.opts.CallTimeout,
		Events: emit, Values: values, Span: r.span,
		Answer:   func(resp any, err error) []byte { return s.callDone(r, resp, err) },
		Answered: s.pending.done,
	}
	return r.work, false
}

// plainParams reads the params of a call that has only a name, arguments and _meta, without a version. ok = false for
// any other call, such as one with a task or with a member that the go-sdk might refuse. meta is nil if there is none.
func plainParams(params protocol.Object) (args, meta jsontext.Value, ok bool) {
	for key, val := range params.All() {
		kind := val.Kind()
		switch string(key) {
		case "name":
			ok = kind == '"'
		case "arguments":
			if kind != '{' && kind != 'n' {
				return nil, nil, false
			}
			if kind == '{' {
				args = jsontext.Value(val)
			}
		case "_meta":
			if kind != '{' {
				return nil, nil, false
			}
			meta = jsontext.Value(val)
		default:
			return nil, nil, false
		}
	}
	return args, meta, ok && (meta == nil || readMeta(params.Raw()) == nil)
}

// toolCall makes the A2E request that calls a tool.
func (s *server) toolCall(name string, args jsontext.Value, streaming bool) (protocol.Object, error) {
	raw := protocol.AppendString(append(make([]byte, 0, len(name)+len(args)+80), `{"tool_name":`...), name)
	raw = append(raw, `,"arguments":`...)
	if args == nil {
		args = jsontext.Value("{}")
	}
	raw = append(raw, args...)
	if streaming {
		raw = append(raw, `,"streaming":true`...)
	}
	return protocol.ParseObject(append(raw, '}'))
}

// callDone returns the line of the answer to a call.
func (s *server) callDone(r *request, resp any, err error) []byte {
	var out *callResult
	if err == nil {
		out, err = s.toolAnswer(r.name, resp)
	} else if !errors.Is(err, host.ErrCancelled) && !errors.Is(err, host.ErrShutdown) {
		out, err = failedCall(err)
	}
	if err != nil {
		return s.finish(r, nil, toRPC(err))
	}
	return s.finish(r, out.text(), nil)
}

// toolAnswer converts the answer of a tool to a result of MCP.
func (s *server) toolAnswer(name string, answer any) (*callResult, error) {
	if known, ok := answer.(host.ToolAnswer); ok {
		res, detail, err := known.ToolResult()
		if err != nil {
			return nil, err
		}
		return toolResult(res, detail), nil
	}
	raw, err := protocol.AppendJSON(nil, answer)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the answer cannot be encoded: %w", err)
	}
	var resp protocol.ToolCallResponse
	if err := read(raw, &resp); err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the answer cannot be read: %w", err)
	}
	detail, _ := host.ServicesOf(s.session.ctx).Tool(name)
	return toolResult(&resp.Data, &detail), nil
}

// finish ends a request that the host's scheduler ran, and returns the line of its answer; nil = the request was
// cancelled, or its answer is part of a batch.
func (s *server) finish(r *request, result []byte, e *rpcError) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return nil
	}
	r.answered = true
	s.pending.end(r)
	if r.cancelled.Load() {
		s.audit(r.origin, toRPC(errCancelled), 0)
		r.batch.add(s, nil)
		return nil
	}
	line := s.line(r.origin, result, e)
	s.audit(r.origin, e, len(line))
	if r.batch != nil {
		r.batch.add(s, line)
		return nil
	}
	return append(line, '\n')
}

// isQuickList reports whether a request lists tools and its params have only a cursor and _meta, without a version.
func (s *server) isQuickList(r *request) bool {
	if r.method != methodTools || r.meta != nil {
		return false
	}
	obj, err := protocol.ParseObject(r.params)
	plain := true
	for key, val := range obj.All() {
		switch kind := val.Kind(); string(key) {
		case "cursor":
			plain = plain && kind == '"'
		case "_meta":
			plain = plain && kind == '{'
		default:
			plain = false
		}
	}
	return plain && (err == nil || r.params == nil)
}

// maxQuickLists is how many lists may be under way without a turn.
const maxQuickLists = 8

// needsNoTurn reports whether a list may run without a turn: the table of tools is likely to be known, and few other
// lists are under way. Then the goroutine that reads the input answers it, and it does not wait for the list before it.
func (s *server) needsNoTurn(w *host.Work) bool {
	if s.listed.Load() == nil || s.quickLists.Load() >= maxQuickLists {
		return false
	}
	s.quickLists.Add(1)
	w.Answered = func() {
		s.quickLists.Add(-1)
		s.pending.done()
	}
	return true
}

// quickTools answers tools/list without the go-sdk.
func (s *server) quickTools(ctx context.Context, cursor string) (any, error) {
	some, next, err := s.toolPage(host.InSession(ctx, s.session.host), cursor)
	if err != nil {
		return nil, err
	}
	size := len(`{"tools":[],"nextCursor":}`) + 2*len(next)
	for _, t := range some {
		size += len(t.text) + 1
	}
	out := append(make([]byte, 0, size), `{"tools":[`...)
	for i, t := range some {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, t.text...)
	}
	out = append(out, ']')
	if next != "" {
		out = protocol.AppendString(append(out, `,"nextCursor":`...), next)
	}
	return encoded{result: append(out, '}')}, nil
}
