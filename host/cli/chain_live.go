package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"a2e/plugins/chains"
	"a2e/protocol"
)

// chainEvent holds the fields of a chain/event about a node.
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
		Truncated bool    `json:"truncated"`
	} `json:"data"`
}

// note returns what a running node currently does, or "" if the event does not say it.
func (e *chainEvent) note() string {
	switch e.Phase {
	case "retry":
		pause := time.Duration(e.Data.PauseMS * float64(time.Millisecond))
		return fmt.Sprintf("attempt %d of %d failed, again in %s: %s", e.Data.Attempt, e.Data.Attempts,
			shortDuration(pause), oneLine(wirePhrases().Replace(e.Error)))
	case "wait":
		return "until " + time.UnixMicro(int64(e.Data.Until*1e6)).Format(time.DateTime)
	case "iteration":
		return fmt.Sprintf("iteration %d", e.Data.Iteration)
	case "cached":
		return "cached"
	}
	return ""
}

func (e *chainEvent) took() time.Duration {
	return time.Duration(e.Data.DurationMS * float64(time.Millisecond))
}

// line returns a line about a node that ended, or about the work of a running one, or "" if there
// is nothing to say.
func (e *chainEvent) line() string {
	name := oneLine(e.NodeID)
	if e.Data.Map != "" {
		name += " " + strconv.Itoa(e.Data.Index)
	}
	switch {
	case e.Phase == "done" && e.Data.Map == "":
		cut := ""
		if e.Data.Truncated {
			cut = "  (its result was cut)"
		}
		return fmt.Sprintf("done   %s  %s%s\n", name, shortDuration(e.took()), cut)
	case e.Phase == "skip":
		return fmt.Sprintf("skip   %s\n", name)
	case e.Phase == "error":
		text := oneLine(wirePhrases().Replace(e.Error))
		return fmt.Sprintf("error  %s  %s  %s\n", name, shortDuration(e.took()), text)
	case e.note() != "":
		return fmt.Sprintf("%-6s %s  %s\n", cmp.Or(map[string]string{"iteration": "loop"}[e.Phase], e.Phase), name,
			e.note())
	}
	return ""
}

// liveNode is a running node.
type liveNode struct {
	id    string
	begun time.Time
	items int    // items of a map that have ended
	note  string // about the work in the node
}

// liveChain shows a line for each running node, and one for the whole chain.
type liveChain struct {
	*board
	most  int // maximal number of nodes that are shown
	whats map[string]string
	runs  []*liveNode    // in the order in which they started
	ended map[string]int // number of nodes, by the phase that ended them
}

// newLiveChain creates the picture of a chain on a board.
func newLiveChain(b *board, graph *chains.Graph, most int) *liveChain {
	l := &liveChain{board: b, most: max(most, 1), whats: map[string]string{}, ended: map[string]int{}}
	for _, n := range graph.Nodes {
		if !n.Item { // the map counts its items
			l.whats[n.ID] = strings.TrimSpace(string(n.Kind) + " " + oneLine(n.Name))
		}
	}
	b.picture = l.lines
	return l
}

// event handles an event of a node, of an item of a map, or of a node inside a saved chain.
func (l *liveChain) event(e *chainEvent) {
	over := e.Phase == "done" || e.Phase == "skip" || e.Phase == "error"
	outer, inner, nested := strings.Cut(e.NodeID, "/")
	if _, known := l.whats[outer]; !known { // a node of an iteration or of another attempt: poll[3]/node
		outer = outer[:max(0, strings.IndexAny(outer, "[~"))]
	}
	at := slices.IndexFunc(l.runs, func(n *liveNode) bool { return n.id == cmp.Or(e.Data.Map, outer) })
	_, own := l.whats[e.NodeID]
	switch own = own && e.Data.Map == ""; {
	case own && e.Phase == "start":
		l.runs = append(l.runs, &liveNode{id: e.NodeID, begun: l.now()})
	case own && over:
		l.ended[e.Phase]++
		if at >= 0 {
			l.runs = slices.Delete(l.runs, at, at+1)
		}
	case at < 0:
	case own:
		l.runs[at].note = e.note()
	case e.Data.Map != "" && over:
		l.runs[at].items++
	case e.Data.Map == "" && nested:
		l.runs[at].note = oneLine(inner)
	}
}

// lines returns the picture.
func (l *liveChain) lines() []string {
	var lines []string
	for _, n := range l.runs[:min(len(l.runs), l.most)] {
		cells := []string{oneLine(n.id), l.since(n.begun), l.whats[n.id]}
		if n.items > 0 {
			cells = append(cells, protocol.Count(n.items, "item"))
		}
		lines = append(lines, painted(styleBusy, "▶")+" "+l.fit(strings.TrimSpace(strings.Join(append(cells, n.note),
			columnGap)), 2))
	}
	text := fmt.Sprintf("%d of %s done", l.ended["done"], protocol.Count(len(l.whats), "node"))
	for _, part := range []struct {
		n    int
		what string
	}{{len(l.runs), "running"}, {l.ended["skip"], "skipped"}, {l.ended["error"], "failed"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return append(lines, l.fit(text+", "+l.since(l.begun), 0))
}
