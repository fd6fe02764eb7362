package memory

import (
	"cmp"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// shelf is the memory in one store: the shared one, or that of a session.
type shelf struct {
	store    store.Store
	sketches *sketches
	common   common
}

func newShelf(st store.Store) *shelf { return &shelf{store: st, sketches: newSketches()} }

// times is when an entry was first and last stored, in seconds since 1970.
type times struct{ created, updated float64 }

// openSpace gives the space of a memory's tier, and makes it if there is none.
func openSpace(tx *store.Tx, n name, tier protocol.MemoryTier, owner string) (int64, error) {
	id, err := spaceOf(tx, n.id, tier, owner)
	if err != nil || id != 0 {
		return id, err
	}
	if _, _, err := tx.Exec("INSERT OR IGNORE INTO memory_names VALUES (?, ?, ?)", n.id, n.namespace, n.scope); err != nil {
		return 0, err
	}
	id, _, err = tx.Exec("INSERT INTO memory_spaces (memory_id, tier, owner) VALUES (?, ?, ?)", n.id, string(tier), owner)
	return id, err
}

// spaceOf gives the space of a memory's tier; 0 = nothing was ever stored there.
func spaceOf(tx *store.Tx, memoryID string, tier protocol.MemoryTier, owner string) (id int64, err error) {
	_, err = tx.Get("SELECT id FROM memory_spaces WHERE memory_id = ? AND tier = ? AND owner = ?", []any{memoryID, string(tier), owner}, &id)
	return id, err
}

// held gives how much there is in a tier of one owner, in all its memories.
func held(tx *store.Tx, tier protocol.MemoryTier, owner string) (entries, bytes int, err error) {
	_, err = tx.Get("SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM memory_spaces WHERE tier = ? AND owner = ?", []any{string(tier), owner}, &entries, &bytes)
	return entries, bytes, err
}

// put stores an entry in the place of the one with its key. Without a vector it waits
// for one, if it has any text.
func put(tx *store.Tx, space int64, e *entry, at times, vector embed.Vector) error {
	var old int64
	was, err := tx.Get("SELECT id, created_at FROM memory_entries WHERE space = ? AND key = ?", []any{space, e.canonical}, &old, &at.created)
	if err != nil {
		return err
	}
	if was {
		if err := remove(tx, old); err != nil {
			return err
		}
	}
	tags, err := json.Marshal(e.Tags)
	if err != nil {
		return err
	}
	var expires any
	if e.TTL > 0 {
		expires = at.updated + e.TTL
	}
	id, _, err := tx.Exec(`INSERT INTO memory_entries (space, key, sent, tags, source, weight, ttl, created_at, updated_at, expires_at, bytes, content)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		space, e.canonical, string(e.Key), string(tags), e.Source, e.Weight, e.TTL, at.created, at.updated, expires, e.size(), string(e.Content))
	if err != nil {
		return err
	}
	text := e.text()
	if _, _, err := tx.Exec("INSERT INTO memory_text (rowid, words) VALUES (?, ?)", id, indexed(space, text)); err != nil {
		return err
	}
	return putVector(tx, id, space, vector)
}

// remove deletes an entry; what belongs to it goes by triggers.
func remove(tx *store.Tx, id int64) error {
	_, _, err := tx.Exec("DELETE FROM memory_entries WHERE id = ?", id)
	return err
}

// row is an entry as it was read.
type row struct {
	id int64
	entry
	times
	expires float64 // 0 = never
}

// columns is what readRow reads.
const columns = "e.id, e.sent, e.content, s.tier, e.tags, e.source, e.weight, e.ttl, e.created_at, e.updated_at, coalesce(e.expires_at, 0)"

// fromEntries joins what has the columns.
const fromEntries = " FROM memory_entries e JOIN memory_spaces s ON s.id = e.space "

func readRow(scan func(...any) error) (*row, error) {
	r := new(row)
	var tags []byte
	if err := scan(&r.id, (*[]byte)(&r.Key), (*[]byte)(&r.Content), &r.Tier, &tags, &r.Source, &r.Weight, &r.TTL, &r.created, &r.updated, &r.expires); err != nil {
		return nil, err
	}
	return r, json.Unmarshal(tags, &r.Tags)
}

// rows reads what a query gives, without what has expired.
func rows(tx *store.Tx, now float64, query string, args ...any) ([]*row, error) {
	var found []*row
	err := tx.Each("SELECT "+columns+fromEntries+query, args, func(scan func(...any) error) error {
		r, err := readRow(scan)
		if err == nil && (r.expires == 0 || r.expires > now) {
			found = append(found, r)
		}
		return err
	})
	return found, err
}

// listOf gives values as JSON, for json_each in a query.
func listOf[T cmp.Ordered](values []T) string {
	raw, _ := json.Marshal(values) // of texts and numbers
	return string(raw)
}

// answer makes what the agent gets of a row.
func (r *row) answer(score float64) (protocol.MemoryEntry, error) {
	key, err := protocol.ParseObject(r.Key)
	return protocol.MemoryEntry{
		Key: key, Content: r.Content, Tier: r.Tier, Tags: r.Tags, Source: r.Source, Score: score, TTL: r.TTL,
		CreatedAt: r.created, UpdatedAt: r.updated,
	}, err
}
