package embed

// GramSet is what a query consists of: its words and their character n-grams. It
// never changes, so that any number of goroutines may use it. Its zero value is
// that of a query without words.
type GramSet struct {
	table table
	total int64 // weight of all
}

// Grams gives the hashes of the character n-grams of a text, each once, for In.
// Only the first 16 KiB are looked at.
func Grams(text string) GramSet {
	var g GramSet
	g.table.reset(8)
	f := features{weights: gramWeights(), add: g.table.add}
	f.of(text)
	for _, c := range g.table.cells {
		g.total += int64(c.weight)
	}
	return g
}

// gramWeights weighs what makes up a GramSet: no pairs, as it is about what a
// text has, not in which order.
func gramWeights() weights { return weights{word: 4, gram3: 2, gram4: 3, single: 1} }

// In gives the share of g's n-grams that text has, from 0 to 1: a measure of
// relevance that holds up to typos and other forms of a word. Those of function
// words weigh little, those of long words more. The length of text does not
// matter, but only its first 16 KiB are looked at. An empty g gives 0.
func (g GramSet) In(text string) float64 {
	if g.total == 0 {
		return 0
	}
	var found int64
	seen := make([]bool, len(g.table.cells))
	f := features{weights: gramWeights()}
	f.add = func(hash uint64, _ int32) {
		i := g.table.index(hash)
		if c := g.table.cells[i]; c.times > 0 && !seen[i] {
			seen[i] = true
			found += int64(c.weight)
		}
	}
	f.of(text)
	return float64(found) / float64(g.total)
}
