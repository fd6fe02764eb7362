package toolkits

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

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
