package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/go-json-experiment/json"
)

// querier is a connection in a transaction.
type querier interface {
	exec(ctx context.Context, query string, args []any) (sql.Result, error)
	query(ctx context.Context, query string, args []any) (*sql.Rows, error)
}

// Tx is a transaction, or a consistent view for reading. It is valid until the function that got it
// returns. Only one goroutine may use it.
//
// Queries use $1 and so on for arguments, and only SQL that both engines know. json_each returns the
// items of a JSON list as text, in a column called value; unixepoch() is the time of the store. On
// PostgreSQL INTEGER is too short and REAL too imprecise: casts should use BIGINT and DOUBLE
// PRECISION. Queries must not use what only SQLite has (INSERT OR REPLACE, max of two values, LIMIT
// -1, sums of booleans).
type Tx struct {
	db  querier
	ctx context.Context // context of reads; a write runs to its end
	dir string

	after   []func()
	reading bool // Each is running: no other statement may run
}

// errReading is the error for a statement that is run while Each reads rows.
var errReading = errors.New("a statement ran while the rows of another were read")

// Dir returns Store.Dir.
func (t *Tx) Dir() string { return t.dir }

// After runs fn once the change is kept. If the write fails, fn is not run.
func (t *Tx) After(fn func()) { t.after = append(t.after, fn) }

// Args are the arguments of a query that is built step by step.
type Args []any

// Add adds a value and returns its parameter, such as $3.
func (a *Args) Add(value any) string {
	*a = append(*a, value)
	return "$" + strconv.Itoa(len(*a))
}

// Exec runs one statement and returns the number of changed rows. Each query text is prepared once and
// kept, so there should be few different texts.
func (t *Tx) Exec(query string, args ...any) (changed int64, err error) {
	if t.reading {
		return 0, errReading
	}
	res, err := t.db.exec(t.ctx, query, args)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Insert runs an INSERT that returns the number of its new row.
func (t *Tx) Insert(query string, args ...any) (id int64, err error) {
	_, err = t.Get(query, args, &id)
	return id, err
}

// Get reads the first row of a query into dest; there is false if there are no rows.
func (t *Tx) Get(query string, args []any, dest ...any) (there bool, err error) {
	if t.reading {
		return false, errReading
	}
	rows, err := t.db.query(t.ctx, query, args)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if !rows.Next() {
		return false, rows.Err()
	}
	return true, rows.Scan(dest...)
}

// Each calls row for each row of a query; row reads it with scan. No other statement may run
// meanwhile. An error of row ends the loop.
func (t *Tx) Each(query string, args []any, row func(scan func(dest ...any) error) error) (err error) {
	if t.reading {
		return errReading
	}
	rows, err := t.db.query(t.ctx, query, args)
	if err != nil {
		return err
	}
	t.reading = true
	defer func() { t.reading = false; err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Rows reads each row of a query into an R. columns returns the fields of an R, in the order of the selected columns.
func Rows[R any](t *Tx, query string, args []any, columns func(*R) []any) (all []*R, err error) {
	err = t.Each(query, args, func(scan func(...any) error) error {
		r := new(R)
		all = append(all, r)
		return scan(columns(r)...)
	})
	return all, err
}

// Column returns the values of the single column of a query.
func Column[V any](t *Tx, query string, args ...any) (all []V, err error) {
	err = t.Each(query, args, func(scan func(...any) error) error {
		var v V
		err := scan(&v)
		all = append(all, v)
		return err
	})
	return all, err
}

// JSON wraps a value that a column holds as JSON: v is the value to write, or a pointer to read into.
func JSON(v any) any { return jsonColumn{v} }

type jsonColumn struct{ v any }

// Value implements driver.Valuer.
func (c jsonColumn) Value() (driver.Value, error) {
	raw, err := json.Marshal(c.v)
	return string(raw), err
}

// Scan implements sql.Scanner.
func (c jsonColumn) Scan(src any) error {
	var raw sql.RawBytes
	if text, ok := src.(string); ok {
		raw = []byte(text)
	} else {
		raw, _ = src.([]byte)
	}
	return json.Unmarshal(raw, c.v)
}

// Micros is a time in microseconds since 1970, as in tables; in JSON it is a number of seconds.
type Micros int64

// Seconds returns the time in seconds, as in messages.
func (m Micros) Seconds() float64 { return float64(m) / 1e6 }

// MarshalJSON implements json.Marshaler.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, m.Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler. It refuses times before 1970 and from the year 10000 on.
func (m *Micros) UnmarshalJSON(raw []byte) error {
	const year10000 = 253402300800
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0 && seconds < year10000) {
		return fmt.Errorf("%.40s should be seconds since 1970", raw)
	}
	*m = Micros(math.Round(seconds * 1e6))
	return nil
}
