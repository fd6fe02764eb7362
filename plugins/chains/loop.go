package chains

import (
	"context"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// maxIterations bounds what a while may say itself.
const maxIterations = 1_000_000

// checkWhile says what is wrong with a loop.
func (s *spec) checkWhile(at int, bad *problems) {
	if s.condition == "" {
		bad.at(at, "condition", "is required: an expression; while it holds the loop goes on, and it sees index and last")
	}
	switch {
	case s.maxIterations == 0:
		bad.at(at, "max_iterations", "is required: after so many iterations the loop fails if its condition still holds, such as 100")
	case s.maxIterations > maxIterations:
		bad.at(at, "max_iterations", "is more than %d", maxIterations)
	}
	if (s.name == "") == (len(s.nodes) == 0) {
		bad.at(at, "nodes", "a while has either nodes, the chain that it repeats, or name, that of a saved one")
	}
}

// repeat runs a node of kind while: its chain again and again, as long as the condition holds,
// which is looked at before each iteration. It gives the output of the last one.
func (r *run) repeat(ctx context.Context, n *node, outer *item) (last jsontext.Value, err error) {
	it := &item{loop: true}
	if outer != nil {
		*it = *outer
		it.loop = true
	}
	held := 0
	defer func() { r.drop(held) }()
	for it.iteration = 0; ; it.iteration++ {
		v, err := r.eval(ctx, n, it, "condition", n.condition)
		if err != nil || !jmes.Truthy(v) {
			return last, err
		}
		if it.iteration == n.most {
			return nil, protocol.Errorf(protocol.CodeChainNodeError, "its condition still holds after %d iterations, which is its max_iterations", n.most)
		}
		e := outer.event()
		e.iteration = it.iteration
		r.tell(n.id, phaseIteration, e)
		if last, err = r.iteration(ctx, n, it, outer); err != nil {
			return nil, err
		}
		r.drop(held)
		held, it.last = 0, nil
		if n.readsLast && last != nil {
			if it.last, held, err = r.decoded(last); err != nil {
				return nil, err
			}
		}
	}
}

// iteration runs the chain of a loop once.
func (r *run) iteration(ctx context.Context, n *node, it, outer *item) (jsontext.Value, error) {
	args, leave, err := r.given(ctx, n, it)
	if err != nil {
		return nil, err
	}
	defer leave()
	raw, err := r.nested(ctx, n, r.path(n, outer)+"["+strconv.Itoa(it.iteration)+"]", args)
	if known, ok := err.(*protocol.Error); ok && ctx.Err() == nil {
		own := *known
		own.Message = "iteration " + strconv.Itoa(it.iteration) + ": " + known.Message
		err = &own
	}
	return raw, err
}

// place is where an item stands, in the maps around too.
func (it *item) place() string { return it.around + "[" + strconv.Itoa(it.index) + "]" }

// path is what the ids of the nodes within a node begin with: its id, of an item of a map
// with its place, of a further attempt with its number.
func (r *run) path(n *node, it *item) string {
	path := n.id
	if it != nil && it.of != "" {
		path += it.place()
	}
	if it != nil && it.attempt > 1 {
		path += "~" + strconv.Itoa(it.attempt)
	}
	return path
}
