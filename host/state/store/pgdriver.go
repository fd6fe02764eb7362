package store

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/stdlib"
)

// pgConnector makes pgx connections for database/sql, with the additions of pgLink.
type pgConnector struct {
	driver.Connector
	links *atomic.Int64 // number of connections
}

func newConnector(config *pgx.ConnConfig) pgConnector {
	never := func(context.Context, stdlib.ShouldPingParams) bool { return false } // see beginOn
	return pgConnector{stdlib.GetConnector(*config, stdlib.OptionShouldPing(never)), new(atomic.Int64)}
}

// errCrowded is the error for a further connection of a host when the server has few left.
var errCrowded = errors.New("more than half of the server's connections are taken")

// Connect implements driver.Connector.
func (c pgConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, lost{err}
	}
	l := &pgLink{Conn: conn.(*stdlib.Conn), links: c.links}
	if c.links.Add(1) > 1 && l.crowded(ctx) {
		return nil, errors.Join(errCrowded, l.Close())
	}
	return l, nil
}

// lost is an error of the connection to the server, not of a statement.
type lost struct{ error }

// Unwrap returns the error.
func (l lost) Unwrap() error { return l.error }

// pgLink is a pgx connection that stores any text, and distinguishes server errors from connection errors.
type pgLink struct {
	*stdlib.Conn
	links *atomic.Int64
}

func (l *pgLink) raw() *pgconn.PgConn { return l.Conn.Conn().PgConn() }

// crowded reports whether more than half of the server's connections are taken.
func (l *pgLink) crowded(ctx context.Context) bool {
	const query = "SELECT 2 * sum(numbackends) > current_setting('max_connections')::int FROM pg_stat_database"
	all, err := l.raw().Exec(ctx, query).ReadAll()
	return err == nil && len(all) == 1 && len(all[0].Rows) == 1 && string(all[0].Rows[0][0]) == "t"
}

// IsValid implements driver.Validator: a closed connection, or one in a transaction, is not reused.
func (l *pgLink) IsValid() bool { return !l.raw().IsClosed() && l.raw().TxStatus() == 'I' }

// Close implements driver.Conn.
func (l *pgLink) Close() error {
	l.links.Add(-1)
	ctx, cancel := context.WithTimeout(context.Background(), pgGoodbye)
	defer cancel()
	return l.raw().Close(ctx)
}

// fails marks an error as lost if the connection is closed.
func (l *pgLink) fails(err error) error {
	if err == nil || !l.raw().IsClosed() {
		return err
	}
	if errors.Is(err, driver.ErrBadConn) { // database/sql would close the connection during the transaction
		err = errors.New("the connection is closed")
	}
	return lost{err}
}

// run runs statements in one round trip, without preparing them.
func (l *pgLink) run(ctx context.Context, sql string) error {
	return l.fails(l.raw().Exec(ctx, sql).Close())
}

// CheckNamedValue implements driver.NamedValueChecker. true and false become 1 and 0, as in SQLite,
// where the column is a number.
func (l *pgLink) CheckNamedValue(arg *driver.NamedValue) (err error) {
	if arg.Value, err = driver.DefaultParameterConverter.ConvertValue(arg.Value); err != nil {
		return err
	}
	switch v := arg.Value.(type) {
	case bool:
		arg.Value = number(v)
	case string:
		arg.Value = pgText(v)
	case []byte:
		if v != nil {
			arg.Value = pgText(v)
		}
	}
	return nil
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// ExecContext implements driver.ExecerContext.
func (l *pgLink) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	res, err := l.Conn.ExecContext(ctx, query, args)
	return res, l.fails(err)
}

// QueryContext implements driver.QueryerContext.
func (l *pgLink) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := l.Conn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, l.fails(err)
	}
	return pgRows{rows, l}, nil
}

// pgRows are the rows of a query.
type pgRows struct {
	driver.Rows
	link *pgLink
}

// Next implements driver.Rows. Booleans become numbers, as in SQLite.
func (r pgRows) Next(dest []driver.Value) error {
	if err := r.Rows.Next(dest); err != nil {
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		return r.link.fails(err)
	}
	for i, v := range dest {
		switch v := v.(type) {
		case bool:
			dest[i] = number(v)
		case string:
			dest[i] = unescapeText(v)
		}
	}
	return nil
}

// Close implements driver.Rows.
func (r pgRows) Close() error { return r.link.fails(r.Rows.Close()) }

// pgText is a text or bytes, depending on the type of the parameter.
type pgText string

// TextValue implements pgtype.TextValuer.
func (t pgText) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: escapeText(string(t)), Valid: true}, nil
}

// BytesValue implements pgtype.BytesValuer.
func (t pgText) BytesValue() ([]byte, error) { return []byte(t), nil }

// escape stands before the two hex digits of a byte that PostgreSQL does not accept in a text: 0, and
// invalid UTF-8. It is the last but one of Unicode's private characters.
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
