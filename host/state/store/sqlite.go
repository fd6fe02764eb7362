package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"

	"a2e/host/guard/private"
)

const (
	applicationID = 0x61326531 // "a2e1", in the header of the file
	formatVersion = 2          // version of what belongs to no part; 2 = pages end with checksums
	// formatUnchecked is the version of files whose pages have no checksums.
	formatUnchecked = 1
	pageSize        = 4096 // SQLite's own default

	// busyTimeout is how long a write waits for writes of other hosts.
	busyTimeout = 60 * time.Second
	// maxReaders is the maximum number of reads that run at once.
	maxReaders = 4
)

// DefaultMaxBytes is the default limit for the size of a store's file.
const DefaultMaxBytes = 16 << 30

// Options are the settings of Open.
type Options struct {
	Parts    []Part // the parts of the store
	MaxBytes int64  // size of the file from which writes fail with ErrFull; 0 = DefaultMaxBytes
	Full     bool   // writes survive a power loss too, because each commit waits for the disk
}

// SQLite is a store in one SQLite file, or in memory.
type SQLite struct {
	path  string // "" = in memory
	parts kept
	db    *sql.DB
	file  os.FileInfo // the opened file; nil in memory

	writes
	writer  *conn      // used while writing is held; nil after Close
	readers chan *conn // idle readers; nil in memory, where reads hold writing

	connecting sync.Mutex    // guards the fields below
	made       int           // number of readers
	closing    chan struct{} // closed when Close begins
}

// Open opens the store in a file. It makes a missing file and its folders. Only this user may access the file and its
// folder. If the file cannot be used, the error wraps ErrForeign, ErrNewer or ErrCorrupt, and the file is not changed.
func Open(ctx context.Context, path string, opts Options) (s *SQLite, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	openHere.RLock()
	defer func() {
		if s == nil {
			openHere.RUnlock()
		}
	}()
	file, err := prepare(ctx, path)
	if err != nil {
		return nil, explain(path, err)
	}
	maxBytes := opts.MaxBytes
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	synchronous := "synchronous(NORMAL)"
	if opts.Full {
		synchronous = "synchronous(FULL)"
	}
	s, err = open(ctx, path, address(path, nil,
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", synchronous,
		fmt.Sprintf("max_page_count(%d)", maxBytes/pageSize)), opts.Parts)
	if err != nil {
		return nil, explain(path, err)
	}
	s.readers, s.file = make(chan *conn, maxReaders), file
	return s, nil
}

// prepare makes sure that the file exists and belongs to us, and returns its info.
//
// SQLite opens files by path, several times: its log and its locks have their own names. A path
// through a handle of the folder (/proc/self/fd/N) would keep these together. But the connections of a
// process share locks under the path of the first connection, which may be closed first. So the names
// are checked through a handle, SQLite does not follow links, the file that it has opened is checked
// again (openedSafely), and every use checks that it is still the same file (inPlace).
func prepare(ctx context.Context, path string) (os.FileInfo, error) {
	if err := checkedVFS(); err != nil {
		return nil, err
	}
	dir, err := private.MakeDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	defer dir.Close()
	name := filepath.Base(path)
	if err := inspect(ctx, dir, name); err != nil {
		return nil, err
	}
	if err := create(dir, name); err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	file, err := dir.Check(name)
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	return file, nil
}

// OpenMemory opens a store in memory, which is lost at Close.
func OpenMemory(ctx context.Context, parts ...Part) (*SQLite, error) {
	return open(ctx, "", "file::memory:?"+pragmas("journal_mode(MEMORY)").Encode(), parts)
}

func open(ctx context.Context, path, dsn string, parts []Part) (*SQLite, error) {
	if err := steadyPlans(); err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	s := &SQLite{
		path: path, parts: parts, db: sql.OpenDB(connector), writes: writes{writing: make(chan struct{}, 1)},
		closing: make(chan struct{}),
	}
	// If two hosts make the file at the same time, one of them may get an error, because SQLite does not always wait.
	deadline := time.Now().Add(busyTimeout)
	for {
		if s.writer, err = s.connect(ctx); err == nil {
			if err = migrate(s.writer, path, parts); err == nil {
				return s, nil
			}
			_ = s.writer.close()
		}
		if resultCode(err) != codeBusy || time.Now().After(deadline) || !pause(ctx, 5*time.Millisecond) {
			return nil, errors.Join(err, s.db.Close())
		}
	}
}

// pause waits for d; it returns false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *SQLite) connect(ctx context.Context) (*conn, error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

// address returns the name under which SQLite opens a file.
func address(path string, params url.Values, pragma ...string) string {
	values := pragmas(pragma...)
	values.Set("vfs", vfsName)
	for k, v := range params {
		values[k] = v
	}
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: p, RawQuery: values.Encode()}).String()
}

