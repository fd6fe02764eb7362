package memory

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Part is what the plugin keeps in the store.
//
//	memory_names    what a memory id stands for
//	memory_spaces   a tier of a memory, of one owner: entries of two spaces never meet
//	memory_entries  ids grow: a larger one is newer, also when a key was stored again
//	memory_tags     one row for each tag of an entry
//	memory_text     the words of each entry (FTS5), by its id
//	memory_vectors  its vector; seq grows, so that a host sees what others added
//	memory_waiting  entries whose vector is still to be made
//	memory_agents   agents that use the episodic tier of another
//	memory_meta     `model` and `size` of the vectors
func Part() store.Part {
	in := importer{embed.Hashed()}
	return store.Part{Name: "memory", Migrations: migrations(), Export: exportPart, Import: in.record, Clear: clearPart}
}

func migrations() []string {
	return []string{`
CREATE TABLE memory_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_names (memory_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, scope TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_agents (agent TEXT PRIMARY KEY, uses TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_spaces (
	id INTEGER PRIMARY KEY AUTOINCREMENT, memory_id TEXT NOT NULL, tier TEXT NOT NULL, owner TEXT NOT NULL,
	entries INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (memory_id, tier, owner));
CREATE INDEX memory_owners ON memory_spaces (tier, owner);
CREATE TABLE memory_entries (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, key TEXT NOT NULL, sent TEXT NOT NULL,
	tags TEXT NOT NULL, source TEXT NOT NULL, weight REAL NOT NULL, ttl REAL NOT NULL,
	created_at REAL NOT NULL, updated_at REAL NOT NULL, expires_at REAL, bytes INTEGER NOT NULL, content TEXT NOT NULL);
CREATE UNIQUE INDEX memory_keys ON memory_entries (space, key);
CREATE INDEX memory_newest ON memory_entries (space);
CREATE INDEX memory_expiry ON memory_entries (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE memory_tags (space INTEGER NOT NULL, tag TEXT NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (space, tag, entry)) WITHOUT ROWID;
CREATE TABLE memory_vectors (seq INTEGER PRIMARY KEY AUTOINCREMENT, entry INTEGER NOT NULL UNIQUE, space INTEGER NOT NULL, sketch BLOB NOT NULL, vector BLOB);
CREATE TABLE memory_waiting (entry INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE memory_text USING fts5(words, content='', contentless_delete=1, tokenize='porter ascii');
CREATE TRIGGER memory_added AFTER INSERT ON memory_entries BEGIN
	UPDATE memory_spaces SET entries = entries + 1, bytes = bytes + new.bytes WHERE id = new.space;
	INSERT INTO memory_tags SELECT new.space, value, new.id FROM json_each(new.tags);
END;
CREATE TRIGGER memory_removed AFTER DELETE ON memory_entries BEGIN
	UPDATE memory_spaces SET entries = entries - 1, bytes = bytes - old.bytes WHERE id = old.space;
	DELETE FROM memory_tags WHERE space = old.space AND tag IN (SELECT value FROM json_each(old.tags)) AND entry = old.id;
	DELETE FROM memory_text WHERE rowid = old.id;
	DELETE FROM memory_vectors WHERE entry = old.id;
	DELETE FROM memory_waiting WHERE entry = old.id;
END;`}
}

// The kinds of records of an export.
const (
	kindModel = "memory.model"
	kindAgent = "memory.agent"
	kindEntry = "memory.entry"
)

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
	Vector    []byte  `json:"vector,omitempty"` // components of one byte each; not of the built-in embedder, which makes it again
}

