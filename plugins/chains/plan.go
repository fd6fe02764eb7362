package chains

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// node is a node ready to run.
type node struct {
	spec       *spec
	id         string
	kind       Kind
	name       string
	constant   []byte // of its input: an object without the closing brace
	mapped     []mapping
	passItem   bool       // the input is the item of its map, or index and last of its while: the node sets none itself
	condition  *jmes.Expr // of a branch or a while; else it decides whether the node runs
	items      *jmes.Expr // of a map
	template   *node      // of a map: what runs for each item
	shown      string     // of a wait, a while and an approval: its text in a drawing
	isItem     bool       // it is the template of a map; only maps run it
	chain      *plan      // of a node of kind chain or while
	timeout    time.Duration
	wait       *wait  // of a wait
	most       int    // of a map: items at once, 0 = as many as the chain; of a while: iterations
	retry      *retry // nil = it is tried once
	catch      *catch // the node that handles its failure; nil = none
	cache      *cache // nil = its output is not kept
	skips      bool
	approve    *approve // of an approval
	idempotent bool     // it may run twice

	acceptsTruncated bool    // a result that was cut is not a failure
	ways             [2]bool // of a branch: whether it has a true_node, a false_node

	in, out   []edge
	leads     int  // number of edges in `in` that lead here
	named     bool // an expression reads its output
	handles   bool // the failure of another node may lead here
	readsLast bool // of a while: its expressions read the output of the previous iteration
	whole     bool // one of its expressions uses the whole scope
}

// plan is a chain ready to run. It does not change.
type plan struct {
	name   string // of a saved chain; "" = sent with the request
	nodes  []*node
	byID   map[string]int
	inputs bool   // an expression reads the initial input
	digest []byte // of what the chain does; only for a chain within another

	// of a saved chain
	preset  protocol.Object // members of the initial input that the caller does not set
	timeout time.Duration   // 0 = none of its own
}

// source is what a plan is made from.
type source struct {
	name  string
	base  string // JSON Pointer of the nodes, for problems
	nodes []protocol.Object
	entry string
}

// planner makes the plan of one request, with the saved chains in it.
type planner struct {
	ctx    context.Context
	plugin *Plugin
	saved  map[string]*plan // by name
	stack  []string         // saved chains that are being read
	left   int              // nodes that may still be added
	room   int              // bytes of saved chains that may still be added
}

// plan makes the plan of a request. The error says what is wrong with the request.
func (p *Plugin) plan(ctx context.Context, req *protocol.ChainRequest) (*plan, error) {
	l := &planner{ctx: ctx, plugin: p, saved: map[string]*plan{}, left: p.opts.MaxNodes, room: maxSavedBytes}
	return l.plan(source{base: "/nodes", nodes: req.Nodes, entry: req.EntryNode})
}

