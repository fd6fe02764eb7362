package memory

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sync"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
)

const (
	segmentSize  = 256       // vectors of a segment
	maxSealed    = 64        // segments that one write makes at most
	maxLoose     = 4096      // loose vectors that a search looks at
	maxCached    = 256 << 20 // bytes of codes that a repository keeps in memory
	minEstimated = 4096      // least number of entries whose cosines are estimated
	minExact     = 192       // least number of entries whose cosines are computed
)

// index finds the entries whose vectors are nearest to that of a query. The vectors of a
// space are in the store. Each 256 of them are sealed: their codes (embed.Codes) are then
// together in a segment, so that the first search of a process reads only the segments. A
// segment never changes: a removed entry stays in it until the segment is dissolved, but has no
// vector in the store.
type index struct {
	mu     sync.Mutex // guards the fields below; what they point to never changes
	cached int        // bytes
	spaces map[int64]*spaceIndex
	coders map[int64]*embed.Coder // by the id of their centre
	limit  int                    // of cached
	behind int64                  // a space with so many loose vectors that it is to be sealed; 0 = none
}

// spaceIndex is the part of the index for one space.
type spaceIndex struct {
	newest   int64 // the id of the segment made last
	count    int   // of segments
	segments []*segment
	loose    []loose        // ordered by entry
	gone     map[int64]bool // removed entries that are still in segments
	bytes    int
}

// segment has the codes of up to 256 entries.
type segment struct {
	id, centre int64
	size       int
	entries    []byte // ids of eight bytes, little-endian; nil = not kept in memory
	codes      embed.Codes
}

// loose is an entry that is in no segment yet.
type loose struct {
	entry  int64
	vector embed.Vector
}

// near is an entry with the cosine between its vector and that of a query.
type near struct {
	entry  int64
	cosine float64
}

func newIndex() *index {
	return &index{limit: maxCached, spaces: make(map[int64]*spaceIndex), coders: make(map[int64]*embed.Coder)}
}

func (s *segment) entry(i int) int64 { return int64(binary.LittleEndian.Uint64(s.entries[8*i:])) }

// nearest returns the n entries of some spaces whose vectors are nearest to that of a query, the
// nearest first; allowed nil = all entries.
func (x *index) nearest(tx *store.Tx, spaces []int64, query embed.Vector, n int, allowed map[int64]bool) ([]near,
	error,
) {
	if len(query) == 0 {
		return nil, nil
	}
	s := &scan{index: x, tx: tx, query: query, allowed: allowed, probes: make(map[int64]*embed.Probe)}
	var best []near
	for _, space := range spaces {
		known, err := x.follow(tx, space, len(query))
		if err != nil {
			return nil, err
		}
		for _, l := range known.loose {
			if allowed == nil || allowed[l.entry] {
				best = append(best, near{l.entry, query.Cosine(l.vector)})
			}
		}
		found, err := s.in(space, known, n)
		if err != nil {
			return nil, err
		}
		best = append(best, found...)
	}
	slices.SortFunc(best, nearer)
	return best[:min(n, len(best))], nil
}

// nearer orders by cosine, the highest first, and entries with the same cosine by age, the newest first.
func nearer(a, b near) int {
	return cmp.Or(cmp.Compare(b.cosine, a.cosine), cmp.Compare(b.entry, a.entry))
}

// scan is one search of an index.
type scan struct {
	*index
	tx      *store.Tx
	query   embed.Vector
	allowed map[int64]bool
	probes  map[int64]*embed.Probe // by centre
}

// in searches the segments of a space. It compares the signs of all codes, estimates the cosines of the
// best third, and computes the cosines of the best estimates. If many of these entries are gone, it searches
// a second time without them.
func (s *scan) in(space int64, known *spaceIndex, n int) (best []near, err error) {
	want := max(minExact, 2*n)
	for range 2 {
		estimates, err := s.estimate(known, want)
		if err != nil || len(estimates) == 0 {
			return nil, err
		}
		if best, err = s.exact(estimates); err != nil || len(best) == len(estimates) {
			return best, err
		}
		few := len(best) < max(n, len(estimates)/2)
		if known, err = s.bury(space, known, estimates, best, few); err != nil || !few {
			return best, err
		}
	}
	return best, nil
}

