package store

import (
	"context"
	"database/sql"
	"errors"
)

// maxStatements bounds the prepared statements of a connection.
const maxStatements = 200

// conn is one connection with its prepared statements.
type conn struct {
	*sql.Conn
	prepared map[string]*sql.Stmt
	dir      string // of the file; "" = in memory
}

func newConn(c *sql.Conn, dir string) *conn {
	return &conn{Conn: c, prepared: make(map[string]*sql.Stmt), dir: dir}
}

// exec runs one statement that is not worth preparing.
func (c *conn) exec(query string) error {
	_, err := c.ExecContext(context.Background(), query)
	return err
}

// prepare gives the statement of a query, made once.
func (c *conn) prepare(query string) (*sql.Stmt, error) {
	if s := c.prepared[query]; s != nil {
		return s, nil
	}
	if len(c.prepared) >= maxStatements {
		c.forget()
	}
	s, err := c.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	c.prepared[query] = s
	return s, nil
}

func (c *conn) forget() {
	for _, s := range c.prepared {
		_ = s.Close()
	}
	clear(c.prepared)
}

func (c *conn) close() error {
	c.forget()
	return c.Conn.Close()
}

// Tx is a transaction, or a consistent view to read from. It is valid until the
// function that got it returns, and belongs to one goroutine.
type Tx struct {
	conn *conn
	ctx  context.Context // of reads; a write runs to its end

	after []func()
}

// Dir is Store.Dir.
func (t *Tx) Dir() string { return t.conn.dir }

// After has fn run once the change is kept; a write that fails forgets it.
func (t *Tx) After(fn func()) { t.after = append(t.after, fn) }

// Exec runs one statement and gives the row id of what it inserted and the number of rows
// it changed. The texts of queries are few: each is prepared once and kept.
func (t *Tx) Exec(query string, args ...any) (id, changed int64, err error) {
	stmt, err := t.conn.prepare(query)
	if err != nil {
		return 0, 0, err
	}
	res, err := stmt.ExecContext(t.ctx, args...)
	if err != nil {
		return 0, 0, err
	}
	id, _ = res.LastInsertId()
	changed, err = res.RowsAffected()
	return id, changed, err
}

// Get reads the first row of a query into dest; false means that there is none.
func (t *Tx) Get(query string, args []any, dest ...any) (bool, error) {
	stmt, err := t.conn.prepare(query)
	if err != nil {
		return false, err
	}
	err = stmt.QueryRowContext(t.ctx, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Each calls row for each row of a query, which reads it with scan. An error of
// row ends it.
func (t *Tx) Each(query string, args []any, row func(scan func(dest ...any) error) error) (err error) {
	stmt, err := t.conn.prepare(query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(t.ctx, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
