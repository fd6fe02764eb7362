package chains

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// execute runs one node, from its `start` event to the event of its end.
func (r *run) execute(i int) (o outcome) {
	n := r.nodes[i]
	start := r.plugin.env.Now()
	defer func() {
		if v := recover(); v != nil {
			o = r.fail(n, start, r.panicked(n, v))
		}
	}()
	switch wanted, err := r.wanted(r.ctx, n, nil); {
	case err != nil:
		return r.fail(n, start, err)
	case !wanted:
		r.tell(n.id, phaseSkip, event{})
		return outcome{state: skipped}
	}
	r.tell(n.id, phaseStart, event{})
	raw, err := r.recorded(r.ctx, n, nil)
	if err == nil {
		o, err = r.taken(n, raw)
	}
	if err != nil {
		return r.fail(n, start, err)
	}
	r.tell(n.id, phaseDone, event{output: raw, took: r.since(start), truncated: r.truncated(r.place(n, nil))})
	return o
}

// wanted reports whether a node should run: the condition of a branch or a loop does not decide about that.
func (r *run) wanted(ctx context.Context, n *node, it *item) (bool, error) {
	if n.condition == nil || n.kind == KindBranch || n.kind == KindWhile {
		return true, nil
	}
	return r.holds(ctx, n, it)
}

// holds reports whether the condition of a node is true.
func (r *run) holds(ctx context.Context, n *node, it *item) (bool, error) {
	v, err := r.eval(ctx, n, it, "condition", n.condition)
	return err == nil && jmes.Truthy(v), err
}

func (r *run) since(start time.Time) time.Duration { return r.plugin.env.Now().Sub(start) }

// taken makes the outcome of a node from its output, and counts its memory.
func (r *run) taken(n *node, raw jsontext.Value) (outcome, error) {
	o := outcome{state: done, raw: raw}
	if n.kind == KindBranch {
		o.side = EdgeNext
		if isTrue := string(raw) == "true"; isTrue && n.ways[0] {
			o.side = EdgeTrue
		} else if !isTrue && n.ways[1] {
			o.side = EdgeFalse
		}
	}
	if err := r.keep(len(raw)); err != nil {
		return o, err
	}
	if !n.named || raw == nil {
		return o, nil
	}
	v, _, err := r.decode(raw)
	if err != nil {
		r.drop(len(raw))
	}
	o.value = v
	return o, err
}

// fail returns the outcome of a node that failed, and reports the failure.
func (r *run) fail(n *node, start time.Time, err error) outcome {
	took := r.since(start)
	if r.ctx.Err() != nil {
		r.tell(n.id, phaseError, event{err: "stopped: " + reason(context.Cause(r.ctx)), took: took})
		return outcome{state: cut}
	}
	known := nodeError(err)
	r.tell(n.id, phaseError, event{err: known.Message, took: took})
	r.recordFailure(n, nil, known, n.skips || n.catches(known.Code))
	if n.catches(known.Code) {
		return outcome{state: jumped, err: known}
	}
	r.fails(n.id, -1, known)
	if n.skips {
		return outcome{state: tolerated}
	}
	return outcome{state: broken, err: known}
}

// reason returns the text of an error without its code.
func reason(err error) string {
	known, ok := errors.AsType[*protocol.Error](err)
	switch {
	case ok:
		return known.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "the time of the chain was up"
	case errors.Is(err, context.Canceled):
		return "the chain was stopped"
	case err == nil:
		return "the chain ended"
	}
	return err.Error()
}

// nodeError returns an error as answers report it.
func nodeError(err error) *protocol.Error {
	known, ok := errors.AsType[*protocol.Error](err)
	switch {
	case ok:
		return known
	case errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "the time for the node was up")
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
}

// panicked logs a panic and returns the error of the node.
func (r *run) panicked(n *node, v any) error {
	r.plugin.env.Log.Error().Str("plugin", r.plugin.name).Str("node", n.id).Str("panic", fmt.Sprint(v)).Bytes("stack",
		debug.Stack()).Msg("a node of a chain panicked")
	return protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it ran the node; the host's log "+
		"has the details")
}

