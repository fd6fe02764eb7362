package host

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// maxNesting is how deep requests that plugins make of other plugins may nest: a skill
// that calls a chain that calls the skill ends here.
const maxNesting = 16

// insideKey counts how deep a request is nested.
type insideKey struct{}

// Call makes a request of the host's plugins, as the agent whose request or session ctx
// belongs to would: routing, priorities, defaults, time limit and counting are the same.
// It takes no place of max_parallel and waits in no lane. req is encoded as the body of
// the message, the answer decoded into resp; a *protocol.Object or *jsontext.Value gets it
// as it is. Events go to emit, nil = nobody. The error is a *protocol.Error, or that of
// ctx when it ended first.
//
// Which capabilities the agent asked for in its handshake does not matter here: what a
// plugin may use is the config's business.
func Call(ctx context.Context, t protocol.Type, req, resp any, emit Emitter) error {
	h, ok := ctx.Value(hostKey{}).(*Host)
	if !ok {
		return protocol.Errorf(protocol.CodeRuntimeError, "%s needs a host", t)
	}
	body, err := protocol.AppendJSON(nil, req)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the request %s cannot be encoded: %w", t, err)
	}
	obj, err := protocol.ParseObject(body)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the request %s is no object: %w", t, err)
	}
	Detach(ctx)
	answer, err := h.inside(ctx, t, obj, emit)
	if err != nil {
		return err
	}
	return decodeAnswer(answer, resp)
}

// inside serves a request that is nested in another one, or in none.
func (h *Host) inside(ctx context.Context, t protocol.Type, obj protocol.Object, emit Emitter) (resp any, err error) {
	d := h.router.find([]byte(t))
	if d == nil || d.control != nil || d.fromHost || len(d.routes) == 0 {
		return nil, protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", t)
	}
	depth, _ := ctx.Value(insideKey{}).(int)
	if depth++; depth > maxNesting {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "%s is nested %d deep; something calls itself", t, depth)
	}
	ctx = context.WithValue(ctx, insideKey{}, depth)
	if limit := d.limitOf(obj); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, protocol.Errorf(protocol.CodeTimeout, "%s did not end within its timeout of %s", t, limit))
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
	resp, err = d.serve(ctx, obj, emit)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = wireError(err)
	}
	return resp, err
}

// limitOf gives the time limit of a request of this type; 0 = none.
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

// decodeAnswer gives the answer of a plugin in the form that the caller wants.
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
		return protocol.Errorf(protocol.CodeRuntimeError, "the plugin's answer is no object: %w", err)
	}
	if o, ok := resp.(*protocol.Object); ok {
		*o = obj
		return nil
	}
	return protocol.Decode(obj, nil, resp)
}

// Mute is an Emitter that nobody listens to.
type Mute struct{}

// Progress implements Emitter.
func (Mute) Progress(float64, string) {}

// Status implements Emitter.
func (Mute) Status(string) {}

// Log implements Emitter.
func (Mute) Log(string, string, string) {}

// Artifact implements Emitter.
func (Mute) Artifact(string, string, []byte, bool) {}

// Streaming implements Emitter.
func (Mute) Streaming() bool { return false }
