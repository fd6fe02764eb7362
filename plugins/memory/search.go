package memory

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"a2e/host/store"
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
	allowed, err := tagged(tx, w, spaces)
	if err != nil {
		return nil, err
	}
	n := max(minCandidates, min(2*w.limit, maxCandidates))
	words, err := lookUp(tx, w.words, spaces)
	if err != nil {
		return nil, err
	}
	ids, err := words.best(n, allowed)
	if err != nil {
		return nil, err
	}
	var closest []near
	if len(w.vector) > 0 {
		if err := s.sketches.follow(tx); err != nil {
			return nil, err
		}
		closest = s.sketches.nearest(spaces, w.vector.Sketch(), n, allowed)
	}
	for _, c := range closest {
		ids = append(ids, c.entry)
	}
	hits, err := candidates(tx, w, words, ids)
	if err != nil {
		return nil, err
	}
	s.dropGone(spaces, closest, hits)
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

// candidates reads the entries of ids, with how much they have in common with the query.
func candidates(tx *store.Tx, w *want, words *words, ids []int64) ([]hit, error) {
	slices.Sort(ids)
	var hits []hit
	err := tx.Each("SELECT "+columns+", v.vector"+fromEntries+"LEFT JOIN memory_vectors v ON v.entry = e.id WHERE e.id IN (SELECT value FROM json_each(?))",
		[]any{listOf(slices.Compact(ids))}, func(scan func(...any) error) error {
			var vector []byte
			r, err := readRow(func(dest ...any) error { return scan(append(dest, &vector)...) })
			if err == nil && (r.expires == 0 || r.expires > w.now) {
				hits = append(hits, hit{row: r, words: words.in(r.text()), cosine: w.vector.Cosine(bytesToVector(vector, 0))})
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
	for _, h := range found {
		ids = append(ids, h.id)
	}
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
