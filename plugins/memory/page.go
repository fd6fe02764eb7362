package memory

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"

	"a2e/host/state/store"
	"a2e/protocol"
)

// ref is what paging needs of an entry that may be in the answer.
type ref struct {
	id      int64
	updated float64
	bytes   int
	working bool
}

// listed is the result of one repository for a list.
type listed struct {
	refs []ref // the newest first
	idList
}

// list answers a request without a query.
func (p *Plugin) list(ctx context.Context, w *want) (*protocol.MemoryRetrieveResponse, error) {
	resp := &protocol.MemoryRetrieveResponse{}
	var durable, working listed
	var all, rest, page []ref
	found := make(map[ref]*row)
	err := p.each(ctx, w, func(tx *store.Tx, s *repository, spaces []space) (err error) {
		here, below := &durable, w.Durable
		if s.working {
			here, below = &working, w.Working
		}
		*here = listed{}
		if here.idList, err = w.ids(tx, spaces, below, w.end(), true); err != nil {
			return err
		}
		if here.refs, err = refsOf(tx, here.ids, s.working); err != nil {
			return err
		}
		all = merge(durable, working)
		if rest, page = w.page(all); s.working {
			return nil // the page is not complete before the shared store is read
		}
		return load(tx, w, page, false, found) // in one transaction, as an entry stored again has another id
	})
	if err != nil {
		return nil, err
	}
	resp.Total = durable.total + working.total
	if len(w.filter) > 0 {
		resp.Total += w.Given
	}
	next := *w.cursor
	next.Given += w.offset + len(page)
	for _, r := range all[:min(w.offset, len(all))+len(page)] {
		if r.working {
			next.Working = r.id
		} else {
			next.Durable = r.id
		}
	}
	more := len(page) < len(rest)
	if durable.end > 0 {
		resp.Detail = with(resp.Detail, "filter", "the filter was compared with 100,000 entries, the newest first; "+
			"next_cursor goes on with the others")
		if !more {
			next.Durable, more = durable.end, true
		}
	}
	if len(working.refs) > 0 { // only the session changes these
		s, err := p.repositoryOf(ctx, protocol.TierWorking, false)
		if err == nil && s != nil {
			err = s.store.Read(ctx, func(tx *store.Tx) error { return load(tx, w, page, true, found) })
		}
		if err != nil {
			return nil, err
		}
	}
	var hits []hit
	for _, r := range page {
		if row := found[r]; row != nil {
			hits = append(hits, hit{row: row, score: row.Weight})
		}
	}
	return resp, p.finish(ctx, w, resp, hits, more && w.limit > 0, len(page) < min(len(rest), w.limit), &next)
}

// refsOf reads the refs of entries, which merge and fitting use.
func refsOf(tx *store.Tx, ids []int64, working bool) (refs []ref, err error) {
	err = tx.Each("SELECT id, updated_at, bytes FROM memory_entries WHERE id IN (SELECT CAST(value AS BIGINT) FROM "+
		"json_each($1)) ORDER BY id DESC", []any{store.JSON(ids)}, func(scan func(...any) error) error {
		r := ref{working: working}
		err := scan(&r.id, &r.updated, &r.bytes)
		refs = append(refs, r)
		return err
	})
	return refs, err
}

// merge merges two lists by time, the newest first; the order within each list stays. It stops at the
// end of an incomplete durable list.
func merge(durable, working listed) (all []ref) {
	a, b := durable.refs, working.refs
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(a) == 0 && durable.end > 0:
			return all // the next durable entry, which is not read yet, may be newer
		case len(b) == 0, len(a) > 0 && a[0].updated >= b[0].updated:
			all, a = append(all, a[0]), a[1:]
		default:
			all, b = append(all, b[0]), b[1:]
		}
	}
	return all
}

// fitting returns how many of the first entries, up to limit, fit into an answer of maxAnswer bytes. The
// first entry always fits.
func fitting[T any](all []T, limit int, size func(T) int) (n int) {
	bytes := 0
	for n < min(limit, len(all)) {
		if bytes += size(all[n]); bytes > maxAnswer && n > 0 {
			break
		}
		n++
	}
	return n
}

// page returns the entries after the offset, and those of them that fit into the answer.
func (w *want) page(all []ref) (rest, page []ref) {
	rest = all[min(w.offset, len(all)):]
	return rest, rest[:fitting(rest, w.limit, func(r ref) int { return r.bytes })]
}

// load reads the entries of a page from one repository into found; working tells which repository tx reads.
func load(tx *store.Tx, w *want, page []ref, working bool, found map[ref]*row) error {
	ids := make(map[int64]ref)
	for _, r := range page {
		if r.working == working {
			ids[r.id] = r
		}
	}
	if len(ids) == 0 {
		return nil
	}
	all, err := rows(tx, w.now, "WHERE e.id IN (SELECT CAST(value AS BIGINT) FROM json_each($1))",
		store.JSON(slices.Collect(maps.Keys(ids))))
	for _, r := range all {
		found[ids[r.id]] = r
	}
	return err
}

