package toolkits

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"a2e/host/state/store/pg"
)

const (
	pgConnections = 8                // statements that run at once on a server
	pgIdle        = 30 * time.Second // an idle connection is closed after it
	pgClosing     = 5 * time.Second  // time to reset a connection for the next statement, or to close it
)

// pgServer is a database of a PostgreSQL server.
type pgServer struct {
	config *pgxpool.Config

	mu   sync.Mutex    // guards the fields below
	pool *pgxpool.Pool // its connections are in the state of new ones; nil = none was needed yet
	over bool
}

// newPostgres makes the engine of a server. The error shows no values of the connection string.
func newPostgres(dsn string) (engine, error) {
	var asked url.Values
	if u, err := url.Parse(dsn); err == nil {
		if asked, err = pg.Parameters(u); err != nil {
			return nil, err
		}
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("is not a connection string of PostgreSQL, such as " +
			"postgres://user:password@host:5432/database?sslmode=require")
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = pgConnections, 0, 0
	config.MaxConnIdleTime = pgIdle
	c := config.ConnConfig
	c.MaxProtocolMessageBodyLen = sqlMaxValue
	pg.Configure(c, 10*time.Second, 2*time.Second)
	c.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec // keeps no prepared statements
	own := map[string]string{
		"client_encoding": "UTF8", "DateStyle": "ISO", "IntervalStyle": "iso_8601", "TimeZone": "UTC",
		"bytea_output":                        "hex",
		"statement_timeout":                   strconv.FormatInt(sqlTimeout.Milliseconds(), 10),
		"idle_in_transaction_session_timeout": strconv.FormatInt(2*sqlTimeout.Milliseconds(), 10),
	}
	for given := range c.RuntimeParams {
		for name := range own {
			switch {
			case !strings.EqualFold(given, name):
			case asked.Has(given):
				return nil, fmt.Errorf("has the parameter %s, which the toolkit sets itself; leave it out", given)
			default: // set by the environment
				delete(c.RuntimeParams, given)
			}
		}
	}
	maps.Copy(c.RuntimeParams, own)
	return &pgServer{config: config}, nil
}

// take takes a connection from the pool for one statement; giveBack returns it.
func (p *pgServer) take(ctx context.Context) (conn *pgxpool.Conn, err error) {
	p.mu.Lock()
	if p.over {
		err = errors.New("the toolkit was closed")
	} else if p.pool == nil {
		p.pool, err = pgxpool.NewWithConfig(context.Background(), p.config)
	}
	pool := p.pool
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

// giveBack rolls back the transaction, discards what the statement left behind (settings, locks, prepared
// statements) and returns the connection to the pool.
func giveBack(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), pgClosing)
	defer cancel()
	for _, sql := range []string{"ROLLBACK", "DISCARD ALL"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			_ = conn.Conn().Close(ctx)
			break
		}
	}
	conn.Release()
}

func (p *pgServer) close() {
	p.mu.Lock()
	pool := p.pool
	p.pool, p.over = nil, true
	p.mu.Unlock()
	if pool != nil {
		pool.Close()
	}
}

func (p *pgServer) tables() string {
	return `SELECT n.nspname AS schema, c.relname AS name,
		CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'v' THEN 'view'
			WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END AS type,
		pg_catalog.obj_description(c.oid, 'pg_class') AS comment
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
		AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') ORDER BY 1, 2`
}

func (p *pgServer) describe() string {
	return `SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
		pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS default,
		EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = a.attrelid AND k.contype = 'p'
		AND a.attnum = ANY (k.conkey)) AS primary_key,
		(SELECT pg_catalog.string_agg(pg_catalog.pg_get_constraintdef(k.oid), ', ') FROM pg_catalog.pg_constraint k
			WHERE k.conrelid = a.attrelid AND k.contype = 'f' AND a.attnum = ANY (k.conkey)) AS references,
		pg_catalog.col_description(a.attrelid, a.attnum) AS comment
		FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid
		AND d.adnum = a.attnum
		WHERE a.attrelid = pg_catalog.to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`
}

// run implements engine:
//
// a connection ─ BEGIN READ ONLY ─ does the role stay in the tables? ─ DECLARE … CURSOR FOR statement ─ FETCH ─
// ROLLBACK
//
// For a cursor the server accepts only one statement, a SELECT, with its values as parameters. The read-only
// transaction refuses changes by functions that the SELECT calls, and cannot be made writable, since it has a
// snapshot.
func (p *pgServer) run(ctx context.Context, s statement) (*result, error) {
	conn, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack(conn)
	begin := "BEGIN READ ONLY"
	if s.writes {
		begin = "BEGIN"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return nil, pgError(err)
	}
	if err := staysInTables(ctx, conn); err != nil {
		return nil, err
	}
	if err := boundTemp(ctx, conn); err != nil {
		return nil, err
	}
	if s.writes {
		return pgExec(ctx, conn, s)
	}
	args, err := pgParams(s.params)
	if err != nil {
		return nil, err
	}
	// Not Exec, which accepts several statements if there are no parameters.
	declared, err := conn.Query(ctx, "DECLARE a2e NO SCROLL CURSOR FOR "+s.text, args...)
	if err == nil {
		declared.Close()
		err = declared.Err()
	}
	if err != nil {
		return nil, pgError(err)
	}
	return pgFetch(ctx, conn, s)
}

