package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
)

// pgFormat is the version of the tables that belong to no part. It is the comment of the schema.
const pgFormat = "a2e state 1"

// pgSQL contains the SQL files for what belongs to no part, for example functions that queries of both engines need.
//
//go:embed sql/*.sql
var pgSQL embed.FS

// pgBase is the name of the part for what belongs to no part, which PostgreSQL needs. A schema of an
// older a2e has the first of its migrations, but does not record it.
const pgBase = "store"

// all returns the base and the parts.
func (s *Postgres) all() []Part { return append([]Part{{Name: pgBase, SQL: pgSQL}}, s.parts...) }

// prepare makes or updates the schema for the parts, once.
func (s *Postgres) prepare(ctx context.Context) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.ready {
		return nil
	}
	behind, err := s.behind(ctx)
	if err == nil && behind {
		err = s.migrate(ctx)
	}
	s.ready = err == nil
	return err
}

// behind reports whether migrations are missing in the schema.
func (s *Postgres) behind(ctx context.Context) (behind bool, err error) {
	c, err := s.beginOn(ctx, "BEGIN READ ONLY")
	if err != nil {
		return false, err
	}
	defer c.end()
	tx := &Tx{db: c, ctx: ctx}
	made, err := s.made(tx)
	if err != nil || !made {
		return true, err
	}
	if err = c.run(`SET LOCAL search_path = "` + s.schema + `"`); err == nil {
		behind, err = partsBehind(tx, s.place, s.all())
	}
	return behind, errors.Join(err, c.run("ROLLBACK"))
}

// made reports whether the schema exists and belongs to a2e. It is an error if it belongs to another
// program or a newer a2e.
func (s *Postgres) made(tx *Tx) (bool, error) {
	var comment string
	var tables int
	var usable bool
	there, err := tx.Get(`SELECT coalesce(obj_description(oid, 'pg_namespace'), ''), (SELECT count(*) FROM pg_class
		WHERE relnamespace = n.oid), has_schema_privilege(oid, 'USAGE')
		FROM pg_namespace n WHERE nspname = $1`, []any{s.schema}, &comment, &tables, &usable)
	switch {
	case err != nil || !there:
		return false, err
	case !usable:
		return false, fmt.Errorf("%s: %w: the schema %s belongs to another user", s.place, ErrRefused, s.schema)
	case comment == "" && tables == 0:
		return false, nil
	case comment == pgFormat:
		return true, nil
	case len(comment) > 9 && comment[:9] == pgFormat[:9]:
		return false, fmt.Errorf("%s: %w: it has %q, this a2e knows %q; use the newer one, or another schema", s.place,
			ErrNewer, comment, pgFormat)
	}
	return false, fmt.Errorf("%s: %w: the schema %s has tables of something else; use another schema (?schema=NAME)",
		s.place, ErrForeign, s.schema)
}

// migrate runs the missing migrations, while no other host writes.
func (s *Postgres) migrate(ctx context.Context) error {
	c, err := s.beginOn(ctx, s.beginWrite())
	if err != nil {
		return err
	}
	defer c.end()
	tx := &Tx{db: c, ctx: ctx}
	made, err := s.made(tx) // checked again, as another host may have been faster
	if err != nil {
		return err
	}
	if !made {
		// IF NOT EXISTS would ask for the right to make schemas, which the owner of the schema may lack.
		if err := c.run(fmt.Sprintf(`DO $$ BEGIN IF to_regnamespace('"%s"') IS NULL THEN CREATE SCHEMA "%[1]s"; END IF; END $$; COMMENT ON SCHEMA "%[1]s" IS '%s'`, s.schema, pgFormat)); err != nil {
			return err
		}
	}
	if err := c.run(`SET LOCAL search_path = "` + s.schema + `", public`); err != nil {
		return err
	}
	if !made {
		base, _ := pgSQL.ReadFile("sql/001.postgres.sql") // it exists
		if err := c.run(string(base)); err != nil {
			return err
		}
	}
	if _, err := tx.Exec("INSERT INTO parts VALUES ($1, 1) ON CONFLICT DO NOTHING", pgBase); err != nil {
		return err
	}
	if err := migrateParts(c, tx, s.place, s.all()); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM commits WHERE at < now() - interval '1 day'"); err != nil {
		return err
	}
	return c.run("COMMIT")
}

// CheckPostgres checks the state at an address, without making one. The error says why it could not be checked.
func CheckPostgres(ctx context.Context, address string, opts Options) (r Report, err error) {
	s, err := OpenPostgres(address, "", opts)
	if err != nil {
		return Report{Parts: map[string]int{}, Problems: []string{}}, err
	}
	defer func() { err = errors.Join(s.explain(ctx, err), s.Close()) }()
	r = Report{Path: s.place, Parts: map[string]int{}, Problems: []string{}}
	c, err := s.beginOn(ctx, "BEGIN READ ONLY")
	if err != nil {
		return r, err
	}
	defer c.end()
	tx := &Tx{db: c, ctx: ctx}
	if _, err = tx.Get(`SELECT 'PostgreSQL ' || current_setting('server_version') || coalesce((SELECT ',
		' || string_agg(extname || ' ' || extversion, ', ' ORDER BY extname)
		FROM pg_extension WHERE extname IN ('vector', 'pg_trgm')), ''), current_setting('data_checksums') = 'on'`, nil,
		&r.Server, &r.Checksums); err != nil {
		return r, err
	}
	if r.Exists, err = s.made(tx); err != nil || !r.Exists {
		return r, err
	}
	if _, err = tx.Get("SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' AND "+
		"relnamespace = $1::text::regnamespace", []any{s.schema}, &r.Bytes); err != nil {
		return r, err
	}
	if err = c.run(`SET LOCAL search_path = "` + s.schema + `"`); err != nil {
		return r, err
	}
	if _, err = partsBehind(tx, s.place, s.parts); err != nil {
		return r, err
	}
	return r, partVersions(tx, r.Parts)
}
