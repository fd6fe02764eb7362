package memory

import (
	"cmp"
	"slices"

	"a2e/host/store"
	"a2e/plugins/memory/embed"
)

const (
	rankConstant  = 60    // of reciprocal rank fusion: how little the first places stand out
	minCandidates = 60    // of each ranking
	maxCandidates = 300   // entries that the words of a search may bring up
	maxAllowed    = 2_000 // tagged entries up to which a search looks at these alone
	minMatch      = 0.1   // relevance below which an entry has nothing to do with the query
)

// search returns the candidates of two rankings: by words and by vectors.
func (s *repository) search(tx *store.Tx, w *want, spaces []int64) ([]hit, error) {
	n := max(minCandidates, min(2*(w.end()+len(w.Ranked)), maxCandidates))
	words, err := lookUp(tx, w.words, spaces)
	if err != nil {
		return nil, err
	}
	ids, err := words.best(n, w.allowed)
	if err != nil {
		return nil, err
	}
	closest, err := s.index.nearest(tx, spaces, w.vector, n, w.allowed)
	if err != nil {
		return nil, err
	}
	for _, c := range closest {
		ids = append(ids, c.entry)
	}
	hits, err := candidates(tx, w, words, ids)
	if err != nil {
		return nil, err
	}
	return hits, nil
}

// candidates reads the entries of ids, with how much they have in common with the query.
func candidates(tx *store.Tx, w *want, words *words, ids []int64) ([]hit, error) {
	slices.Sort(ids)
	var hits []hit
	err := tx.Each("SELECT "+columns+", v.vector"+fromEntries+"LEFT JOIN memory_vectors v ON v.entry = e.id WHERE e.id IN (SELECT value FROM json_each(?))",
		[]any{listOf(slices.Compact(ids))}, func(scan func(...any) error) error {
			var vector []byte
			r, err := readRow(func(dest ...any) error { return scan(append(dest, &vector)...) })
			if err == nil && (r.expires == 0 || r.expires > w.now) {
				hits = append(hits, hit{row: r, words: words.in(r.text()), cosine: w.vector.Cosine(embed.VectorOf(vector, len(w.vector)))})
			}
			return err
		})
	return hits, err
}

// compare returns what rank goes by for hits that were found by their keys.
func compare(tx *store.Tx, w *want, spaces, ids []int64) ([]hit, error) {
	words, err := lookUp(tx, w.words, spaces)
	if err != nil {
		return nil, err
	}
	return candidates(tx, w, words, ids)
}

// rank orders hits by their relevance. Where there are vectors, the rankings by words and by
// vectors are fused (reciprocal rank fusion).
func rank(w *want, hits []hit) []hit {
	byWords := places(hits, func(h hit) float64 { return h.words })
	byVectors := places(hits, func(h hit) float64 { return h.cosine })
	for i := range hits {
		h := &hits[i]
		h.score = h.words
		if len(w.vector) > 0 {
			fused := 0.0
			if h.words > 0 {
				fused += 1 / float64(rankConstant+byWords[h.words])
			}
			if h.cosine > 0 {
				fused += 1 / float64(rankConstant+byVectors[h.cosine])
			}
			h.score = max(h.cosine, h.words) * (1 + fused*(rankConstant+1)/2) / 2
		}
	}
	hits = slices.DeleteFunc(hits, func(h hit) bool { return h.score < max(minMatch, w.minScore) })
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.Weight, a.Weight), cmp.Compare(b.updated, a.updated))
	})
	return hits
}

// places returns the place of each value, from 1 on; equals share one.
func places(hits []hit, of func(hit) float64) map[float64]int {
	values := make([]float64, len(hits))
	for i, h := range hits {
		values[i] = of(h)
	}
	slices.Sort(values)
	all := make(map[float64]int, len(values))
	for i, v := range values {
		all[v] = len(values) - i // the last of equals counts, which comes first
	}
	return all
}
