package chains

import (
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
	ID   string
	Kind Kind
	Name string // of what it calls
	Item bool   // a map runs it, for each item
}

// EdgeKind says why a node waits for another.
type EdgeKind string

// The kinds of edges.
const (
	EdgeData  EdgeKind = "data"     // its expressions name the other, or deps do
	EdgeNext  EdgeKind = "next"     // the other's next_node
	EdgeTrue  EdgeKind = "true"     // the other is a branch, and leads here
	EdgeFalse EdgeKind = "false"    // the same
	EdgeBoth  EdgeKind = "both"     // both ways of a branch lead here
	EdgeError EdgeKind = "on error" // when the other fails
	EdgeItem  EdgeKind = "each"     // the other is a map, and runs it for each item
)

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
	drawn := map[[2]int]int{} // edges by their ends
	add := func(from, to int, kind EdgeKind) {
		ends := [2]int{from, to}
		at, there := drawn[ends]
		switch {
		case !there:
			drawn[ends] = len(g.Edges)
			g.Edges = append(g.Edges, GraphEdge{from, to, kind})
		case kind != EdgeData:
			g.Edges[at].Kind = both(g.Edges[at].Kind, kind)
		}
	}
	for i, n := range pl.nodes {
		g.Nodes = append(g.Nodes, GraphNode{n.id, n.kind, n.name, n.isItem})
		for _, e := range n.in {
			if e.kind != edgeItem {
				add(e.node, i, e.kind.name())
			}
		}
		if n.template != nil {
			add(i, pl.byID[n.template.id], EdgeItem)
		}
	}
	return g, nil
}

// both gives the kind of an edge that is of two kinds.
func both(a, b EdgeKind) EdgeKind {
	switch {
	case a == EdgeData:
		return b
	case a == EdgeTrue && b == EdgeFalse, a == EdgeFalse && b == EdgeTrue:
		return EdgeBoth
	}
	return a
}

func (k edgeKind) name() EdgeKind {
	switch k {
	case edgeNext:
		return EdgeNext
	case edgeTrue:
		return EdgeTrue
	case edgeFalse:
		return EdgeFalse
	case edgeError:
		return EdgeError
	}
	return EdgeData
}
