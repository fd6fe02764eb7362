package chains

import (
	"context"
	"errors"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// item is what a map's node is run for.
type item struct {
	value any
	index int
}

// view is what the expressions of a node see: the initial input, the outputs of the nodes
// that it waits for, and the item in a map's node.
type view struct {
	run  *run
	node *node
	item *item // nil = none
}

// Member implements jmes.Scope.
func (v *view) Member(name string) (any, bool) {
	if v.item != nil {
		switch name {
		case memberItem, memberItemSDK:
			return v.item.value, false
		case memberIndex, memberIndexSDK:
			return float64(v.item.index), false
		}
	}
	if name == memberInput {
		return v.run.input, false
	}
	if i, ok := v.run.byID[name]; ok {
		return v.run.outcomes[i].value, true
	}
	input, _ := v.run.input.(map[string]any)
	return input[name], false
}

// All implements jmes.Scope. Only what the node waits for is in it, so that it does not
// depend on who was quicker.
func (v *view) All() map[string]any {
	all := map[string]any{memberInput: v.run.input}
	for _, e := range v.node.in {
		all[v.run.nodes[e.node].id] = v.run.outcomes[e.node].value
	}
	if v.item != nil {
		all[memberItem], all[memberIndex] = v.item.value, float64(v.item.index)
	}
	return all
}

// eval evaluates one expression of a node.
func (r *run) eval(ctx context.Context, n *node, it *item, field string, e *jmes.Expr) (any, error) {
	v, err := e.Eval(ctx, &view{r, n, it})
	return v, r.explained(ctx, field, err)
}

// explained says which expression an error is of.
func (r *run) explained(ctx context.Context, field string, err error) error {
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	return protocol.Errorf(protocol.CodeChainNodeError, "the expression of %s %w", field, err)
}

// maxInput bounds what one node is called with, in bytes: a message bears no more.
const maxInput = 16 << 20

// arguments returns what a node passes on, as a JSON object.
func (r *run) arguments(ctx context.Context, n *node, it *item) ([]byte, error) {
	dst := make([]byte, len(n.constant), len(n.constant)+64*(len(n.mapped)+1))
	copy(dst, n.constant)
	if n.passItem {
		out, err := jmes.Append(append(dst, `"item":`...), it.value, maxInput)
		return append(out, '}'), r.explained(ctx, "the item", err)
	}
	for _, m := range n.mapped {
		v, err := r.eval(ctx, n, it, m.path, m.expr)
		if err != nil {
			return nil, err
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		if dst, err = jmes.Append(append(dst, m.key...), v, maxInput-len(dst)); err != nil {
			return nil, r.explained(ctx, m.path, err)
		}
	}
	return append(dst, '}'), nil
}
