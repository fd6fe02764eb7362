package chains

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// tree is what a request's chain and the saved chains that it runs have in common.
type tree struct {
	plugin      *Plugin
	root        context.Context // of the request: events belong to it
	pool        *pool
	correlation string       // what the nodes' calls carry begins with it; "" = they carry none
	bytes       atomic.Int64 // that outputs take
	calls       calls        // under way
	journal     *journal     // nil = it has none

	mu     sync.Mutex      // guards the fields below
	cached listing         // nodes whose outputs were cached
	cuts   listing         // nodes whose outputs are only a part
	isCut  map[string]bool // the same by their paths, all of them
}

// maxListedIDs is how many nodes of one sort an answer lists.
const maxListedIDs = 100

// listing holds the first ids of nodes, and counts all.
type listing struct {
	ids   []string
	total int
}

func (l *listing) add(id string) {
	if l.total++; len(l.ids) < maxListedIDs {
		l.ids = append(l.ids, id)
	}
}

// hit notes that the output of a node was cached.
func (t *tree) hit(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cached.add(path)
}

// truncate notes that the output of a node is only a part.
func (t *tree) truncate(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isCut[path] {
		return
	}
	if t.isCut == nil {
		t.isCut = make(map[string]bool)
	}
	t.isCut[path] = true
	t.cuts.add(path)
}

// truncated reports whether the output of a node is only a part.
func (t *tree) truncated(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isCut[path]
}

func newTree(ctx context.Context, p *Plugin, req *protocol.ChainRequest) *tree {
	return &tree{
		plugin: p, root: ctx, pool: &pool{free: p.opts.MaxParallel - 1},
		correlation: cmp.Or(req.CorrelationID, req.ChainID), calls: newCalls(),
	}
}

// record counts one run of a chain.
func (t *tree) record(ctx context.Context, name string, ok bool, took time.Duration) {
	t.plugin.services.Record(ctx, host.CallRecord{
		Kind: host.KindChain, Component: name, Correlation: t.correlation,
		Success: ok, Duration: took,
	})
}

// state is where a node is.
type state uint8

const (
	waiting state = iota
	running
	done
	tolerated // it failed, and the chain goes on with null
	jumped    // it failed, and another node runs in its place
	skipped
	broken // it failed, and with it the chain
	cut    // the chain ended while it ran
)

// outcome is what became of a node.
type outcome struct {
	state state
	raw   jsontext.Value  // its output; nil = null
	value any             // the same, where an expression reads it
	side  EdgeKind        // of a branch: the way that it took; EdgeNext = neither of its two
	err   *protocol.Error // of one that is broken or jumped
}

// failure is one error of a node, or of an item of a map.
type failure struct {
	id   string
	item int // -1 = of the node itself
	err  *protocol.Error
}

// maxFailures is how many failures an answer tells of.
const maxFailures = 100

// run is one run of a plan. Outputs are written once, by whoever ran the node, before
// those that wait for it begin: reading them needs no lock.
type run struct {
	*tree
	*plan
	prefix string // of node ids in events and correlations: those of the nodes around
	start  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	group  group
	input  any          // decoded, where an expression reads it
	own    atomic.Int64 // bytes that the outputs of this run take
	ran    []bool       // templates of maps that ran; guarded by mu

	outcomes []outcome
	progress []progress // guarded by group.mu, as what follows
	ready    []int
	head     int // of ready
	stopped  bool
	broke    *failure // what stopped it; nil = it came to its end

	mu       sync.Mutex // guards the fields below
	failures []failure
	failed   int // all of them
	handled  []handled
	caught   int // all of them
}

// progress is what a node still waits for.
type progress struct {
	waits int
	led   bool // one that leads here took this way
	fed   bool // one that it waits for has run
}

func newRun(t *tree, pl *plan, prefix string, start time.Time) *run {
	return &run{
		tree: t, plan: pl, prefix: prefix, start: start,
		outcomes: make([]outcome, len(pl.nodes)), progress: make([]progress, len(pl.nodes)),
		ran: make([]bool, len(pl.nodes)),
	}
}

// begin takes the initial input in, an object.
func (r *run) begin(ctx context.Context, input []byte) error {
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if r.inputs {
		v, err := r.decode(input)
		if err != nil {
			r.cancel(nil)
			return err
		}
		r.input = v
	}
	for i, n := range r.nodes {
		if r.progress[i].waits = len(n.in); len(n.in) == 0 && !n.isItem {
			r.ready = append(r.ready, i)
		}
	}
	return nil
}

// keep counts bytes that the chain holds in memory, unless they are too many.
func (r *run) keep(n int) error {
	if r.bytes.Add(int64(n)) > int64(r.plugin.opts.MaxStateBytes) {
		r.bytes.Add(-int64(n))
		return r.full()
	}
	if err := r.plugin.memory.take(n); err != nil {
		r.bytes.Add(-int64(n))
		return err
	}
	r.own.Add(int64(n))
	return nil
}

