package cli

import (
	"fmt"
	"io"
	"math"
	"strings"

	"a2e/plugins/chains"
)

// Sizes of the picture of a chain, in its own units.
const (
	chainMargin = 32.0
	chainTop    = 64.0 // of the first layer: the title stands above
	boxHigh     = 44.0
	boxLeast    = 84.0
	boxMost     = 240.0
	letterWide  = 7.0 // of the text in a box, about
	chainFoot   = 56.0
)

// chainSVG writes the picture of a chain.
type chainSVG struct {
	svg
	*layout
}

// writeChainSVG draws a chain in layers from top to bottom. Its colors follow whether the
// viewer prefers light or dark.
func writeChainSVG(w io.Writer, title string, g *chains.Graph) error {
	c := &chainSVG{svg{w: w}, arrange(g, func(i int) float64 { return boxWidth(g.Nodes[i]) })}
	width := max(c.width+2*chainMargin, float64(len(title))*10+2*chainMargin, 560)
	shift := (width - c.width) / 2
	for _, layer := range c.layers {
		for _, p := range layer {
			p.x += shift
		}
	}
	height := chainTop + float64(len(c.layers)-1)*layerGap + boxHigh + chainFoot
	c.begin(title, width, height)
	for i, e := range g.Edges {
		c.edge(e.Kind, c.ways[i])
	}
	for _, p := range c.nodes {
		c.box(g.Nodes[p.node], p)
	}
	for i, e := range g.Edges { // above all lines
		c.label(e.Kind, c.ways[i])
	}
	c.key(height)
	c.line("</svg>")
	return c.err
}

// boxWidth gives how wide a node is drawn.
func boxWidth(n chains.GraphNode) float64 {
	longest := max(textWidth(oneLine(n.ID)), textWidth(boxText(n)))
	wide := float64(longest)*letterWide + 28
	if n.Kind == chains.KindBranch || n.Kind == chains.KindSkill {
		wide += 16 // its ends are no straight lines
	}
	return min(max(wide, boxLeast), boxMost)
}

// boxText is the second line of a box.
func boxText(n chains.GraphNode) string {
	return strings.TrimSpace(string(n.Kind) + " " + oneLine(n.Name))
}

