package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Part is the part of the store that belongs to one plugin.
type Part struct {
	// Name is the plugin's type.
	Name string
	// SQL contains the migrations, which make the tables and update older ones: sql/001.sqlite.sql and
	// sql/001.postgres.sql, or sql/001.sql for both engines, and so on. Each runs once, in order, in the
	// transaction that records it. A released file never changes. Table names begin with the part's name.
	// Existing tables were always made by a2e.
	SQL fs.FS
	// Recount is run on PostgreSQL after the records of an import. During the import the setting a2e.importing
	// is on, so that triggers need not count: a row that one transaction changes often becomes slow. "" = nothing.
	Recount string
	// Export emits the part's records. Their kinds begin with the part's name and a dot. nil = the part is not
	// exported.
	Export func(ctx context.Context, tx *Tx, emit func(kind string, record any) error) error
	// Import stores one record of Export. Later records may refer to earlier ones.
	Import func(ctx context.Context, tx *Tx, kind string, record jsontext.Value) error
	// Clear removes all data of the part.
	Clear func(ctx context.Context, tx *Tx) error
}

// migration returns the name of a migration for an engine, by its number from 1, or "" if there is none.
func (p Part) migration(engine string, number int) string {
	if p.SQL == nil {
		return ""
	}
	for _, end := range []string{"." + engine + ".sql", ".sql"} {
		name := fmt.Sprintf("sql/%03d%s", number, end)
		if _, err := fs.Stat(p.SQL, name); err == nil {
			return name
		}
	}
	return ""
}

// version returns the number of migrations for an engine.
func (p Part) version(engine string) (n int) {
	for p.migration(engine, n+1) != "" {
		n++
	}
	return n
}

// Records is one kind of record in the export of a part.
type Records struct {
	Kind   string // the part's name, a dot, and the kind
	Export func(tx *Tx, emit func(record any) error) error
	Import func(tx *Tx, record jsontext.Value) error
}

// RecordsOf describes records that are the rows of a query. columns returns the fields into which a
// row is read. take stores one record, or refuses it.
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

// ImportOf returns a Records.Import that decodes the record; unknown members are errors.
func ImportOf[R any](take func(*R, *Tx) error) func(*Tx, jsontext.Value) error {
	return func(tx *Tx, raw jsontext.Value) error {
		var r R
		if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		return take(&r, tx)
	}
}

// Kinds are the records of a part, in the order of an export. Its methods can be used as fields of a Part.
type Kinds []Records

// Export implements Part.Export.
func (all Kinds) Export(_ context.Context, tx *Tx, emit func(kind string, record any) error) error {
	for _, r := range all {
		if err := r.Export(tx, func(record any) error { return emit(r.Kind, record) }); err != nil {
			return err
		}
	}
	return nil
}

// Import implements Part.Import.
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

// ClearTables returns a Part.Clear that empties these tables, in order.
func ClearTables(tables ...string) func(context.Context, *Tx) error {
	return func(_ context.Context, tx *Tx) error {
		for _, table := range tables {
			if _, err := tx.Exec("DELETE FROM " + table); err != nil {
				return err
			}
		}
		return nil
	}
}

// migrate runs the migrations that the parts need. It writes only if some are missing.
func migrate(c *conn, path string, parts []Part) error {
	tx := &Tx{db: c, ctx: context.Background()}
	behind, err := behind(tx, path, parts)
	if err != nil || !behind {
		return err
	}
	if err := c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err = migrateIn(c, tx, path, parts); err == nil {
		err = c.run("COMMIT")
	}
	if err != nil {
		_ = c.run("ROLLBACK")
	}
	return err
}

