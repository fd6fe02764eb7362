package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"a2e/plugins/chains"
)

// chainEvent is what a chain/event tells of a node.
type chainEvent struct {
	NodeID string `json:"node_id"`
	Phase  string `json:"phase"`
	Error  string `json:"error"`
	Data   struct {
		Map        string  `json:"map"`
		Index      int     `json:"index"`
		DurationMS float64 `json:"duration_ms"`
	} `json:"data"`
}

func (e *chainEvent) took() time.Duration {
	return time.Duration(e.Data.DurationMS * float64(time.Millisecond))
}

// plainChain writes a line for each node that ends.
type plainChain struct{ w io.Writer }

func (p *plainChain) event(e *chainEvent) {
	name := oneLine(e.NodeID)
	if e.Data.Map != "" {
		name += " " + strconv.Itoa(e.Data.Index)
	}
	switch e.Phase {
	case "done":
		if e.Data.Map == "" {
			say(p.w, "done   %s  %s", name, shortDuration(e.took()))
		}
	case "skip":
		say(p.w, "skip   %s", name)
	case "error":
		say(p.w, "error  %s  %s  %s", name, shortDuration(e.took()), oneLine(e.Error))
	}
}

func (p *plainChain) close() {}

// How a node stands in the picture.
const (
	liveWaits = iota
	liveRuns
	liveDone
	liveSkipped
	liveFailed
)

// liveNode is a line of the picture.
type liveNode struct {
	name  string
	what  string
	state int
	begun time.Time
	took  time.Duration
	items int    // of a map that have ended
	bad   int    // of these
	note  string // of what runs in it, or why it failed
}

// liveChain draws a line for each node on a terminal, and draws it anew when something
// happens and while something runs.
type liveChain struct {
	now     func() time.Time
	columns int
	most    int // nodes that are shown
	stop    chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	nodes  []*liveNode
	byID   map[string]*liveNode
	canvas canvas
	begun  time.Time
	last   time.Time // when it was drawn
}

const (
	liveEvery = 100 * time.Millisecond // between two pictures while nothing happens
	liveLeast = 40 * time.Millisecond  // between two pictures
	liveRows  = 24                     // of a terminal that does not say
)

func newLiveChain(sys *System, graph *chains.Graph) *liveChain {
	l := drawnChain(sys.Err, graph, time.Now, sys.columns(), sys.rows()-3)
	l.done.Go(l.tick)
	return l
}

// drawnChain is a liveChain without a clock that draws it.
func drawnChain(w io.Writer, graph *chains.Graph, now func() time.Time, columns, most int) *liveChain {
	l := &liveChain{canvas: canvas{w: w}, now: now, columns: columns, most: most, stop: make(chan struct{}), byID: map[string]*liveNode{}, begun: now()}
	for _, n := range graph.Nodes {
		if n.Item {
			continue // its map counts it
		}
		node := &liveNode{name: oneLine(n.ID), what: strings.TrimSpace(string(n.Kind) + " " + oneLine(n.Name))}
		l.nodes = append(l.nodes, node)
		l.byID[n.ID] = node
	}
	return l
}

// tick draws while nothing happens, as time goes on.
func (l *liveChain) tick() {
	clock := time.NewTicker(liveEvery)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
			l.mu.Lock()
			l.drawLocked()
			l.mu.Unlock()
		case <-l.stop:
			return
		}
	}
}

func (l *liveChain) event(e *chainEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeLocked(e)
	if l.now().Sub(l.last) >= liveLeast {
		l.drawLocked()
	}
}

