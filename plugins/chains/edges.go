package chains

import (
	"maps"
	"slices"
	"strings"

	"a2e/plugins/chains/jmes"
)

// EdgeKind says why a node waits for another.
type EdgeKind string

// The kinds of edges.
const (
	EdgeData  EdgeKind = "data"     // an expression names the other node, or, in a Graph, deps does
	EdgeNext  EdgeKind = "next"     // the other's next_node
	EdgeTrue  EdgeKind = "true"     // the other is a branch whose true_node is this node
	EdgeFalse EdgeKind = "false"    // the other is a branch whose false_node is this node
	EdgeBoth  EdgeKind = "both"     // both ways of a branch lead here; only in a Graph
	EdgeError EdgeKind = "on error" // this node runs when the other fails
	EdgeItem  EdgeKind = "each"     // the other is a map, and runs this node for each item; only in a Graph
	EdgeLoop  EdgeKind = "repeats"  // the other is a loop, whose chain begins here; only in a Graph
	EdgeAgain EdgeKind = "again"    // this is the loop whose chain the other ends; only in a Graph

	edgeDep   EdgeKind = "deps"
	edgeWaits EdgeKind = "waits" // a map waits for what its node waits for, and for that node
)

// leading reports whether the edge is a way that a run may take or not take.
func (k EdgeKind) leading() bool {
	return k == EdgeNext || k == EdgeTrue || k == EdgeFalse || k == EdgeError
}

// edge is one end of "to waits for from".
type edge struct {
	node int // the other end
	kind EdgeKind
}

// maxMapDepth is how deep maps may be nested.
const maxMapDepth = 4

// maxEdges bounds the edges of one chain.
const maxEdges = 250_000

// binder finds the edges of a plan.
type binder struct {
	*plan
	x      *expressions
	bad    *problems
	listed string // the ids of the nodes, for messages; "" = not needed yet
	edges  int
}

// templates marks the nodes that maps run, and those that handle failures.
func (b *binder) templates() {
	for i, n := range b.nodes {
		if at, ok := b.byID[n.spec.handler()]; ok {
			b.nodes[at].handles = true
		}
		if n.kind != KindMap {
			continue
		}
		t, ok := b.byID[n.spec.mapNode]
		if !ok {
			b.unknown(i, "map_node", n.spec.mapNode)
			continue
		}
		n.template = b.nodes[t]
		n.template.isItem = true
		b.connect(t, i, edgeWaits)
	}
}

// connect notes that to waits for from.
func (b *binder) connect(from, to int, kind EdgeKind) {
	if b.edges++; b.edges >= maxEdges {
		if b.edges == maxEdges {
			b.bad.at(to, "", "nodes wait for each other in more than %d ways; split the chain up", maxEdges)
		}
		return
	}
	b.nodes[from].out = append(b.nodes[from].out, edge{to, kind})
	b.nodes[to].in = append(b.nodes[to].in, edge{from, kind})
}

func (b *binder) unknown(at int, field, id string) {
	b.bad.at(at, field, "is %.64q, which is not a node; there are: %s", id, b.ids())
}

// ids lists some ids of the nodes, for messages.
func (b *binder) ids() string {
	if b.listed == "" {
		b.listed = listed(slices.Sorted(maps.Keys(b.byID)))
	}
	return b.listed
}

// bind finds what a node waits for, and what it leads to.
func (b *binder) bind(at int, n *node) {
	s := n.spec
	n.constant, n.mapped = b.x.inputs(at, s)
	n.passItem = (n.isItem && n.kind != KindMap || n.kind == KindWhile) && s.input.Len() == 0 && s.inputMap.Len() == 0
	n.readsLast = n.passItem && n.kind == KindWhile
	for _, m := range n.mapped {
		b.names(at, n, m.path, m.expr)
	}
	if s.condition != "" {
		n.condition = b.expr(at, n, "condition", pythonic(s.condition, b.byID))
	}
	if s.itemsPath != "" {
		n.items = b.expr(at, n, "items_path", s.itemsPath)
	}
	for _, id := range s.deps {
		if from, ok := b.target(at, "deps", id); ok {
			b.connect(from, at, edgeDep)
		}
	}
	b.lead(at, "next_node", s.nextNode, EdgeNext)
	n.ways = [2]bool{s.trueNode != "", s.falseNode != ""}
	b.lead(at, "true_node", s.trueNode, EdgeTrue)
	b.lead(at, "false_node", s.falseNode, EdgeFalse)
	b.bindCatch(at, n)
	if n.kind == KindWait {
		b.bindWait(at, n)
	}
	if n.kind == KindWhile {
		n.shown = strings.TrimSpace(s.name + " " + s.condition)
	}
	if n.kind == KindApprove {
		n.approve, n.timeout, n.shown = &approve{s.message, n.timeout, s.byself}, 0, s.message
	}
	n.retry, n.idempotent, n.acceptsTruncated = s.retry, s.idempotent, s.acceptsTruncated
	if s.cache != nil {
		b.bindCache(at, n)
	}
	if n.isItem {
		b.item(at, n)
	}
}

