package chains

import (
	"bytes"
	"context"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// mapRun is one run of a map: its node runs for each item of the list.
type mapRun struct {
	*run
	ctx     context.Context
	cancel  context.CancelCauseFunc
	node    *node
	around  string // place in the maps around, such as "[2]"
	list    []any
	results []jsontext.Value // nil = null
	group   group

	begun, ended int   // number of items; guarded by group.mu, as is broke
	broke        error // the error of the item that ended the map
}

// mapItems runs the node of a map for each item of its list, and returns the list of their outputs, in the
// order of the items. outer is the item of the map around it.
func (r *run) mapItems(ctx context.Context, n *node, outer *item) (jsontext.Value, error) {
	v, err := r.eval(ctx, n, outer, "items_path", n.items)
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	switch most := r.plugin.opts.MaxItems; {
	case !ok:
		return nil, protocol.Errorf(protocol.CodeChainNodeError, "items_path gives %s; a map needs an array",
			jmes.TypeName(v))
	case len(list) > most:
		return nil, protocol.Errorf(protocol.CodeChainNodeError, "items_path gives %s; a map takes %d (max_items in "+
			"the config allows more)", protocol.Count(len(list), "item"), most)
	case len(list) == 0:
		return jsontext.Value("[]"), nil
	}
	m := &mapRun{run: r, node: n, list: list, results: make([]jsontext.Value, len(list))}
	if outer != nil && outer.of != "" {
		m.around = outer.place()
	}
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	defer m.cancel(nil)
	r.mu.Lock()
	r.ran[r.byID[n.template.id]] = true
	r.mu.Unlock()
	m.group = group{
		pool: r.pool, most: r.plugin.opts.MaxParallel, next: m.nextLocked, do: m.item,
		more: func() bool { return m.begun < len(m.list) },
	}
	if n.most > 0 {
		m.group.most = min(m.group.most, n.most)
	}
	m.group.run()
	defer func() { m.drop(m.held()) }()
	switch {
	case ctx.Err() != nil && m.ended < len(list):
		return nil, context.Cause(ctx)
	case m.broke != nil:
		return nil, m.broke
	}
	if err := m.plugin.memory.take(m.held()); err != nil { // for a moment they are in memory twice
		return nil, err
	}
	defer m.plugin.memory.give(m.held())
	return m.joined(), nil
}

// nextLocked returns the index of the next item.
func (m *mapRun) nextLocked() (int, bool) {
	if m.broke != nil || m.begun == len(m.list) || m.ctx.Err() != nil {
		return 0, false
	}
	m.begun++
	return m.begun - 1, true
}

// item runs the node for one item.
func (m *mapRun) item(i int) {
	raw, err := m.one(i)
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.results[i] = raw
	m.ended++
	if err != nil && m.broke == nil {
		m.broke = err
		m.cancel(protocol.Errorf(protocol.CodeChainNodeError, "item %d failed", i))
	}
}

// one returns the output for one item. An error ends the map.
func (m *mapRun) one(i int) (raw jsontext.Value, err error) {
	t := m.node.template
	it := &item{of: m.node.id, around: m.around, value: m.list[i], index: i}
	about := it.event()
	start := m.plugin.env.Now()
	defer func() {
		if v := recover(); v != nil {
			err = m.panicked(t, v)
		}
		if err == nil {
			return
		}
		raw, about.took = nil, m.since(start)
		err = m.failed(t, it, about, err)
	}()
	switch wanted, err := m.wanted(m.ctx, t, it); {
	case err != nil:
		return nil, err
	case !wanted:
		m.tell(t.id, phaseSkip, about)
		return nil, nil
	}
	m.tell(t.id, phaseStart, about)
	if raw, err = m.recorded(m.ctx, t, it); err == nil {
		err = m.keep(len(raw) + resultBytes)
	}
	if err == nil {
		about.output, about.took, about.truncated = raw, m.since(start), m.truncated(m.place(t, it))
		m.tell(t.id, phaseDone, about)
	}
	return raw, err
}

// failed reports that an item failed. It returns the error if that ends the map, else nil.
func (m *mapRun) failed(t *node, it *item, about event, err error) error {
	if m.ctx.Err() != nil {
		about.err = "stopped: " + reason(context.Cause(m.ctx))
		m.tell(t.id, phaseError, about)
		return context.Cause(m.ctx)
	}
	known := nodeError(err)
	about.err = known.Message
	m.tell(t.id, phaseError, about)
	m.recordFailure(t, it, known, t.skips || m.node.skips)
	if t.skips || m.node.skips {
		m.fails(t.id, it.index, known)
		return nil
	}
	return within(known, "item %d: ", it.index)
}

// resultBytes is the memory that the result of an item takes besides its text: its place in the list, and
// the rounding of the allocation.
const resultBytes = 40

// held returns how many bytes the results take.
func (m *mapRun) held() (n int) {
	for _, raw := range m.results {
		if raw != nil {
			n += len(raw) + resultBytes
		}
	}
	return n
}

// joined returns the results as one list.
func (m *mapRun) joined() jsontext.Value {
	parts := make([][]byte, len(m.results))
	for i, raw := range m.results {
		if parts[i] = raw; raw == nil {
			parts[i] = []byte("null")
		}
	}
	return slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]"))
}

// maxIterations is the largest max_iterations of a while.
const maxIterations = 1_000_000

// checkWhile notes what is wrong with a node of kind while.
func (s *spec) checkWhile(at int, bad *problems) {
	if s.condition == "" {
		bad.at(at, "condition", "is required: an expression; while it holds the loop goes on, and it sees index and last")
	}
	switch {
	case s.maxIterations == 0:
		bad.at(at, "max_iterations", "is required: after so many iterations the loop fails if its condition still "+
			"holds, such as 100")
	case s.maxIterations > maxIterations:
		bad.at(at, "max_iterations", "is more than %d", maxIterations)
	}
	if (s.name == "") == (len(s.nodes) == 0) {
		bad.at(at, "nodes", "a while has either nodes, the chain that it repeats, or name, that of a saved one")
	}
}

// repeat runs a node of kind while: it runs the chain of the node as long as the condition holds, which is
// checked before each iteration. It returns the output of the last iteration.
func (r *run) repeat(ctx context.Context, n *node, outer *item) (last jsontext.Value, err error) {
	it := &item{loop: true}
	if outer != nil {
		*it = *outer
		it.loop = true
	}
	held := 0
	defer func() { r.drop(held) }()
	for it.iteration = 0; ; it.iteration++ {
		if holds, err := r.holds(ctx, n, it); !holds {
			return last, err
		}
		if it.iteration == n.most {
			return nil, protocol.Errorf(protocol.CodeChainNodeError, "its condition still holds after %s, which is "+
				"its max_iterations", protocol.Count(n.most, "iteration"))
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
			if it.last, held, err = r.decode(last); err != nil {
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
		err = within(known, "iteration %d: ", it.iteration)
	}
	return raw, err
}

// place returns the index of an item, after those of the items around it, as in "[2][0]".
func (it *item) place() string { return it.around + "[" + strconv.Itoa(it.index) + "]" }

// place returns the path of a node in its tree, the same for every attempt.
func (r *run) place(n *node, it *item) string {
	path := r.prefix + n.id
	if it != nil && it.of != "" {
		path += it.place()
	}
	return path
}

// path returns the id of a node, with the place of an item of a map, and with ~ and the number of a
// further attempt. The ids of the nodes within the node begin with it.
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
