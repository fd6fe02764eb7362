package memory

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host/store"
	"a2e/plugins/memory/embed"
)

const (
	maxQueryWords = 32
	rankConstant  = 60    // of reciprocal rank fusion: how little the first places stand out
	minCandidates = 40    // of each ranking
	maxCandidates = 300   // entries that the words of a search may bring up
	maxAllowed    = 2_000 // tagged entries up to which a search looks at these alone
	minMatch      = 0.15  // similarity below which an entry has nothing to do with the query
)

// queryWords gives the words of a query, each once.
func queryWords(query string) []string {
	var words []string
	for word := range embed.Words(query) {
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
		if len(words) == maxQueryWords {
			break
		}
	}
	return words
}

// search gives the candidates of two rankings: by words (BM25) and by vectors.
func (s *shelf) search(tx *store.Tx, w *want, spaces []int64) ([]hit, error) {
	if err := s.sketches.follow(tx); err != nil {
		return nil, err
	}
	allowed, err := tagged(tx, w, spaces)
	if err != nil {
		return nil, err
	}
	n := max(minCandidates, min(2*w.limit, maxCandidates))
	byWords, err := s.byWords(tx, w, spaces, n, allowed)
	if err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Keys(byWords))
	var closest []near
	if len(w.vector) > 0 {
		closest = s.sketches.nearest(spaces, w.vector.Sketch(), n, allowed)
	}
	for _, c := range closest {
		ids = append(ids, c.entry)
	}
	hits, err := candidates(tx, w, ids)
	if err != nil {
		return nil, err
	}
	s.dropGone(spaces, closest, hits)
	for i := range hits {
		hits[i].byWords = byWords[hits[i].id]
	}
	return slices.DeleteFunc(hits, func(h hit) bool { return !hasTag(h.row, w.tags) }), nil
}

// tagged gives the entries that have one of the tags; nil when there are no tags, or
// so many entries that it is better to look at their tags afterwards.
func tagged(tx *store.Tx, w *want, spaces []int64) (map[int64]bool, error) {
	if len(w.tags) == 0 {
		return nil, nil
	}
	const where = "SELECT entry FROM memory_tags WHERE space = ? AND tag IN (SELECT value FROM json_each(?)) LIMIT ?"
	allowed := make(map[int64]bool)
	for _, space := range spaces {
		n := 0
		args := []any{space, listOf(w.tags), maxAllowed + 1}
		if _, err := tx.Get("SELECT count(*) FROM ("+where+")", args, &n); err != nil {
			return nil, err
		}
		if n > maxAllowed {
			return nil, nil
		}
		if err := tx.Each(where, args, func(scan func(...any) error) error {
			var id int64
			err := scan(&id)
			allowed[id] = true
			return err
		}); err != nil {
			return nil, err
		}
	}
	return allowed, nil
}

// candidates reads the entries of ids, with the cosines of their vectors.
func candidates(tx *store.Tx, w *want, ids []int64) ([]hit, error) {
	slices.Sort(ids)
	var hits []hit
	err := tx.Each("SELECT "+columns+", v.vector"+fromEntries+"LEFT JOIN memory_vectors v ON v.entry = e.id WHERE e.id IN (SELECT value FROM json_each(?))",
		[]any{listOf(slices.Compact(ids))}, func(scan func(...any) error) error {
			var vector []byte
			r, err := readRow(func(dest ...any) error { return scan(append(dest, &vector)...) })
			if err == nil && (r.expires == 0 || r.expires > w.now) {
				hits = append(hits, hit{row: r, cosine: w.vector.Cosine(bytesToVector(vector, 0))})
			}
			return err
		})
	return hits, err
}

// dropGone takes entries that are no longer there out of the sketches.
func (s *shelf) dropGone(spaces []int64, closest []near, hits []hit) {
	gone := make(map[int64]bool)
	for _, c := range closest {
		gone[c.entry] = true
	}
	for _, h := range hits {
		delete(gone, h.id)
	}
	if len(gone) > 0 {
		s.sketches.drop(spaces, gone)
	}
}

// compare sets what rank goes by for hits that were found by their keys.
func (s *shelf) compare(tx *store.Tx, w *want, spaces []int64, hits []hit) error {
	ids := make([]int64, len(hits))
	allowed := make(map[int64]bool, len(hits))
	for i, h := range hits {
		ids[i], allowed[h.id] = h.id, true
	}
	byWords, err := s.byWords(tx, w, spaces, maxCandidates, allowed)
	if err != nil {
		return err
	}
	measured, err := candidates(tx, w, ids)
	if err != nil {
		return err
	}
	for i := range hits {
		hits[i].byWords = byWords[hits[i].id]
		for _, m := range measured {
			if m.id == hits[i].id {
				hits[i].cosine = m.cosine
			}
		}
	}
	return nil
}