// finish puts the hits into an answer, and the next cursor if there are more.
func (p *Plugin) finish(ctx context.Context, w *want, resp *protocol.MemoryRetrieveResponse, hits []hit, more,
	cutShort bool, next *cursor,
) error {
	if w.refresh {
		if err := p.refresh(ctx, w, hits); err != nil {
			resp.Detail = with(resp.Detail, "refresh_ttl", "the entries expire as before: "+storeTrouble(err).Error())
		}
	}
	resp.Entries = []protocol.MemoryEntry{}
	for _, h := range hits {
		e, err := h.answer(math.Round(h.score*1e4) / 1e4)
		if err != nil {
			return err
		}
		if w.prefix != nil {
			name := w.names[signed(h.Tier, h.space)]
			e.Namespace = &name
		}
		resp.Entries = append(resp.Entries, e)
	}
	if cutShort {
		resp.Detail = with(resp.Detail, "truncated", "the answer would have been larger than 8 MiB; ask for the "+
			"rest with next_cursor, or by keys, tags or a smaller limit")
	}
	if !more {
		return nil
	}
	secret, err := p.secret(ctx)
	if err == nil {
		resp.NextCursor, err = next.text(secret)
	}
	return err
}

// namespaces answers a request that lists namespaces, ordered by name.
func (p *Plugin) namespaces(ctx context.Context, w *want, depth int) (*protocol.MemoryRetrieveResponse, error) {
	if w.prefix == nil {
		w.prefix = new(string)
	}
	sums := make(map[string]int)
	if err := p.each(ctx, w, func(_ *store.Tx, _ *repository, spaces []space) error {
		for _, s := range spaces {
			names := strings.Split(s.namespace, "/")
			if depth > 0 && len(names) > depth {
				names = names[:depth]
			}
			sums[strings.Join(names, "/")] += s.entries
		}
		return nil
	}); err != nil {
		return nil, err
	}
	all := slices.Sorted(maps.Keys(sums))
	resp := &protocol.MemoryRetrieveResponse{
		Entries:    []protocol.MemoryEntry{},
		Namespaces: []protocol.MemoryNamespace{}, Total: len(all),
	}
	from := w.offset
	if w.Last != nil {
		at, there := slices.BinarySearch(all, *w.Last)
		if from = at; there {
			from++
		}
	}
	rest := all[min(from, len(all)):]
	for _, name := range rest[:min(w.limit, len(rest))] {
		resp.Namespaces = append(resp.Namespaces, protocol.MemoryNamespace{Namespace: name, Entries: sums[name]})
	}
	next := *w.cursor
	if n := len(resp.Namespaces); n > 0 {
		next.Last = &resp.Namespaces[n-1].Namespace
	}
	return resp, p.finish(ctx, w, resp, nil, len(resp.Namespaces) > 0 && len(resp.Namespaces) < len(rest), false, &next)
}

// history answers a request for the history of keys: their versions in one list, the newest first.
func (p *Plugin) history(ctx context.Context, w *want) (*protocol.MemoryRetrieveResponse, error) {
	var hits []hit
	if err := p.each(ctx, w, func(tx *store.Tx, _ *repository, spaces []space) error {
		for _, s := range spaces {
			for _, key := range w.keys {
				now, err := current(tx, s.id, key, w.now)
				if err != nil {
					return err
				}
				if now == nil {
					continue
				}
				older, err := past(tx, s.id, key, now)
				if err != nil {
					return err
				}
				for _, r := range append([]*row{now}, older...) {
					hits = append(hits, hit{row: r, score: r.Weight})
				}
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	resp := &protocol.MemoryRetrieveResponse{Total: len(hits)}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.updated, a.updated) })
	rest := hits[min(w.offset, len(hits)):]
	n := fitting(rest, w.limit, func(h hit) int { return h.size() })
	return resp, p.finish(ctx, w, resp, rest[:n], false, n < min(len(rest), w.limit), nil)
}

// refresh restarts the time to live of hits that expire. Those that have expired meanwhile stay expired.
func (p *Plugin) refresh(ctx context.Context, w *want, hits []hit) error {
	for _, tiers := range byRepository(tiers()) {
		var ids []int64
		for _, h := range hits {
			if h.TTL > 0 && slices.Contains(tiers, h.Tier) {
				ids = append(ids, h.id)
				h.expires = h.expiry(w.now)
			}
		}
		if len(ids) == 0 {
			continue
		}
		s, err := p.repositoryOf(ctx, tiers[0], false)
		if err != nil || s == nil {
			return err
		}
		if err := s.store.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec("UPDATE memory_entries SET expires_at = $1 + ttl WHERE id IN (SELECT CAST(value AS "+
				"BIGINT) FROM json_each($2)) AND expires_at > $3", w.now, store.JSON(ids), w.now)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