// item notes the fields that a node of a map may not have.
func (b *binder) item(at int, n *node) {
	if n.kind == KindBranch {
		b.bad.at(at, "kind", "a map cannot run a branch for each item; put the branch into a saved chain, and let "+
			"the map run that by a node of kind chain")
	}
	if n.spec.nextNode != "" {
		b.bad.at(at, "next_node", "the node runs for each item of a map; give next_node to the map")
	}
	if n.catch != nil {
		field := "on_error"
		if n.spec.catch != nil {
			field = "catch"
		}
		b.bad.at(at, field, "the node runs for each item of a map, where on_error is %s or %s, and nothing else; "+
			"let the map catch", onErrorAbort, onErrorSkip)
	}
}

// lead notes that a node leads to another.
func (b *binder) lead(at int, field, id string, kind EdgeKind) {
	if id == "" {
		return
	}
	if to, ok := b.target(at, field, id); ok {
		b.connect(at, to, kind)
		b.nodes[to].leads++
	}
}

// target returns the index of the node that a field refers to; false = it may not refer to it, which is
// noted.
func (b *binder) target(at int, field, id string) (int, bool) {
	to, ok := b.byID[id]
	switch {
	case !ok && field == "on_error":
		b.bad.at(at, field, "is %.64q; should be %s, %s or the id of a node", id, onErrorAbort, onErrorSkip)
	case !ok:
		b.unknown(at, field, id)
	case b.nodes[to].isItem:
		b.bad.at(at, field, "%.64q runs for each item of a map; refer to the map", id)
		return 0, false
	}
	return to, ok
}

// expr compiles an expression of a node, which then waits for the nodes that it names; nil = the expression is wrong,
// which is noted.
func (b *binder) expr(at int, n *node, field, text string) *jmes.Expr {
	e := b.x.compile(at, field, text)
	if e != nil {
		b.names(at, n, field, e)
	}
	return e
}

// names notes that a node waits for the nodes that an expression names.
func (b *binder) names(at int, n *node, field string, e *jmes.Expr) {
	n.whole = n.whole || e.Whole()
	b.inputs = b.inputs || e.Whole()
	for _, name := range e.Names() {
		if n.binds(name) {
			n.readsLast = n.readsLast || name == memberLast
			if other, ok := b.byID[memberError]; ok && name == memberError && other != at {
				b.bad.at(at, field, "the expression names error, which is what the node handles and a node as well; "+
					"call that node something else")
			}
			continue
		}
		if name == memberInput {
			b.inputs = true
			continue
		}
		from, ok := b.byID[name]
		switch {
		case !ok && !e.Bare(name):
			b.inputs = true // a member of the initial input
		case !ok && isItemName(name):
			b.bad.at(at, field, "%q is bound only in the node that a map runs for each item", name)
		case !ok && name == memberLast:
			b.bad.at(at, field, "last is bound only in a node of kind while; the nodes of its chain see what its "+
				"input_map gives them, under input")
		case !ok && name == memberError:
			b.bad.at(at, field, "error is bound only in a node that a catch or an on_error leads to")
		case !ok:
			b.bad.at(at, field, "an expression names %.64q, which is not a node; the initial input is under input, "+
				"as in input.%.64s; there are: %s", name, name, b.ids())
		case b.nodes[from].isItem && from != at:
			b.bad.at(at, field, "an expression names %.64q, which runs for each item of a map; name the map, which "+
				"has the list of results", name)
		default:
			b.nodes[from].named = true
			b.connect(from, at, EdgeData)
		}
	}
}

// binds reports whether a name stands for the item or iteration of the node, or for the error that it
// handles.
func (n *node) binds(name string) bool {
	switch {
	case name == memberError:
		return n.handles
	case n.kind == KindWhile && (name == memberLast || name == memberIndex || name == memberIndexSDK):
		return true
	}
	return n.isItem && isItemName(name)
}

func isItemName(name string) bool {
	return name == memberItem || name == memberIndex || name == memberItemSDK || name == memberIndexSDK
}

// inherit lets maps wait for what their nodes wait for, and removes the edges of these nodes. The plan
// must have no circle.
func (b *binder) inherit() {
	for i, n := range b.nodes {
		if n.kind != KindMap {
			continue
		}
		if depth := n.mapDepth(); depth > maxMapDepth {
			b.bad.at(i, "map_node", "maps are nested %d deep; at most %d are allowed", depth, maxMapDepth)
			return
		}
		for t := n.template; t != nil; t = t.template {
			for _, e := range t.in {
				if e.kind != edgeWaits {
					b.connect(e.node, i, edgeWaits)
				}
			}
		}
	}
	for _, n := range b.nodes {
		for _, e := range n.in {
			b.nodes[e.node].named = b.nodes[e.node].named || n.whole
		}
	}
	for _, n := range b.nodes {
		n.in, n.out = b.scheduled(n.in), b.scheduled(n.out)
	}
}

// mapDepth returns how deep maps are nested in a map; it stops counting at maxMapDepth+1.
func (n *node) mapDepth() (depth int) {
	for t := n; t != nil && t.kind == KindMap && depth <= maxMapDepth; t = t.template {
		depth++
	}
	return depth
}

// scheduled returns the edges without those of nodes that only maps run.
func (b *binder) scheduled(edges []edge) []edge {
	var kept []edge
	for _, e := range edges {
		if !b.nodes[e.node].isItem {
			kept = append(kept, e)
		}
	}
	return kept
}
