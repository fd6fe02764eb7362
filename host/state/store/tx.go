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

// querier is a connection within a transaction.
type querier interface {
	exec(ctx context.Context, query string, args []any) (sql.Result, error)
	query(ctx context.Context, query string, args []any) (*sql.Rows, error)
}

// Tx is a transaction, or a consistent view to read from. It is valid until the
// function that got it returns, and belongs to one goroutine.
//
// Queries have $1 and so on for arguments, and words that both engines know. json_each gives the items of a JSON list
// as text, in a column called value; unixepoch() is the time of the store; INTEGER is too short on PostgreSQL, where a
// cast should say BIGINT, and REAL too rough: DOUBLE PRECISION. What SQLite alone has (INSERT OR REPLACE, max of two
// values, LIMIT -1, sums of booleans) may not be in a query.
type Tx struct {
	db  querier
	ctx context.Context // of reads; a write runs to its end
	dir string

	after   []func()
	reading bool // Each is: no other statement may run
}

// errReading is for a statement that runs between the rows of another.
var errReading = errors.New("a statement ran while the rows of another were read")

// Dir is Store.Dir.
func (t *Tx) Dir() string { return t.dir }

// After has fn run once the change is kept; a write that fails forgets it.
func (t *Tx) After(fn func()) { t.after = append(t.after, fn) }

// Args are the arguments of a query that is put together.
type Args []any

// Add adds a value and returns the parameter that stands for it, such as $3.
func (a *Args) Add(value any) string {
	*a = append(*a, value)
	return "$" + strconv.Itoa(len(*a))
}

// Exec runs one statement and gives the number of rows it changed. The texts of queries are
// few: each is prepared once and kept.
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

// Get reads the first row of a query into dest; false means that there is none.
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

// Each calls row for each row of a query, which reads it with scan. No other statement runs meanwhile. An error of
// row ends it.
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

// Rows reads each row of a query into an R, by what columns lists of it.
func Rows[R any](t *Tx, query string, args []any, columns func(*R) []any) (all []*R, err error) {
	err = t.Each(query, args, func(scan func(...any) error) error {
		r := new(R)
		all = append(all, r)
		return scan(columns(r)...)
	})
	return all, err
}

// Column reads the one column that a query selects.
func Column[V any](t *Tx, query string, args ...any) (all []V, err error) {
	err = t.Each(query, args, func(scan func(...any) error) error {
		var v V
		err := scan(&v)
		all = append(all, v)
		return err
	})
	return all, err
}

// JSON has a column hold a value as JSON: v is the value to write, or a pointer to read into.
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