// staysInTables refuses roles that can use files and programs of the server, since no transaction
// prevents that.
func staysInTables(ctx context.Context, conn *pgxpool.Conn) error {
	const asks = `SELECT r.rolsuper OR pg_catalog.pg_has_role(r.oid, 'pg_execute_server_program', 'MEMBER')
		OR pg_catalog.pg_has_role(r.oid, 'pg_read_server_files', 'MEMBER')
		OR pg_catalog.pg_has_role(r.oid, 'pg_write_server_files', 'MEMBER')
		FROM pg_catalog.pg_roles r WHERE r.rolname = session_user`
	beyond := true
	switch err := conn.QueryRow(ctx, asks).Scan(&beyond); {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return pgError(err)
	case beyond:
		return &sqlError{text: "the role of the connection string is a superuser, or may use files and programs of " +
			"the server, which nothing here keeps it from; use a role that may use the tables and no more, such as " +
			"CREATE ROLE reader LOGIN PASSWORD '…' IN ROLE pg_read_all_data"}
	}
	return nil
}

// boundTemp bounds the temporary files of the transaction's process if the server allows it to the role: from
// version 15 on, and after GRANT SET ON PARAMETER temp_file_limit. Otherwise the setting of the server holds.
func boundTemp(ctx context.Context, conn *pgxpool.Conn) error {
	major, _, _ := strings.Cut(conn.Conn().PgConn().ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 15 {
		return nil
	}
	const set = `SELECT pg_catalog.set_config(name, $1, true) FROM pg_catalog.pg_settings
		WHERE name = 'temp_file_limit' AND (setting::bigint < 0 OR setting::bigint > $2)
		AND pg_catalog.has_parameter_privilege(name, 'SET')`
	const kilobytes = sqlMaxTemp >> 10
	if _, err := conn.Exec(ctx, set, strconv.Itoa(kilobytes), kilobytes); err != nil {
		return pgError(err)
	}
	return nil
}

// asText makes the server send values in its text format.
var asText = pgx.QueryResultFormats{pgx.TextFormatCode}

// readRows adds the rows of a statement to a result, and returns its columns and the number of rows it changed or read.
func readRows(rows pgx.Rows, res *result) (fields []pgconn.FieldDescription, n int64, err error) {
	defer rows.Close()
	for rows.Next() {
		res.add(pgRow(rows.FieldDescriptions(), rows.RawValues()))
	}
	return slices.Clone(rows.FieldDescriptions()), rows.CommandTag().RowsAffected(), rows.Err() // reused slice
}

// pgFetch reads rows from the cursor in pieces, so that the server sends few rows that are not needed.
func pgFetch(ctx context.Context, conn *pgxpool.Conn, s statement) (*result, error) {
	const piece = 50
	res := newResult(s)
	for {
		want := min(piece, s.rows+1-len(res.Rows))
		rows, err := conn.Query(ctx, "FETCH "+strconv.Itoa(want)+" FROM a2e", asText)
		if err != nil {
			return nil, pgError(err)
		}
		fields, read, err := readRows(rows, res)
		if err != nil {
			return nil, pgError(err)
		}
		if read < int64(want) || res.Truncated {
			return res, pgColumns(ctx, conn, fields, res)
		}
	}
}

// pgColumns asks the server for the names of the types and adds the columns to the result.
func pgColumns(ctx context.Context, conn *pgxpool.Conn, fields []pgconn.FieldDescription, res *result) error {
	oids, mods := make([]string, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		oids[i], mods[i] = strconv.FormatUint(uint64(f.DataTypeOID), 10), strconv.Itoa(int(f.TypeModifier))
	}
	const asks = "SELECT pg_catalog.format_type(t.o, t.m) FROM ROWS FROM (pg_catalog.unnest($1::oid[]), " +
		"pg_catalog.unnest($2::int[])) AS t(o, m)"
	list := func(all []string) string { return "{" + strings.Join(all, ",") + "}" }
	rows, err := conn.Query(ctx, asks, list(oids), list(mods))
	if err != nil {
		return pgError(err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return pgError(err)
	}
	for i, f := range fields {
		res.Columns = append(res.Columns, column{Name: f.Name, Type: types[i]})
	}
	return nil
}

// pgExec runs one statement that may change something in the open transaction, and commits it. It refuses COPY: the
// server would wait for data that nobody sends.
func pgExec(ctx context.Context, conn *pgxpool.Conn, s statement) (*result, error) {
	if copies(s.text) {
		return nil, &sqlError{text: "COPY is not supported here; use INSERT and SELECT"}
	}
	args, err := pgParams(s.params)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, s.text, append([]any{asText}, args...)...)
	if err != nil {
		return nil, pgError(err)
	}
	res := newResult(s)
	fields, n, err := readRows(rows, res)
	if err == nil {
		err = pgColumns(ctx, conn, fields, res)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "COMMIT")
	}
	if err != nil {
		return nil, pgError(err)
	}
	res.Affected = &n
	return res, nil
}

