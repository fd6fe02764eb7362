package memory

import (
	"a2e/host/state/store"
)

// Limits of the history; the oldest versions are deleted first. The number of versions of a key is
// limited by the option versions.
const (
	maxKeyHistory  = 1 << 20  // bytes of one key
	maxTierHistory = 16 << 20 // bytes of an agent's tier in all its namespaces
)

// ofKey is the condition for a space, $1, and a key, $2. It compares a prefix first because whole keys do not fit
// into an index of PostgreSQL.
const ofKey = "space = $1 AND substr(key, 1, 500) = substr($2, 1, 500) AND key = $2"

// current returns the entry of a key, or nil if there is none or it has expired at the time now.
func current(tx *store.Tx, space int64, key string, now float64) (*row, error) {
	found, err := rows(tx, now, "WHERE "+ofKey, space, key)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// keep puts a version that is being replaced into the history, and deletes versions over the limits.
func keep(tx *store.Tx, space int64, key string, r *row, versions int) error {
	if versions > 0 {
		if err := putPast(tx, space, key, r); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`DELETE FROM memory_history WHERE id IN (SELECT id FROM (
			SELECT id, row_number() OVER newest AS place, sum(bytes) OVER newest AS sum FROM memory_history
			WHERE `+ofKey+`
			WINDOW newest AS (ORDER BY version DESC)) AS all_of_key WHERE place > $3 OR sum > $4)`, space, key,
		versions, maxKeyHistory); err != nil {
		return err
	}
	const ofOwner = " FROM memory_spaces o JOIN memory_spaces s ON s.tier = o.tier AND s.owner = o.owner "
	var bytes int
	if _, err := tx.Get("SELECT sum(s.past_bytes)"+ofOwner+"WHERE o.id = $1", []any{space}, &bytes); err != nil ||
		bytes <= maxTierHistory {
		return err
	}
	_, err := tx.Exec(`DELETE FROM memory_history WHERE id IN (SELECT id FROM (
			SELECT h.id, sum(h.bytes) OVER (ORDER BY h.id DESC) AS sum`+ofOwner+`JOIN memory_history h ON h.space =
				s.id WHERE o.id = $1) AS all_of_owner
		WHERE sum > $2)`, space, maxTierHistory*9/10) // to 90 %, so that the next version does not need this again
	return err
}

// putPast puts a version that is no longer the current one into the history of its key.
func putPast(tx *store.Tx, space int64, key string, r *row) error {
	if _, err := tx.Exec("DELETE FROM memory_history WHERE "+ofKey+" AND version = $3", space, key,
		r.version); err != nil { // an import may bring the same version again
		return err
	}
	_, err := tx.Exec(`INSERT INTO memory_history (space, key, version, tags, source, weight, ttl, created_at,
			updated_at, bytes, content, folder)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		space, key, r.version, store.JSON(r.Tags), r.Source, r.Weight, r.TTL, r.created, r.updated, r.size(),
		string(r.Content), r.folder)
	return err
}

// past returns the former versions of an entry, the newest first.
func past(tx *store.Tx, space int64, key string, of *row) ([]*row, error) {
	return store.Rows(tx, `SELECT version, tags, source, weight, ttl, created_at, updated_at, content, folder
		FROM memory_history
		WHERE `+ofKey+` AND version < $3 ORDER BY version DESC`, []any{space, key, of.version}, func(r *row) []any {
		r.Key, r.Tier = of.Key, of.Tier
		return []any{
			&r.version, store.JSON(&r.Tags), &r.Source, &r.Weight, &r.TTL, &r.created, &r.updated,
			(*[]byte)(&r.Content), &r.folder,
		}
	})
}

// remove deletes the entries that meet a condition, and their history. It returns the number of entries.
func remove(tx *store.Tx, where string, args ...any) (deleted int, err error) {
	const of = "DELETE FROM memory_history WHERE (space, substr(key, 1, 500), key) IN (SELECT space, substr(key, 1, " +
		"500), key FROM memory_entries WHERE "
	if _, err := tx.Exec(of+where+")", args...); err != nil {
		return 0, err
	}
	changed, err := tx.Exec("DELETE FROM memory_entries WHERE "+where, args...)
	return int(changed), err
}

// versionRecord is a former version of an entry as an export has it.
type versionRecord struct {
	record
	Version int    `json:"version"`
	Folder  string `json:"folder,omitzero"`
}

const selectHistory = `SELECT n.namespace, n.scope, s.tier, s.owner, e.sent, h.content, h.tags, h.source, h.weight,
		h.ttl, h.created_at, h.updated_at, h.version, h.folder
	FROM memory_history h JOIN memory_entries e ON e.space = h.space
	AND e.key = h.key JOIN memory_spaces s ON s.id = h.space JOIN memory_names n USING (memory_id)
	ORDER BY h.id`

func (r *versionRecord) columns() []any {
	return append(r.record.columns(), &r.Version, &r.Folder)
}

// importPast stores a former version if its entry exists with a later version.
func importPast(r *versionRecord, tx *store.Tx) error {
	n, err := r.take()
	if err != nil {
		return err
	}
	space, err := spaceOf(tx, n.id, r.Tier, r.Owner)
	if err != nil {
		return err
	}
	now, err := current(tx, space, r.canonical, 0)
	if err != nil || now == nil || r.Version >= now.version {
		return err
	}
	return putPast(tx, space, r.canonical, &row{entry: r.entry, stored: stored{
		created: r.CreatedAt, updated: r.UpdatedAt, version: r.Version, folder: r.Folder,
	}})
}