// pragmas returns the settings of a connection: deleted entries are overwritten, and SQL in a
// manipulated file cannot have side effects.
func pragmas(more ...string) url.Values {
	return url.Values{"_pragma": append([]string{
		"secure_delete(FAST)", "temp_store(MEMORY)", "cache_size(-8192)",
		"trusted_schema(OFF)", "cell_size_check(ON)",
	}, more...)}
}

// Dir implements Store.
func (s *SQLite) Dir() string {
	if s.path == "" {
		return ""
	}
	return filepath.Dir(s.path)
}

// Write implements Store.
func (s *SQLite) Write(ctx context.Context, fn func(*Tx) error) error {
	return s.do(ctx, fn, func(jobs []*job) error { return explain(s.path, s.commit(jobs)) })
}

// commit runs the jobs in one transaction and commits it. The caller holds s.writing.
func (s *SQLite) commit(jobs []*job) error {
	if s.writer == nil {
		return ErrClosed
	}
	if err := s.inPlace(); err != nil {
		return err
	}
	if err := s.writer.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	return writeAll(context.Background(), s.writer, jobs, s.Dir(), "COMMIT",
		func(err error) error { return explain(s.path, err) })
}

// Export implements Store.
func (s *SQLite) Export(ctx context.Context, w io.Writer, names ...string) error {
	return s.parts.export(ctx, s, w, names)
}

// Import implements Store.
func (s *SQLite) Import(ctx context.Context, r io.Reader, how How) (Counts, error) {
	return s.parts.take(ctx, s, r, how)
}

// Read implements Store.
func (s *SQLite) Read(ctx context.Context, fn func(*Tx) error) error {
	if s.readers == nil {
		return s.readAlone(ctx, fn)
	}
	if err := s.inPlace(); err != nil {
		return err
	}
	c, err := s.reader(ctx)
	if err != nil {
		return explain(s.path, err)
	}
	defer func() { s.readers <- c }()
	if err := c.run("BEGIN"); err != nil {
		return explain(s.path, err)
	}
	defer func() { _ = c.run("ROLLBACK") }() // nothing was written
	return explain(s.path, fn(&Tx{db: c, ctx: ctx, dir: s.Dir()}))
}

// readAlone reads on the only connection of a store in memory.
func (s *SQLite) readAlone(ctx context.Context, fn func(*Tx) error) error {
	select {
	case s.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.writing }()
	if s.writer == nil {
		return ErrClosed
	}
	return fn(&Tx{db: s.writer, ctx: ctx, dir: s.Dir()})
}

// reader returns an idle reader, or a new one if there may be more; otherwise it waits.
func (s *SQLite) reader(ctx context.Context) (*conn, error) {
	for {
		select {
		case c := <-s.readers:
			return c, nil
		default:
		}
		if c, err := s.newReader(ctx); c != nil || err != nil {
			return c, err
		}
		select {
		case c := <-s.readers:
			return c, nil
		case <-s.closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// newReader makes a reader, or returns nil if there are maxReaders.
func (s *SQLite) newReader(ctx context.Context) (*conn, error) {
	s.connecting.Lock()
	defer s.connecting.Unlock()
	if s.isClosing() {
		return nil, ErrClosed
	}
	if s.made >= maxReaders {
		return nil, nil
	}
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.run("PRAGMA query_only = ON"); err != nil {
		return nil, errors.Join(err, c.close())
	}
	s.made++
	return c, nil
}

func (s *SQLite) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// Close implements Store.
func (s *SQLite) Close() error {
	s.connecting.Lock()
	if s.isClosing() {
		s.connecting.Unlock()
		return nil
	}
	close(s.closing)
	made := s.made
	s.connecting.Unlock()
	s.writing <- struct{}{} // waits for the last write
	defer func() { <-s.writing }()
	var errs []error
	for range made {
		errs = append(errs, (<-s.readers).close())
	}
	errs = append(errs, s.writer.close(), s.db.Close())
	s.writer = nil
	if s.path != "" {
		openHere.RUnlock()
	}
	return errors.Join(errs...)
}

// maxStatements is the maximum number of prepared statements on a connection.
const maxStatements = 200

// conn is one connection to SQLite with its prepared statements.
type conn struct {
	*sql.Conn
	prepared map[string]*sql.Stmt
}

func newConn(c *sql.Conn) *conn { return &conn{Conn: c, prepared: make(map[string]*sql.Stmt)} }

// exec implements querier.
func (c *conn) exec(ctx context.Context, query string, args []any) (sql.Result, error) {
	stmt, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

// query implements querier.
func (c *conn) query(ctx context.Context, query string, args []any) (*sql.Rows, error) {
	stmt, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// run implements session. Its statements are prepared too, because BEGIN and COMMIT are used in each transaction.
func (c *conn) run(query string) error {
	_, err := c.exec(context.Background(), query, nil)
	return err
}

// prepare returns the prepared statement of a query, which is made only once.
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