func (c *chainSVG) begin(title string, width, height float64) {
	c.line(`<?xml version="1.0" encoding="UTF-8"?>`)
	c.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-labelledby="title" font-family="system-ui, sans-serif" font-size="12">`,
		width, height, width, height)
	c.line(`<title id="title">%s</title>`, escaped(title))
	c.line(`<style>`)
	c.line(`svg { color-scheme: light dark; }`)
	c.line(`.back { fill: #ffffff; } text { fill: #1f2328; } .quiet { fill: #59636e; } .box { fill: #f6f8fa; stroke-width: 1.6; }`)
	c.line(`.way { stroke: #59636e; fill: none; stroke-width: 1.6; } .data { stroke: #afb8c1; fill: none; stroke-width: 1.1; } .tip { fill: #59636e; } .halo { stroke: #ffffff; stroke-width: 4; paint-order: stroke; }`)
	c.line(`@media (prefers-color-scheme: dark) { .back { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; } .box { fill: #161b22; } .way { stroke: #9198a1; } .data { stroke: #484f58; } .tip { fill: #9198a1; } .halo { stroke: #0d1117; } }`)
	c.line(`</style>`)
	c.line(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>`)
	c.line(`<rect class="back" width="%.0f" height="%.0f"/>`, width, height)
	c.line(`<text x="%.0f" y="32" font-size="16" font-weight="600">%s</text>`, chainMargin, escaped(cut(oneLine(title), 100)))
}

// top is the y of a layer's upper end.
func top(layer int) float64 { return chainTop + float64(layer)*layerGap }

// kindColor gives the color of a kind of node.
func kindColor(kind chains.Kind) string {
	all := colors()
	for i, k := range drawnKinds() {
		if k == kind {
			return all[i%len(all)]
		}
	}
	return all[0]
}

// drawnKinds lists the kinds in the order of their colors.
func drawnKinds() []chains.Kind {
	return []chains.Kind{chains.KindTool, chains.KindBranch, chains.KindSkill, chains.KindMap, chains.KindProc, chains.KindChain}
}

// box draws a node: its shape tells the kind, as its color does.
func (c *chainSVG) box(n chains.GraphNode, p *place) {
	x, y, w, color := p.x-p.width/2, top(p.layer), p.width, kindColor(n.Kind)
	dash := ""
	if n.Item {
		dash = ` stroke-dasharray="5 3"`
	}
	c.line(`<g><title>%s</title>`, escaped(oneLine(n.ID)+": "+boxText(n)))
	switch n.Kind {
	case chains.KindBranch:
		c.line(`<path class="box" stroke="%s"%s d="M%.1f %.1fh%.1fl14 %.1fl-14 %.1fh%.1fl-14 %.1fz"/>`, color, dash, x+14, y, w-28, boxHigh/2, boxHigh/2, -(w - 28), -boxHigh/2)
	case chains.KindMap:
		c.line(`<rect class="box" stroke="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="4"/>`, color, x+5, y+5, w, boxHigh)
		c.line(`<rect class="box" stroke="%s"%s x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="4"/>`, color, dash, x, y, w, boxHigh)
	case chains.KindChain:
		c.line(`<rect class="box" stroke="%s"%s x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, color, dash, x, y, w, boxHigh)
		c.line(`<path fill="none" stroke="%s" d="M%.1f %.1fv%.1fM%.1f %.1fv%.1f"/>`, color, x+6, y, boxHigh, x+w-6, y, boxHigh)
	default:
		round := map[chains.Kind]float64{chains.KindTool: 4, chains.KindSkill: boxHigh / 2}[n.Kind]
		c.line(`<rect class="box" stroke="%s"%s x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="%.0f"/>`, color, dash, x, y, w, boxHigh, round)
	}
	room := int((w - 20) / letterWide)
	c.line(`<text x="%.1f" y="%.1f" text-anchor="middle" font-weight="600">%s</text>`, p.x, y+18, escaped(cut(oneLine(n.ID), room)))
	c.line(`<text class="quiet" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, p.x, y+34, escaped(cut(boxText(n), room)))
	c.line(`</g>`)
}

// edge draws an arrow along its way, thin where it only says whose output a node reads.
func (c *chainSVG) edge(kind chains.EdgeKind, way []*place) {
	class, dash := "way", ""
	switch kind {
	case chains.EdgeData:
		class = "data"
	case chains.EdgeError, chains.EdgeItem:
		dash = ` stroke-dasharray="5 3"`
	}
	var d strings.Builder
	x, y := way[0].x, top(way[0].layer)+boxHigh
	fmt.Fprintf(&d, "M%.1f %.1f", x, y)
	for _, p := range way[1:] {
		toY := top(p.layer) - 1
		if p.node < 0 {
			toY = top(p.layer)
		}
		half := math.Min((toY-y)/2, layerGap/2)
		fmt.Fprintf(&d, "C%.1f %.1f %.1f %.1f %.1f %.1f", x, y+half, p.x, toY-half, p.x, toY)
		x, y = p.x, toY
		if p.node < 0 { // straight through the layer
			y = top(p.layer) + boxHigh
			fmt.Fprintf(&d, "V%.1f", y)
		}
	}
	c.line(`<path class="%s"%s marker-end="url(#tip)" d="%s"/>`, class, dash, d.String())
}

// label writes what an edge means beside its beginning.
func (c *chainSVG) label(kind chains.EdgeKind, way []*place) {
	text := edgeLabel(kind)
	if text == "" {
		return
	}
	from, to := way[0], way[1]
	c.line(`<text class="halo quiet" x="%.1f" y="%.1f" text-anchor="middle" font-size="11">%s</text>`,
		from.x+(to.x-from.x)*0.4, top(from.layer)+boxHigh+(layerGap-boxHigh)*0.48, text)
}

// key tells what the colors mean.
func (c *chainSVG) key(height float64) {
	x, y := chainMargin, height-20
	for _, kind := range drawnKinds() {
		c.line(`<rect class="box" stroke="%s" x="%.0f" y="%.0f" width="14" height="10" rx="2"/>`, kindColor(kind), x, y-9)
		c.line(`<text class="quiet" x="%.0f" y="%.0f">%s</text>`, x+20, y, kind)
		x += 20 + float64(len(kind))*letterWide + 22
	}
}
