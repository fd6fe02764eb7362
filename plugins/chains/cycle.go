package chains

import (
	"fmt"
	"slices"
	"strings"

	"a2e/protocol"
)

// circle says which nodes wait for each other in a circle, if any do.
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

// around walks back from a node that waits in vain until it comes by a node again.
func (pl *plan) around(at int, waits []int) []string {
	seen := make(map[int]int) // node to its place on the way
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

// circleError names a circle, whose last name is its first.
func circleError(ids []string) error {
	shown := ids
	if len(shown) > maxListed {
		shown = append(slices.Clone(ids[:maxListed]), fmt.Sprintf("… (%d in all)", len(ids)-1))
	}
	return protocol.Errorf(protocol.CodeChainCycle, "nodes wait for each other in a circle: %s; a chain runs each node once, so loops belong into a tool or a skill",
		strings.Join(shown, " → ")).With("cycle", shown)
}