func migrateIn(c *conn, tx *Tx, path string, parts []Part) error {
	var format int
	if _, err := tx.Get("PRAGMA user_version", nil, &format); err != nil {
		return err
	}
	for _, q := range []string{
		fmt.Sprintf("PRAGMA application_id = %d", applicationID),
		fmt.Sprintf("PRAGMA user_version = %d", max(format, formatUnchecked)),
		// in a file that was made with checksums it is higher
		"CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID",
	} {
		if err := c.run(q); err != nil {
			return err
		}
	}
	return migrateParts(c, tx, path, parts)
}

// migrateParts runs the missing migrations.
func migrateParts(c connection, tx *Tx, place string, parts []Part) error {
	for _, p := range parts {
		version, err := versionOf(tx, place, p) // read again, as another host may have been faster
		if err != nil {
			return err
		}
		for ; version < p.version(tx.engine()); version++ {
			text, err := fs.ReadFile(p.SQL, p.migration(tx.engine(), version+1))
			if err == nil {
				err = c.run(string(text))
			}
			if err != nil {
				return fmt.Errorf("migration %d of %s: %w", version+1, p.Name, err)
			}
		}
		if _, err := tx.Exec("INSERT INTO parts VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET version = "+
			"excluded.version", p.Name, version); err != nil {
			return err
		}
	}
	return nil
}

// behind reports whether migrations are missing in the file.
func behind(tx *Tx, path string, parts []Part) (bool, error) {
	there, err := tx.Get("SELECT 1 FROM sqlite_schema WHERE name = 'parts'", nil, new(int))
	if err != nil || !there {
		return true, err
	}
	return partsBehind(tx, path, parts)
}

// partsBehind reports whether a store with a table of versions lacks a migration.
func partsBehind(tx *Tx, place string, parts []Part) (bool, error) {
	for _, p := range parts {
		version, err := versionOf(tx, place, p)
		if err != nil || version < p.version(tx.engine()) {
			return true, err
		}
	}
	return false, nil
}

// versionOf returns how many of a part's migrations the store has.
func versionOf(tx *Tx, place string, p Part) (int, error) {
	var version int
	if _, err := tx.Get("SELECT version FROM parts WHERE name = $1", []any{p.Name}, &version); err != nil {
		return 0, err
	}
	if known := p.version(tx.engine()); version > known {
		return 0, fmt.Errorf("%s: %w: its %s has version %d, this a2e knows %d; use the newer one, or another store "+
			"(state_dir, state)", place, ErrNewer, p.Name, version, known)
	}
	return version, nil
}

// exportVersion is the version of the export format.
const exportVersion = 1

// header is the first line of an export.
type header struct {
	Version int      `json:"a2e_state"`
	Parts   []string `json:"parts"`
}

// line is any other line.
type line struct {
	Kind   string         `json:"kind"` // the part's name, a dot, and the kind
	Record jsontext.Value `json:"record"`
}

// kept are the parts of a store.
type kept []Part

// export implements Store.Export for s.
func (all kept) export(ctx context.Context, s Store, w io.Writer, names []string) error {
	parts, err := all.named(names)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	head := header{Version: exportVersion, Parts: []string{}}
	for _, p := range parts {
		head.Parts = append(head.Parts, p.Name)
	}
	err = s.Read(ctx, func(tx *Tx) error {
		if err := writeLine(out, head); err != nil {
			return err
		}
		for _, p := range parts {
			if err := p.Export(ctx, tx, func(kind string, record any) error {
				raw, err := json.Marshal(record, json.Deterministic(true))
				if err != nil {
					return err
				}
				return writeLine(out, line{kind, raw})
			}); err != nil {
				return fmt.Errorf("export of %s: %w", p.Name, err)
			}
		}
		return nil
	})
	return errors.Join(err, out.Flush())
}

