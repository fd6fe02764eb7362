package tools

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// call answers tool/call/req:
//
//	find the tool ─ allowed? ─ arguments fit? ─ run it, bounded in time ─ cut its output ─ count the call ─ answer
func (s *Set) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*callResponse, error) {
	content, why := s.current(ctx, req.ToolName)
	t := content.tools[req.ToolName]
	switch {
	case t == nil && why != nil:
		return nil, why
	case t == nil:
		return nil, content.unknown(req.ToolName)
	}
	if t.Denied != "" {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "tool %q %s", req.ToolName, t.Denied)
	}
	args, err := t.fit(req.Arguments)
	if err != nil {
		return nil, err
	}
	if !t.quick {
		host.HandOff(ctx)
	}
	if !t.Detail.ReadOnly && s.services.KeepsCheckpoints() {
		if err := s.services.Checkpoint(ctx, t.changing(args)); err != nil {
			return nil, err
		}
	}
	start := s.now()
	out, data, err := s.result(ctx, t, args, emit)
	end := s.now()
	record := host.CallRecord{Kind: host.KindTool, Component: t.Def.Name, Correlation: req.CorrelationID, Duration: end.Sub(start), Ended: end}
	if err != nil {
		if !host.CutShort(ctx) {
			s.services.Record(ctx, record)
		}
		return nil, err
	}
	record.Success = !out.Failed
	s.services.Record(ctx, record)
	return &callResponse{tool: t.Def.Name, out: out, data: data, took: record.Duration, at: end}, nil
}

// changing says which call may change something: with the program that it runs, without its arguments,
// which may be secret, or the file that it changes.
func (t *entry) changing(args protocol.Object) string {
	what := "tool " + t.Def.Name
	val, _ := args.Get("command")
	if words, ok := val.Strings(); ok && len(words) > 0 {
		return what + " " + words[0]
	}
	val, _ = args.Get("path")
	if path, ok := val.Str(); ok && t.Files != nil && t.Files(args).Use == host.ChangesFiles {
		return what + " " + path
	}
	return what
}

// result runs a tool and encodes what it gave back.
func (s *Set) result(ctx context.Context, t *entry, args protocol.Object, emit host.Emitter) (*Outcome, protocol.Appender, error) {
	out, err := s.run(ctx, t, args, emit)
	if err != nil {
		return nil, nil, err
	}
	data, err := s.data(t, out)
	return out, data, err
}

// unknown is the answer to a name that this plugin does not have; the router
// adds the names that there are.
func (r *registry) unknown(name string) error {
	hint := schema.DidYouMean(name, r.names)
	if hint != "" {
		hint = "; " + hint
	}
	return host.NotOwner(protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q%s", shortened(name), hint).
		With("known", r.names))
}

// run runs a tool within its own bound of time; the host keeps the request's.
func (s *Set) run(ctx context.Context, t *entry, args protocol.Object, emit host.Emitter) (*Outcome, error) {
	own, limit := ctx, t.Timeout
	if limit > 0 && !host.Limited(ctx, t.Def.Name) {
		var cancel context.CancelFunc
		own, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	out, err := t.Call(own, args, emit)
	var known *protocol.Error
	switch {
	case err == nil && out == nil:
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave no result", t.Def.Name)
	case err == nil:
		return out, nil
	case ctx.Err() != nil: // the host stopped the request, and knows why
		return nil, err
	case limit > 0 && errors.Is(own.Err(), context.DeadlineExceeded):
		late := protocol.Errorf(protocol.CodeTimeout, "tool %q did not end within its own limit of %s", t.Def.Name, limit)
		if errors.As(err, &known) {
			late.Detail = known.Detail // what it had printed, for example
		}
		return nil, late
	case errors.As(err, &known):
		return nil, err
	}
	return nil, protocol.Errorf(protocol.CodeToolError, "tool %q: %w", t.Def.Name, err)
}

// data encodes what a tool gave back, and cuts it to the limit. An Appender
// knows its own bounds, and is encoded straight into the answer.
func (s *Set) data(t *entry, out *Outcome) (protocol.Appender, error) {
	if a, ok := out.Data.(protocol.Appender); ok {
		return a, nil
	}
	raw, err := protocol.AppendJSON(nil, out.Data)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave a result that is no JSON: %w", t.Def.Name, err)
	}
	return rawData(s.spill.limited(t.Def.Name, out, raw, s.maxOutput)), nil
}

// rawData is data that is encoded already.
type rawData []byte

// AppendJSON implements protocol.Appender.
func (d rawData) AppendJSON(dst []byte) ([]byte, error) { return append(dst, d...), nil }

// callResponse is the answer to a tool call, tool/call/resp, encoded by append:
// it is on the path of every call.
type callResponse struct {
	tool string
	out  *Outcome
	data protocol.Appender
	took time.Duration
	at   time.Time
}

// AppendJSON implements protocol.Appender.
func (r *callResponse) AppendJSON(dst []byte) ([]byte, error) {
	out := r.out
	dst = append(dst, `{"data":{"success":`...)
	dst = strconv.AppendBool(dst, !out.Failed)
	dst = append(dst, `,"tool_name":`...)
	dst = protocol.AppendString(dst, r.tool)
	dst = append(dst, `,"data":`...)
	dst, err := r.data.AppendJSON(dst)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"summary":`...)
	dst = appendText(dst, out.Summary)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, out.Truncated)
	dst = append(dst, `,"exit_code":`...)
	if out.ExitCode != nil {
		dst = strconv.AppendInt(dst, int64(*out.ExitCode), 10)
	} else {
		dst = append(dst, "null"...)
	}
	if out.Failed {
		dst = append(dst, `,"error":`...)
		dst = protocol.AppendString(dst, out.Failure)
		dst = append(dst, `,"error_code":"`+string(protocol.CodeToolError)+`"`...)
	} else {
		dst = append(dst, `,"error":null,"error_code":null`...)
	}
	dst = append(dst, `,"duration_ms":`...)
	dst = strconv.AppendInt(dst, r.took.Milliseconds(), 10)
	dst = append(dst, `,"events":[]},"created_at":`...)
	return append(protocol.AppendSeconds(dst, r.at), '}'), nil
}

// appendText appends a text, or null for none.
func appendText(dst []byte, text string) []byte {
	if text == "" {
		return append(dst, "null"...)
	}
	return protocol.AppendString(dst, text)
}

// seconds turns a number of seconds from the config into a duration; anything
// that is no positive number means no bound.
func seconds(s float64) time.Duration {
	if !(s > 0) || s > math.MaxInt64/float64(time.Second) {
		return 0
	}
	return time.Duration(s * float64(time.Second))
}
