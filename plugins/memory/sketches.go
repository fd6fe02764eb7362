package memory

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"a2e/host/store"
)

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

// nearest gives the n entries nearest to a sketch among those allowed, nearest first; nil
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
