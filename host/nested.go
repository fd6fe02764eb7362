package host

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/observe/trace"
	"a2e/protocol"
)

// maxNesting is how deep requests that plugins make of other plugins may nest: a skill
// that calls a chain that calls the skill ends here.
const maxNesting = 16

// nestedKey is the context key of the innermost nested request.
type nestedKey struct{}

// nested is a request that a plugin makes, within another request or within none.
type nested struct {
	depth int // from 1
	typ   protocol.Type
	stop  context.CancelCauseFunc
}

// nestedFrom returns the innermost nested request of a context, or nil if there is none.
func nestedFrom(ctx context.Context) *nested {
	n, _ := ctx.Value(nestedKey{}).(*nested)
	return n
}

// nest sends a request to the plugins, for Services.Call.
func (h *Host) nest(ctx context.Context, t protocol.Type, req, resp any, emit Emitter) error {
	body, err := protocol.AppendJSON(nil, req)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the request %s cannot be encoded: %w", t, err)
	}
	obj, err := protocol.ParseObject(body)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the request %s is not an object: %w", t, err)
	}
	HandOff(ctx)
	return h.serveNested(ctx, t, obj, resp, emit)
}

// serveNested serves a request of Services.Call.
func (h *Host) serveNested(ctx context.Context, t protocol.Type, obj protocol.Object, resp any,
	emit Emitter,
) (err error) {
	d := h.router.find([]byte(t))
	if d == nil || d.control != nil || d.fromHost || len(d.routes) == 0 {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", t)
	}
	n := &nested{depth: 1, typ: t}
	if outer := nestedFrom(ctx); outer != nil {
		n.depth += outer.depth
	}
	if n.depth > maxNesting {
		return protocol.Errorf(protocol.CodeRuntimeError, "%s is nested %d deep; something calls itself", t, n.depth)
	}
	traced := trace.Child(ctx, trace.Internal, string(t), subject(obj))
	defer func() { trace.End(traced, codeOrNone(err)) }()
	ctx, n.stop = context.WithCancelCause(context.WithValue(traced, nestedKey{}, n))
	defer n.stop(nil)
	if limit := d.limitOf(obj); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, protocol.Errorf(protocol.CodeTimeout,
			"%s did not end within its timeout of %s", t, limit))
		defer cancel()
	}
	if emit == nil {
		emit = Mute{}
	}
	defer func() {
		if v := recover(); v != nil {
			h.logPanic(string(t), v)
			err = protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it handled %s", t)
		}
	}()
	answer, err := d.handler(ctx, obj, emit)
	if err == nil {
		return decodeAnswer(answer, resp) // a plugin's types may panic here too
	}
	var own *protocol.Error
	if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, errCancelled) || !errors.As(err, &own)) {
		err = cause // an error of the plugin itself may say more about what it did in its time
	}
	if e := wireError(err); e != nil {
		return e
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "the plugin's answer to %s is an error that says nothing", t)
}

func codeOrNone(err error) string {
	if err == nil {
		return ""
	}
	return string(codeOf(err))
}

// limitOf returns the time limit of a request of this type; 0 = none.
func (d *destination) limitOf(obj protocol.Object) time.Duration {
	if d.timeout == 0 {
		return 0
	}
	if v, ok := obj.Get("timeout"); ok {
		if seconds, ok := v.Int(); ok && seconds > 0 {
			return time.Duration(min(seconds, maxTimeout)) * time.Second
		}
	}
	return d.timeout
}

// decodeAnswer decodes the answer of a plugin into resp. If resp is nil, it does nothing.
func decodeAnswer(answer, resp any) error {
	if resp == nil {
		return nil
	}
	raw, err := protocol.AppendJSON(nil, answer)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the plugin's answer cannot be encoded: %w", err)
	}
	if v, ok := resp.(*jsontext.Value); ok {
		*v = raw
		return nil
	}
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the plugin's answer is not an object: %w", err)
	}
	if o, ok := resp.(*protocol.Object); ok {
		*o = obj
		return nil
	}
	return protocol.Decode(obj, nil, resp)
}
