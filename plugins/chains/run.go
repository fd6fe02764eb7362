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

// tree is what the chain of a request and the chains within it have in common.
type tree struct {
	plugin      *Plugin
	root        context.Context // of the request, to which the events belong
	pool        *pool
	correlation string       // the correlation ids of calls begin with it; "" = they have none
	bytes       atomic.Int64 // that the chain holds in memory
	calls       calls        // that run now
	journal     *journal     // nil = it has none

	mu     sync.Mutex      // guards the fields below
	cached listing[string] // ids of nodes whose outputs were cached
	cuts   listing[string] // ids of nodes whose outputs are only a part
	isCut  map[string]bool // the paths of all nodes with such an output
}

// maxReported is how many entries a list of an answer has at most.
const maxReported = 100

// listing holds the first entries of a list, and counts all.
type listing[E any] struct {
	first []E
	total int
}

func (l *listing[E]) add(one E) {
	if l.total++; len(l.first) < maxReported {
		l.first = append(l.first, one)
	}
}

// hit notes that the output of a node came from the cache.
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
	t.plugin.services.CountCall(ctx, host.CallOutcome{
		Kind: host.KindChain, Component: name, Correlation: t.correlation,
		Success: ok, Duration: took,
	})
}

// state is how far a node has come.
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

// outcome is the result of a node.
type outcome struct {
	state state
	raw   jsontext.Value  // its output; nil = null
	value any             // raw, decoded; set only if an expression reads it
	side  EdgeKind        // of a branch: the way that it took; EdgeNext = neither true_node nor false_node
	err   *protocol.Error // of a node that is broken or jumped
}

// failure is one error of a node, or of an item of a map.
type failure struct {
	id   string
	item int // -1 = of the node itself
	err  *protocol.Error
}

// run is one run of a plan. Each outcome is written once, before the nodes that wait for it begin, so
// reading it needs no lock.
type run struct {
	*tree
	*plan
	prefix string // of node ids in events and correlations: the path of the outer node
	start  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	group  group
	input  any          // decoded; set only if an expression reads it
	own    atomic.Int64 // bytes that this run holds
	ran    []bool       // the nodes that maps have run; guarded by mu

	outcomes []outcome
	progress []progress // guarded by group.mu, as the fields to broke
	ready    []int
	head     int // index of the next node in ready
	stopped  bool
	broke    *failure // the failure that stopped the run; nil = none

	mu       sync.Mutex // guards the fields below
	failures listing[failure]
	handled  listing[handled]
}

// progress is what a node still waits for.
type progress struct {
	waits int
	led   bool // a node that leads here took this way
	fed   bool // a node that it waits for has run
}

func newRun(t *tree, pl *plan, prefix string, start time.Time) *run {
	return &run{
		tree: t, plan: pl, prefix: prefix, start: start,
		outcomes: make([]outcome, len(pl.nodes)), progress: make([]progress, len(pl.nodes)),
		ran: make([]bool, len(pl.nodes)),
	}
}

// begin prepares the run with its initial input, a JSON object.
func (r *run) begin(ctx context.Context, input []byte) error {
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if r.inputs {
		var err error
		if r.input, _, err = r.decode(input); err != nil {
			r.cancel(nil)
			return err
		}
	}
	for i, n := range r.nodes {
		if r.progress[i].waits = len(n.in); len(n.in) == 0 && !n.isItem {
			r.ready = append(r.ready, i)
		}
	}
	return nil
}

// keep counts n bytes that the chain holds, unless they are too many.
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

// drop counts n bytes that the chain no longer holds.
func (r *run) drop(n int) {
	r.own.Add(-int64(n))
	r.bytes.Add(-int64(n))
	r.plugin.memory.give(n)
}

// dropAll drops everything that an ended run held.
func (r *run) dropAll() { r.drop(int(r.own.Load())) }

func (r *run) full() error {
	return protocol.Errorf(protocol.CodeChainNodeError, "the values of the chain take more than %d bytes together; "+
		"pass less from node to node, or write it to files (max_state_bytes in the config allows more)",
		r.plugin.opts.MaxStateBytes)
}

// decode makes a value for expressions from JSON, and counts its memory.
func (r *run) decode(raw []byte) (v any, cost int, err error) {
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

// work runs the nodes, and returns when none runs any more.
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

// node runs one node, and finds the nodes that are ready then.
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

// ended returns why ctx ended, if that stopped nodes; else nil.
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

// settleLocked passes the outcome of a node on to the nodes that wait for it. A node that waits for
// nothing more becomes ready, or is skipped if no edge lets it run. Events of skipped nodes are sent
// before a later node can become ready.
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

// alive reports whether a node with this outcome lets the node behind an edge run.
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

// fails notes the failure of a node or of an item.
func (r *run) fails(id string, item int, err *protocol.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures.add(failure{id, item, err})
}

// success reports whether all failures were handled. All nodes must have ended.
func (r *run) success() bool {
	for i := range r.outcomes {
		if s := r.outcomes[i].state; !r.nodes[i].isItem && s != done && s != skipped && s != jumped {
			return false
		}
	}
	return r.failures.total == 0
}