func (l *planner) plan(src source) (*plan, error) {
	if l.left -= len(src.nodes); l.left < 0 {
		return nil, protocol.Wrong(src.base, "the chain has more than %d nodes, those of its saved chains included; "+
			"split it up (max_nodes in the config allows more)", l.plugin.opts.MaxNodes)
	}
	if len(src.nodes) == 0 {
		return nil, protocol.Wrong(src.base, "is empty; a chain has at least one node, such as "+
			`{"node_id":"a","kind":"tool","name":"echo","input":{"text":"hi"}}`)
	}
	bad := &problems{base: src.base}
	pl := &plan{name: src.name, byID: make(map[string]int, len(src.nodes)), nodes: make([]*node, 0, len(src.nodes))}
	odd := map[string]bool{}
	for i, obj := range src.nodes {
		s := readSpec(i, obj, bad)
		s.check(i, bad)
		if first, twice := pl.byID[s.id]; twice && s.id != "" {
			bad.at(i, "node_id", "is %q, which is the id of node %d already; each id may appear once", s.id, first)
		} else {
			pl.byID[s.id] = i
		}
		if oddID(s.id) {
			odd[s.id] = true
		}
		pl.nodes = append(pl.nodes, &node{
			spec: s, id: s.id, kind: s.kind, name: s.name, timeout: s.timeout,
			most: cmp.Or(s.maxParallel, s.maxIterations),
		})
	}
	if _, ok := pl.byID[src.entry]; src.entry != "" && !ok {
		bad.list = append(bad.list, protocol.FieldError{
			Path:    strings.TrimSuffix(src.base, "nodes") + "entry_node",
			Message: fmt.Sprintf("is %.64q, which is not a node", src.entry),
		})
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	err := l.connect(pl, &expressions{compiler: l.plugin.compiler, bad: bad, known: map[string]*jmes.Expr{}, odd: odd},
		bad)
	if err == nil && len(l.stack) > 0 {
		pl.digest = digestOf(src.nodes, pl)
	}
	return pl, err
}

// digestOf returns a digest of what a chain and the chains within it do.
func digestOf(nodes []protocol.Object, pl *plan) []byte {
	digest := sha256.New()
	for i, n := range nodes {
		digest.Write(n.Raw())
		if inner := pl.nodes[i].chain; inner != nil {
			digest.Write(inner.digest)
		}
	}
	return digest.Sum(nil)
}

// body makes the plan of a loop's own nodes; at is the loop's JSON Pointer.
func (l *planner) body(n *node, at string) (*plan, error) {
	if len(l.stack) >= l.plugin.opts.MaxDepth {
		return nil, protocol.Wrong(at, "loops and saved chains run each other more than %d deep",
			l.plugin.opts.MaxDepth)
	}
	l.stack = append(l.stack, "while "+n.id)
	defer func() { l.stack = l.stack[:len(l.stack)-1] }()
	return l.plan(source{base: at + "/nodes", nodes: n.spec.nodes})
}

// connect finds the edges of a plan, and makes the plans of the chains within it.
func (l *planner) connect(pl *plan, x *expressions, bad *problems) error {
	b := &binder{plan: pl, x: x, bad: bad}
	b.templates()
	for i, n := range pl.nodes {
		if i%256 == 0 && l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
		b.bind(i, n)
	}
	if err := bad.err(); err != nil {
		return err
	}
	if err := pl.circle(); err != nil {
		return err
	}
	b.inherit()
	for i, n := range pl.nodes {
		if n.kind != KindChain && n.kind != KindWhile {
			continue
		}
		var err error
		if at := fmt.Sprintf("%s/%d", bad.base, i); n.name == "" {
			n.chain, err = l.body(n, at)
		} else {
			n.chain, err = l.load(n.name, at+"/name")
		}
		if err != nil {
			return err
		}
	}
	for _, n := range pl.nodes {
		n.spec = nil // it points into the request
	}
	return bad.err()
}

// component returns the name under which calls of the chain are counted: its own name, the chain_id of the
// request, or, if there is no chain_id or a client made it up, a digest of its nodes.
func (pl *plan) component(req *protocol.ChainRequest) string {
	switch {
	case pl.name != "":
		return pl.name
	case req.ChainID != "" && len(req.ChainID) <= maxID && !madeUp(req.ChainID):
		return req.ChainID
	}
	digest := sha256.New()
	for _, n := range req.Nodes {
		digest.Write(n.Raw())
	}
	return "chain-" + hex.EncodeToString(digest.Sum(nil)[:4])
}

// madeUp reports whether an id is random: the Python SDK's clients send eight hex digits,
// others a UUID.
func madeUp(id string) bool {
	return len(id) >= 8 && strings.Trim(id, "0123456789abcdefABCDEF-") == ""
}

// listed joins names for a message, at most maxListed of them.
func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		names = append(slices.Clone(names[:maxListed]), fmt.Sprintf("and %d more", more))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// maxListed is how many names a message lists.
const maxListed = 20

// circle returns an error that names the nodes of a circle, if some wait for each other in one.
func (pl *plan) circle() error {
	waits := make([]int, len(pl.nodes))
	var free []int
	for i, n := range pl.nodes {
		if waits[i] = len(n.in); waits[i] == 0 {
			free = append(free, i)
		}
	}
	freed := 0
	for ; len(free) > 0; freed++ {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		for _, e := range pl.nodes[i].out {
			if waits[e.node]--; waits[e.node] == 0 {
				free = append(free, e.node)
			}
		}
	}
	if freed == len(pl.nodes) {
		return nil
	}
	at := slices.IndexFunc(waits, func(n int) bool { return n > 0 })
	return circleError(pl.around(at, waits))
}

// around walks back from a node that waits forever until it meets a node twice. It returns the ids of that
// circle; the last id is the first.
func (pl *plan) around(at int, waits []int) []string {
	seen := make(map[int]int) // index in way by node
	var way []int
	for {
		if from, again := seen[at]; again {
			way = way[from:]
			break
		}
		seen[at] = len(way)
		way = append(way, at)
		next := slices.IndexFunc(pl.nodes[at].in, func(e edge) bool { return waits[e.node] > 0 })
		at = pl.nodes[at].in[next].node
	}
	slices.Reverse(way)
	ids := make([]string, 0, len(way)+1)
	for _, i := range way {
		ids = append(ids, pl.nodes[i].id)
	}
	return append(ids, ids[0])
}

// circleError returns an error that names a circle; the last id is the first.
func circleError(ids []string) error {
	shown := ids
	if len(shown) > maxListed {
		shown = append(slices.Clone(ids[:maxListed]), fmt.Sprintf("… (%d in all)", len(ids)-1))
	}
	return protocol.Errorf(protocol.CodeChainCycle, "nodes wait for each other in a circle: %s; a chain runs each "+
		"node once; a node of kind while repeats a chain",
		strings.Join(shown, " → ")).With("cycle", shown)
}

// Graph is a chain in the form in which it is checked or drawn.
type Graph struct {
	Nodes []GraphNode // in the order of the request
	Edges []GraphEdge // at most one from a node to another

	Approvals bool // a node asks for an approval, in the chain or in one within it
}

// GraphNode is a node of a Graph.
type GraphNode struct {
	ID   string // in a loop with the id of the loop before it, as in loop/node
	Kind Kind
	Name string // what it calls; of a wait its time, of a loop its condition, of an approval its message
	Item bool   // another node runs it: a map for each item, or a loop
}

// GraphEdge leads from a node to one that waits for it; both are indexes in Nodes.
type GraphEdge struct {
	From, To int
	Kind     EdgeKind
}

// Graph checks a chain as a request would be checked, and returns its graph. The saved chains that it runs
// are checked too. The error is a *protocol.Error.
func (p *Plugin) Graph(ctx context.Context, req *protocol.ChainRequest) (*Graph, error) {
	pl, err := p.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	g := &Graph{}
	g.add(pl, "")
	return g, nil
}

// asks reports whether a node of a chain, or of one within it, asks for an approval.
func (pl *plan) asks() bool {
	return slices.ContainsFunc(pl.nodes, func(n *node) bool {
		return n.kind == KindApprove || n.chain != nil && n.chain.asks()
	})
}

// add adds a chain and the chains of its loops. It returns the index of its first node.
func (g *Graph) add(pl *plan, prefix string) (first int) {
	first = len(g.Nodes)
	g.Approvals = g.Approvals || pl.asks()
	drawn := map[[2]int]int{} // edges by their ends
	add := func(from, to int, kind EdgeKind) {
		ends := [2]int{first + from, first + to}
		at, there := drawn[ends]
		switch {
		case !there:
			drawn[ends] = len(g.Edges)
			g.Edges = append(g.Edges, GraphEdge{ends[0], ends[1], kind})
		case kind != EdgeData:
			g.Edges[at].Kind = both(g.Edges[at].Kind, kind)
		}
	}
	for i, n := range pl.nodes {
		g.Nodes = append(g.Nodes, GraphNode{prefix + n.id, n.kind, cmp.Or(n.shown, n.name), n.isItem || prefix != ""})
		for _, e := range n.in {
			switch e.kind {
			case edgeWaits:
			case edgeDep:
				add(e.node, i, EdgeData)
			default:
				add(e.node, i, e.kind)
			}
		}
		if n.template != nil {
			add(i, pl.byID[n.template.id], EdgeItem)
		}
	}
	for i, n := range pl.nodes {
		if n.kind == KindWhile && n.name == "" {
			g.loop(first+i, n.chain, prefix+n.id+"/")
		}
	}
	return first
}

// loop adds the chain of a loop, with edges from the loop to the nodes that begin the chain, and back from
// those that end it.
func (g *Graph) loop(at int, body *plan, prefix string) {
	first := g.add(body, prefix)
	for i, n := range body.nodes {
		if n.isItem {
			continue
		}
		if len(n.in) == 0 {
			g.Edges = append(g.Edges, GraphEdge{at, first + i, EdgeLoop})
		}
		if len(n.out) == 0 {
			g.Edges = append(g.Edges, GraphEdge{first + i, at, EdgeAgain})
		}
	}
}

// both returns the kind of an edge that stands for edges of two kinds.
func both(a, b EdgeKind) EdgeKind {
	switch {
	case a == EdgeData:
		return b
	case a == EdgeTrue && b == EdgeFalse, a == EdgeFalse && b == EdgeTrue:
		return EdgeBoth
	}
	return a
}
