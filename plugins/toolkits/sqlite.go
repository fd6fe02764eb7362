package toolkits

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

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

// sqliteWithin is the name of an SQL function for the host alone. It runs a job from withinJobs, which ends with the
// statement that calls the function. The key of the job is an id that nobody can guess.
const sqliteWithin = "a2e_within"

var withinJobs sync.Map

// sqliteDriver opens files with that function. The process has one driver only, since a function that a driver
// has registered is never released.
var sqliteDriver = sync.OnceValues(func() (*sqlite.Driver, error) {
	d := new(sqlite.Driver)
	return d, d.RegisterScalarFunction(sqliteWithin, 1, func(_ *sqlite.FunctionContext,
		args []driver.Value,
	) (driver.Value, error) {
		do, ok := withinJobs.LoadAndDelete(args[0])
		if !ok {
			return nil, errors.New("no such function: " + sqliteWithin)
		}
		return nil, do.(func() error)()
	})
})

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
	root, err := os.OpenRoot(asDir(base))
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

// run implements engine.
func (s *sqliteFile) run(ctx context.Context, st statement) (*result, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return nil, sqliteError(err)
	}
	defer c.Close()
	if err := confine(ctx, c, st.writes); err != nil {
		return nil, sqliteError(err)
	}
	if err := readSQLite(st.text).fits(len(st.params)); err != nil {
		return nil, err
	}
	args := make([]any, len(st.params))
	for i, param := range st.params {
		if args[i], err = sqliteParam(param); err != nil {
			return nil, err
		}
	}
	if st.writes {
		return sqliteExec(ctx, c, st, args)
	}
	return sqliteQuery(ctx, c, st, args)
}

// confine makes SQLite itself refuse what a statement may not do, and bounds the memory that the
// statement may take.
func confine(ctx context.Context, c *sql.Conn, writes bool) error {
	if _, err := sqlite.Limit(c, sqlite3.SQLITE_LIMIT_COLUMN, sqliteAllColumns); err != nil {
		return err
	}
	// SQLite reads the tables here, under the higher limit: the limit of columns holds for tables, too
	if _, err := c.ExecContext(ctx, "SELECT 1 FROM sqlite_schema LIMIT 0"); err != nil {
		return err
	}
	for id, limit := range map[int]int{
		sqlite3.SQLITE_LIMIT_LENGTH: sqliteMaxValue, sqlite3.SQLITE_LIMIT_COLUMN: sqliteMaxColumns,
		sqlite3.SQLITE_LIMIT_SQL_LENGTH: sqlMaxText,
		sqlite3.SQLITE_LIMIT_ATTACHED:   0, sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: sqliteMaxPattern,
		sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
	} {
		if _, err := sqlite.Limit(c, id, limit); err != nil {
			return err
		}
	}
	return c.Raw(func(raw any) error {
		registerer, ok := raw.(sqlite.AuthorizerRegisterer)
		if !ok {
			return errors.New("this SQLite takes no authorizer")
		}
		return registerer.RegisterAuthorizer(func(action sqlite.AuthorizerActionCode, arg1, arg2, _,
			_ string,
		) sqlite.AuthorizerReturnCode {
			if permitted(action, arg1, arg2, writes) {
				return sqlite.AuthorizerOK
			}
			return sqlite.AuthorizerDeny
		})
	})
}

// permitted reports whether a statement may do an action: read, and with writes change the content of
// the file. Other files, settings and transactions are not permitted.
func permitted(action sqlite.AuthorizerActionCode, arg1, arg2 string, writes bool) bool {
	switch action {
	case sqlite.AuthSelect, sqlite.AuthRead, sqlite.AuthRecursive:
		return true
	case sqlite.AuthFunction:
		return !slices.Contains([]string{"load_extension", "fts3_tokenizer"}, strings.ToLower(arg2))
	case sqlite.AuthPragma: // also for functions such as pragma_table_info
		return slices.Contains([]string{
			"data_version", "foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list",
			"table_xinfo",
		}, strings.ToLower(arg1))
	case sqlite.AuthAttach, sqlite.AuthDetach, sqlite.AuthTransaction, sqlite.AuthSavepoint:
		return false
	}
	return writes
}

// sqliteParam returns a parameter in the form that the driver takes.
func sqliteParam(param any) (any, error) {
	number, ok := param.(jsontext.Value)
	if !ok {
		return param, nil
	}
	if n, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		return nil, &sqlError{text: fmt.Sprintf("the number %.40s does not fit; send it as a text", number)}
	}
	return f, nil
}