// byWords gives the places of the n best entries by BM25, from 1 on; equals share one. Words
// that very many entries have cannot tell these apart, and looking at each would take
// long: they are left out where there are others.
func (s *shelf) byWords(tx *store.Tx, w *want, spaces []int64, n int, allowed map[int64]bool) (map[int64]int, error) {
	rare, common, err := s.sift(tx, w, spaces)
	if err != nil {
		return nil, err
	}
	query, match := "SELECT rowid, rank FROM memory_text WHERE memory_text MATCH ? ORDER BY rank LIMIT ?", rare
	if len(rare) == 0 {
		query, match = "SELECT rowid, 0 FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?", common
	}
	if len(match) == 0 {
		return nil, nil
	}
	if allowed != nil {
		n = maxCandidates
	}
	places := make(map[int64]int)
	place, last := 0, math.Inf(1)
	err = tx.Each(query, []any{strings.Join(match, " OR "), n}, func(scan func(...any) error) error {
		var id int64
		var score float64
		err := scan(&id, &score)
		if allowed != nil && !allowed[id] {
			return err
		}
		if score != last {
			place, last = len(places)+1, score
		}
		places[id] = place
		return err
	})
	return places, err
}

// sift turns the words into terms of a full-text query: those that few entries have, as
// many as the budget allows, and the others.
func (s *shelf) sift(tx *store.Tx, w *want, spaces []int64) (rare, common []string, err error) {
	type term struct {
		text  string
		count int
	}
	var terms []term
	for _, space := range spaces {
		for _, word := range w.words {
			// quoted: whatever a word is, it is no operator
			t := term{text: `"` + spaceMark(space) + strings.ReplaceAll(word, `"`, `""`) + `"`}
			if t.count, err = s.common.count(tx, t.text); err != nil {
				return nil, nil, err
			}
			if t.count > 0 {
				terms = append(terms, t)
			}
		}
	}
	slices.SortStableFunc(terms, func(a, b term) int { return cmp.Compare(a.count, b.count) })
	sum := 0
	for _, t := range terms {
		if sum += t.count; sum <= maxCandidates {
			rare = append(rare, t.text)
		} else {
			common = append(common, t.text)
		}
	}
	return rare, common, nil
}

// common remembers the terms that very many entries have, for a while.
type common struct {
	mu    sync.Mutex // guards terms
	terms map[string]time.Time
}

const (
	commonFor = 5 * time.Minute
	maxCommon = 10_000
)

// count gives the number of entries that have a term, up to maxCandidates+1.
func (c *common) count(tx *store.Tx, term string) (n int, err error) {
	c.mu.Lock()
	since, known := c.terms[term]
	c.mu.Unlock()
	if known && time.Since(since) < commonFor {
		return maxCandidates + 1, nil
	}
	if _, err := tx.Get("SELECT count(*) FROM (SELECT 1 FROM memory_text WHERE memory_text MATCH ? LIMIT ?)", []any{term, maxCandidates + 1}, &n); err != nil {
		return 0, err
	}
	if n > maxCandidates {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.terms == nil || len(c.terms) >= maxCommon {
			c.terms = make(map[string]time.Time)
		}
		c.terms[term] = time.Now()
	}
	return n, nil
}

// rank fuses the two rankings (reciprocal rank fusion) and weighs how much an entry has in
// common with the query by its place: the first of bad candidates is no good one, and the
// first of both rankings counts in full, one that is in neither half.
func rank(w *want, hits []hit) []hit {
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.cosine, a.cosine) })
	place := 0
	for i := range hits {
		h := &hits[i]
		if i == 0 || h.cosine != hits[i-1].cosine {
			place = i + 1
		}
		fused := 0.0
		if h.byWords > 0 {
			fused += 1 / float64(rankConstant+h.byWords)
		}
		if h.cosine > 0 {
			fused += 1 / float64(rankConstant+place)
		}
		match := max(h.cosine, w.grams.In(h.text()))
		if match < minMatch {
			match = 0
		}
		h.score = match * (1 + fused*(rankConstant+1)/2) / 2
	}
	hits = slices.DeleteFunc(hits, func(h hit) bool { return h.score == 0 || h.score < w.minScore })
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.Weight, a.Weight), cmp.Compare(b.updated, a.updated))
	})
	return hits
}