// takeLocked notes an event: of a node, of an item of a map, or of a node in a saved chain.
func (l *liveChain) takeLocked(e *chainEvent) {
	if n := l.byID[e.Data.Map]; n != nil {
		if e.Phase != "start" {
			n.items++
		}
		if e.Phase == "error" {
			n.bad++
			n.note = fmt.Sprintf("item %d: %s", e.Data.Index, oneLine(e.Error))
		}
		return
	}
	n := l.byID[e.NodeID]
	if outer, inner, ok := strings.Cut(e.NodeID, "/"); n == nil && ok {
		if n = l.byID[outer]; n != nil {
			n.note = oneLine(inner)
		}
		return
	}
	if n == nil {
		return
	}
	switch e.Phase {
	case "start":
		n.state, n.begun = liveRuns, l.now()
	case "done":
		n.state, n.took = liveDone, e.took()
		if n.bad == 0 {
			n.note = ""
		}
	case "skip":
		n.state = liveSkipped
	case "error":
		n.state, n.took, n.note = liveFailed, e.took(), oneLine(e.Error)
	}
}

// close draws the last picture, which stays.
func (l *liveChain) close() {
	close(l.stop)
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawLocked()
}

// drawLocked draws the picture in place of the one before.
func (l *liveChain) drawLocked() {
	l.last = l.now()
	l.canvas.draw(l.picture())
}

// picture gives the lines: of all nodes, or of those that matter most and fit.
func (l *liveChain) picture() []string {
	shown := l.nodes
	if len(shown) > l.most {
		shown = l.fitting()
	}
	wide := 0
	for _, n := range shown {
		wide = max(wide, min(textWidth(n.name), 32))
	}
	var lines []string
	for _, n := range shown {
		lines = append(lines, l.line(n, wide))
	}
	return append(lines, l.summary())
}

// fitting gives the nodes that are shown where not all fit: those that run and those that
// failed, then those that ended last, then those that come next, in the order of the chain.
func (l *liveChain) fitting() []*liveNode {
	chosen := map[*liveNode]bool{}
	left := l.most
	choose := func(state int, backwards bool) {
		for i := range l.nodes {
			n := l.nodes[i]
			if backwards {
				n = l.nodes[len(l.nodes)-1-i]
			}
			if left > 0 && n.state == state {
				chosen[n] = true
				left--
			}
		}
	}
	choose(liveRuns, false)
	choose(liveFailed, false)
	choose(liveWaits, false)
	choose(liveDone, true)
	choose(liveSkipped, true)
	var shown []*liveNode
	for _, n := range l.nodes {
		if chosen[n] {
			shown = append(shown, n)
		}
	}
	return shown
}

// line gives the line of a node.
func (l *liveChain) line(n *liveNode, wide int) string {
	sign, color, clock := "·", "2", ""
	switch n.state {
	case liveRuns:
		sign, color, clock = "▶", "36", shortDuration(l.now().Sub(n.begun).Truncate(100*time.Millisecond))
	case liveDone:
		sign, color, clock = "✓", "32", shortDuration(n.took)
	case liveSkipped:
		sign, clock = "–", "skipped"
	case liveFailed:
		sign, color, clock = "✗", "31", shortDuration(n.took)
	}
	name := cut(n.name, wide)
	text := name + strings.Repeat(" ", wide-textWidth(name)) + columnGap + fmt.Sprintf("%-8s", clock) + columnGap + n.what
	if n.items > 0 {
		text += columnGap + plural(n.items, "item")
		if n.bad > 0 {
			text += fmt.Sprintf(", %d failed", n.bad)
		}
	}
	if n.note != "" {
		text += columnGap + n.note
	}
	return "\x1b[" + color + "m" + sign + "\x1b[0m " + cut(text, max(l.columns-3, leastColumns))
}

// summary gives the last line.
func (l *liveChain) summary() string {
	var count [liveFailed + 1]int
	for _, n := range l.nodes {
		count[n.state]++
	}
	text := fmt.Sprintf("%d of %s done", count[liveDone], plural(len(l.nodes), "node"))
	for _, part := range []struct {
		state int
		name  string
	}{{liveRuns, "running"}, {liveSkipped, "skipped"}, {liveFailed, "failed"}} {
		if count[part.state] > 0 {
			text += fmt.Sprintf(", %d %s", count[part.state], part.name)
		}
	}
	return cut(text+", "+shortDuration(l.now().Sub(l.begun).Truncate(100*time.Millisecond)), max(l.columns-1, leastColumns))
}
