package memory

import (
	"context"
	"slices"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

const (
	maxResults = 10_000  // entries in one answer
	maxAnswer  = 8 << 20 // bytes of the entries in one answer
	maxQuery   = 4 << 10 // bytes of a query; the rest is ignored
)

// maxHistoryKeys is the most keys in one request for histories.
const maxHistoryKeys = 20

// maxOffset is how many entries a request skips at most; a cursor has no such limit.
const maxOffset = 10_000

// want is what a retrieve request asks for.
type want struct {
	*pick
	*cursor          // where the answer begins
	offset   int     // entries to skip after the cursor
	limit    int     // entries in the answer
	minScore float64 // least relevance of a hit
	refresh  bool    // restart the time to live of the entries found

	// of a query
	words   *embed.Query
	vector  embed.Vector
	allowed map[int64]bool // entries that a search looks at; nil = all
	partly  bool           // the filter was not compared with all entries
}

// end returns how many entries after the cursor are read: one more than the request asks for, to know
// whether there are more.
func (w *want) end() int { return w.offset + w.limit + 1 }

// hit is an entry that was found.
type hit struct {
	*row
	score float64 // relevance, or without a query the entry's own weight

	words      float64 // how much of the query's words it has, from 0 to 1
	similarity float64 // of its vector to the query's, from 0 to 1; 0 without a vector
}

// retrieve handles memory/retrieve/req. It finds the entries that meet the conditions of the request and
// ranks them by their relevance to the query, or lists the newest first without a query.
func (p *Plugin) retrieve(ctx context.Context, req *protocol.MemoryRetrieveRequest,
	_ host.Emitter,
) (*protocol.MemoryRetrieveResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	if err := checkRetrieve(req); err != nil {
		return nil, err
	}
	sess := host.SessionFrom(ctx)
	w := &want{offset: req.Offset, limit: min(req.Limit, maxResults), minScore: req.MinScore, refresh: req.RefreshTTL}
	if w.pick, err = p.picked(n, sess, &req.MemorySelection); err != nil {
		return nil, err
	}
	agent := ""
	if sess != nil {
		agent = sess.AgentID
	}
	of, err := asked(agent, req)
	if err != nil {
		return nil, err
	}
	if w.cursor, err = p.readCursor(ctx, req.Cursor, of); err != nil {
		return nil, err
	}
	var resp *protocol.MemoryRetrieveResponse
	switch {
	case req.ListNamespaces:
		resp, err = p.namespaces(ctx, w, req.MaxDepth)
	case req.History:
		resp, err = p.history(ctx, w)
	case req.Query != "":
		resp, err = p.search(ctx, w, req.Query)
	default:
		w.minWeight = req.MinScore
		resp, err = p.list(ctx, w)
	}
	if err != nil {
		return nil, storeTrouble(err)
	}
	return resp, nil
}

// checkRetrieve refuses numbers out of range and fields that do not go together.
func checkRetrieve(req *protocol.MemoryRetrieveRequest) error {
	sel := &req.MemorySelection
	conditions := len(sel.Tags)+len(sel.AllTags)+sel.Filter.Len() > 0 || sel.Source+sel.Folder != "" ||
		sel.Since > 0 || sel.Until > 0 || req.Query != "" || req.MinScore > 0 || req.RefreshTTL
	switch {
	case req.Limit < 0:
		return protocol.Wrong("/limit", "is %d; it should be 0 or more", req.Limit)
	case req.Offset < 0 || req.Offset > maxOffset:
		return protocol.Wrong("/offset", "is %d; it should be from 0 to %d. cursor goes on from an answer without "+
			"an end", req.Offset, maxOffset)
	case req.Offset > 0 && req.Cursor != "":
		return protocol.Wrong("/offset", "does not go with cursor: a cursor is a place already")
	case req.MaxDepth < 0 || req.MaxDepth > 0 && !req.ListNamespaces:
		return protocol.Wrong("/max_depth", "is %d; it should be 1 or more, beside list_namespaces: true", req.MaxDepth)
	case req.ListNamespaces && (conditions || req.History || len(sel.Keys) > 0):
		return protocol.Wrong("/list_namespaces", "goes with tier, namespace_prefix, max_depth, limit, offset and "+
			"cursor alone")
	case req.History && (conditions || len(sel.Keys) == 0 || len(sel.Keys) > maxHistoryKeys ||
		sel.NamespacePrefix != nil || req.Cursor != ""):
		return protocol.Wrong("/history", "goes with 1 to %d keys, tier, limit and offset alone", maxHistoryKeys)
	}
	return nil
}

// ask sets the query and its vector.
func (w *want) ask(query string, vector embed.Vector) {
	w.words, w.vector = embed.NewQuery(query[:min(len(query), maxQuery)], maxQueryWords), vector
}

// each calls do for each repository that holds tiers of the request, that of the working tier first, with
// their spaces.
func (p *Plugin) each(ctx context.Context, w *want, do func(*store.Tx, *repository, []space) error) error {
	for _, tiers := range slices.Backward(byRepository(w.tiers)) {
		s, err := p.repositoryOf(ctx, tiers[0], false)
		if err == nil && s != nil {
			err = p.read(ctx, s, w, func(tx *store.Tx) error {
				spaces, err := p.spaces(tx, w.pick, tiers)
				if err != nil {
					return err
				}
				return do(tx, s, spaces)
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read calls do in a read transaction, after it has removed expired entries so that no count includes them.
func (p *Plugin) read(ctx context.Context, s *repository, w *want, do func(tx *store.Tx) error) error {
	expired, sweep := false, true
	read := func(tx *store.Tx) (err error) {
		if err = p.checkModel(tx); err != nil {
			return err
		}
		if sweep {
			if expired, err = tx.Get("SELECT 1 FROM memory_entries WHERE expires_at <= $1 ORDER BY expires_at LIMIT "+
				"1", []any{w.now}, new(int)); err != nil || expired {
				return err
			}
		}
		return do(tx)
	}
	err := s.store.Read(ctx, read)
	for err == nil && sweep && expired {
		// Expired entries are removed first. If that fails, on a full disk for example, do runs
		// all the same; the entries are left out of answers anyway.
		sweep = s.store.Write(ctx, func(tx *store.Tx) error { return purge(tx, w.now) }) == nil
		err = s.store.Read(ctx, read)
	}
	s.sealBehind(ctx)
	return err
}

// search answers a request with a query.
func (p *Plugin) search(ctx context.Context, w *want, query string) (*protocol.MemoryRetrieveResponse, error) {
	vectors, note := p.embedTexts(ctx, []string{query[:min(len(query), maxQuery)]})
	w.ask(query, vectors[0])
	given := make(map[int64]bool, len(w.Ranked))
	for _, id := range w.Ranked {
		given[id] = true
	}
	var hits []hit
	err := p.each(ctx, w, func(tx *store.Tx, s *repository, spaces []space) error {
		here, err := s.find(tx, w, spaces)
		hits = append(hits, here...)
		return err
	})
	if err != nil {
		return nil, err
	}
	hits = rank(w, hits)
	p.catchUp(ctx)
	total := len(hits)
	hits = slices.DeleteFunc(hits, func(h hit) bool { return given[signed(h.Tier, h.id)] })
	hits = hits[min(w.offset, len(hits)):]
	page := hits[:fitting(hits, w.limit, func(h hit) int { return h.size() })]
	next := *w.cursor
	for _, h := range page {
		next.Ranked = append(next.Ranked, signed(h.Tier, h.id))
	}
	resp := &protocol.MemoryRetrieveResponse{Total: total, Detail: detail(note)}
	if w.partly {
		resp.Detail = with(resp.Detail, "filter", "the filter was compared with 100,000 entries, the newest first, "+
			"and with the best matches of the query among the others")
	}
	return resp, p.finish(ctx, w, resp, page, len(page) < len(hits) && w.limit > 0, len(page) < min(len(hits), w.limit),
		&next)
}

// signed returns an id that is unique over both repositories: ids of the working tier are negative.
func signed(tier protocol.MemoryTier, id int64) int64 {
	if tier == protocol.TierWorking {
		return -id
	}
	return id
}

// find returns the entries to rank: those with the keys of the request or, without keys, those that a
// search finds.
func (s *repository) find(tx *store.Tx, w *want, spaces []space) ([]hit, error) {
	if len(spaces) == 0 {
		return nil, nil
	}
	var numbers []int64
	for _, space := range spaces {
		numbers = append(numbers, space.id)
	}
	if len(w.keys) > 0 {
		picked, err := w.ids(tx, spaces, 0, maxBatch, false)
		if err != nil {
			return nil, err
		}
		return s.compare(tx, w, numbers, picked.ids)
	}
	w.allowed = nil
	if w.bounded() && len(w.filter) == 0 {
		if err := w.allow(tx, spaces, maxAllowed); err != nil {
			return nil, err
		}
	}
	hits, err := s.searchFitting(tx, w, numbers)
	if err != nil || w.allowed != nil || !w.bounded() || len(hits) >= w.end()+len(w.Ranked) {
		return hits, err
	}
	// too few hits meet the conditions: find the entries that do first, which takes longer
	if err := w.allow(tx, spaces, maxScan); err != nil || len(w.allowed) <= len(hits) {
		return hits, err
	}
	for _, h := range hits { // hits that allow did not look at
		w.allowed[h.id] = true
	}
	return s.searchFitting(tx, w, numbers)
}

// allow restricts a search to the selected entries if there are at most most of them.
func (w *want) allow(tx *store.Tx, spaces []space, most int) error {
	picked, err := w.ids(tx, spaces, 0, most+1, false)
	if err != nil || len(picked.ids) > most {
		return err
	}
	w.partly = w.partly || picked.end > 0
	w.allowed = make(map[int64]bool, len(picked.ids))
	for _, id := range picked.ids {
		w.allowed[id] = true
	}
	return nil
}

// searchFitting returns the hits of a search that are selected.
func (s *repository) searchFitting(tx *store.Tx, w *want, spaces []int64) ([]hit, error) {
	hits, err := s.search(tx, w, spaces)
	return slices.DeleteFunc(hits, func(h hit) bool { return !w.fits(h.row) }), err
}
