package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"a2e/host/state/store/pg"
)

const (
	// pgConnections is the maximum number of connections of a host: one for writes, the others for reads.
	// If the server has few left, the host uses only one.
	pgConnections = 4
	pgIdle        = 30 * time.Second // an unused connection is closed after this time
	pgLifetime    = time.Minute      // then a connection is closed, as it may be more than a host's share by now
	pgCrowded     = time.Minute      // how long a host waits before it asks for further connections again
	pgConnect     = 5 * time.Second
	pgGoodbye     = time.Second
	pgRefused     = time.Second     // maximum time in which requests are refused before the next try to connect
	pgWrite       = 2 * busyTimeout // maximum time of a statement in a write, including the wait for other writes
	// pgStopped is how long a host that was stopped during a write, for example by SIGSTOP, blocks the others.
	pgStopped = 20 * time.Second
	pgUnsure  = 20 * time.Second // time to find out whether a commit was kept if its answer was lost
)

// DefaultSchema is the schema of the state if its address names none.
const DefaultSchema = "a2e"

// Postgres is a store in one schema of a PostgreSQL server, which several hosts share. As in SQLite,
// writes of all hosts run one after the other: each holds a lock of the schema.
type Postgres struct {
	writes
	place   string // the address without secrets, for messages
	schema  string
	dir     string
	parts   kept
	full    bool
	host    string        // key of this store's row in the table commits
	number  int64         // number of the last commit; used while writing is held
	queuing chan struct{} // held by the request that waits until the server has a connection
	db      *sql.DB
	life    context.Context // context of writes; canceled by Close if the last write hangs
	cut     context.CancelFunc

	opening sync.Mutex // held while the schema is checked
	ready   bool       // the schema has all migrations; guarded by opening

	mu      sync.Mutex // guards the fields below
	closed  bool
	away    error     // why the server was not reachable
	again   time.Time // time of the next try
	crowded time.Time // when the server had no connection left; zero = it has some
}

// isSchemaName reports whether a text has 1 to 63 of the characters a-z, 0-9 and _, and does not begin
// with a digit. A regular expression would cost every start 50 KB.
func isSchemaName(text string) bool {
	return text != "" && len(text) <= 63 && (text[0] < '0' || text[0] > '9') &&
		strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// PostgresConfig parses the address of a state: a PostgreSQL connection string, with ?schema=NAME for another schema
// than DefaultSchema. place is the part that may be shown. An error contains nothing of the address.
func PostgresConfig(address string) (c *pgx.ConnConfig, schema, place string, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, "", "", errors.New("is not an address of PostgreSQL, such as " +
			"postgres://user:password@host:5432/database?sslmode=require&schema=team")
	}
	query, err := pg.Parameters(u, "schema", "search_path")
	if err != nil {
		return nil, "", "", err
	}
	if query.Has("search_path") {
		return nil, "", "", errors.New("has the parameter search_path, which the state sets itself; schema=NAME " +
			"names where it is")
	}
	schema = DefaultSchema
	if query.Has("schema") {
		schema = query.Get("schema")
	}
	if !isSchemaName(schema) || strings.HasPrefix(schema, "pg_") {
		return nil, "", "", fmt.Errorf("names the schema %.80q; it should be up to 63 of the characters a-z 0-9 _, "+
			"begin with no digit and not with pg_", schema)
	}
	// The rest is not encoded again: Values.Encode writes + for a space, which PostgreSQL does not know.
	u.RawQuery = strings.Join(slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		name, _ = url.QueryUnescape(name) // it was parsed before
		return name == "schema" || pair == ""
	}), "&")
	if c, err = pgx.ParseConfig(u.String()); err != nil {
		return nil, "", "", errors.New("is not an address of PostgreSQL that can be used, such as " +
			"postgres://user:password@host:5432/database?sslmode=require&schema=team")
	}
	pg.Configure(c, pgConnect, time.Second)
	shown := url.URL{
		Scheme: "postgres", Host: net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))),
		Path: "/" + c.Database, RawQuery: "schema=" + schema,
	}
	if strings.HasPrefix(c.Host, "/") {
		shown.Host, shown.RawQuery = "", "host="+c.Host+"&schema="+schema
	}
	return c, schema, shown.String(), nil
}

// OpenPostgres opens the state at an address (see PostgresConfig) without connecting. The first use
// connects; its error wraps ErrUnavailable if the server cannot be reached, and ErrNewer or ErrForeign
// if the schema cannot be used. dir is the folder for files that belong to the state on this machine.
func OpenPostgres(address, dir string, opts Options) (*Postgres, error) {
	c, schema, place, err := PostgresConfig(address)
	if err != nil {
		return nil, fmt.Errorf("state %w", err)
	}
	var host [8]byte
	_, _ = rand.Read(host[:]) // never fails
	s := &Postgres{place: place, schema: schema, dir: dir, parts: opts.Parts, full: opts.Full}
	s.host, s.db = hex.EncodeToString(host[:]), sql.OpenDB(newConnector(c))
	s.writing, s.queuing = make(chan struct{}, 1), make(chan struct{}, 1)
	s.life, s.cut = context.WithCancel(context.Background())
	s.mayHave(pgConnections)
	s.db.SetConnMaxIdleTime(pgIdle)
	s.db.SetConnMaxLifetime(pgLifetime)
	return s, nil
}

