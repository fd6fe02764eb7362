package chains

import (
	"cmp"
	"context"

	"a2e/protocol"
)

// Graph is a chain for who checks or draws it.
type Graph struct {
	Nodes []GraphNode // in the order of the request
	Edges []GraphEdge // at most one from a node to another
}

// GraphNode is a node of a Graph.
type GraphNode struct {
	ID   string // of a node in a loop with that of the loop before it, as in loop/node
	Kind Kind
	Name string // what it calls; of a wait how long, of a loop how long it goes on
	Item bool   // another node runs it: a map for each item, or a loop
}

// GraphEdge leads from a node to one that waits for it, both by their index.
type GraphEdge struct {
	From, To int
	Kind     EdgeKind
}

// Graph checks a chain, as a request would be, and gives its graph. The saved chains that
// it runs are checked too. The error is a *protocol.Error.
func (p *Plugin) Graph(ctx context.Context, req *protocol.ChainRequest) (*Graph, error) {
	pl, err := p.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	g := &Graph{}
	g.add(pl, "")
	return g, nil
}

// add draws a chain, with those of its loops. It returns where its first node stands.
func (g *Graph) add(pl *plan, prefix string) (first int) {
	first = len(g.Nodes)
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

// loop draws the chain of a loop: from the loop to what begins it, and back from what ends it.
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

// both returns the kind of an edge that is of two kinds.
func both(a, b EdgeKind) EdgeKind {
	switch {
	case a == EdgeData:
		return b
	case a == EdgeTrue && b == EdgeFalse, a == EdgeFalse && b == EdgeTrue:
		return EdgeBoth
	}
	return a
}