// copies reports whether a statement is a COPY. It skips spaces and comments, which may be nested.
func copies(text string) bool {
	for depth := 0; text != ""; {
		switch {
		case strings.HasPrefix(text, "/*"):
			depth, text = depth+1, text[2:]
		case depth > 0 && strings.HasPrefix(text, "*/"):
			depth, text = depth-1, text[2:]
		case depth > 0 || strings.IndexByte(" \t\n\r\f\v;", text[0]) >= 0:
			text = text[1:]
		case strings.HasPrefix(text, "--"):
			text = text[upTo(text, 2, "\n"):]
		default:
			const word = "copy"
			return len(text) >= len(word) && strings.EqualFold(text[:len(word)], word)
		}
	}
	return false
}

// pgParams returns parameters as texts, which the server converts to any type.
func pgParams(params []any) ([]any, error) {
	all := make([]any, len(params))
	for i, param := range params {
		switch v := param.(type) {
		case string, nil:
			all[i] = v
		case bool:
			all[i] = strconv.FormatBool(v)
		case jsontext.Value:
			all[i] = string(v)
		default:
			return nil, fmt.Errorf("a parameter of type %T", param)
		}
	}
	return all, nil
}

func pgRow(fields []pgconn.FieldDescription, values [][]byte) []jsontext.Value {
	row := make([]jsontext.Value, len(values))
	for i, v := range values {
		row[i] = pgValue(fields[i].DataTypeOID, v)
	}
	return row
}

// pgValue returns a value as JSON. Types without a safe form in JSON become a text, such as numeric, which may have
// more digits than readers keep.
func pgValue(oid uint32, text []byte) jsontext.Value {
	if text == nil {
		return jsontext.Value("null")
	}
	switch oid {
	case pgtype.BoolOID:
		return jsontext.Value(strconv.AppendBool(nil, string(text) == "t"))
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID:
		return jsontext.Value(string(text))
	case pgtype.Float4OID, pgtype.Float8OID: // NaN and infinite values are not JSON
		if v := jsontext.Value(string(text)); v.IsValid() {
			return v
		}
	case pgtype.ByteaOID:
		if b, err := hex.DecodeString(strings.TrimPrefix(string(text), `\x`)); err == nil {
			return jsonBytes(b)
		}
	case pgtype.JSONOID, pgtype.JSONBOID:
		if v := jsontext.Value(string(text)); v.IsValid() && v.Compact() == nil {
			return v
		}
	case pgtype.TimestampOID:
		return jsonText(strings.Replace(string(text), " ", "T", 1))
	case pgtype.TimestamptzOID:
		for _, layout := range []string{"2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00"} {
			if at, err := time.Parse(layout, string(text)); err == nil {
				return jsonText(at.UTC().Format(time.RFC3339Nano))
			}
		}
	}
	return jsonText(string(text))
}

// pgError returns an error of the server as a *sqlError, with a hint; other errors it returns as they are.
func pgError(err error) error {
	var e *pgconn.PgError
	var long *pgproto3.ExceededMaxBodyLenErr
	switch {
	case errors.As(err, &long):
		return &sqlError{text: fmt.Sprintf("a row has %d bytes; at most %d are read: take fewer columns, or a part "+
			"of them, such as left(x, 1000)", long.ActualBodyLen, long.MaxExpectedBodyLen)}
	case !errors.As(err, &e):
		return err
	}
	text := e.Message
	for _, more := range []string{e.Detail, e.Hint} {
		if more != "" {
			text += ". " + more
		}
	}
	switch e.Code {
	case "42601": // syntax error; DECLARE … CURSOR FOR precedes the statement
		text += " (sql_query takes one SELECT, VALUES or WITH … SELECT)"
	case "25006":
		text += " (the transaction is read-only)"
	case "53400": // temp_file_limit
		text += " (sorts, groups and joins write temporary files; take fewer rows or columns, or an order that an " +
			"index has)"
	}
	return &sqlError{text: text, code: e.Code}
}
