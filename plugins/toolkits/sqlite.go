package toolkits

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"modernc.org/sqlite"

	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
)

// The bounds of SQLite, which runs within the host: they keep even the largest statement from taking
// so much memory that the host ends.
const (
	sqliteMaxValue   = 1 << 20
	sqliteMaxColumns = 200  // of a result: a row is in memory as a whole
	sqliteAllColumns = 2000 // of a table
	sqliteMaxPattern = 500  // bytes of a LIKE or GLOB pattern: a running match cannot be stopped
)

// sqliteFile is a database in an SQLite file.
type sqliteFile struct {
	plugin   *Plugin
	path     string
	readOnly bool
	byConfig bool

	mu     sync.Mutex  // guards the fields below
	db     *sql.DB     // nil until the first statement
	opened os.FileInfo // the file of db
}

// newSQLite makes the engine of an SQLite file. A file that the agent names must exist.
func (p *Plugin) newSQLite(path string, readOnly, byConfig bool) (engine, error) {
	s := &sqliteFile{plugin: p, path: path, readOnly: readOnly, byConfig: byConfig}
	if byConfig {
		return s, nil
	}
	_, _, err := s.locate()
	return s, err
}

// locate returns the path of the file without links, and its info.
func (s *sqliteFile) locate() (path string, info os.FileInfo, err error) {
	if s.byConfig {
		path = s.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.plugin.env.Workspace, path)
		}
		if info, err = os.Stat(path); err != nil {
			return "", nil, errors.New(fileReason(err))
		}
	} else if path, info, err = s.inWorkspace(); err != nil {
		return "", nil, err
	}
	if path, err = filepath.Abs(wall.Real(path)); err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return "", nil, errors.New("names something that is not a file")
	}
	if s.plugin.isOwn(path, info) {
		return "", nil, protocol.Errorf(protocol.CodeToolDenied, "dsn %w", wall.ErrOwn)
	}
	return path, info, nil
}

// inWorkspace returns path and info of the file that the agent named in the workspace or in one of
// Options.Folders.
func (s *sqliteFile) inWorkspace() (string, os.FileInfo, error) {
	f, path, err := s.plugin.openFile(s.path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	return path, info, err
}

// isOwn reports whether a file belongs to the host's own state, also under another name.
func (p *Plugin) isOwn(path string, info os.FileInfo) bool {
	if p.env.Wall.Hides(path) {
		return true
	}
	if p.env.StateDir == "" {
		return false
	}
	own, err := os.Stat(filepath.Join(p.env.StateDir, store.FileName))
	return err == nil && os.SameFile(own, info) || wall.Within(wall.Real(p.env.StateDir), path)
}

// openFile opens a file that the agent named, in the workspace or in one of Options.Folders,
// and returns its path.
func (p *Plugin) openFile(name string) (*os.File, string, error) {
	base, rest, ok := p.within(name)
	if !ok {
		return nil, "", protocol.Errorf(protocol.CodeToolDenied, "%.200q leads out of the workspace; the agent may "+
			"name files of the workspace only", name)
	}
	root, err := os.OpenRoot(wall.AsDir(base))
	if err != nil {
		return nil, "", errors.New(reason(err))
	}
	defer root.Close()
	const flags = os.O_RDONLY | syscall.O_NONBLOCK // without it, opening a pipe would wait for its other end
	var f *os.File
	if guard := p.env.Wall.In(root); guard.Holds() {
		f, err = guard.OpenFile(filepath.ToSlash(rest), flags)
	} else {
		f, err = root.OpenFile(rest, flags, 0)
	}
	if err != nil {
		return nil, "", errors.New(fileReason(err))
	}
	return f, filepath.Join(base, rest), nil
}

// fileReason returns the text of an error about a file without paths of this machine.
func fileReason(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "names a file that is not there"
	}
	return reason(err)
}

// open opens the file, and opens it again if another file has its name now, because a restore or a rename replaced
// it. SQLite opens the file by its path, so open checks before and after that it is the same file.
func (s *sqliteFile) open(ctx context.Context) (*sql.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, before, err := s.locate()
	if s.db != nil && (err != nil || !os.SameFile(s.opened, before)) {
		_ = s.db.Close() // it holds nothing that would be lost
		s.db = nil
	}
	if err != nil {
		return nil, fmt.Errorf("dsn %w", err)
	}
	if s.db != nil {
		return s.db, nil
	}
	query := url.Values{"mode": {"ro"}, "_pragma": {
		"busy_timeout(5000)", "query_only(1)", "trusted_schema(OFF)",
		"cell_size_check(ON)", "mmap_size(0)",
	}}
	if !s.readOnly {
		query.Set("mode", "rw")
		query["_pragma"][1] = "foreign_keys(1)"
	}
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // a drive letter
	}
	d, err := sqliteDriver()
	if err != nil {
		return nil, err
	}
	vfs, err := tempVFS()
	if err != nil {
		return nil, err
	}
	query.Set("vfs", vfs)
	db := sql.OpenDB(sqliteOpener{d, (&url.URL{Scheme: "file", Path: slashed, RawQuery: query.Encode()}).String()})
	db.SetMaxOpenConns(2)
	err = db.PingContext(ctx)
	if after, statErr := os.Lstat(path); err == nil && (statErr != nil || !os.SameFile(before, after)) {
		err = errors.New("the file was replaced while it was opened")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.db, s.opened = db, before
	return db, nil
}

// conn returns a connection to the file that the path names now.
func (s *sqliteFile) conn(ctx context.Context) (*sql.Conn, error) {
	for {
		db, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		c, err := db.Conn(ctx)
		s.mu.Lock()
		replaced := s.db != db // another statement found a new file and closed this one
		s.mu.Unlock()
		if err == nil || !replaced || ctx.Err() != nil {
			return c, err
		}
	}
}

// sqliteOpener opens the connections to a file.
type sqliteOpener struct {
	driver *sqlite.Driver
	dsn    string
}

// Connect implements driver.Connector.
func (o sqliteOpener) Connect(context.Context) (driver.Conn, error) { return o.driver.Open(o.dsn) }

// Driver implements driver.Connector.
func (o sqliteOpener) Driver() driver.Driver { return o.driver }

func (s *sqliteFile) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		_ = s.db.Close() // it holds nothing that would be lost
	}
}

func (s *sqliteFile) tables() string {
	return `SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')
		AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name`
}

func (s *sqliteFile) describe() string {
	return `SELECT c.name, c.type, c."notnull" AS not_null, c.dflt_value AS "default", c.pk AS primary_key,
		(SELECT group_concat(f."table" || coalesce('(' || f."to" || ')', ''), ', ') FROM pragma_foreign_key_list(?1) f
		WHERE f."from" = c.name) AS "references"
		FROM pragma_table_xinfo(?1) c ORDER BY c.cid`
}
