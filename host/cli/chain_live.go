package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
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

		Attempt   int     `json:"attempt"`
		Attempts  int     `json:"max_attempts"`
		PauseMS   float64 `json:"pause_ms"`
		Until     float64 `json:"until"`
		Iteration int     `json:"iteration"`
	} `json:"data"`
}

// note says what a node does that has begun and not ended; "" = the event tells of no such thing.
func (e *chainEvent) note() string {
	switch e.Phase {
	case "retry":
		pause := time.Duration(e.Data.PauseMS * float64(time.Millisecond))
		return fmt.Sprintf("attempt %d of %d failed, again in %s: %s", e.Data.Attempt, e.Data.Attempts, shortDuration(pause), oneLine(e.Error))
	case "wait":
		return "until " + time.UnixMicro(int64(e.Data.Until*1e6)).Format(time.DateTime)
	case "iteration":
		return fmt.Sprintf("iteration %d", e.Data.Iteration)
	case "cached":
		return "as it was kept"
	}
	return ""
}

func (e *chainEvent) took() time.Duration {
	return time.Duration(e.Data.DurationMS * float64(time.Millisecond))
}

// tellChain writes a line for each node that ends, and for what others do meanwhile.
func tellChain(w io.Writer, e *chainEvent) {
	name := oneLine(e.NodeID)
	if e.Data.Map != "" {
		name += " " + strconv.Itoa(e.Data.Index)
	}
	switch {
	case e.Phase == "done" && e.Data.Map == "":
		say(w, "done   %s  %s", name, shortDuration(e.took()))
	case e.Phase == "skip":
		say(w, "skip   %s", name)
	case e.Phase == "error":
		say(w, "error  %s  %s  %s", name, shortDuration(e.took()), oneLine(e.Error))
	case e.note() != "":
		say(w, "%-6s %s  %s", cmp.Or(map[string]string{"iteration": "loop"}[e.Phase], e.Phase), name, e.note())
	}
}

// nodeState is how a node stands in the picture.
type nodeState int

const (
	nodeWaits nodeState = iota
	nodeRuns
	nodeDone
	nodeSkipped
	nodeFailed
)

// liveNode is a line of the picture.
type liveNode struct {
	name  string
	what  string
	state nodeState
	begun time.Time
	took  time.Duration
	items int    // of a map that have ended
	bad   int    // of these
	note  string // of what runs in it, or why it failed
}

// liveChain shows a line for each node.
type liveChain struct {
	*board
	most  int // nodes that are shown
	nodes []*liveNode
	byID  map[string]*liveNode
}

// newLiveChain makes the picture of a chain on a board.
func newLiveChain(b *board, graph *chains.Graph, most int) *liveChain {
	l := &liveChain{board: b, most: most, byID: map[string]*liveNode{}}
	for _, n := range graph.Nodes {
		if n.Item {
			continue // its map counts it
		}
		node := &liveNode{name: oneLine(n.ID), what: strings.TrimSpace(string(n.Kind) + " " + oneLine(n.Name))}
		l.nodes = append(l.nodes, node)
		l.byID[n.ID] = node
	}
	b.picture = l.lines
	return l
}

// event notes an event: of a node, of an item of a map, or of a node in a saved chain.
func (l *liveChain) event(e *chainEvent) {
	outer, inner, nested := strings.Cut(e.NodeID, "/")
	if l.byID[outer] == nil { // of an iteration, or another attempt: poll[3]/node
		outer = outer[:max(0, strings.IndexAny(outer, "[~"))]
	}
	if n := l.byID[e.Data.Map]; n != nil {
		if e.Phase == "done" || e.Phase == "skip" || e.Phase == "error" {
			n.items++
		}
		if e.Phase == "error" {
			n.bad++
			n.note = fmt.Sprintf("item %d: %s", e.Data.Index, oneLine(e.Error))
		}
	} else if n := l.byID[e.NodeID]; n != nil {
		l.nodeEvent(n, e)
	} else if n := l.byID[outer]; n != nil && nested {
		n.note = oneLine(inner)
	}
}

func (l *liveChain) nodeEvent(n *liveNode, e *chainEvent) {
	switch e.Phase {
	case "start":
		n.state, n.begun = nodeRuns, l.now()
	case "done":
		n.state, n.took = nodeDone, e.took()
		if n.bad == 0 {
			n.note = ""
		}
	case "skip":
		n.state = nodeSkipped
	case "error":
		n.state, n.took, n.note = nodeFailed, e.took(), oneLine(e.Error)
	default:
		n.note = e.note()
	}
}

// lines is the picture: all nodes, or those that matter most and fit, and a line for the whole.
func (l *liveChain) lines() []string {
	wide := 0
	shown := l.fitting()
	for _, n := range shown {
		wide = max(wide, min(textWidth(n.name), 32))
	}
	var lines []string
	for _, n := range shown {
		lines = append(lines, l.line(n, wide))
	}
	return append(lines, l.summary())
}