// perform runs a node and returns its output: the cached one, or that of the attempt that succeeded.
func (r *run) perform(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	if n.cache != nil {
		return r.cached(ctx, n, it)
	}
	return r.tried(ctx, n, it)
}

// once makes one attempt to run a node, within the node's own timeout.
func (r *run) once(ctx context.Context, n *node, it *item) (raw jsontext.Value, err error) {
	if n.timeout > 0 {
		own, cancel := context.WithTimeoutCause(ctx, n.timeout,
			protocol.Errorf(protocol.CodeTimeout, "the node did not end within its timeout of %s; a longer timeout "+
				"of the node gives it more", n.timeout))
		defer cancel()
		defer func() {
			if err != nil && own.Err() != nil {
				err = context.Cause(own)
			}
		}()
		return r.dispatch(own, n, it)
	}
	return r.dispatch(ctx, n, it)
}

func (r *run) dispatch(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	switch n.kind {
	case KindBranch:
		holds, err := r.holds(ctx, n, it)
		if err != nil {
			return nil, err
		}
		return strconv.AppendBool(nil, holds), nil
	case KindMap:
		return r.mapItems(ctx, n, it)
	case KindWait:
		return r.waits(ctx, n, it)
	case KindWhile:
		return r.repeat(ctx, n, it)
	case KindApprove:
		return r.approval(ctx, n, it)
	}
	return r.call(ctx, n, it)
}

// nested runs the chain within a node; the ids of the nodes of that chain begin with path.
func (r *run) nested(ctx context.Context, n *node, path string, args []byte) (jsontext.Value, error) {
	input, err := merged(n.chain.preset, args)
	if err != nil {
		return nil, err
	}
	if n.chain.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, n.chain.timeout,
			protocol.Errorf(protocol.CodeTimeout, "the saved chain %q did not end within its timeout of %s",
				n.chain.name, n.chain.timeout))
		defer cancel()
	}
	sub := newRun(r.tree, n.chain, r.prefix+path+"/", r.plugin.env.Now())
	defer sub.dropAll()
	if err := sub.begin(ctx, input); err != nil {
		return nil, err
	}
	sub.work()
	if err := sub.ended(ctx); err != nil {
		return nil, err
	}
	if n.chain.name != "" {
		r.record(r.root, n.chain.name, sub.success(), r.since(sub.start))
	}
	if f := sub.broke; f != nil {
		return nil, inner(n.chain.name, f)
	}
	for _, f := range sub.failures.first {
		r.fails(path+"/"+f.id, f.item, f.err)
	}
	for _, h := range sub.handled.first {
		r.settled(handled{failure{path + "/" + h.id, h.item, h.err}, path + "/" + h.by})
	}
	out, whole := sub.final(r.plugin.opts.MaxStateBytes)
	if !whole {
		return nil, r.full()
	}
	return out, nil
}

// inner returns the error of a node of an inner chain; its message names the node and the chain.
func inner(name string, f *failure) error {
	err := within(f.err, "node %q: ", f.id)
	if name != "" {
		err = within(err, "the saved chain %q: ", name)
	}
	return err
}

// within returns an error with a text before its message that says where it happened.
func within(err *protocol.Error, format string, args ...any) *protocol.Error {
	own := *err
	own.Message = fmt.Sprintf(format, args...) + err.Message
	return &own
}

// merged returns the object args with the members of preset that args does not have. It may write into
// args.
func merged(preset protocol.Object, args []byte) ([]byte, error) {
	if preset.Len() == 0 {
		return args, nil
	}
	own, err := protocol.ParseObject(args)
	if err != nil {
		return nil, err
	}
	dst := args[:len(args)-1]
	for key, val := range preset.All() {
		if _, there := own.Get(string(key)); there {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(protocol.AppendString(dst, key), ':'), val...)
	}
	return append(dst, '}'), nil
}
