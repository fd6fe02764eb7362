package memory

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Part is what the plugin keeps in the store.
//
//	memory_names    what a memory id stands for
//	memory_spaces   a tier of a memory, of one owner: entries of two spaces never meet
//	memory_entries  ids grow: a larger one is newer, also when a key was stored again
//	memory_history  versions of entries that were replaced; past_bytes of a space counts theirs
//	memory_tags     one row for each tag of an entry
//	memory_text     the words of each entry (store.Words), by its id
//	memory_forms    what its words are found by when misspelt or in another form (the same)
//	memory_unkeyed  entries up to this id, of an older version, are not in memory_forms yet, or
//	                without the roots of Arabic words; where no model made them, their vectors
//	                are of words and of no use
//	memory_vectors  its vector (embed.Vector.Bytes); seq grows; sketch is no longer used
//	memory_loose    entries whose vectors are in no segment yet
//	memory_segments codes of 256 vectors each (embed.Codes), and whose they are
//	memory_centres  by which vectors are coded, and what the cosines of unrelated ones are like
//	memory_waiting  entries whose vector is still to be made
//	memory_agents   agents that use the episodic tier of another
//	memory_meta     `model` and `size` of the vectors
//	memory_secret   what the cursors of this store are signed with
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

// modelRecord is the model of the vectors that follow.
type modelRecord struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// agentRecord is one row of memory_agents.
type agentRecord struct {
	Agent string `json:"agent"`
	Uses  string `json:"uses"`
}

// entryRecord is an entry with all that belongs to it.
type entryRecord struct {
	Namespace string            `json:"namespace"`
	Scope     map[string]string `json:"scope"`
	Owner     string            `json:"owner"` // of an episodic entry: the agent id
	entry
	CreatedAt float64 `json:"created_at"`
	UpdatedAt float64 `json:"updated_at"`
	ExpiresAt float64 `json:"expires_at,omitzero"` // where it is not updated_at and ttl, as a read put it off
	Folder    string  `json:"folder,omitzero"`
	Version   int     `json:"version,omitzero"` // 0 = that of the version before had none: 1
	Vector    []byte  `json:"vector,omitempty"` // as Bytes of embed.Vector gives it
}

func exportModel(tx *store.Tx, emit func(any) error) error {
	model, err := modelOf(tx)
	if err != nil || model.Name == "" {
		return err
	}
	return emit(modelRecord(model))
}

// wordModel named the vectors of older versions that were made of words.
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
		if err := scan(&r.Namespace, store.JSON(&r.Scope), &r.Tier, &r.Owner, (*[]byte)(&r.Key), (*[]byte)(&r.Content),
			store.JSON(&r.Tags), &r.Source, &r.Weight, &r.TTL,
			&r.CreatedAt, &r.UpdatedAt, &r.ExpiresAt, &r.Version, &r.Folder, &r.Vector); err != nil {
			return err
		}
		if r.ExpiresAt == r.expiry(r.UpdatedAt) {
			r.ExpiresAt = 0
		}
		return emit(r)
	})
}

func importEntry(tx *store.Tx, raw jsontext.Value) error {
	r := entryRecord{entry: entry{Weight: 1}}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	if r.Content == nil {
		r.Content = jsontext.Value("null")
	}
	if err := r.check(maxImport); err != nil {
		return err
	}
	n, err := nameOf(r.Namespace, r.Scope)
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
		at.version = max(at.version, was.version+1) // two that differ are never the same version
	}
	return put(tx, space, &r.entry, at, vector, was, DefaultOptions().Versions)
}

// maxImport is the size of an entry that an import takes, whatever the limit of the host
// that it was stored by.
const maxImport = 64 << 20

// vector returns the vector of an imported entry; nil when one has to be made.
func (r *entryRecord) vector(tx *store.Tx) (embed.Vector, error) {
	model, err := modelOf(tx)
	return embed.VectorOf(r.Vector, model.Size), err
}