func exportPart(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	model, err := modelOf(tx)
	if err != nil {
		return err
	}
	if model.Name != "" {
		if err := emit(kindModel, modelRecord(model)); err != nil {
			return err
		}
	}
	if err := tx.Each("SELECT agent, uses FROM memory_agents", nil, func(scan func(...any) error) error {
		var a agentRecord
		if err := scan(&a.Agent, &a.Uses); err != nil {
			return err
		}
		return emit(kindAgent, a)
	}); err != nil {
		return err
	}
	return tx.Each(`SELECT n.namespace, n.scope, s.tier, s.owner, e.sent, e.content, e.tags, e.source, e.weight, e.ttl, e.created_at, e.updated_at, v.vector
		FROM memory_entries e JOIN memory_spaces s ON s.id = e.space JOIN memory_names n USING (memory_id) LEFT JOIN memory_vectors v ON v.entry = e.id
		ORDER BY e.id`, nil, func(scan func(...any) error) error {
		var r entryRecord
		var scope, tags []byte
		if err := scan(&r.Namespace, &scope, &r.Tier, &r.Owner, (*[]byte)(&r.Key), (*[]byte)(&r.Content), &tags, &r.Source, &r.Weight, &r.TTL,
			&r.CreatedAt, &r.UpdatedAt, &r.Vector); err != nil {
			return err
		}
		if err := json.Unmarshal(scope, &r.Scope); err != nil {
			return err
		}
		if err := json.Unmarshal(tags, &r.Tags); err != nil {
			return err
		}
		if model == embed.Hashed().Model() {
			r.Vector = nil
		}
		return emit(kindEntry, r)
	})
}

// importer takes records in. Vectors of the built-in embedder are made anew.
type importer struct{ builtIn embed.Embedder }

func (in importer) record(ctx context.Context, tx *store.Tx, kind string, raw jsontext.Value) error {
	switch kind {
	case kindModel:
		var m modelRecord
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		return useModel(tx, embed.Model(m))
	case kindAgent:
		var a agentRecord
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		return setUses(tx, a.Agent, a.Uses)
	case kindEntry:
		return in.entry(ctx, tx, raw)
	}
	return fmt.Errorf("there is no such kind; there are %s, %s and %s", kindModel, kindAgent, kindEntry)
}

func (in importer) entry(ctx context.Context, tx *store.Tx, raw jsontext.Value) error {
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
	vector, err := in.vector(ctx, tx, r)
	if err != nil {
		return err
	}
	return put(tx, space, &r.entry, times{r.CreatedAt, r.UpdatedAt}, vector)
}

// maxImport is the size of an entry that an import takes, whatever the limit of the host
// that it was stored by.
const maxImport = 64 << 20

// vector gives the vector of an imported entry: its own, or that of the built-in
// embedder; nil when another model has to make it.
func (in importer) vector(ctx context.Context, tx *store.Tx, r entryRecord) (embed.Vector, error) {
	model, err := modelOf(tx)
	if err != nil {
		return nil, err
	}
	if model.Name != "" && model != in.builtIn.Model() {
		return bytesToVector(r.Vector, model.Size), nil
	}
	if model.Name == "" {
		if err := useModel(tx, in.builtIn.Model()); err != nil {
			return nil, err
		}
	}
	vectors, err := in.builtIn.Embed(ctx, []string{r.text()})
	if err != nil {
		return nil, err
	}
	return vectors[0], nil
}

func clearPart(_ context.Context, tx *store.Tx) error {
	for _, q := range []string{
		"DELETE FROM memory_entries", "DELETE FROM memory_spaces", "DELETE FROM memory_names", "DELETE FROM memory_agents", "DELETE FROM memory_meta",
	} {
		if _, _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return nil
}

// Owner is an agent with episodic entries, its own or those of the agent whose it uses.
type Owner struct {
	Agent, Namespace string
	Entries          int
}

// Owners lists the agents with episodic entries, by name, and how many each has in a namespace.
func Owners(ctx context.Context, s store.Store) (all []Owner, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		return tx.Each(`SELECT COALESCE(a.agent, s.owner), n.namespace, SUM(s.entries) FROM memory_spaces s JOIN memory_names n USING (memory_id)
			LEFT JOIN (SELECT agent, uses FROM memory_agents UNION SELECT DISTINCT owner, owner FROM memory_spaces) a ON a.uses = s.owner
			WHERE s.tier = ? AND s.entries > 0 GROUP BY 1, 2 ORDER BY 1, 2`, []any{string(protocol.TierEpisodic)}, func(scan func(...any) error) error {
			var o Owner
			err := scan(&o.Agent, &o.Namespace, &o.Entries)
			all = append(all, o)
			return err
		})
	})
	return all, err
}
