package schema

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a suggestion.
const (
	maxNear     = 3  // names that one message suggests
	maxCompared = 64 // bytes of a name: what a peer sends as one may be megabytes long
)

// DidYouMean returns `did you mean "x" or "y"?` with those of known that name may be a slip
// of, at most three, the most alike first; "" = there is none.
func DidYouMean(name string, known []string) string {
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	for _, k := range known {
		if d := distance(folded(name), folded(k)); d <= max(1, len(k)/3) {
			near = append(near, candidate{k, d})
		}
	}
	if len(near) == 0 {
		return ""
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range near[:min(len(near), maxNear)] {
		names = append(names, strconv.Quote(c.name))
	}
	return "did you mean " + strings.Join(names, " or ") + "?"
}

// Suggest returns what DidYouMean does, or a list of what is known, which what names: "the
// arguments: a, b".
func Suggest(name, what string, known []string) string {
	const most = 10
	hint := DidYouMean(name, known)
	switch {
	case hint != "":
		return hint
	case len(known) == 0:
		return "there are no " + what
	case len(known) > most:
		return "some of the " + what + ": " + strings.Join(known[:most], ", ")
	}
	return "the " + what + ": " + strings.Join(known, ", ")
}

// folded is a name as it is compared: letter case and the difference of - and _ count for
// nothing.
func folded(s string) string {
	s = strings.ToLower(s[:min(len(s), maxCompared)])
	return strings.ReplaceAll(s[:min(len(s), maxCompared)], "-", "_") // lower case may take more bytes
}

// distance counts the bytes to insert, remove, replace or swap with their neighbour to turn a
// into b, neither longer than maxCompared (optimal string alignment).
func distance(a, b string) int {
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
