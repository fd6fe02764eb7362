package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Part is what one plugin keeps in the store.
type Part struct {
	// Name is the plugin's type.
	Name string
	// Migrations is the SQL that makes the tables, and brings older ones up: each
	// runs once, in order, in the transaction that notes it. One that was released
	// never changes. Tables are named after the part.
	Migrations []string
	// Export gives the part's records, each of a kind that begins with the part's
	// name and a dot.
	Export func(ctx context.Context, tx *Tx, emit func(kind string, record any) error) error
	// Import takes one record of Export in. Later records may name earlier ones.
	Import func(ctx context.Context, tx *Tx, kind string, record jsontext.Value) error
	// Clear empties the part.
	Clear func(ctx context.Context, tx *Tx) error
}

// Records is one kind of record in the export of a part.
type Records struct {
	Kind   string // the part's name, a dot, what it is
	Export func(tx *Tx, emit func(record any) error) error
	Import func(tx *Tx, record jsontext.Value) error
}

// RecordsOf describes records that stand in the rows of a query, read into what columns
// returns. take puts one into the store, or refuses it.
func RecordsOf[R any](kind, query string, columns func(*R) []any, take func(*R, *Tx) error) Records {
	return Records{
		Kind: kind,
		Export: func(tx *Tx, emit func(any) error) error {
			return tx.Each(query, nil, func(scan func(...any) error) error {
				var r R
				if err := scan(columns(&r)...); err != nil {
					return err
				}
				return emit(r)
			})
		},
		Import: ImportOf(take),
	}
}

// ImportOf is a Records.Import that decodes the record; unknown members are refused.
func ImportOf[R any](take func(*R, *Tx) error) func(*Tx, jsontext.Value) error {
	return func(tx *Tx, raw jsontext.Value) error {
		var r R
		if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		return take(&r, tx)
	}
}

// Kinds are the records of a part, in the order of an export. Their methods are those
// that a Part takes.
type Kinds []Records

// Export is a Part's Export.
func (all Kinds) Export(_ context.Context, tx *Tx, emit func(kind string, record any) error) error {
	for _, r := range all {
		if err := r.Export(tx, func(record any) error { return emit(r.Kind, record) }); err != nil {
			return err
		}
	}
	return nil
}

// Import is a Part's Import.
func (all Kinds) Import(_ context.Context, tx *Tx, kind string, record jsontext.Value) error {
	var names []string
	for _, r := range all {
		if r.Kind == kind {
			return r.Import(tx, record)
		}
		names = append(names, r.Kind)
	}
	return fmt.Errorf("there is no such record; there are: %s", strings.Join(names, ", "))
}

// ClearTables returns a Part's Clear that empties these tables, in order.
func ClearTables(tables ...string) func(context.Context, *Tx) error {
	return func(_ context.Context, tx *Tx) error {
		for _, table := range tables {
			if _, _, err := tx.Exec("DELETE FROM " + table); err != nil {
				return err
			}
		}
		return nil
	}
}

// migrate brings the file up to what the parts need. It writes only when there is
// something to do.
func migrate(c *conn, path string, parts []Part) error {
	tx := &Tx{conn: c, ctx: context.Background()}
	behind, err := behind(tx, path, parts)
	if err != nil || !behind {
		return err
	}
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err = migrateIn(tx, path, parts); err == nil {
		err = c.exec("COMMIT")
	}
	if err != nil {
		_ = c.exec("ROLLBACK")
	}
	return err
}

func migrateIn(tx *Tx, path string, parts []Part) error {
	var format int
	if _, err := tx.Get("PRAGMA user_version", nil, &format); err != nil {
		return err
	}
	for _, q := range []string{
		fmt.Sprintf("PRAGMA application_id = %d", applicationID),
		fmt.Sprintf("PRAGMA user_version = %d", max(format, formatUnchecked)), // of a file that was made with checksums it is higher
		"CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID",
	} {
		if err := tx.conn.exec(q); err != nil {
			return err
		}
	}
	for _, p := range parts {
		version, err := versionOf(tx, path, p) // again: another host may have been faster
		if err != nil {
			return err
		}
		for ; version < len(p.Migrations); version++ {
			if err := tx.conn.exec(p.Migrations[version]); err != nil {
				return fmt.Errorf("migration %d of %s: %w", version+1, p.Name, err)
			}
		}
		if _, _, err := tx.Exec("INSERT INTO parts VALUES (?, ?) ON CONFLICT DO UPDATE SET version = excluded.version", p.Name, version); err != nil {
			return err
		}
	}
	return nil
}

// behind tells whether the file lacks something.
func behind(tx *Tx, path string, parts []Part) (bool, error) {
	there, err := tx.Get("SELECT 1 FROM sqlite_schema WHERE name = 'parts'", nil, new(int))
	if err != nil || !there {
		return true, err
	}
	for _, p := range parts {
		version, err := versionOf(tx, path, p)
		if err != nil || version < len(p.Migrations) {
			return true, err
		}
	}
	return false, nil
}

// versionOf gives the number of a part's migrations that the file has.
func versionOf(tx *Tx, path string, p Part) (int, error) {
	var version int
	if _, err := tx.Get("SELECT version FROM parts WHERE name = ?", []any{p.Name}, &version); err != nil {
		return 0, err
	}
	if version > len(p.Migrations) {
		return 0, fmt.Errorf("%s: %w: its %s has version %d, this a2e knows %d; use the newer one, or another state_dir", path, ErrNewer, p.Name, version, len(p.Migrations))
	}
	return version, nil
}
