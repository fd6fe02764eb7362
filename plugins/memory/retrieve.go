package memory

import (
	"cmp"
	"context"
	"math"
	"slices"

	"a2e/host"
	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

const (
	maxResults = 10_000  // entries in one answer
	maxAnswer  = 8 << 20 // and their bytes
	maxQuery   = 4 << 10 // bytes of a query that count
)

// want is what a retrieve request asks for.
type want struct {
	name     name
	sess     *host.Session
	now      float64
	keys     []string // canonical
	tags     []string
	limit    int
	minScore float64

	query  string // "" = none; the rest follows from it
	words  *embed.Query
	vector embed.Vector
}

// hit is an entry that was found.
type hit struct {
	*row
	score float64 // relevance, or without a query the entry's own weight

	words  float64 // how much of the query's words it has, from 0 to 1
	cosine float64 // to the query; 0 without a vector
}

// found is what one repository has.
type found struct {
	hits  []hit
	total int // before the limit, where there is no query
}

// retrieve finds entries: all that fit the keys, tags and tier, ranked by their
// relevance to the query or else newest first.
func (p *Plugin) retrieve(ctx context.Context, req *protocol.MemoryRetrieveRequest, _ host.Emitter) (*protocol.MemoryRetrieveResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	if req.Limit < 0 {
		return nil, violation("/limit", "is %d; it should be 0 or more", req.Limit)
	}
	among, err := tiersOf(req.Tier)
	if err != nil {
		return nil, err
	}
	keys, err := filters(req.Keys, req.Tags)
	if err != nil {
		return nil, err
	}
	w := &want{
		name: n, sess: host.SessionFrom(ctx), now: p.now(), keys: keys, tags: req.Tags,
		limit: min(req.Limit, maxResults), minScore: req.MinScore,
	}
	note := p.understand(ctx, w, req.Query)
	all, err := p.look(ctx, w, among)
	if err != nil {
		return nil, storeTrouble(err)
	}
	if w.query != "" {
		all.hits = rank(w, all.hits)
		all.total = len(all.hits)
		p.catchUp(ctx)
	} else {
		slices.SortStableFunc(all.hits, func(a, b hit) int { return cmp.Or(cmp.Compare(b.updated, a.updated), cmp.Compare(b.id, a.id)) })
	}
	return all.answer(w, note)
}

// understand prepares a query.
func (p *Plugin) understand(ctx context.Context, w *want, query string) (note string) {
	if query == "" {
		return ""
	}
	w.query = query[:min(len(query), maxQuery)]
	w.words = embed.NewQuery(w.query, maxQueryWords)
	if p.embedder.Model().Name == "a2e-hashed-1" {
		return ""
	}
	vectors, note := p.embedTexts(ctx, []string{w.query})
	w.vector = vectors[0]
	return note
}

// look asks the repositories that hold these tiers.
func (p *Plugin) look(ctx context.Context, w *want, among []protocol.MemoryTier) (all found, err error) {
	var durable []protocol.MemoryTier
	for _, tier := range among {
		if tier != protocol.TierWorking {
			durable = append(durable, tier)
			continue
		}
		s, err := p.repositoryOf(ctx, tier, false)
		if err != nil {
			return all, err
		}
		if s != nil {
			if err := p.lookIn(ctx, s, w, []protocol.MemoryTier{tier}, &all); err != nil {
				return all, err
			}
		}
	}
	if len(durable) == 0 {
		return all, nil
	}
	s, err := p.repositoryOf(ctx, protocol.TierEpisodic, false)
	if err != nil {
		return all, err
	}
	return all, p.lookIn(ctx, s, w, durable, &all)
}

// lookIn adds what a repository has to all.
func (p *Plugin) lookIn(ctx context.Context, s *repository, w *want, among []protocol.MemoryTier, all *found) error {
	var here found
	expired, sweep := false, true
	read := func(tx *store.Tx) (err error) {
		here = found{}
		if err = p.checkModel(tx); err != nil {
			return err
		}
		if sweep {
			if expired, err = tx.Get("SELECT 1 FROM memory_entries WHERE expires_at <= ? LIMIT 1", []any{w.now}, new(int)); err != nil || expired {
				return err
			}
		}
		var spaces []int64
		for _, tier := range among {
			owner, err := p.owner(tx, tier, w.sess)
			if err != nil {
				return err
			}
			space, err := spaceOf(tx, w.name.id, tier, owner)
			if err != nil {
				return err
			}
			if space != 0 {
				spaces = append(spaces, space)
			}
		}
		here, err = s.find(tx, w, spaces)
		return err
	}
	err := s.store.Read(ctx, read)
	for err == nil && sweep && expired {
		// What has expired is removed first, so that no count has it. Where it cannot be, on a
		// full disk say, it is not served all the same.
		sweep = s.store.Write(ctx, func(tx *store.Tx) error { return purge(tx, w.now) }) == nil
		err = s.store.Read(ctx, read)
	}
	s.sealBehind(ctx)
	all.hits = append(all.hits, here.hits...)
	all.total += here.total
	return err
}

// find looks for w in some spaces of the repository.
func (s *repository) find(tx *store.Tx, w *want, spaces []int64) (all found, err error) {
	if w.query != "" && len(w.keys) == 0 {
		all.hits, err = s.search(tx, w, spaces)
		return all, err
	}
	for _, space := range spaces {
		var here found
		switch {
		case len(w.keys) > 0:
			here, err = byKeys(tx, w, space)
		case len(w.tags) > 0:
			here, err = byTags(tx, w, space)
		default:
			here, err = newest(tx, w, space)
		}
		if err != nil {
			return all, err
		}
		all.hits = append(all.hits, here.hits...)
		all.total += here.total
	}
	if w.query != "" {
		all.hits, err = compare(tx, w, spaces, all.hits)
	}
	return all, err
}

// byKeys returns the entries of the keys that have one of the tags.
func byKeys(tx *store.Tx, w *want, space int64) (found, error) {
	all, err := rows(tx, w.now, "WHERE e.space = ? AND e.key IN (SELECT value FROM json_each(?))", space, listOf(w.keys))
	var f found
	for _, r := range all {
		if hasTag(r, w.tags) && (w.query != "" || r.Weight >= w.minScore) {
			f.hits = append(f.hits, hit{row: r, score: r.Weight})
		}
	}
	f.total = len(f.hits)
	return f, err
}

// hasTag reports whether an entry has one of the tags; all have when there are none.
func hasTag(r *row, tags []string) bool {
	return len(tags) == 0 || slices.ContainsFunc(tags, func(tag string) bool { return slices.Contains(r.Tags, tag) })
}

// byTags returns the newest entries that have one of the tags.
func byTags(tx *store.Tx, w *want, space int64) (found, error) {
	if w.minScore > 0 {
		return weighty(tx, w, space)
	}
	var ids []int64
	var f found
	for _, tag := range w.tags {
		more, err := idsOf(tx, "SELECT entry FROM memory_tags WHERE space = ? AND tag = ? ORDER BY entry DESC LIMIT ?", space, tag, w.limit)
		if err != nil {
			return f, err
		}
		ids = append(ids, more...)
	}
	slices.SortFunc(ids, func(a, b int64) int { return cmp.Compare(b, a) })
	ids = slices.Compact(ids)
	all, err := rows(tx, w.now, "WHERE e.id IN (SELECT value FROM json_each(?))", listOf(ids[:min(len(ids), w.limit)]))
	if err != nil {
		return f, err
	}
	f.add(all)
	if len(w.tags) == 1 {
		_, err = tx.Get("SELECT count(*) FROM memory_tags WHERE space = ? AND tag = ?", []any{space, w.tags[0]}, &f.total)
	} else {
		_, err = tx.Get("SELECT count(DISTINCT entry) FROM memory_tags WHERE space = ? AND tag IN (SELECT value FROM json_each(?))", []any{space, listOf(w.tags)}, &f.total)
	}
	return f, err
}

// newest returns the entries stored last.
func newest(tx *store.Tx, w *want, space int64) (f found, err error) {
	if w.minScore > 0 {
		return weighty(tx, w, space)
	}
	all, err := rows(tx, w.now, "WHERE e.space = ? ORDER BY e.id DESC LIMIT ?", space, w.limit)
	if err != nil {
		return f, err
	}
	f.add(all)
	_, err = tx.Get("SELECT entries FROM memory_spaces WHERE id = ?", []any{space}, &f.total)
	return f, err
}

// weighty returns the newest entries of at least a weight. It looks at all of them.
func weighty(tx *store.Tx, w *want, space int64) (f found, err error) {
	const where = `WHERE e.space = ?1 AND e.weight >= ?2
		AND (?3 = '[]' OR e.id IN (SELECT entry FROM memory_tags WHERE space = ?1 AND tag IN (SELECT value FROM json_each(?3))))`
	args := []any{space, w.minScore, listOf(w.tags)}
	all, err := rows(tx, w.now, where+" ORDER BY e.id DESC LIMIT ?4", append(args, w.limit)...)
	if err != nil {
		return f, err
	}
	f.add(all)
	_, err = tx.Get("SELECT count(*) FROM memory_entries e "+where, args, &f.total)
	return f, err
}

func (f *found) add(all []*row) {
	for _, r := range all {
		f.hits = append(f.hits, hit{row: r, score: r.Weight})
	}
}

// answer returns the first hits. One too large for all that was asked for is cut short;
// total and detail tell.
func (f *found) answer(w *want, note string) (*protocol.MemoryRetrieveResponse, error) {
	resp := &protocol.MemoryRetrieveResponse{Entries: []protocol.MemoryEntry{}, Total: f.total, Detail: detail(note)}
	bytes := 0
	for _, h := range f.hits[:min(len(f.hits), w.limit)] {
		if bytes += h.size(); bytes > maxAnswer && len(resp.Entries) > 0 {
			if resp.Detail == nil {
				resp.Detail = map[string]any{}
			}
			resp.Detail["truncated"] = "the answer would have been larger than 8 MiB; ask for the rest by keys, tags or a smaller limit"
			break
		}
		e, err := h.answer(math.Round(h.score*1e4) / 1e4)
		if err != nil {
			return nil, err
		}
		resp.Entries = append(resp.Entries, e)
	}
	return resp, nil
}