// fitting returns the nodes that are shown: where not all fit, those that run and those that
// failed, then those that come next, then those that ended last.
func (l *liveChain) fitting() []*liveNode {
	place := make(map[*liveNode]int, len(l.nodes))
	for i, n := range l.nodes {
		place[n] = i
	}
	rank := map[nodeState]int{nodeRuns: 0, nodeFailed: 1, nodeWaits: 2, nodeDone: 3, nodeSkipped: 4}
	shown := slices.SortedFunc(slices.Values(l.nodes), func(a, b *liveNode) int {
		order := place[a] - place[b]
		if a.state == nodeDone || a.state == nodeSkipped {
			order = -order
		}
		return cmp.Or(rank[a.state]-rank[b.state], order)
	})
	shown = shown[:min(len(shown), l.most)]
	slices.SortFunc(shown, func(a, b *liveNode) int { return place[a] - place[b] })
	return shown
}

// line is the line of a node.
func (l *liveChain) line(n *liveNode, wide int) string {
	sign, color, clock := "·", "2", ""
	switch n.state {
	case nodeRuns:
		sign, color, clock = "▶", "36", l.since(n.begun)
	case nodeDone:
		sign, color, clock = "✓", "32", shortDuration(n.took)
	case nodeSkipped:
		sign, clock = "–", "skipped"
	case nodeFailed:
		sign, color, clock = "✗", "31", shortDuration(n.took)
	}
	cells := []string{padded(n.name, wide), fmt.Sprintf("%-8s", clock), n.what}
	switch {
	case n.bad > 0:
		cells = append(cells, fmt.Sprintf("%s, %d failed", plural(n.items, "item"), n.bad))
	case n.items > 0:
		cells = append(cells, plural(n.items, "item"))
	}
	if n.note != "" {
		cells = append(cells, n.note)
	}
	return "\x1b[" + color + "m" + sign + "\x1b[0m " + l.fit(strings.Join(cells, columnGap), 2)
}

// summary is the last line.
func (l *liveChain) summary() string {
	count := map[nodeState]int{}
	for _, n := range l.nodes {
		count[n.state]++
	}
	text := fmt.Sprintf("%d of %s done", count[nodeDone], plural(len(l.nodes), "node"))
	for i, name := range []string{nodeRuns: "running", nodeSkipped: "skipped", nodeFailed: "failed"} {
		if n := count[nodeState(i)]; n > 0 && name != "" {
			text += fmt.Sprintf(", %d %s", n, name)
		}
	}
	return l.fit(text+", "+l.since(l.begun), 0)
}

const (
	liveEvery = 100 * time.Millisecond // between two pictures while nothing happens
	liveLeast = 40 * time.Millisecond  // between two pictures
	liveRows  = 24                     // of a terminal that does not say
)

// board shows how far something is: lines on a terminal that are drawn anew in place when
// something happens, and while time goes on.
type board struct {
	w       io.Writer // nil = nothing is shown
	now     func() time.Time
	columns int
	begun   time.Time
	picture func() []string // the lines; called with mu held, as is all that change and write do
	shared  bool            // what write writes goes to the same terminal
	stop    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex // guards the fields below, and what picture reads
	drawn int        // lines on the terminal
	last  time.Time  // when they were drawn
}

// newBoard makes a board that draws nothing by itself before start.
func newBoard(w io.Writer, now func() time.Time, columns int) *board {
	return &board{w: w, now: now, columns: columns, begun: now(), stop: make(chan struct{})}
}

// start draws as time goes on, until close.
func (b *board) start() {
	if b.w == nil {
		return
	}
	b.done.Go(func() {
		clock := time.NewTicker(liveEvery)
		defer clock.Stop()
		for {
			select {
			case <-clock.C:
				b.mu.Lock()
				b.drawLocked()
				b.mu.Unlock()
			case <-b.stop:
				return
			}
		}
	})
}

// close draws the last picture, which stays.
func (b *board) close() {
	close(b.stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawLocked()
}

// change has something noted that the picture shows.
func (b *board) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if do(); b.now().Sub(b.last) >= liveLeast {
		b.drawLocked()
	}
}

// write has something written. Where that goes to the same terminal, the picture makes room.
func (b *board) write(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared && b.drawn > 0 {
		_, _ = fmt.Fprintf(b.w, "\x1b[%dA\r\x1b[J", b.drawn)
		b.drawn = 0
		defer b.drawLocked()
	}
	return do()
}

// drawLocked draws the picture in place of the one before, which had no more lines.
func (b *board) drawLocked() {
	if b.w == nil {
		return
	}
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn)
	}
	lines := b.picture()
	for _, line := range lines {
		text.WriteString("\r\x1b[2K" + line + "\n")
	}
	b.drawn, b.last = len(lines), b.now()
	_, _ = io.WriteString(b.w, text.String()) // a terminal that is gone shows nothing
}

// since says how long ago a time is.
func (b *board) since(at time.Time) string {
	return shortDuration(b.now().Sub(at).Truncate(100 * time.Millisecond))
}

// fit cuts the rest of a line that has used so many columns.
func (b *board) fit(text string, used int) string {
	return cut(text, max(b.columns-1-used, leastColumns))
}

// padded cuts or fills text to a width.
func padded(text string, wide int) string {
	text = cut(text, wide)
	return text + strings.Repeat(" ", max(0, wide-textWidth(text)))
}
