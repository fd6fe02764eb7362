package memory

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Part returns the plugin's part of the store.
//
//	memory_names    namespace and scope of each memory id
//	memory_spaces   one tier of a memory, of one owner; searches and keys are per space
//	memory_entries  ids grow: a larger id is newer, also when a key was stored again
//	memory_history  versions of entries that were replaced; past_bytes of a space is their size
//	memory_tags     one row for each tag of an entry
//	memory_text     the words of each entry (store.Words), by entry id
//	memory_forms    the keys for misspelt words and other forms (embed.Keys), by entry id
//	memory_unkeyed  entries up to this id were stored by an older version of a2e: they are not in
//	                memory_forms yet, or lack the roots of Arabic words; if the store has no
//	                model, their vectors were made of words and are useless
//	memory_vectors  the vector of an entry (embed.Vector.Bytes); seq grows; sketch is no longer used
//	memory_loose    entries whose vectors are in no segment yet
//	memory_segments codes of 256 vectors each (embed.Codes), and the ids of their entries
//	memory_centres  the centres by which vectors are coded, and mean and spread of unrelated cosines
//	memory_waiting  entries whose vector is still to be made
//	memory_agents   agents that use the episodic tier of another agent
//	memory_meta     `model` and `size` of the vectors
//	memory_secret   the key that signs the cursors of this store
func Part() store.Part {
	records := store.Kinds{
		{Kind: "memory.model", Export: exportModel, Import: store.ImportOf(importModel)},
		store.RecordsOf("memory.agent", "SELECT agent, uses FROM memory_agents ORDER BY agent",
			func(a *agentRecord) []any { return []any{&a.Agent, &a.Uses} },
			func(a *agentRecord, tx *store.Tx) error { return setUses(tx, a.Agent, a.Uses) }),
		{Kind: "memory.entry", Export: exportEntries, Import: importEntry},
		store.RecordsOf("memory.version", selectHistory, (*versionRecord).columns, importPast),
	}
	return store.Part{
		Name: "memory", SQL: tables, Recount: recount, Export: records.Export, Import: records.Import,
		Clear: store.ClearTables("memory_spaces", "memory_entries", "memory_history", "memory_names", "memory_agents",
			"memory_meta", "memory_segments", "memory_centres"),
	}
}

// modelRecord is the model of the vectors that follow in an export.
type modelRecord struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// agentRecord is one row of memory_agents.
type agentRecord struct {
	Agent string `json:"agent"`
	Uses  string `json:"uses"`
}

// record is the part of an export that current entries and former versions have in common.
type record struct {
	Namespace string            `json:"namespace"`
	Scope     map[string]string `json:"scope"`
	Owner     string            `json:"owner"` // of an episodic entry: the agent id
	entry
	CreatedAt float64 `json:"created_at"`
	UpdatedAt float64 `json:"updated_at"`
}

// columns returns the fields in the order in which both queries select them.
func (r *record) columns() []any {
	return []any{
		&r.Namespace, store.JSON(&r.Scope), &r.Tier, &r.Owner, (*[]byte)(&r.Key), (*[]byte)(&r.Content),
		store.JSON(&r.Tags), &r.Source, &r.Weight, &r.TTL, &r.CreatedAt, &r.UpdatedAt,
	}
}

// take checks an imported record, and returns the name of its memory.
func (r *record) take() (name, error) {
	if r.Content == nil {
		r.Content = jsontext.Value("null")
	}
	if err := r.check(maxImport); err != nil {
		return name{}, err
	}
	return nameOf(r.Namespace, r.Scope)
}

// entryRecord is an entry as an export has it, with its memory, owner and vector.
type entryRecord struct {
	record
	ExpiresAt float64 `json:"expires_at,omitzero"` // 0 = updated_at + ttl; set where a read postponed it
	Folder    string  `json:"folder,omitzero"`
	Version   int     `json:"version,omitzero"` // 0 = 1: an export of an older a2e has no versions
	Vector    []byte  `json:"vector,omitempty"` // in the format of embed.Vector.Bytes
}

func exportModel(tx *store.Tx, emit func(any) error) error {
	model, err := modelOf(tx)
	if err != nil || model.Name == "" {
		return err
	}
	return emit(modelRecord(model))
}

// wordModel is the model name of vectors that older versions made of words.
const wordModel = "a2e-hashed-1"

func importModel(m *modelRecord, tx *store.Tx) error {
	if m.Name == wordModel {
		return nil
	}
	return useModel(tx, embed.Model(*m))
}

