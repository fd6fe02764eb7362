package store

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// pgConnector makes connections to PostgreSQL for database/sql, which keeps and bounds
// them and reads rows. pgx's own driver for it would add 2.9 MB to the binary: its types for
// arrays, ranges and the like, of which the store has none.
type pgConnector struct {
	config *pgconn.Config
	links  *atomic.Int64 // how many there are
}

// errCrowded is for a connection that is not the first of a host, where the server has few left.
var errCrowded = errors.New("more than half of the server's connections are taken")

// Connect implements driver.Connector.
func (c pgConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := pgconn.ConnectConfig(ctx, c.config)
	if err != nil {
		return nil, lost{err}
	}
	l := &pgLink{conn: conn, known: map[string]*pgconn.StatementDescription{}, links: c.links}
	if c.links.Add(1) > 1 && l.crowded(ctx) {
		return nil, errors.Join(errCrowded, l.Close())
	}
	return l, nil
}

// Driver implements driver.Connector.
func (pgConnector) Driver() driver.Driver { return nil }

// lost is an error that came from no statement but from the way to the server.
type lost struct{ error }

// Unwrap returns the error.
func (l lost) Unwrap() error { return l.error }

// pgLink is one connection to a server.
type pgLink struct {
	conn  *pgconn.PgConn
	known map[string]*pgconn.StatementDescription // prepared ones, by their text
	made  int
	open  *pgRows // whose rows still come in; nil = none
	links *atomic.Int64
}

// crowded reports whether the server has fewer connections left than are taken.
func (l *pgLink) crowded(ctx context.Context) bool {
	const query = "SELECT 2 * sum(numbackends) > current_setting('max_connections')::int FROM pg_stat_database"
	all, err := l.conn.Exec(ctx, query).ReadAll()
	return err == nil && len(all) == 1 && len(all[0].Rows) == 1 && string(all[0].Rows[0][0]) == "t"
}

var errNoUse = errors.New("not used by the store")

// Prepare implements driver.Conn; statements are prepared where they run.
func (l *pgLink) Prepare(string) (driver.Stmt, error) { return nil, errNoUse }

// Begin implements driver.Conn; transactions are begun with run.
func (l *pgLink) Begin() (driver.Tx, error) { return nil, errNoUse }

// IsValid implements driver.Validator: what is closed, or was left within a transaction, is not used again.
func (l *pgLink) IsValid() bool { return !l.conn.IsClosed() && l.conn.TxStatus() == 'I' }

// Close implements driver.Conn.
func (l *pgLink) Close() error {
	l.links.Add(-1)
	ctx, cancel := context.WithTimeout(context.Background(), pgGoodbye)
	defer cancel()
	return l.conn.Close(ctx)
}

// fails marks an error that is not the server's answer.
func (l *pgLink) fails(err error) error {
	if _, answered := errors.AsType[*pgconn.PgError](err); err == nil || answered && !l.conn.IsClosed() {
		return err
	}
	return lost{err}
}

// run runs statements that are not worth preparing, in one turn.
func (l *pgLink) run(ctx context.Context, sql string) error {
	l.settle()
	return l.fails(l.conn.Exec(ctx, sql).Close())
}

// settle reads the rows that still come in, as a statement runs only after the one before.
func (l *pgLink) settle() {
	if l.open != nil {
		l.open.fetch()
	}
}

// start sends a statement with its arguments.
func (l *pgLink) start(ctx context.Context, query string, args []driver.NamedValue) (*pgconn.ResultReader, *pgconn.StatementDescription, error) {
	l.settle()
	stmt, err := l.statement(ctx, query)
	if err != nil {
		return nil, nil, l.fails(err)
	}
	if len(args) != len(stmt.ParamOIDs) {
		return nil, nil, errors.New("the number of arguments is not that of the query: " + query)
	}
	values, formats := make([][]byte, len(args)), make([]int16, len(args))
	for i, arg := range args {
		values[i] = pgEncode(arg.Value, stmt.ParamOIDs[i])
		if stmt.ParamOIDs[i] == oidBytea {
			formats[i] = 1
		}
	}
	results := make([]int16, len(stmt.Fields))
	for i, f := range stmt.Fields {
		if f.DataTypeOID == oidBytea {
			results[i] = 1
		}
	}
	return l.conn.ExecStatement(ctx, stmt, values, formats, results), stmt, nil
}

// statement returns the prepared statement of a query.
func (l *pgLink) statement(ctx context.Context, query string) (*pgconn.StatementDescription, error) {
	if s := l.known[query]; s != nil {
		return s, nil
	}
	if len(l.known) >= maxStatements {
		for _, s := range l.known {
			if err := l.conn.Deallocate(ctx, s.Name); err != nil {
				return nil, err
			}
		}
		clear(l.known)
	}
	l.made++
	s, err := l.conn.Prepare(ctx, "a2e"+strconv.Itoa(l.made), translate(query, false), nil)
	if err == nil {
		l.known[query] = s
	}
	return s, err
}