// Dir implements Store.
func (s *Postgres) Dir() string { return s.dir }

// Export implements Store.
func (s *Postgres) Export(ctx context.Context, w io.Writer, names ...string) error {
	return s.parts.export(ctx, s, w, names)
}

// Import implements Store.
func (s *Postgres) Import(ctx context.Context, r io.Reader, how How) (Counts, error) {
	return s.parts.take(ctx, s, r, how)
}

// Close implements Store. A write that hangs because the server does not answer is canceled after pgGoodbye.
func (s *Postgres) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	hangs := time.AfterFunc(pgGoodbye, s.cut)
	s.writing <- struct{}{} // waits for the last write
	defer func() { <-s.writing }()
	hangs.Stop()
	s.cut()
	return s.db.Close()
}

// Read implements Store.
func (s *Postgres) Read(ctx context.Context, fn func(*Tx) error) error {
	c, err := s.begin(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	if err != nil {
		return s.explain(ctx, err)
	}
	defer c.end()
	err = fn(&Tx{db: c, ctx: ctx, dir: s.dir})
	_ = c.run("ROLLBACK") // nothing was written; the connection is only reused after this
	return s.explain(ctx, err)
}

// Write implements Store.
func (s *Postgres) Write(ctx context.Context, fn func(*Tx) error) error {
	return s.do(ctx, fn, func(jobs []*job) error {
		ctx, cancel := context.WithCancel(s.life)
		defer cancel()
		hangs := time.AfterFunc(pgWrite, cancel)
		defer hangs.Stop()
		return s.explain(context.Background(), s.commit(ctx, jobs, hangs))
	})
}

// commit runs the jobs in one transaction and commits it. Each commit has a number in the host's row
// of the table commits: if the answer to a commit is lost, the number shows whether it was kept.
func (s *Postgres) commit(ctx context.Context, jobs []*job, hangs *time.Timer) error {
	c, err := s.begin(ctx, s.beginWrite())
	if err != nil {
		return err
	}
	defer c.end()
	c.hangs = hangs
	s.number++
	note := fmt.Sprintf("INSERT INTO commits VALUES ('%s', %d, now()) ON CONFLICT (host) DO UPDATE SET number = "+
		"excluded.number, at = excluded.at; COMMIT", s.host, s.number)
	err = writeAll(ctx, c, jobs, s.dir, note, func(err error) error { return s.explain(ctx, err) })
	if _, cut := errors.AsType[lost](err); cut && c.committing {
		c.end() // it may be the host's only connection
		return s.outcome(err)
	}
	return err
}

// beginWrite returns the statements that begin a transaction without other writes in the schema. A
// host that hangs in one loses it. Plans are made for the current values: a plan made while a table
// was empty would read the whole table until it is analysed.
func (s *Postgres) beginWrite() string {
	h := fnv.New64a()
	h.Write([]byte("a2e state " + s.schema))
	text := fmt.Sprintf("BEGIN; SET LOCAL lock_timeout = '%ds'; SET LOCAL idle_in_transaction_session_timeout = "+
		"'%ds'; SELECT pg_advisory_xact_lock(%d)", int(busyTimeout.Seconds()), int(pgStopped.Seconds()),
		int64(h.Sum64()))
	text += "; SET LOCAL plan_cache_mode = force_custom_plan"
	if s.full {
		text += "; SET LOCAL synchronous_commit = on"
	}
	return text
}

// outcome finds out whether the last commit was kept; it returns nil if so.
func (s *Postgres) outcome(why error) error {
	ctx, cancel := context.WithTimeout(s.life, pgUnsure)
	defer cancel()
	for {
		var number int64
		c, err := s.begin(ctx, s.beginWrite()) // with the lock: not before the server has ended the old transaction
		if err == nil {
			_, err = (&Tx{db: c, ctx: ctx}).Get("SELECT number FROM commits WHERE host = $1", []any{s.host}, &number)
			c.end()
		}
		switch {
		case err == nil && number == s.number:
			return nil
		case err == nil:
			return why
		case !pause(ctx, 100*time.Millisecond):
			return fmt.Errorf("%w; it is unknown whether the change was kept", why)
		}
	}
}

// pgConn is a connection in a transaction.
type pgConn struct {
	*sql.Conn
	ctx        context.Context
	committing bool        // the commit was sent
	hangs      *time.Timer // cancels a write if a statement hangs; nil = not a write
}

// goesOn restarts the timer for the next statement.
func (c *pgConn) goesOn() {
	if c.hangs != nil {
		c.hangs.Reset(pgWrite)
	}
}

// exec implements querier.
func (c *pgConn) exec(ctx context.Context, query string, args []any) (sql.Result, error) {
	c.goesOn()
	return c.ExecContext(ctx, query, args...)
}

// query implements querier.
func (c *pgConn) query(ctx context.Context, query string, args []any) (*sql.Rows, error) {
	c.goesOn()
	return c.QueryContext(ctx, query, args...)
}

// run implements session.
func (c *pgConn) run(text string) error {
	c.goesOn()
	c.committing = c.committing || strings.HasSuffix(text, "COMMIT")
	return c.Raw(func(link any) error { return link.(*pgLink).run(c.ctx, text) })
}

// end returns the connection to the pool; a connection still in a transaction is closed.
func (c *pgConn) end() { _ = c.Conn.Close() }

// begin begins a transaction on a working connection, after preparing the schema.
func (s *Postgres) begin(ctx context.Context, text string) (*pgConn, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s.beginOn(ctx, text+`; SET LOCAL search_path = "`+s.schema+`", public`)
}

func (s *Postgres) beginOn(ctx context.Context, text string) (*pgConn, error) {
	for tries := 0; ; tries++ {
		c, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		if err = c.run(text); err == nil {
			return c, nil
		}
		c.end()
		// Connections that were idle while the server was away fail one after the other.
		if _, cut := errors.AsType[lost](err); !cut || tries > pgConnections {
			return nil, err
		}
	}
}

// connect takes a connection. While the server is away, only one request at a time tries to connect,
// and not too often; the others are refused at once.
func (s *Postgres) connect(ctx context.Context) (*pgConn, error) {
	s.mu.Lock()
	closed, away := s.closed, s.away
	if away != nil && time.Now().After(s.again) {
		away, s.again = nil, time.Now().Add(pgRefused) // this request tries for all
	}
	s.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case away != nil:
		return nil, away
	}
	c, err := s.db.Conn(ctx)
	if noRoom(err) {
		c, err = s.queue(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.away = nil
		if !s.crowded.IsZero() && time.Since(s.crowded) > pgCrowded {
			s.crowded = time.Time{}
			s.mayHave(pgConnections)
		}
		return &pgConn{Conn: c, ctx: ctx}, nil
	}
	if _, cut := errors.AsType[lost](err); cut && ctx.Err() == nil {
		if s.away == nil {
			s.again = time.Now().Add(pgRefused / 10)
		}
		s.away = err
	}
	return nil, err
}

// mayHave sets the maximum number of connections.
func (s *Postgres) mayHave(n int) {
	s.db.SetMaxOpenConns(n)
	s.db.SetMaxIdleConns(n)
}

// noRoom reports whether an error means that the server has no connection left, or none to spare.
func noRoom(err error) bool { return errors.Is(err, errCrowded) || pg.Code(err) == tooManyConnections }

// queue waits for one of the existing connections, or for the first one. Only one request at a time
// asks the server for it.
func (s *Postgres) queue(ctx context.Context, err error) (*sql.Conn, error) {
	select {
	case s.queuing <- struct{}{}:
		defer func() { <-s.queuing }()
	case <-ctx.Done():
		return nil, err
	}
	for {
		s.mu.Lock()
		s.crowded = time.Now()
		s.mayHave(max(1, s.db.Stats().OpenConnections))
		s.mu.Unlock()
		c, err := s.db.Conn(ctx)
		if !noRoom(err) || !pause(ctx, 100*time.Millisecond) {
			return c, err
		}
	}
}

// Codes of PostgreSQL's errors (https://www.postgresql.org/docs/current/errcodes-appendix.html).
const (
	tooManyConnections = "53300"
	diskFull           = "53100"
	lockNotAvailable   = "55P03"
	noSuchDatabase     = "3D000"
	noPrivilege        = "42501"
)

// explain adds to an error what it means.
func (s *Postgres) explain(ctx context.Context, err error) error {
	state := pg.Code(err)
	class := state
	if len(state) == 5 {
		class = state[:2]
	}
	_, cut := errors.AsType[lost](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnavailable):
		return err
	case (cut || state == "57014") && errors.Is(context.Cause(ctx), context.Canceled):
		return context.Cause(ctx)
	case state == diskFull:
		return fmt.Errorf("%s: %w: %w", s.place, ErrFull, err)
	case class == "28", state == noSuchDatabase, state == noPrivilege:
		return fmt.Errorf("%s: %w: %w", s.place, ErrRefused, err)
	case state == lockNotAvailable:
		return fmt.Errorf("%s: %w: another host has been writing for too long: %w", s.place, ErrUnavailable, err)
	// connection errors, too many connections or too little memory, a conflict, the server's shutdown, a standby server
	case cut, class == "08", class == "53", class == "40", class == "57", class == "25":
		return fmt.Errorf("%s: %w: %w", s.place, ErrUnavailable, err)
	case state != "":
		return fmt.Errorf("%s: %w", s.place, err)
	}
	return err
}
