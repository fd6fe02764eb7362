package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// maxWorkingBytes limits the working tier of a session, which is in memory.
const maxWorkingBytes = 64 << 20

// maxBatch is how many entries one request stores at most.
const maxBatch = 10_000

// batch is a store request under way, with the result of each of its entries.
type batch struct {
	entries  []*incoming
	refused  []error // by the index in entries; nil = not refused
	vectors  []embed.Vector
	versions []int // the new versions of the entries that were stored
	full     bool  // a tier had no room

	conflicts, duplicates []map[string]any // for detail of the answer
}

// refuse records why an entry is not stored.
func (b *batch) refuse(i int, err error) { b.refused[i] = err }

// of returns the indexes of the entries of a tier that are not refused and meet a condition.
func (b *batch) of(tier protocol.MemoryTier, holds func(*incoming) bool) (places []int) {
	for i, e := range b.entries {
		if b.refused[i] == nil && e.Tier == tier && holds(e) {
			places = append(places, i)
		}
	}
	return places
}

func always(*incoming) bool { return true }

// store handles memory/store/req. It stores the entries that are valid and reports what is wrong with
// the others.
func (p *Plugin) store(ctx context.Context, req *protocol.MemoryStoreRequest,
	_ host.Emitter,
) (*protocol.MemoryStoreResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	if len(req.Entries) > maxBatch {
		return nil, protocol.Wrong("/entries", "has %d entries; send at most %d in one request", len(req.Entries),
			maxBatch)
	}
	count := len(req.Entries)
	b := &batch{entries: make([]*incoming, count), refused: make([]error, count), versions: make([]int, count)}
	for i, obj := range req.Entries {
		b.entries[i], b.refused[i] = parseEntry(obj, p.opts.MaxEntryBytes)
		b.refused[i] = cmp.Or(b.refused[i], inNamespace(n, obj))
	}
	if err := p.mergeAhead(ctx, n, b); err != nil {
		return nil, storeTrouble(err)
	}
	note := p.embedBatch(ctx, b)
	if err := p.dedupe(ctx, n, b); err != nil {
		return nil, storeTrouble(err)
	}
	for _, tiers := range byRepository(tiers()) {
		if err := p.storeTiers(ctx, n, tiers, b); err != nil {
			return nil, err
		}
	}
	if note == "" {
		p.backfill(ctx)
	}
	p.catchUp(ctx)
	return b.answer(note)
}

