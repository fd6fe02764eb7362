package tools

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxSuggested bounds the names that one message lists.
const maxSuggested = 10

// nearest gives at most maxSuggested of names, the most alike to name first.
func nearest(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	all := make([]candidate, 0, len(names))
	for _, n := range names {
		all = append(all, candidate{n, editDistance(name, n)})
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	out := make([]string, 0, maxSuggested)
	for _, c := range all[:min(len(all), maxSuggested)] {
		out = append(out, c.name)
	}
	return out
}

// suggest ends a message about an unknown name: with the one name that looks
// like a slip of it, else with the names there are. what is their plural.
func suggest(name, what string, names []string) string {
	near := nearest(name, names)
	switch {
	case len(near) == 0:
		return "there are no " + what
	case looksLike(name, near[0]):
		return fmt.Sprintf("did you mean %q?", near[0])
	case len(names) > len(near):
		return fmt.Sprintf("some of the %s: %s", what, strings.Join(near, ", "))
	}
	return fmt.Sprintf("the %s: %s", what, strings.Join(near, ", "))
}

// looksLike tells whether name may be a slip of known.
func looksLike(name, known string) bool {
	return editDistance(name, known) <= max(1, len(known)/3)
}

// maxCompared bounds the cost of one comparison: what a peer sends as a name
// may be megabytes long.
const maxCompared = 64

// editDistance counts the bytes to insert, remove, replace or swap with their
// neighbour to turn a into b, letter case aside (optimal string alignment).
func editDistance(a, b string) int {
	a, b = folded(a), folded(b)
	var rows [3][maxCompared + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			differs := 1
			if a[i-1] == b[j-1] {
				differs = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differs)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func folded(s string) string {
	s = strings.ToLower(s[:min(len(s), maxCompared)])
	return s[:min(len(s), maxCompared)] // lower case may take more bytes
}

// shortened is a name as a message quotes it.
func shortened(name string) string {
	if len(name) <= maxCompared {
		return name
	}
	return strings.ToValidUTF8(name[:maxCompared], "") + "…"
}
