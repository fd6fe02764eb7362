package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
)

// maxGroup is how many writes are committed together at most.
const maxGroup = 64

// job is a write that waits for its turn.
type job struct {
	fn    func(*Tx) error
	taken atomic.Bool   // by the one who runs it, or by its owner who gave up
	after []func()      // to do once it was committed
	err   error         // valid once done is closed
	done  chan struct{} // closed when it was committed or has failed
}

// Write implements Store. Whoever finds nobody writing writes for all that wait,
// in one commit: a commit costs far more than what is in it.
func (s *SQLite) Write(ctx context.Context, fn func(*Tx) error) error {
	j := &job{fn: fn, done: make(chan struct{})}
	s.mu.Lock()
	s.queue = append(s.queue, j)
	s.mu.Unlock()
	for {
		select {
		case <-j.done:
			return j.err
		default:
		}
		select {
		case s.writing <- struct{}{}:
			s.writeQueued()
			<-s.writing
		case <-j.done:
			return j.err
		case <-ctx.Done():
			if j.taken.CompareAndSwap(false, true) {
				return context.Cause(ctx)
			}
			<-j.done
			return j.err
		}
	}
}

// take returns the writes that wait, up to a group of them.
func (s *SQLite) take() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var group []*job
	for len(s.queue) > 0 && len(group) < maxGroup {
		if j := s.queue[0]; j.taken.CompareAndSwap(false, true) {
			group = append(group, j)
		}
		s.queue = s.queue[1:]
	}
	return group
}

// writeQueued runs one group. Its caller holds s.writing.
func (s *SQLite) writeQueued() {
	group := s.take()
	if len(group) == 0 {
		return
	}
	err := ErrClosed
	if s.writer != nil {
		err = s.inPlace()
	}
	if err == nil {
		err = s.writeGroup(group)
	}
	for _, j := range group {
		if err != nil {
			j.err = explain(s.path, err)
		}
		if j.err == nil {
			for _, fn := range j.after {
				fn()
			}
		}
		close(j.done)
	}
}

// writeGroup runs each write within a savepoint of its own, so that one that
// fails takes nothing of the others with it. An error is that of all.
func (s *SQLite) writeGroup(group []*job) error {
	if err := s.writer.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, j := range group {
		if err := s.writeOne(j); err != nil {
			_ = s.writer.exec("ROLLBACK") // SQLite may have done it already
			return err
		}
	}
	if err := s.writer.exec("COMMIT"); err != nil {
		_ = s.writer.exec("ROLLBACK")
		return err
	}
	return nil
}

// writeOne returns an error when the whole transaction is lost.
func (s *SQLite) writeOne(j *job) error {
	if err := s.writer.exec("SAVEPOINT job"); err != nil {
		return err
	}
	tx := &Tx{conn: s.writer, ctx: context.Background()}
	j.err = explain(s.path, runGuarded(j.fn, tx))
	j.after = tx.after
	if j.err != nil {
		if err := s.writer.exec("ROLLBACK TO job"); err != nil {
			return fmt.Errorf("%w (%w)", j.err, err)
		}
	}
	return s.writer.exec("RELEASE job")
}

// runGuarded turns a panic into an error: fn may run on the goroutine of another
// request.
func runGuarded(fn func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a write panicked: %v", v)
		}
	}()
	return fn(tx)
}

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

// prepare returns the statement of a query, made once.
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

// Micros is a time in microseconds since 1970, as tables have it; in JSON it is seconds.
type Micros int64

// Seconds is the time as messages carry it.
func (m Micros) Seconds() float64 { return float64(m) / 1e6 }

// MarshalJSON implements json.Marshaler.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, m.Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler. It refuses what is no time of this era.
func (m *Micros) UnmarshalJSON(raw []byte) error {
	const year10000 = 253402300800
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0 && seconds < year10000) {
		return fmt.Errorf("%.40s should be seconds since 1970", raw)
	}
	*m = Micros(math.Round(seconds * 1e6))
	return nil
}