// Owner is an agent with episodic entries, its own or those of the agent whose it uses.
type Owner struct {
	Agent, Namespace string
	Entries          int
}

// Owners lists the agents with episodic entries, by name, and how many each has in a namespace.
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

// repository is the memory in one store: the shared one, or that of a session.
type repository struct {
	store store.Store
	index *index
	keyed atomic.Bool // no entry waits for its keys

	tidy    atomic.Bool  // there is nothing to merge in the word indexes
	storing atomic.Int64 // store requests under way
	stored  atomic.Int64 // transactions that stored entries
}

func newRepository(st store.Store) *repository {
	return &repository{store: st, index: newIndex()}
}

// stored is when an entry was first and last stored and when it expires, in seconds since
// 1970, how often it was stored, and where it was last.
type stored struct {
	created, updated float64
	expires          float64 // 0 = what follows from updated and its time to live
	version          int
	folder           string // workspace of the host, see wall.Place; "" = it was not noted
}

// openSpace returns the space of a memory's tier, and makes it if there is none.
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

// held returns how much there is in a tier of one owner, in all its memories.
func held(tx *store.Tx, tier protocol.MemoryTier, owner string) (entries, bytes int, err error) {
	_, err = tx.Get("SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM memory_spaces WHERE tier = $1 "+
		"AND owner = $2", []any{string(tier), owner}, &entries, &bytes)
	return entries, bytes, err
}

// put stores an entry in the place of the one with its key, was, which goes into its history
// of so many versions; nil = there is none. Without a vector it waits for one, if it has any
// text.
func put(tx *store.Tx, space int64, e *entry, at stored, vector embed.Vector, was *row, versions int) error {
	if was != nil {
		if was.version < at.version {
			if err := keep(tx, space, e.canonical, was, versions); err != nil {
				return err
			}
		}
		if _, err := tx.Exec("DELETE FROM memory_entries WHERE id = $1",
			was.id); err != nil { // what belongs to it goes by triggers
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

// row is an entry as it was read.
type row struct {
	id, space int64
	entry
	stored // expires 0 = never
}

// columns is what row.columns reads.
const columns = "e.id, e.space, e.sent, e.content, s.tier, e.tags, e.source, e.weight, e.ttl, " +
	"e.created_at, e.updated_at, coalesce(e.expires_at, 0), e.version, e.folder"

// fromEntries joins what has the columns.
const fromEntries = " FROM memory_entries e JOIN memory_spaces s ON s.id = e.space "

func (r *row) columns() []any {
	return []any{
		&r.id, &r.space, (*[]byte)(&r.Key), (*[]byte)(&r.Content), &r.Tier, store.JSON(&r.Tags), &r.Source,
		&r.Weight, &r.TTL, &r.created, &r.updated, &r.expires, &r.version, &r.folder,
	}
}

// expired reports whether the entry is gone at a time.
func (r *row) expired(now float64) bool { return r.expires != 0 && r.expires <= now }

// rows reads what a query gives, without what has expired.
func rows(tx *store.Tx, now float64, query string, args ...any) ([]*row, error) {
	found, err := store.Rows(tx, "SELECT "+columns+fromEntries+query, args, (*row).columns)
	return slices.DeleteFunc(found, func(r *row) bool { return r.expired(now) }), err
}

// listOf returns values as JSON, for json_each in a query.
func listOf[T cmp.Ordered](values []T) string {
	raw, _ := json.Marshal(values) // of texts and numbers
	return string(raw)
}

// answer makes what the agent gets of a row.
func (r *row) answer(score float64) (protocol.MemoryEntry, error) {
	key, err := protocol.ParseObject(r.Key)
	return protocol.MemoryEntry{
		Key: key, Content: r.Content, Tier: r.Tier, Tags: r.Tags, Source: r.Source, Score: score, TTL: r.TTL,
		CreatedAt: r.created, UpdatedAt: r.updated, ExpiresAt: r.expires, Version: r.version, Folder: r.folder,
	}, err
}