func exportEntries(tx *store.Tx, emit func(any) error) error {
	return tx.Each(`SELECT n.namespace, n.scope, s.tier, s.owner, e.sent, e.content, e.tags, e.source, e.weight, e.ttl,
			e.created_at, e.updated_at, coalesce(e.expires_at, 0), e.version, e.folder, v.vector
		FROM memory_entries e JOIN memory_spaces s ON s.id = e.space JOIN memory_names n USING (memory_id)
		LEFT JOIN memory_vectors v ON v.entry = e.id
		ORDER BY e.id`, nil, func(scan func(...any) error) error {
		var r entryRecord
		if err := scan(append(r.columns(), &r.ExpiresAt, &r.Version, &r.Folder, &r.Vector)...); err != nil {
			return err
		}
		if r.ExpiresAt == r.expiry(r.UpdatedAt) {
			r.ExpiresAt = 0
		}
		return emit(r)
	})
}

func importEntry(tx *store.Tx, raw jsontext.Value) error {
	r := entryRecord{record: record{entry: entry{Weight: 1}}}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	n, err := r.take()
	if err != nil {
		return err
	}
	if r.Tier == protocol.TierSemantic {
		r.Owner = ""
	}
	space, err := openSpace(tx, n, r.Tier, r.Owner)
	if err != nil {
		return err
	}
	vector, err := r.vector(tx)
	if err != nil {
		return err
	}
	was, err := current(tx, space, r.canonical, 0)
	if err != nil {
		return err
	}
	at := stored{
		created: r.CreatedAt, updated: r.UpdatedAt, expires: r.ExpiresAt, version: max(r.Version, 1),
		folder: r.Folder,
	}
	if was != nil {
		at.created = was.created
	}
	if was != nil && (at.version != was.version || at.updated != was.updated) {
		at.version = max(at.version, was.version+1) // entries that differ must not have the same version
	}
	return put(tx, space, &r.entry, at, vector, was, DefaultOptions().Versions)
}

// maxImport is the size of the largest entry that an import takes, in bytes; max_entry_bytes does not
// apply, as the exporting host may have had a larger limit.
const maxImport = 64 << 20

// vector returns the vector of an imported entry, or nil if one has to be made.
func (r *entryRecord) vector(tx *store.Tx) (embed.Vector, error) {
	model, err := modelOf(tx)
	return embed.VectorOf(r.Vector, model.Size), err
}

// Owner is an agent with episodic entries, its own or those of the agent whose memory it shares.
type Owner struct {
	Agent, Namespace string
	Entries          int
}

// Owners lists the agents with episodic entries, ordered by name, with the number of entries in each namespace.
func Owners(ctx context.Context, s store.Store) (all []Owner, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		return tx.Each(`SELECT COALESCE(a.agent, s.owner), n.namespace, SUM(s.entries)
			FROM memory_spaces s JOIN memory_names n USING (memory_id)
			LEFT JOIN (SELECT agent, uses FROM memory_agents UNION SELECT DISTINCT owner, owner
			FROM memory_spaces) a ON a.uses = s.owner
			WHERE s.tier = $1 AND s.entries > 0 GROUP BY 1, 2 ORDER BY 1, 2`, []any{string(protocol.TierEpisodic)},
			func(scan func(...any) error) error {
				var o Owner
				err := scan(&o.Agent, &o.Namespace, &o.Entries)
				all = append(all, o)
				return err
			})
	})
	return all, err
}

// repository is the memory in one store: the shared store, or that of a session.
type repository struct {
	store   store.Store
	working bool // it has the working tier of a session
	index   *index
	keyed   atomic.Bool // memory_unkeyed is empty

	tidy    atomic.Bool  // the word indexes have nothing to merge
	storing atomic.Int64 // store requests under way
	stored  atomic.Int64 // transactions that stored entries
}

func newRepository(st store.Store) *repository {
	return &repository{store: st, index: newIndex()}
}

// stored is when an entry was first and last stored and when it expires, in seconds since
// 1970, its version, and the workspace of the last store.
type stored struct {
	created, updated float64
	expires          float64 // 0 = updated plus the time to live
	version          int
	folder           string // workspace of the host, see wall.Canonical; "" = not recorded
}