// sqliteExec runs a statement that may change the file. A statement with columns, such as one with RETURNING, has rows.
func sqliteExec(ctx context.Context, c *sql.Conn, st statement, args []any) (*result, error) {
	var columns []sqlite.ColumnInfo
	err := c.Raw(func(raw any) (err error) {
		conn, ok := raw.(interface {
			ColumnInfo(query string) ([]sqlite.ColumnInfo, error)
		})
		if !ok {
			return errors.New("this SQLite does not tell the columns of a statement")
		}
		columns, err = conn.ColumnInfo(st.text)
		return err
	})
	if err != nil {
		return nil, sqliteError(err)
	}
	var before, after, changes int64
	const counts = "SELECT total_changes(), changes()"
	if err := c.QueryRowContext(ctx, counts).Scan(&before, &changes); err != nil {
		return nil, sqliteError(err)
	}
	res := newResult(st)
	if len(columns) > 0 {
		res, err = sqliteQuery(ctx, c, st, args)
	} else {
		_, err = c.ExecContext(ctx, st.text, args...)
	}
	if err != nil {
		return nil, sqliteError(err)
	}
	// The change is made already, so the end of ctx must not turn it into an error.
	if err := c.QueryRowContext(context.WithoutCancel(ctx), counts).Scan(&after, &changes); err != nil {
		return nil, sqliteError(err)
	}
	if before == after { // changes() still counts an earlier statement
		changes = 0
	}
	res.Affected = &changes
	return res, nil
}

// sqliteQuery runs the query within a function of an outer statement: the driver lets the context
// stop an executed statement at any time, but a query only before its first row.
func sqliteQuery(ctx context.Context, c *sql.Conn, st statement, args []any) (*result, error) {
	res, id := newResult(st), uuid.NewString()
	var failed error
	err := c.Raw(func(raw any) error {
		conn, ok := raw.(sqlite.ExecQuerierContext)
		if !ok {
			return errors.New("this SQLite runs no functions")
		}
		withinJobs.Store(id, func() error {
			failed = sqliteRows(conn, st, args, res)
			return failed
		})
		defer withinJobs.Delete(id) // in case the function did not run
		_, err := conn.ExecContext(ctx, "SELECT "+sqliteWithin+"($1)", []driver.NamedValue{{Ordinal: 1, Value: id}})
		return err
	})
	if failed != nil && ctx.Err() == nil {
		err = failed // the error before it passed through the function
	}
	if err != nil {
		return nil, sqliteError(err)
	}
	return res, nil
}

// sqliteRows runs a query and adds its rows to a result.
func sqliteRows(conn driver.QueryerContext, st statement, args []any, res *result) (err error) {
	named := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	rows, err := conn.QueryContext(context.Background(), st.text, named)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	types, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	for i, name := range rows.Columns() {
		res.Columns = append(res.Columns, column{
			Name: strings.ToValidUTF8(name, "\uFFFD"),
			Type: strings.ToValidUTF8(types.ColumnTypeDatabaseTypeName(i), "\uFFFD"),
		})
	}
	if err := asStored(rows); err != nil {
		return err
	}
	values := make([]driver.Value, len(res.Columns))
	for !res.Truncated {
		if err := rows.Next(values); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		row, room := make([]jsontext.Value, len(values)), res.room
		for i := 0; i < len(row) && room >= 0; i++ { // a row may be far larger than an answer
			row[i] = sqliteValue(values[i])
			room -= len(row[i]) + 1
		}
		if res.Truncated = room < 0; !res.Truncated {
			res.add(row)
		}
	}
	return nil
}

// sqliteValue returns a value as JSON: bytes as {"base64": …}.
func sqliteValue(v any) jsontext.Value {
	switch v := v.(type) {
	case int64:
		return jsontext.Value(fmt.Appendf(nil, "%d", v))
	case float64:
		return jsonFloat(v)
	case bool:
		return jsontext.Value(fmt.Appendf(nil, "%t", v))
	case []byte:
		return jsonBytes(v)
	case string:
		return jsonText(v)
	}
	return jsontext.Value("null")
}

// sqliteError returns an error of SQLite as a *sqlError, with a hint; other errors it returns as they are.
func sqliteError(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_AUTH:
		return &sqlError{text: "this is not supported here (" + e.Error() +
			"): one statement on the tables of this file, without ATTACH, PRAGMA, transactions and extensions; " +
			"sql_query takes a SELECT"}
	case sqlite3.SQLITE_READONLY:
		return &sqlError{text: "the database is opened to be read: " + e.Error()}
	case sqlite3.SQLITE_TOOBIG:
		return &sqlError{text: fmt.Sprintf("%s: a value may have %d bytes, a statement %d; take a part of it, such "+
			"as substr(x, 1, 1000)", e.Error(), sqliteMaxValue, sqlMaxText)}
	}
	text := e.Error()
	if e.Code()&0xff == sqlite3.SQLITE_FULL {
		text += fmt.Sprintf(": sorts, groups and joins may write %d MiB of temporary files; take fewer rows or "+
			"columns, or an order that an index has", sqlMaxTemp>>20)
	}
	if strings.Contains(text, "too many columns in result set") {
		text += fmt.Sprintf(": name %d at most", sqliteMaxColumns)
	}
	return &sqlError{text: text}
}