// estimate returns the entries with the highest estimates.
func (s *scan) estimate(known *spaceIndex, want int) ([]near, error) {
	var distances []uint16
	err := s.each(known, func(g *segment, p *embed.Probe) { distances = p.Distances(distances, g.codes) })
	if err != nil {
		return nil, err
	}
	limit := uint16(math.MaxUint16)
	if s.allowed == nil {
		limit = closest(distances, max(minEstimated, 4*want, len(distances)/3))
	}
	best := make([]near, 0, 4*want)
	floor := math.Inf(-1)
	err = s.each(known, func(g *segment, p *embed.Probe) {
		for i, d := range distances[:g.size] {
			if d > limit {
				continue
			}
			entry := g.entry(i)
			if s.allowed != nil && !s.allowed[entry] || known.gone[entry] {
				continue
			}
			c := float64(p.Cosine(g.codes, i))
			if c <= floor {
				continue
			}
			if best = append(best, near{entry, c}); len(best) == cap(best) {
				slices.SortFunc(best, nearer)
				best = best[:want]
				floor = best[want-1].cosine
			}
		}
		distances = distances[g.size:]
	})
	slices.SortFunc(best, nearer)
	return best[:min(want, len(best))], err
}

// each calls fn for each segment. It reads the segments that are not in memory.
func (s *scan) each(known *spaceIndex, fn func(*segment, *embed.Probe)) error {
	for _, g := range known.segments {
		p, err := s.probe(g.centre)
		if err != nil {
			return err
		}
		if g.codes == nil {
			read := *g
			if _, err := s.tx.Get("SELECT entries, codes FROM memory_segments WHERE id = $1", []any{g.id},
				&read.entries, &read.codes); err != nil {
				return err
			}
			g = &read
		}
		if p != nil && p.Count(g.codes) == g.size {
			fn(g, p)
		}
	}
	return nil
}

// probe returns the query prepared for the codes of a centre, or nil if the centre has another size.
func (s *scan) probe(centre int64) (*embed.Probe, error) {
	if p, there := s.probes[centre]; there {
		return p, nil
	}
	x := s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.coders[centre]
	if c == nil {
		var raw []byte
		if _, err := s.tx.Get("SELECT centre FROM memory_centres WHERE id = $1", []any{centre}, &raw); err != nil {
			return nil, err
		}
		c = embed.NewCoder(floatsOf(raw))
		x.coders[centre] = c
	}
	var p *embed.Probe
	if c.Dimensions() == len(s.query) {
		p = c.Probe(s.query)
	}
	s.probes[centre] = p
	return p, nil
}

// exact computes the cosines of the entries that still exist.
func (s *scan) exact(estimates []near) ([]near, error) {
	ids := make([]int64, len(estimates))
	for i, e := range estimates {
		ids[i] = e.entry
	}
	best := make([]near, 0, len(ids))
	vectors, err := vectorsOf(s.tx, ids, len(s.query))
	for _, l := range vectors {
		best = append(best, near{l.entry, s.query.Cosine(l.vector)})
	}
	return best, err
}

// vectorsOf reads the vectors of entries, ordered by entry.
func vectorsOf(tx *store.Tx, ids []int64, size int) (all []loose, err error) {
	err = tx.Each("SELECT entry, vector FROM memory_vectors WHERE entry IN (SELECT CAST(value AS BIGINT) FROM "+
		"json_each($1)) ORDER BY entry", []any{store.JSON(ids)}, func(scan func(...any) error) error {
		var l loose
		var raw []byte
		err := scan(&l.entry, &raw)
		if l.vector = embed.VectorOf(raw, size); l.vector != nil {
			all = append(all, l)
		}
		return err
	})
	return all, err
}

