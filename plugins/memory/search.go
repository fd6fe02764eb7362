package memory

import (
	"cmp"
	"slices"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
)

const (
	minCandidates = 60    // entries that each of the two rankings brings up at least
	maxCandidates = 300   // and at most
	maxAllowed    = 2_000 // selected entries up to which a search looks only at these
	minMatch      = 0.1   // match of the words below which an entry counts as unrelated
	minSimilarity = 0.02  // the same for vectors; most pairs of texts are below it
)

// search returns the candidates of two rankings: one by words and one by vectors.
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
	return s.candidates(tx, w, words, spaces, ids)
}

// candidates reads the entries of ids and computes how well each matches the query.
func (s *repository) candidates(tx *store.Tx, w *want, words *words, spaces, ids []int64) ([]hit, error) {
	background, err := s.index.background(tx, w.vector, spaces)
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	var hits []hit
	err = tx.Each("SELECT "+columns+", v.vector"+fromEntries+"LEFT JOIN memory_vectors v ON v.entry = e.id WHERE "+
		"e.id IN (SELECT CAST(value AS BIGINT) FROM json_each($1)) ORDER BY e.id",
		[]any{store.JSON(slices.Compact(ids))}, func(scan func(...any) error) error {
			var vector []byte
			r := new(row)
			err := scan(append(r.columns(), &vector)...)
			if err == nil && !r.expired(w.now) {
				cosine := w.vector.Cosine(embed.VectorOf(vector, len(w.vector)))
				hits = append(hits, hit{row: r, words: words.in(r.text()), similarity: background.Similarity(cosine)})
			}
			return err
		})
	return hits, err
}

// compare returns the entries of ids as hits, which rank can order.
func (s *repository) compare(tx *store.Tx, w *want, spaces, ids []int64) ([]hit, error) {
	words, err := lookUp(tx, w.words, spaces)
	if err != nil {
		return nil, err
	}
	return s.candidates(tx, w, words, spaces, ids)
}

// rank orders hits by their score, the best first, and drops unrelated ones and those below minScore. The
// score combines the match of the words and the similarity of the vectors; it is at most 1.
func rank(w *want, hits []hit) []hit {
	for i := range hits {
		h := &hits[i]
		h.score = 1 - (1-h.words)*(1-h.similarity)
	}
	hits = slices.DeleteFunc(hits, func(h hit) bool {
		return h.words < minMatch && h.similarity < minSimilarity || h.score < w.minScore
	})
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.Weight, a.Weight), cmp.Compare(b.updated, a.updated))
	})
	return hits
}
