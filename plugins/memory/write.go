package memory

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// maxWorkingBytes bounds the working tier of a session, which is in memory.
const maxWorkingBytes = 64 << 20

// maxBatch is how many entries one request stores at most.
const maxBatch = 10_000

// batch is a store request under way: what became of each of its entries.
type batch struct {
	entries []*entry // nil = refused
	refused []error  // by the same number; nil = not
	vectors []embed.Vector
	full    bool // a tier had no room
}

// store writes entries. Those of a request that can be stored are, whatever is wrong with
// the others.
func (p *Plugin) store(ctx context.Context, req *protocol.MemoryStoreRequest, _ host.Emitter) (*protocol.MemoryStoreResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	if len(req.Entries) > maxBatch {
		return nil, violation("/entries", "has %d entries; send at most %d in one request", len(req.Entries), maxBatch)
	}
	b := &batch{entries: make([]*entry, len(req.Entries)), refused: make([]error, len(req.Entries))}
	for i, obj := range req.Entries {
		if b.entries[i], b.refused[i] = parseEntry(obj, p.opts.MaxEntryBytes); b.refused[i] != nil {
			b.entries[i] = nil
		}
	}
	note := p.embedBatch(ctx, b)
	for _, tier := range tiers() {
		if err := p.storeTier(ctx, n, tier, b); err != nil {
			return nil, err
		}
	}
	if note == "" {
		p.backfill(ctx)
	}
	p.catchUp(ctx)
	return b.answer(req, note)
}