// bury records entries of segments that are gone: those among the estimates without a vector or, if all is
// true, all of the space.
func (s *scan) bury(space int64, known *spaceIndex, estimates, best []near, all bool) (*spaceIndex, error) {
	fresh := *known
	fresh.gone = maps.Clone(known.gone)
	if fresh.gone == nil {
		fresh.gone = make(map[int64]bool)
	}
	for _, e := range estimates {
		fresh.gone[e.entry] = true
	}
	if all {
		if err := s.each(known, func(g *segment, _ *embed.Probe) {
			for i := range g.size {
				fresh.gone[g.entry(i)] = true
			}
		}); err != nil {
			return nil, err
		}
		there, err := store.Column[int64](s.tx, "SELECT id FROM memory_entries WHERE space = $1", space)
		if err != nil {
			return nil, err
		}
		for _, id := range there {
			delete(fresh.gone, id)
		}
	}
	for _, b := range best {
		delete(fresh.gone, b.entry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces[space] == known {
		s.spaces[space] = &fresh
	}
	return &fresh, nil
}

// closest returns the smallest distance that at least n distances do not exceed, or math.MaxUint16 if
// there are no more than n.
func closest(distances []uint16, n int) uint16 {
	if len(distances) <= n {
		return math.MaxUint16
	}
	counts := make([]int, int(slices.Max(distances))+1)
	for _, d := range distances {
		counts[d]++
	}
	for d, c := range counts {
		if n -= c; n <= 0 {
			return uint16(d)
		}
	}
	return math.MaxUint16
}

// follow brings the index of a space up to date with the store, and returns it.
func (x *index) follow(tx *store.Tx, space int64, size int) (*spaceIndex, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	known := x.spaces[space]
	if known == nil {
		known = &spaceIndex{}
	}
	fresh := *known
	if _, err := tx.Get("SELECT coalesce(max(id), 0), count(*) FROM memory_segments WHERE space = $1", []any{space},
		&fresh.newest, &fresh.count); err != nil {
		return nil, err
	}
	resealed := fresh.newest != known.newest || fresh.count != known.count
	if resealed {
		if err := x.followSegmentsLocked(tx, space, known, &fresh); err != nil {
			return nil, err
		}
	}
	changed, err := fresh.followLoose(tx, space, size)
	if err != nil {
		return nil, err
	}
	if len(fresh.loose) >= 2*segmentSize {
		x.behind = space
	}
	if changed || resealed || x.spaces[space] == nil {
		fresh.bytes = 0
		for _, g := range fresh.segments {
			fresh.bytes += len(g.entries) + len(g.codes)
		}
		fresh.bytes += len(fresh.loose) * 2 * size
		x.cached += fresh.bytes - known.bytes
		x.spaces[space] = &fresh
	}
	return x.spaces[space], nil
}

// background returns the typical cosines of unrelated texts: from the vectors of the newest centre or,
// if there is no centre yet, from the loose vectors of the spaces.
func (x *index) background(tx *store.Tx, query embed.Vector, spaces []int64) (b embed.Background, err error) {
	if len(query) == 0 {
		return b, nil
	}
	there, err := tx.Get("SELECT mean, spread FROM memory_centres ORDER BY id DESC LIMIT 1", nil, &b.Mean, &b.Spread)
	if there || err != nil {
		return b, err
	}
	var vectors []embed.Vector
	for _, space := range spaces {
		known, err := x.follow(tx, space, len(query))
		if err != nil {
			return b, err
		}
		for _, l := range known.loose {
			vectors = append(vectors, l.vector)
		}
	}
	return embed.BackgroundOf(vectors), nil
}

// followSegmentsLocked lists the segments of a space, and reads the new ones if they fit into memory. To make
// room it drops other spaces.
func (x *index) followSegmentsLocked(tx *store.Tx, space int64, known, fresh *spaceIndex) error {
	there := make(map[int64]*segment, len(known.segments))
	for _, g := range known.segments {
		there[g.id] = g
	}
	fresh.segments = nil
	more := 0
	err := tx.Each("SELECT id, centre, size, bytes FROM memory_segments WHERE space = $1 ORDER BY id", []any{space},
		func(scan func(...any) error) error {
			g, bytes := new(segment), 0
			err := scan(&g.id, &g.centre, &g.size, &bytes)
			if old := there[g.id]; old != nil {
				g = old
			} else {
				there[g.id] = g
				more += bytes
			}
			fresh.segments = append(fresh.segments, g)
			return err
		})
	if err != nil {
		return err
	}
	if len(fresh.segments) < len(there) { // some were dissolved
		fresh.gone = nil
	}
	for other, s := range x.spaces {
		if other != space && x.cached+more > x.limit {
			x.cached -= s.bytes
			delete(x.spaces, other)
		}
	}
	if x.cached+more > x.limit {
		return nil // each search reads these
	}
	return tx.Each("SELECT id, entries, codes FROM memory_segments WHERE space = $1 AND id > $2", []any{
		space,
		known.newest,
	}, func(scan func(...any) error) error {
		var id int64
		var entries, codes []byte
		err := scan(&id, &entries, &codes)
		there[id].entries, there[id].codes = entries, codes
		return err
	})
}

// followLoose reads the loose vectors that are new since the last call, and reports whether any was
// added or removed.
func (s *spaceIndex) followLoose(tx *store.Tx, space int64, size int) (changed bool, err error) {
	ids, err := store.Column[int64](tx, "SELECT entry FROM memory_loose WHERE space = $1 ORDER BY entry DESC LIMIT "+
		"$2", space, maxLoose)
	if err != nil {
		return false, err
	}
	slices.Reverse(ids)
	var kept []loose
	var missing []int64
	for _, id := range ids {
		if at, there := slices.BinarySearchFunc(s.loose, id, func(l loose,
			id int64,
		) int {
			return cmp.Compare(l.entry, id)
		}); there {
			kept = append(kept, s.loose[at])
		} else {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 && len(kept) == len(s.loose) {
		return false, nil
	}
	added, err := vectorsOf(tx, missing, size)
	s.loose = append(kept, added...)
	slices.SortFunc(s.loose, func(a, b loose) int { return cmp.Compare(a.entry, b.entry) })
	return true, err
}