// embedBatch makes the vectors of all entries that are not refused. note says why there are none, see embedTexts.
func (p *Plugin) embedBatch(ctx context.Context, b *batch) (note string) {
	b.vectors = make([]embed.Vector, len(b.entries))
	var texts []string
	var places []int
	for i, e := range b.entries {
		if b.refused[i] == nil {
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

// storeTiers writes the entries of tiers of one repository in one transaction. If it returns an error, none of
// them is stored.
func (p *Plugin) storeTiers(ctx context.Context, n name, tiers []protocol.MemoryTier, b *batch) error {
	if !slices.ContainsFunc(tiers, func(tier protocol.MemoryTier) bool { return len(b.of(tier, always)) > 0 }) {
		return nil
	}
	s, err := p.repositoryOf(ctx, tiers[0], true)
	if err != nil {
		return storeTrouble(err)
	}
	s.storing.Add(1)
	defer s.storing.Add(-1)
	return storeTrouble(s.store.Write(ctx, func(tx *store.Tx) error {
		if err := useModel(tx, p.embedder.Model()); err != nil {
			return err
		}
		for _, tier := range tiers {
			if err := p.storeTier(ctx, tx, n, tier, b); err != nil {
				return err
			}
		}
		s.stored.Add(1)
		s.tidy.Store(false)
		return nil
	}))
}

// storeTier writes the entries of one tier.
func (p *Plugin) storeTier(ctx context.Context, tx *store.Tx, n name, tier protocol.MemoryTier, b *batch) error {
	places := b.of(tier, always)
	if len(places) == 0 {
		return nil
	}
	owner, err := p.owner(tx, tier, host.SessionFrom(ctx))
	if err != nil {
		return err
	}
	space, err := openSpace(tx, n, tier, owner)
	if err != nil {
		return err
	}
	w := writing{
		Plugin: p, batch: b, tx: tx, tier: tier, owner: owner, space: space, now: p.now(),
		folder: wall.CanonicalIn(p.env.Workspace, "."),
	}
	for _, i := range places {
		if err := w.store(ctx, i); err != nil {
			return err
		}
	}
	return seal(tx, space)
}

// writing is the state of the transaction that writes the entries of one tier of a batch.
type writing struct {
	*Plugin
	*batch
	tx     *store.Tx
	tier   protocol.MemoryTier
	owner  string
	space  int64
	now    float64
	folder string
	purged bool
}

// store writes one entry, or records why it is refused.
func (w *writing) store(ctx context.Context, i int) error {
	in := w.entries[i]
	was, err := current(w.tx, w.space, in.canonical, 0)
	if err != nil {
		return err
	}
	if was != nil && was.expires > 0 && was.expires <= w.now { // an expired entry counts as absent
		if _, err := remove(w.tx, "id = $1", was.id); err != nil {
			return err
		}
		was = nil
	}
	version := 0
	if was != nil {
		version = was.version
	}
	if in.IfVersion != nil && *in.IfVersion != version {
		w.conflict(i, version)
		return nil
	}
	if in.Merge && in.merged != version {
		if err := w.mergeNow(i, was); err != nil {
			w.refuse(i, err)
			return nil
		}
	}
	room, err := w.room(in, was)
	if err == nil && !room && !w.purged {
		w.purged = true
		if err = purge(w.tx, w.now); err == nil {
			room, err = w.room(in, was)
		}
	}
	if err != nil {
		return err
	}
	if !room {
		w.full = true
		w.refuse(i, fmt.Errorf("%s: the %s tier has no room: %s", protocol.CodeMemoryFull, w.tier, w.limitText(w.tier)))
		return nil
	}
	at := stored{created: w.now, updated: w.now, version: version + 1, folder: w.folder}
	if was != nil {
		at.created = was.created
	}
	w.versions[i] = at.version
	return put(w.tx, w.space, &in.entry, at, w.vectors[i], was, w.opts.Versions)
}

// conflict refuses an entry whose if_version differs from version, the stored version.
func (w *writing) conflict(i, version int) {
	in := w.entries[i]
	w.conflicts = append(w.conflicts, map[string]any{
		"entry": i, "key": in.Key, "version": version,
		"if_version": *in.IfVersion,
	})
	if version == 0 {
		w.refuse(i, fmt.Errorf("version_conflict: if_version is %d, and there is no entry of this key, which is "+
			"version 0", *in.IfVersion))
		return
	}
	w.refuse(i, fmt.Errorf("version_conflict: if_version is %d, and the entry has version %d", *in.IfVersion, version))
}

// room reports whether a tier has room for an entry. An entry that replaces another does not raise the
// number of entries, but the working tier's limit of bytes applies to it too.
func (w *writing) room(in *incoming, was *row) (bool, error) {
	entries, bytes, err := held(w.tx, w.tier, w.owner)
	if err != nil || w.tier == protocol.TierWorking && bytes+in.size() > maxWorkingBytes {
		return false, err
	}
	return was != nil || entries < w.limit(w.tier), nil
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
	text := fmt.Sprintf("%s_limit is %s", tier, protocol.Count(p.limit(tier), "entry"))
	if tier == protocol.TierWorking {
		text += fmt.Sprintf(" and %d MiB", maxWorkingBytes>>20)
	}
	return text + "; memory/forget/req makes room"
}

// purgeBatch is how many expired entries one transaction deletes: other writers wait meanwhile.
const purgeBatch = 1_000

// purge removes expired entries, up to purgeBatch of them.
func purge(tx *store.Tx, now float64) error {
	_, err := remove(tx, "id IN (SELECT id FROM memory_entries WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
		now, purgeBatch)
	return err
}

// answer returns the keys that were stored and the reasons why the others were not. If nothing was stored
// and a tier was full, it returns an error instead.
func (b *batch) answer(note string) (*protocol.MemoryStoreResponse, error) {
	resp := &protocol.MemoryStoreResponse{
		Stored: []protocol.Object{}, Errors: []string{}, Versions: []int{},
		Detail: detail(note),
	}
	for i, e := range b.entries {
		if b.refused[i] != nil {
			resp.Errors = append(resp.Errors, fmt.Sprintf("entries[%d]: %v", i, b.refused[i]))
			continue
		}
		key, err := protocol.ParseObject(e.Key)
		if err != nil {
			return nil, err
		}
		resp.Stored, resp.Versions = append(resp.Stored, key), append(resp.Versions, b.versions[i])
	}
	for name, all := range map[string][]map[string]any{"conflicts": b.conflicts, "duplicates": b.duplicates} {
		if len(all) > 0 {
			resp.Detail = with(resp.Detail, name, all)
		}
	}
	if b.full && len(resp.Stored) == 0 {
		return nil, protocol.Errorf(protocol.CodeMemoryFull, "nothing was stored. %s",
			strings.Join(resp.Errors[:min(len(resp.Errors), 3)], "; ")).With("errors", resp.Errors)
	}
	return resp, nil
}

// with adds a field to the detail of an answer, which may be nil, and returns it.
func with(detail map[string]any, name string, value any) map[string]any {
	if detail == nil {
		detail = make(map[string]any)
	}
	detail[name] = value
	return detail
}

// forgetBatch is how many entries one transaction deletes: other writers wait meanwhile.
const forgetBatch = 1_000

// forget handles memory/forget/req. It deletes the entries that meet the conditions of the request. Without
// conditions it deletes nothing, unless all and confirm are true.
func (p *Plugin) forget(ctx context.Context, req *protocol.MemoryForgetRequest,
	_ host.Emitter,
) (*protocol.MemoryForgetResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	w, err := p.picked(n, host.SessionFrom(ctx), &req.MemorySelection)
	switch {
	case err != nil:
		return nil, err
	case req.All && w.bounded():
		return nil, protocol.Wrong("/all", "does not go with keys, tags, all_tags, filter, source, folder, since or "+
			"until, which say what to forget")
	case req.All && !req.Confirm:
		return nil, protocol.Wrong("/confirm", "should be true beside all: true: each entry of the memory would be "+
			"deleted, of the tier and namespaces named")
	case req.Confirm && !req.All:
		return nil, protocol.Wrong("/confirm", "goes with all: true alone")
	}
	resp := &protocol.MemoryForgetResponse{}
	if !req.All && !w.bounded() {
		return resp, nil
	}
	for _, tiers := range byRepository(w.tiers) {
		s, err := p.repositoryOf(ctx, tiers[0], false)
		if err != nil {
			return nil, err
		}
		below := int64(0)
		for s != nil && below >= 0 {
			var deleted int
			if deleted, below, err = p.forgetSome(ctx, s, w, tiers, below); err != nil {
				return nil, storeTrouble(err)
			}
			resp.Deleted += deleted
		}
	}
	return resp, nil
}

// forgetSome deletes some entries with ids below an id (0 = no bound). next is the id below which there
// may be more, or -1 if there are none.
func (p *Plugin) forgetSome(ctx context.Context, s *repository, w *pick, tiers []protocol.MemoryTier,
	below int64,
) (deleted int, next int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, -1, context.Cause(ctx)
	}
	var found idList
	var among []space
	if err := s.store.Read(ctx, func(tx *store.Tx) (err error) {
		if among, err = p.spaces(tx, w, tiers); err == nil {
			found, err = w.ids(tx, among, below, forgetBatch, false)
		}
		return err
	}); err != nil {
		return 0, -1, err
	}
	next = -1
	if n := len(found.ids); n == forgetBatch {
		next = found.ids[n-1]
	} else if found.end > 0 {
		next = found.end
	}
	if len(found.ids) == 0 {
		return 0, next, nil
	}
	err = s.store.Write(ctx, func(tx *store.Tx) (err error) { // an entry stored again meanwhile has another id
		deleted, err = remove(tx, "id IN (SELECT CAST(value AS BIGINT) FROM json_each($1)) AND (expires_at IS NULL "+
			"OR expires_at > $2)", store.JSON(found.ids), w.now) // expired entries do not count as deleted
		for _, s := range among {
			err = errors.Join(err, seal(tx, s.id))
		}
		return err
	})
	return deleted, next, err
}