// embedBatch makes the vectors of all good entries.
func (p *Plugin) embedBatch(ctx context.Context, b *batch) (note string) {
	b.vectors = make([]embed.Vector, len(b.entries))
	var texts []string
	var places []int
	for i, e := range b.entries {
		if e != nil {
			texts, places = append(texts, e.text()), append(places, i)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	vectors, note := p.embedTexts(ctx, texts)
	for i, place := range places {
		b.vectors[place] = vectors[i]
	}
	return note
}

// storeTier writes the entries of one tier in one transaction.
func (p *Plugin) storeTier(ctx context.Context, n name, tier protocol.MemoryTier, b *batch) error {
	var places []int
	for i, e := range b.entries {
		if e != nil && e.Tier == tier {
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return nil
	}
	s, err := p.repositoryOf(ctx, tier, true)
	if err != nil {
		return err
	}
	var full []int
	err = s.store.Write(ctx, func(tx *store.Tx) (err error) {
		full, err = p.storeIn(ctx, tx, n, tier, b, places)
		return err
	})
	if err != nil {
		return storeTrouble(err)
	}
	for _, i := range full {
		b.entries[i], b.full = nil, true
		b.refused[i] = fmt.Errorf("%s: the %s tier has no room: %s", protocol.CodeMemoryFull, tier, p.limitText(tier))
	}
	return nil
}

// storeIn writes what there is room for, and gives the numbers of the entries for which
// there is none.
func (p *Plugin) storeIn(ctx context.Context, tx *store.Tx, n name, tier protocol.MemoryTier, b *batch, places []int) (full []int, err error) {
	if err := useModel(tx, p.embedder.Model()); err != nil {
		return nil, err
	}
	owner, err := p.owner(tx, tier, host.SessionFrom(ctx))
	if err != nil {
		return nil, err
	}
	space, err := openSpace(tx, n, tier, owner)
	if err != nil {
		return nil, err
	}
	now := p.now()
	purged := false
	for _, i := range places {
		room, err := p.room(tx, space, tier, owner, b.entries[i])
		if err == nil && !room && !purged {
			purged = true
			if err = purge(tx, now); err == nil {
				room, err = p.room(tx, space, tier, owner, b.entries[i])
			}
		}
		if err != nil {
			return nil, err
		}
		if !room {
			full = append(full, i)
			continue
		}
		if err := put(tx, space, b.entries[i], times{now, now}, b.vectors[i]); err != nil {
			return nil, err
		}
	}
	return full, seal(tx, space)
}

// room reports whether a tier takes one more entry; in the place of another there always is
// for the entry, though not for its bytes.
func (p *Plugin) room(tx *store.Tx, space int64, tier protocol.MemoryTier, owner string, e *entry) (bool, error) {
	entries, bytes, err := held(tx, tier, owner)
	if err != nil {
		return false, err
	}
	more := entries < p.limit(tier)
	if tier == protocol.TierWorking && bytes+e.size() > maxWorkingBytes {
		return false, nil
	}
	if more {
		return true, nil
	}
	return tx.Get("SELECT 1 FROM memory_entries WHERE space = ? AND key = ?", []any{space, e.canonical}, new(int))
}

func (p *Plugin) limit(tier protocol.MemoryTier) int {
	switch tier {
	case protocol.TierWorking:
		return p.opts.WorkingLimit
	case protocol.TierEpisodic:
		return p.opts.EpisodicLimit
	}
	return p.opts.SemanticLimit
}

func (p *Plugin) limitText(tier protocol.MemoryTier) string {
	text := fmt.Sprintf("%s_limit is %d entries", tier, p.limit(tier))
	if tier == protocol.TierWorking {
		text += fmt.Sprintf(" and %d MiB", maxWorkingBytes>>20)
	}
	return text + "; memory/forget/req makes room"
}

// purgeBatch is how many expired entries go in one transaction: others wait meanwhile.
const purgeBatch = 1_000

// purge removes what has expired, up to a batch.
func purge(tx *store.Tx, now float64) error {
	_, _, err := tx.Exec("DELETE FROM memory_entries WHERE id IN (SELECT id FROM memory_entries WHERE expires_at <= ? LIMIT ?)", now, purgeBatch)
	return err
}

// answer lists what was stored and why the rest was not. Where fullness alone left nothing
// stored, the answer is the error.
func (b *batch) answer(req *protocol.MemoryStoreRequest, note string) (*protocol.MemoryStoreResponse, error) {
	resp := &protocol.MemoryStoreResponse{Stored: []protocol.Object{}, Errors: []string{}, Detail: detail(note)}
	for i, e := range b.entries {
		if b.refused[i] != nil {
			resp.Errors = append(resp.Errors, fmt.Sprintf("entries[%d]: %v", i, b.refused[i]))
			continue
		}
		key, err := protocol.ParseObject(e.Key)
		if err != nil {
			return nil, err
		}
		resp.Stored = append(resp.Stored, key)
	}
	if b.full && len(resp.Stored) == 0 {
		return nil, protocol.Errorf(protocol.CodeMemoryFull, "nothing was stored. %s", strings.Join(resp.Errors[:min(len(resp.Errors), 3)], "; ")).With("errors", resp.Errors)
	}
	return resp, nil
}

// maxTagFilter is how many tags one request names at most.
const maxTagFilter = 1_000

// filters returns the keys of a request in the form in which they are compared, and checks
// how many keys and tags there are.
func filters(keys []protocol.Object, tags []string) ([]string, error) {
	if len(keys) > maxBatch {
		return nil, violation("/keys", "has %d keys; send at most %d in one request", len(keys), maxBatch)
	}
	if len(tags) > maxTagFilter {
		return nil, violation("/tags", "has %d tags; send at most %d in one request", len(tags), maxTagFilter)
	}
	out := make([]string, len(keys))
	for i, key := range keys {
		c, err := canonical(jsontext.Value(key.Raw()))
		if err != nil {
			return nil, violation(fmt.Sprintf("/keys/%d", i), "%v", err)
		}
		out[i] = c
	}
	return out, nil
}

// forget deletes the entries that have one of the keys (if there are any) and one of the
// tags (if there are any).
func (p *Plugin) forget(ctx context.Context, req *protocol.MemoryForgetRequest, _ host.Emitter) (*protocol.MemoryForgetResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	want, err := tiersOf(req.Tier)
	if err != nil {
		return nil, err
	}
	keys, err := filters(req.Keys, req.Tags)
	if err != nil {
		return nil, err
	}
	resp := &protocol.MemoryForgetResponse{}
	if len(keys) == 0 && len(req.Tags) == 0 {
		return resp, nil
	}
	for _, tier := range want {
		deleted, err := p.forgetTier(ctx, n, tier, keys, req.Tags)
		if err != nil {
			return nil, err
		}
		resp.Deleted += deleted
	}
	return resp, nil
}

func (p *Plugin) forgetTier(ctx context.Context, n name, tier protocol.MemoryTier, keys, tags []string) (deleted int, err error) {
	s, err := p.repositoryOf(ctx, tier, false)
	if err != nil || s == nil {
		return 0, err
	}
	now := p.now()
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		deleted = 0
		owner, err := p.owner(tx, tier, host.SessionFrom(ctx))
		if err != nil {
			return err
		}
		space, err := spaceOf(tx, n.id, tier, owner)
		if err != nil || space == 0 {
			return err
		}
		ids, err := matching(tx, space, keys, tags)
		if err != nil {
			return err
		}
		_, changed, err := tx.Exec("DELETE FROM memory_entries WHERE id IN (SELECT value FROM json_each(?)) AND (expires_at IS NULL OR expires_at > ?)", listOf(ids), now) // what has expired is not there to be deleted
		deleted = int(changed)
		if err == nil {
			err = seal(tx, space)
		}
		return err
	})
	return deleted, storeTrouble(err)
}

// matching returns the entries of a space that have one of the keys and one of the tags,
// where there are any.
func matching(tx *store.Tx, space int64, keys, tags []string) ([]int64, error) {
	query, args := "SELECT entry FROM memory_tags WHERE space = ? AND tag IN (SELECT value FROM json_each(?))", []any{space, listOf(tags)}
	if len(keys) > 0 {
		query, args = "SELECT id FROM memory_entries WHERE space = ?1 AND key IN (SELECT value FROM json_each(?2))", []any{space, listOf(keys)}
		if len(tags) > 0 {
			query += " AND id IN (SELECT entry FROM memory_tags WHERE space = ?1 AND tag IN (SELECT value FROM json_each(?3)))"
			args = append(args, listOf(tags))
		}
	}
	return idsOf(tx, query, args...)
}