// drop counts bytes that it does not hold any more.
func (r *run) drop(n int) {
	r.own.Add(-int64(n))
	r.bytes.Add(-int64(n))
	r.plugin.memory.give(n)
}

// dropAll lets go of all that a run held which has ended.
func (r *run) dropAll() { r.drop(int(r.own.Load())) }

func (r *run) full() error {
	return protocol.Errorf(protocol.CodeChainNodeError, "the values of the chain take more than %d bytes together; "+
		"pass less from node to node, or write it to files (max_state_bytes in the config allows more)",
		r.plugin.opts.MaxStateBytes)
}

// decode makes a value for expressions of JSON, and keeps it.
func (r *run) decode(raw []byte) (any, error) {
	v, _, err := r.decoded(raw)
	return v, err
}

// decoded is decode, which tells also how many bytes it keeps.
func (r *run) decoded(raw []byte) (v any, cost int, err error) {
	v, cost, err = jmes.Decode(raw, int(int64(r.plugin.opts.MaxStateBytes)-r.bytes.Load()))
	switch {
	case errors.Is(err, jmes.ErrTooLarge):
		return nil, 0, r.full()
	case err != nil:
		return nil, 0, protocol.Errorf(protocol.CodeChainNodeError, "its output is not JSON: %w", err)
	}
	if err := r.keep(cost); err != nil {
		return nil, 0, err
	}
	return v, cost, nil
}

// work runs the nodes, and comes back when none runs any more.
func (r *run) work() {
	defer r.judge()
	defer r.cancel(nil)
	r.group = group{
		pool: r.pool, most: r.plugin.opts.MaxParallel, next: r.nextLocked, do: r.node,
		more: func() bool { return r.head < len(r.ready) },
	}
	r.group.run()
}

// nextLocked returns a node that is ready.
func (r *run) nextLocked() (int, bool) {
	if r.stopped || r.head == len(r.ready) || r.ctx.Err() != nil {
		return 0, false
	}
	i := r.ready[r.head]
	r.head++
	r.outcomes[i].state = running
	return i, true
}

// node runs one node, and finds out who is ready now.
func (r *run) node(i int) {
	o := r.execute(i)
	r.group.mu.Lock()
	r.outcomes[i] = o
	if o.state == broken {
		if r.broke == nil {
			r.broke = &failure{r.nodes[i].id, -1, o.err}
		}
		r.stopped = true
		r.cancel(protocol.Errorf(o.err.Code, "node %q failed", r.nodes[i].id))
	}
	r.settleLocked(i)
	r.group.mu.Unlock()
}

// ended returns why the context ended, if nodes were cut off by that.
func (r *run) ended(ctx context.Context) error {
	if r.broke != nil || ctx.Err() == nil {
		return nil
	}
	for i := range r.outcomes {
		switch s := r.outcomes[i].state; {
		case r.nodes[i].isItem:
		case s == waiting, s == running, s == cut:
			return context.Cause(ctx)
		}
	}
	return nil
}

// settleLocked tells those that wait for a node what became of it, and skips those that
// it was the last hope of. Their events go out before anybody can be ready for them.
func (r *run) settleLocked(i int) {
	settled := []int{i}
	for len(settled) > 0 && !r.stopped {
		from := settled[len(settled)-1]
		settled = settled[:len(settled)-1]
		for _, e := range r.nodes[from].out {
			p := &r.progress[e.node]
			if alive(&r.outcomes[from], r.nodes[from], e.kind) {
				p.led = p.led || e.kind.leading()
				p.fed = p.fed || !e.kind.leading()
			}
			if p.waits--; p.waits > 0 {
				continue
			}
			if p.led || p.fed && r.nodes[e.node].leads == 0 {
				r.ready = append(r.ready, e.node)
				continue
			}
			r.outcomes[e.node].state = skipped
			r.tell(r.nodes[e.node].id, phaseSkip, event{})
			settled = append(settled, e.node)
		}
	}
}

// alive reports whether a node that ended so lets those behind an edge run.
func alive(o *outcome, n *node, kind EdgeKind) bool {
	ran := o.state == done || o.state == tolerated
	switch kind {
	case EdgeNext:
		return ran && (n.kind != KindBranch || o.state == tolerated || o.side == EdgeNext)
	case EdgeTrue, EdgeFalse:
		return o.state == done && o.side == kind
	case EdgeError:
		return o.state == jumped
	}
	return ran
}

// fails notes that a node or an item failed.
func (r *run) fails(id string, item int, err *protocol.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed++; len(r.failures) < maxFailures {
		r.failures = append(r.failures, failure{id, item, err})
	}
}

// success reports whether nothing failed but what was handled. Nobody works any more.
func (r *run) success() bool {
	for i := range r.outcomes {
		if s := r.outcomes[i].state; !r.nodes[i].isItem && s != done && s != skipped && s != jumped {
			return false
		}
	}
	return r.failed == 0
}
