package cli

import (
	"cmp"
	"slices"

	"a2e/plugins/chains"
)

// maxDrawn is how many nodes a picture of a chain holds.
const maxDrawn = 1000

// maxBends bounds the points at which long edges pass between nodes.
const maxBends = 20_000

// place is a node of a layout, or a point at which an edge passes a layer.
type place struct {
	node       int // index in the graph; -1 = a point of an edge
	layer      int
	x, width   float64 // x of the middle
	ups, downs []*place
	order      float64
}

// layout puts the nodes of a chain into layers, each below all that it waits for:
// the longest way decides the layer, the neighbours' mean the order in it, and what is
// moved apart until nothing overlaps.
type layout struct {
	graph  *chains.Graph
	nodes  []*place
	layers [][]*place
	ways   [][]*place // of each edge, the places that it passes, both ends included
	width  float64
}

// The space between things, in units of the picture.
const (
	layerGap = 92.0
	nodeGap  = 28.0
	bendWide = 10.0
)

// arrange lays a graph out; wide gives the width of a node.
func arrange(g *chains.Graph, wide func(i int) float64) *layout {
	l := &layout{graph: g}
	for i := range g.Nodes {
		l.nodes = append(l.nodes, &place{node: i, width: wide(i)})
	}
	l.assignLayers()
	l.connect()
	for _, p := range l.nodes {
		for len(l.layers) <= p.layer {
			l.layers = append(l.layers, nil)
		}
	}
	l.fill()
	for round := range 12 {
		l.sweep(round%2 == 0)
	}
	l.position()
	return l
}

// assignLayers gives each node the length of the longest way to it.
func (l *layout) assignLayers() {
	waits := make([]int, len(l.nodes))
	out := make([][]int, len(l.nodes))
	for _, e := range l.graph.Edges {
		waits[e.To]++
		out[e.From] = append(out[e.From], e.To)
	}
	var ready []int
	for i, n := range waits {
		if n == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		i := ready[0]
		ready = ready[1:]
		for _, to := range out[i] {
			l.nodes[to].layer = max(l.nodes[to].layer, l.nodes[i].layer+1)
			if waits[to]--; waits[to] == 0 {
				ready = append(ready, to)
			}
		}
	}
}

// connect gives each edge a point in every layer that it passes, while there are not too
// many of these.
func (l *layout) connect() {
	bends := 0
	for _, e := range l.graph.Edges {
		from, to := l.nodes[e.From], l.nodes[e.To]
		way := []*place{from}
		if span := to.layer - from.layer - 1; bends+span <= maxBends {
			bends += span
			for layer := from.layer + 1; layer < to.layer; layer++ {
				way = append(way, &place{node: -1, layer: layer, width: bendWide})
			}
		}
		way = append(way, to)
		for i := 1; i < len(way); i++ {
			way[i-1].downs = append(way[i-1].downs, way[i])
			way[i].ups = append(way[i].ups, way[i-1])
		}
		l.ways = append(l.ways, way)
	}
}

// fill puts the places into their layers, in the order in which ways from the first node
// come by.
func (l *layout) fill() {
	seen := map[*place]bool{}
	for _, root := range l.nodes {
		stack := []*place{root}
		for len(stack) > 0 {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if seen[p] {
				continue
			}
			seen[p] = true
			l.layers[p.layer] = append(l.layers[p.layer], p)
			for _, next := range slices.Backward(p.downs) {
				stack = append(stack, next)
			}
		}
	}
	l.number()
}

// number notes where each place stands in its layer.
func (l *layout) number() {
	for _, layer := range l.layers {
		for i, p := range layer {
			p.order = float64(i)
		}
	}
}

// sweep orders each layer by the mean of the neighbours above, or below.
func (l *layout) sweep(down bool) {
	for i := range l.layers {
		if !down {
			i = len(l.layers) - 1 - i
		}
		layer := l.layers[i]
		for _, p := range layer {
			near := p.ups
			if !down {
				near = p.downs
			}
			if len(near) == 0 {
				continue
			}
			sum := 0.0
			for _, q := range near {
				sum += q.order
			}
			p.order = sum / float64(len(near))
		}
		slices.SortStableFunc(layer, func(a, b *place) int { return cmp.Compare(a.order, b.order) })
		for k, p := range layer {
			p.order = float64(k)
		}
	}
}

// position gives the places their x: first side by side, then near their neighbours.
func (l *layout) position() {
	for _, layer := range l.layers {
		at := 0.0
		for _, p := range layer {
			p.x = at + p.width/2
			at += p.width + nodeGap
		}
		for _, p := range layer { // around the middle
			p.x -= at / 2
		}
	}
	for round := range 10 {
		for i := range l.layers {
			if round%2 == 1 {
				i = len(l.layers) - 1 - i
			}
			l.settle(l.layers[i], round%2 == 0)
		}
	}
	least, most := 0.0, 0.0
	for i, layer := range l.layers {
		for k, p := range layer {
			if i == 0 && k == 0 {
				least, most = p.x-p.width/2, p.x+p.width/2
			}
			least, most = min(least, p.x-p.width/2), max(most, p.x+p.width/2)
		}
	}
	for _, layer := range l.layers {
		for _, p := range layer {
			p.x -= least
		}
	}
	l.width = most - least
}

// settle moves the places of a layer to the mean of their neighbours above, or below, and
// then apart, as far left as right.
func (l *layout) settle(layer []*place, down bool) {
	wish := make([]float64, len(layer))
	for i, p := range layer {
		wish[i] = p.x
		near := p.ups
		if !down {
			near = p.downs
		}
		if len(near) > 0 {
			sum := 0.0
			for _, q := range near {
				sum += q.x
			}
			wish[i] = sum / float64(len(near))
		}
	}
	left, right := slices.Clone(wish), slices.Clone(wish)
	for i := 1; i < len(layer); i++ {
		left[i] = max(left[i], left[i-1]+(layer[i-1].width+layer[i].width)/2+nodeGap)
	}
	for i := len(layer) - 2; i >= 0; i-- {
		right[i] = min(right[i], right[i+1]-(layer[i+1].width+layer[i].width)/2-nodeGap)
	}
	for i, p := range layer {
		p.x = (left[i] + right[i]) / 2
	}
}