func writeLine(w *bufio.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// named returns the parts with these names, in the store's order; without names it returns all.
func (all kept) named(names []string) (kept, error) {
	all = slices.DeleteFunc(slices.Clone(all), func(p Part) bool { return p.Export == nil })
	if len(names) == 0 {
		return all, nil
	}
	var parts kept
	var known []string
	for _, p := range all {
		known = append(known, p.Name)
		if slices.Contains(names, p.Name) {
			parts = append(parts, p)
		}
	}
	if len(parts) < len(names) {
		return nil, fmt.Errorf("the store has no part of one of these names: %s; it has: %s", strings.Join(names, ", "),
			strings.Join(known, ", "))
	}
	return parts, nil
}

// take implements Store.Import for s.
func (all kept) take(ctx context.Context, s Store, r io.Reader, how How) (Counts, error) {
	counts := Counts{}
	err := s.Write(ctx, func(tx *Tx) error {
		from := &io.LimitedReader{R: r}
		in := importer{tx: tx, counts: counts, from: from, lines: bufio.NewReader(from)}
		parts, err := in.header(all)
		if err != nil {
			return err
		}
		if how == Replace {
			for _, p := range parts {
				if err := p.Clear(ctx, tx); err != nil {
					return err
				}
			}
		}
		if !tx.onServer() {
			return in.records(ctx, parts)
		}
		return in.uncounted(ctx, parts)
	})
	if err != nil {
		return Counts{}, err
	}
	return counts, nil
}

// importer reads an export.
type importer struct {
	tx     *Tx
	counts Counts
	from   *io.LimitedReader // limits the current line, except for what lines has buffered
	lines  *bufio.Reader
	number int // number of the last line read
}

// The maximum size of a line in an export, in bytes. A record may be the journal of a chain.
const (
	maxHeader = 1 << 20
	maxRecord = 1 << 30
)

// next reads the next line into v; it returns false at the end.
func (in *importer) next(v any) (bool, error) {
	for {
		most := int64(maxRecord)
		if in.number++; in.number == 1 {
			most = maxHeader
		}
		in.from.N = most
		text, err := in.lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && in.from.N <= 0 {
			return false, fmt.Errorf("line %d is not of an export: it is longer than %d bytes", in.number, most)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if len(strings.TrimSpace(string(text))) > 0 {
			if err := json.Unmarshal(text, v, json.RejectUnknownMembers(true)); err != nil {
				return false, fmt.Errorf("line %d is not of an export: %w", in.number, err)
			}
			return true, nil
		}
		if err != nil {
			return false, nil
		}
	}
}

func (in *importer) header(all kept) (kept, error) {
	var head header
	there, err := in.next(&head)
	switch {
	case err != nil:
		return nil, err
	case !there || head.Version == 0:
		return nil, errors.New(`this is not an export: its first line should be {"a2e_state":1,…}`)
	case head.Version > exportVersion:
		return nil, fmt.Errorf("this is an export of version %d, made by a newer a2e; this one knows %d", head.Version,
			exportVersion)
	case len(head.Parts) == 0:
		return nil, nil
	}
	return all.named(head.Parts)
}

// uncounted imports the records without counting, then runs Recount of the parts.
func (in *importer) uncounted(ctx context.Context, parts kept) error {
	if _, err := in.tx.Exec("SET LOCAL a2e.importing = on"); err != nil {
		return err
	}
	if err := in.records(ctx, parts); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Recount != "" {
			if _, err := in.tx.Exec(p.Recount); err != nil {
				return err
			}
		}
	}
	_, err := in.tx.Exec("SET LOCAL a2e.importing = off") // other writes may follow in this transaction
	return err
}

func (in *importer) records(ctx context.Context, parts kept) error {
	for {
		var l line
		there, err := in.next(&l)
		if err != nil || !there {
			return err
		}
		name, _, _ := strings.Cut(l.Kind, ".")
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == name })
		if i < 0 {
			return fmt.Errorf("line %d: the record of kind %q belongs to no part that the first line names", in.number,
				l.Kind)
		}
		if err := parts[i].Import(ctx, in.tx, l.Kind, l.Record); err != nil {
			return fmt.Errorf("line %d: %s: %w", in.number, l.Kind, err)
		}
		in.counts[l.Kind]++
	}
}