// ExecContext implements driver.ExecerContext.
func (l *pgLink) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	rr, _, err := l.start(ctx, query, args)
	if err != nil {
		return nil, err
	}
	tag, err := rr.Close()
	return driver.RowsAffected(tag.RowsAffected()), l.fails(err)
}

// QueryContext implements driver.QueryerContext.
func (l *pgLink) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rr, stmt, err := l.start(ctx, query, args)
	if err != nil {
		return nil, err
	}
	l.open = &pgRows{link: l, fields: stmt.Fields, reader: rr}
	return l.open, nil
}

// pgRows is what comes of a query, row by row, until another statement is to run: then the rest is
// held in memory.
type pgRows struct {
	link   *pgLink
	fields []pgconn.FieldDescription
	reader *pgconn.ResultReader // nil = all was read
	held   [][][]byte
	err    error // of the end
}

// Columns implements driver.Rows.
func (r *pgRows) Columns() []string {
	names := make([]string, len(r.fields))
	for i, f := range r.fields {
		names[i] = f.Name
	}
	return names
}

// Next implements driver.Rows.
func (r *pgRows) Next(dest []driver.Value) error {
	var values [][]byte
	switch {
	case len(r.held) > 0:
		values, r.held = r.held[0], r.held[1:]
	case r.reader != nil && r.reader.NextRow():
		values = r.reader.Values()
	default:
		if err := r.Close(); err != nil {
			return err
		}
		return io.EOF
	}
	for i, v := range values {
		dest[i] = pgDecode(v, r.fields[i].DataTypeOID)
	}
	return nil
}

// fetch holds what has not been read yet.
func (r *pgRows) fetch() {
	rest := r.reader.Read()
	r.held = rest.Rows
	r.end(rest.Err)
}

func (r *pgRows) end(err error) {
	r.err, r.reader, r.link.open = r.link.fails(err), nil, nil
}

// Close implements driver.Rows.
func (r *pgRows) Close() error {
	if r.held = nil; r.reader != nil {
		_, err := r.reader.Close()
		r.end(err)
	}
	return r.err
}

// Types of PostgreSQL (https://www.postgresql.org/docs/current/datatype-oid.html, pg_type.dat).
const (
	oidBool    = 16
	oidBytea   = 17
	oidInt8    = 20
	oidInt2    = 21
	oidInt4    = 23
	oidFloat4  = 700
	oidFloat8  = 701
	oidNumeric = 1700
)

// pgEncode gives a value as the server reads it: text, but for bytes. true and false are 1 and 0, as
// in SQLite, where the column is a number.
func pgEncode(v driver.Value, oid uint32) []byte {
	switch v := v.(type) {
	case int64:
		return strconv.AppendInt(nil, v, 10)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 && oid == oidInt8 {
			return strconv.AppendInt(nil, int64(v), 10)
		}
		return strconv.AppendFloat(nil, v, 'g', -1, 64)
	case bool:
		if v {
			return []byte("1")
		}
		return []byte("0")
	case string:
		if oid == oidBytea {
			return []byte(v)
		}
		return []byte(escapeText(v))
	case []byte:
		switch {
		case v == nil:
			return nil
		case oid == oidBytea:
			return v
		}
		return []byte(escapeText(string(v)))
	}
	return nil
}

// pgDecode is the other way round. Booleans are numbers, as SQLite has them.
func pgDecode(raw []byte, oid uint32) driver.Value {
	if raw == nil {
		return nil
	}
	switch oid {
	case oidBool:
		return int64(strings.Count(string(raw), "t"))
	case oidBytea:
		return append([]byte{}, raw...)
	case oidInt8, oidInt4, oidInt2, oidNumeric:
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return n
		}
		fallthrough
	case oidFloat4, oidFloat8:
		if f, err := strconv.ParseFloat(string(raw), 64); err == nil {
			return f
		}
	}
	return unescapeText(string(raw))
}

// escape stands before two hex digits of a byte that PostgreSQL takes in no text: 0, and what is no
// UTF-8. It is the last character but one that Unicode leaves to programs.
const escape = "\U0010fffe"

func escapeText(s string) string {
	if utf8.ValidString(s) && !strings.Contains(s, "\x00") && !strings.Contains(s, escape) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == 0, r == utf8.RuneError && size == 1, s[:size] == escape:
			for _, c := range []byte(s[:size]) {
				b.WriteString(escape + hex.EncodeToString([]byte{c}))
			}
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

func unescapeText(s string) string {
	first, rest, some := strings.Cut(s, escape)
	if !some {
		return s
	}
	out := []byte(first)
	for some {
		var part string
		part, rest, some = strings.Cut(rest, escape)
		if c, err := hex.DecodeString(part[:min(2, len(part))]); err == nil && len(c) == 1 {
			part = string(c) + part[2:]
		}
		out = append(out, part...)
	}
	return string(out)
}
