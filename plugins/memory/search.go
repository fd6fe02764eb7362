package memory

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"

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

// queryWords returns the words of a query, each once.
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

// search returns the candidates of two rankings: by words (BM25) and by vectors.
func (s *repository) search(tx *store.Tx, w *want, spaces []int64) ([]hit, error) {
	if err := s.sketches.follow(tx); err != nil {
		return nil, err
	}
	allowed, err := tagged(tx, w, spaces)
	if err != nil {
		return nil, err
	}
	n := max(minCandidates, min(2*w.limit, maxCandidates))
	places, err := byWords(tx, w, spaces, n, allowed)
	if err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Keys(places))
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
		hits[i].byWords = places[hits[i].id]
	}
	return slices.DeleteFunc(hits, func(h hit) bool { return !hasTag(h.row, w.tags) }), nil
}

// tagged returns the entries that have one of the tags; nil when there are no tags, or
// so many entries that it is better to look at their tags afterwards.
func tagged(tx *store.Tx, w *want, spaces []int64) (map[int64]bool, error) {
	if len(w.tags) == 0 {
		return nil, nil
	}
	allowed := make(map[int64]bool)
	for _, space := range spaces {
		ids, err := idsOf(tx, "SELECT entry FROM memory_tags WHERE space = ? AND tag IN (SELECT value FROM json_each(?)) LIMIT ?", space, listOf(w.tags), maxAllowed+1)
		if err != nil || len(ids) > maxAllowed {
			return nil, err
		}
		for _, id := range ids {
			allowed[id] = true
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
func (s *repository) dropGone(spaces []int64, closest []near, hits []hit) {
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

// compare returns what rank goes by for hits that were found by their keys.
func compare(tx *store.Tx, w *want, spaces []int64, found []hit) ([]hit, error) {
	var ids []int64
	allowed := make(map[int64]bool, len(found))
	for _, h := range found {
		ids, allowed[h.id] = append(ids, h.id), true
	}
	places, err := byWords(tx, w, spaces, maxCandidates, allowed)
	if err != nil {
		return nil, err
	}
	hits, err := candidates(tx, w, ids)
	for i := range hits {
		hits[i].byWords = places[hits[i].id]
	}
	return hits, err
}

// byWords returns the places of the n best entries by BM25, from 1 on; equals share one. Words
// that very many entries have cannot tell these apart, and looking at each would take
// long: they are left out where there are others.
func byWords(tx *store.Tx, w *want, spaces []int64, n int, allowed map[int64]bool) (map[int64]int, error) {
	rare, common, err := sift(tx, w, spaces)
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
func sift(tx *store.Tx, w *want, spaces []int64) (rare, common []string, err error) {
	type term struct {
		text  string
		count int
	}
	var terms []term
	for _, space := range spaces {
		for _, word := range w.words {
			// quoted: whatever a word is, it is no operator
			t := term{text: `"` + spaceMark(space) + strings.ReplaceAll(word, `"`, `""`) + `"`}
			if _, err := tx.Get("SELECT count(*) FROM (SELECT 1 FROM memory_text WHERE memory_text MATCH ? LIMIT ?)", []any{t.text, maxCandidates + 1}, &t.count); err != nil {
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

// sketches holds the sign bits of all vectors of a store, so that a search looks at each
// in some nanoseconds. It follows the store: what any host adds is there at the next
// search, and what was removed is dropped when a search comes upon it.
type sketches struct {
	mu     sync.RWMutex // guards the fields below
	last   int64        // the seq of the newest vector that is here
	spaces map[int64]*block
}

// block is the sketches of one space.
type block struct {
	words   int  // of one sketch
	mixed   bool // the entries do not stand in order: some got their vectors late
	entries []int64
	bits    []uint64 // words for each entry
}

// near is an entry with its distance from what was looked for.
type near struct {
	entry    int64
	distance int // bits that differ
}

func newSketches() *sketches { return &sketches{spaces: make(map[int64]*block)} }

// follow takes in what was added to the store since the last time.
func (s *sketches) follow(tx *store.Tx) error {
	s.mu.RLock()
	last := s.last
	s.mu.RUnlock()
	type added struct {
		seq, entry, space int64
		sketch            []byte
	}
	var fresh []added
	err := tx.Each("SELECT seq, entry, space, sketch FROM memory_vectors WHERE seq > ? ORDER BY seq", []any{last}, func(scan func(...any) error) error {
		var a added
		err := scan(&a.seq, &a.entry, &a.space, &a.sketch)
		fresh = append(fresh, a)
		return err
	})
	if err != nil || len(fresh) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range fresh {
		if a.seq > s.last {
			s.last = a.seq
			s.addLocked(a.space, a.entry, a.sketch)
		}
	}
	return nil
}

func (s *sketches) addLocked(space, entry int64, sketch []byte) {
	b := s.spaces[space]
	if b == nil || b.words != len(sketch)/8 { // of another model: the old ones are gone
		b = &block{words: len(sketch) / 8}
		s.spaces[space] = b
	}
	b.mixed = b.mixed || len(b.entries) > 0 && entry < b.entries[len(b.entries)-1]
	b.entries = append(b.entries, entry)
	for ; len(sketch) >= 8; sketch = sketch[8:] {
		b.bits = append(b.bits, binary.LittleEndian.Uint64(sketch))
	}
}

// nearest returns the n entries nearest to a sketch among those allowed, nearest first; nil
// allows all.
func (s *sketches) nearest(spaces []int64, sketch []uint64, n int, allowed map[int64]bool) []near {
	s.mu.RLock()
	defer s.mu.RUnlock()
	best := make([]near, 0, n+1)
	for _, space := range spaces {
		b := s.spaces[space]
		switch {
		case b == nil || b.words != len(sketch):
		case allowed == nil || b.mixed:
			for i := range b.entries {
				if d := b.distance(i, sketch); (len(best) < n || d < best[n-1].distance) && (allowed == nil || allowed[b.entries[i]]) {
					best = insert(best, near{b.entries[i], d}, n)
				}
			}
		default: // they are few: each is looked up
			for entry := range allowed {
				if i, there := slices.BinarySearch(b.entries, entry); there {
					best = insert(best, near{entry, b.distance(i, sketch)}, n)
				}
			}
		}
	}
	return best
}

// insert puts one of the n best at its place, behind its equals.
func insert(best []near, one near, n int) []near {
	at, _ := slices.BinarySearchFunc(best, one.distance+1, func(o near, d int) int { return o.distance - d })
	best = slices.Insert(best, at, one)
	return best[:min(len(best), n)]
}

func (b *block) distance(i int, sketch []uint64) int {
	return distance(b.bits[i*b.words:(i+1)*b.words], sketch)
}

func distance(a, b []uint64) int {
	n := 0
	for len(a) >= 8 && len(b) >= 8 { // the size of the built-in sketches
		n += bits.OnesCount64(a[0]^b[0]) + bits.OnesCount64(a[1]^b[1]) + bits.OnesCount64(a[2]^b[2]) + bits.OnesCount64(a[3]^b[3]) +
			bits.OnesCount64(a[4]^b[4]) + bits.OnesCount64(a[5]^b[5]) + bits.OnesCount64(a[6]^b[6]) + bits.OnesCount64(a[7]^b[7])
		a, b = a[8:], b[8:]
	}
	for i, w := range a {
		n += bits.OnesCount64(w ^ b[i])
	}
	return n
}

// drop forgets entries that are no longer in the store.
func (s *sketches) drop(spaces []int64, gone map[int64]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, space := range spaces {
		b := s.spaces[space]
		if b == nil {
			continue
		}
		kept := 0
		for i, entry := range b.entries {
			if gone[entry] {
				continue
			}
			b.entries[kept] = entry
			copy(b.bits[kept*b.words:(kept+1)*b.words], b.bits[i*b.words:(i+1)*b.words])
			kept++
		}
		b.entries, b.bits = b.entries[:kept], b.bits[:kept*b.words]
	}
}
