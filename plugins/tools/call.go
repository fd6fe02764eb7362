package tools

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// call answers tool/call/req:
//
//	find the tool ─ allowed? ─ arguments fit? ─ run it, bounded in time ─ cut its output ─ count the call ─ answer
func (p *Plugin) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*callResponse, error) {
	t := p.tools[req.ToolName]
	if t == nil {
		return nil, p.unknown(req.ToolName)
	}
	if t.denied != "" {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "tool %q %s", req.ToolName, t.denied)
	}
	args, err := t.params.check(req.Arguments)
	if err != nil {
		return nil, err
	}
	if t.slow {
		host.Detach(ctx)
	}
	start := p.env.Now()
	out, data, err := p.result(ctx, t, args, emit)
	end := p.env.Now()
	record := host.CallRecord{Kind: host.KindTool, Component: t.def.Name, Correlation: req.CorrelationID, Duration: end.Sub(start)}
	if err != nil {
		if !cutShort(ctx) {
			host.Record(ctx, record)
		}
		return nil, err
	}
	record.Success = !out.failed
	host.Record(ctx, record)
	return &callResponse{tool: t.def.Name, out: out, data: data, took: record.Duration, at: end}, nil
}

// cutShort tells whether the agent or the end of the host stopped a call, which says
// nothing of the tool. One whose time was up has failed.
func cutShort(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// result runs a tool and encodes what it gave back.
func (p *Plugin) result(ctx context.Context, t *entry, args protocol.Object, emit host.Emitter) (*outcome, protocol.Appender, error) {
	out, err := p.run(ctx, t, args, emit)
	if err != nil {
		return nil, nil, err
	}
	data, err := p.data(t, out)
	return out, data, err
}

// unknown is the answer to a name that this plugin does not have; the router
// adds the names that there are.
func (p *Plugin) unknown(name string) error {
	var hint string
	if near := nearest(name, p.names); len(near) > 0 && looksLike(name, near[0]) {
		hint = "; did you mean " + strconv.Quote(near[0]) + "?"
	}
	return host.NotMine(protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q%s", shortened(name), hint).
		With("known", p.names))
}

// run runs a tool within its own bound of time; the host keeps the request's.
func (p *Plugin) run(ctx context.Context, t *entry, args protocol.Object, emit host.Emitter) (*outcome, error) {
	own, limit := ctx, t.limit(ctx)
	if limit > 0 {
		var cancel context.CancelFunc
		own, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	out, err := t.call(own, args, emit)
	var known *protocol.Error
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil: // the host stopped the request, and knows why
		return nil, err
	case limit > 0 && errors.Is(own.Err(), context.DeadlineExceeded):
		late := protocol.Errorf(protocol.CodeTimeout, "tool %q did not end within its own limit of %s", t.def.Name, limit)
		if errors.As(err, &known) {
			late.Detail = known.Detail // what it had printed, for example
		}
		return nil, late
	case errors.As(err, &known):
		return nil, err
	}
	return nil, protocol.Errorf(protocol.CodeToolError, "tool %q: %w", t.def.Name, err)
}

// data encodes what a tool gave back, and cuts it to the limit. An Appender
// knows its own bounds, and is encoded straight into the answer.
func (p *Plugin) data(t *entry, out *outcome) (protocol.Appender, error) {
	if a, ok := out.data.(protocol.Appender); ok {
		return a, nil
	}
	raw, err := protocol.AppendJSON(nil, out.data)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave a result that is no JSON: %w", t.def.Name, err)
	}
	return rawData(p.spill.limited(t.def.Name, out, raw, p.maxOutput)), nil
}

// rawData is data that is encoded already.
type rawData []byte

// AppendJSON implements protocol.Appender.
func (d rawData) AppendJSON(dst []byte) ([]byte, error) { return append(dst, d...), nil }

// callResponse is the answer to a tool call, tool/call/resp, encoded by append:
// it is on the path of every call.
type callResponse struct {
	tool string
	out  *outcome
	data protocol.Appender
	took time.Duration
	at   time.Time
}

// AppendJSON implements protocol.Appender.
func (r *callResponse) AppendJSON(dst []byte) ([]byte, error) {
	out := r.out
	dst = append(dst, `{"data":{"success":`...)
	dst = strconv.AppendBool(dst, !out.failed)
	dst = append(dst, `,"tool_name":`...)
	dst = protocol.AppendString(dst, r.tool)
	dst = append(dst, `,"data":`...)
	dst, err := r.data.AppendJSON(dst)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"summary":`...)
	dst = appendText(dst, out.summary)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, out.truncated)
	dst = append(dst, `,"exit_code":`...)
	if out.exitCode != nil {
		dst = strconv.AppendInt(dst, int64(*out.exitCode), 10)
	} else {
		dst = append(dst, "null"...)
	}
	if out.failed {
		dst = append(dst, `,"error":`...)
		dst = protocol.AppendString(dst, out.failure)
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