// openSpace returns the space of a memory's tier, and makes it if it does not exist.
func openSpace(tx *store.Tx, n name, tier protocol.MemoryTier, owner string) (int64, error) {
	id, err := spaceOf(tx, n.id, tier, owner)
	if err != nil || id != 0 {
		return id, err
	}
	if _, err := tx.Exec("INSERT INTO memory_names VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", n.id, n.namespace,
		n.scope); err != nil {
		return 0, err
	}
	id, err = tx.Insert("INSERT INTO memory_spaces (memory_id, tier, owner) VALUES ($1, $2, $3) RETURNING id", n.id,
		string(tier), owner)
	return id, err
}

// spaceOf returns the space of a memory's tier; 0 = nothing was ever stored there.
func spaceOf(tx *store.Tx, memoryID string, tier protocol.MemoryTier, owner string) (id int64, err error) {
	_, err = tx.Get("SELECT id FROM memory_spaces WHERE memory_id = $1 AND tier = $2 AND owner = $3", []any{
		memoryID,
		string(tier), owner,
	}, &id)
	return id, err
}

// held returns the number and size of the entries in a tier of one owner, over all memories.
func held(tx *store.Tx, tier protocol.MemoryTier, owner string) (entries, bytes int, err error) {
	_, err = tx.Get("SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM memory_spaces WHERE tier = $1 "+
		"AND owner = $2", []any{string(tier), owner}, &entries, &bytes)
	return entries, bytes, err
}

// put stores an entry and replaces was, the entry with the same key, or nil if there is none. was goes
// into the history of the key, which keeps versions former versions. An entry without a vector waits
// for one if the store has a model.
func put(tx *store.Tx, space int64, e *entry, at stored, vector embed.Vector, was *row, versions int) error {
	if was != nil {
		if was.version < at.version {
			if err := keep(tx, space, e.canonical, was, versions); err != nil {
				return err
			}
		}
		if _, err := tx.Exec("DELETE FROM memory_entries WHERE id = $1",
			was.id); err != nil { // triggers delete its tags, words and vector
			return err
		}
	}
	var expires any
	if at.expires == 0 {
		at.expires = e.expiry(at.updated)
	}
	if at.expires > 0 {
		expires = at.expires
	}
	id, err := tx.Insert(`INSERT INTO memory_entries (space, key, sent, tags, source, weight, ttl, created_at,
			updated_at, expires_at, version, bytes, content, folder)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING id`,
		space, e.canonical, string(e.Key), store.JSON(e.Tags), e.Source, e.Weight, e.TTL, at.created,
		at.updated, expires, at.version, e.size(), string(e.Content), at.folder)
	if err != nil {
		return err
	}
	if err := indexWords(tx, id, space, e.text(), true); err != nil {
		return err
	}
	return putVector(tx, id, space, vector)
}

// row is an entry that was read from the store.
type row struct {
	id, space int64
	entry
	stored // expires 0 = never
}

// columns are the columns that row.columns scans.
const columns = "e.id, e.space, e.sent, e.content, s.tier, e.tags, e.source, e.weight, e.ttl, " +
	"e.created_at, e.updated_at, coalesce(e.expires_at, 0), e.version, e.folder"

// fromEntries joins the tables that have the columns.
const fromEntries = " FROM memory_entries e JOIN memory_spaces s ON s.id = e.space "

func (r *row) columns() []any {
	return []any{
		&r.id, &r.space, (*[]byte)(&r.Key), (*[]byte)(&r.Content), &r.Tier, store.JSON(&r.Tags), &r.Source,
		&r.Weight, &r.TTL, &r.created, &r.updated, &r.expires, &r.version, &r.folder,
	}
}

// expired reports whether the entry has expired at the time now.
func (r *row) expired(now float64) bool { return r.expires != 0 && r.expires <= now }

// rows reads the entries that a query finds, without the expired ones.
func rows(tx *store.Tx, now float64, query string, args ...any) ([]*row, error) {
	found, err := store.Rows(tx, "SELECT "+columns+fromEntries+query, args, (*row).columns)
	return slices.DeleteFunc(found, func(r *row) bool { return r.expired(now) }), err
}

// answer returns the row as the agent gets it.
func (r *row) answer(score float64) (protocol.MemoryEntry, error) {
	key, err := protocol.ParseObject(r.Key)
	return protocol.MemoryEntry{
		Key: key, Content: r.Content, Tier: r.Tier, Tags: r.Tags, Source: r.Source, Score: score, TTL: r.TTL,
		CreatedAt: r.created, UpdatedAt: r.updated, ExpiresAt: r.expires, Version: r.version, Folder: r.folder,
	}, err
}
