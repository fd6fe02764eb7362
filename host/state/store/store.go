// Package store keeps the host's state in one SQLite file, or in one schema of a PostgreSQL server.
// Several hosts can share it.
//
//	store.go     the interface Store, its errors      tx.go    a transaction: queries, rows
//	write.go     one writer at a time: several waiting writes share a commit
//	journal.go   lines that are stored before their writer continues, and their owners
//	prune.go     limits on rows
//	part.go      parts of plugins, migrations, export and import as NDJSON
//	sqlite.go    one SQLite file: open, read, close   file.go  checks of the file and of its place
//	pages.go     checksums of its pages               plans.go plans of its prepared statements
//	postgres.go  one schema of a PostgreSQL server: connections, commits, what its errors mean
//	pgschema.go  its tables (sql/*.sql)               pgdriver.go  pgx connections with additions for the store
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"modernc.org/sqlite"
)

// FileName is the name of the store's file in the host's state_dir.
const FileName = "state.db"

// Store is state that survives the host. SQLite and Postgres give the same guarantees.
type Store interface {
	// Read runs fn on a consistent view of the state. Several reads run at the same time.
	Read(ctx context.Context, fn func(*Tx) error) error
	// Write runs fn in a transaction; no other write runs at the same time. If Write returns nil, the
	// change is kept, even if the host is killed; after any error nothing of the change is kept. Other
	// hosts see the change at once. fn must not keep tx, and must not call Read or Write.
	Write(ctx context.Context, fn func(*Tx) error) error
	// Export writes the state of the named parts, or of all parts without names, as NDJSON.
	Export(ctx context.Context, w io.Writer, parts ...string) error
	// Import reads the output of Export and adds it to the state, or replaces the state. It imports
	// everything or, after an error, nothing.
	Import(ctx context.Context, r io.Reader, how How) (Counts, error)
	// Dir returns the folder of the state, for files that belong to the state; "" = in memory.
	Dir() string
	// Close waits for running calls and closes the store. It may be called twice.
	Close() error
}

// How says what an import does with the existing state.
type How int

// The values of How.
const (
	Merge   How = iota // keep it; imported records replace the same ones
	Replace            // first empty the parts that the import contains
)

// Counts is the number of imported records by kind.
type Counts map[string]int

// Opener opens a store when it is first needed, because opening takes longer than a start may take.
// After an error, a later call may succeed.
type Opener func(context.Context) (Store, error)

// Read runs Store.Read on the store of o.
func (o Opener) Read(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Read(ctx, fn)
}

// Write runs Store.Write on the store of o.
func (o Opener) Write(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Write(ctx, fn)
}

// Reasons why a store cannot be used. Errors of Open and of the Store wrap them.
var (
	// ErrForeign is the error for a file that is not an a2e store. The file was not changed.
	ErrForeign error = lasting("the file is not an a2e store")
	// ErrNewer is the error for a file of a newer a2e. The file was not changed.
	ErrNewer error = lasting("the file was written by a newer a2e")
	// ErrCorrupt is the error for a damaged file.
	ErrCorrupt error = lasting("the file is damaged")
	// ErrFull says that the disk, or the allowed size of the store, is full. Nothing of the change was kept.
	ErrFull = errors.New("no space is left for the store")
	// ErrMoved says that the file was removed or replaced. Nothing of the change was kept.
	ErrMoved = errors.New("the file was moved, removed or replaced")
	// ErrUnavailable says that the server of the state cannot be reached, or cannot be written to, at the
	// moment. Nothing of the change was kept, unless the text says that this is not known.
	ErrUnavailable = errors.New("the server of the state cannot be reached")
	// ErrRefused says that the server does not accept this user.
	ErrRefused error = lasting("the server of the state refuses this user")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// lasting is an error that also occurs at later tries, until somebody solves the problem.
type lasting string

// Error implements error.
func (e lasting) Error() string { return string(e) }

// Lasting reports that the same request would fail again; the host tells that to the client.
func (lasting) Lasting() bool { return true }

// Result codes of SQLite: the low byte of an extended code.
const (
	codeBusy       = 5
	codeIO         = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCannotOpen = 14
	codeNotADB     = 26
)

// Extended codes of codeIO that may also mean a full disk: SQLite returns codeFull only if it writes
// to the file or its log and the system reports exactly that.
const (
	codeWrite = codeIO | 3<<8
	codeBegin = codeIO | 18<<8 // for the shared memory of the log
	codeGrow  = codeIO | 19<<8
)

// resultCode returns SQLite's primary result code of an error; 0 = not an SQLite error.
func resultCode(err error) int { return extendedCode(err) & 0xff }

func extendedCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// explain adds to an error of SQLite what it means.
func explain(path string, err error) error {
	switch resultCode(err) {
	case 0:
		for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
			if errors.Is(err, full) {
				return fmt.Errorf("%w: %w", ErrFull, err)
			}
		}
		return err
	case codeCorrupt:
		return fmt.Errorf("%s: %w; `a2e doctor` checks it, an export can replace it: %w", path, ErrCorrupt, err)
	case codeNotADB:
		return fmt.Errorf("%s: %w; move it away, or set another state_dir: %w", path, ErrForeign, err)
	case codeFull:
		return fmt.Errorf("%s: %w: %w", path, ErrFull, err)
	case codeCannotOpen:
		return fmt.Errorf("%s: cannot be opened; may it be read and written, and may the host open more files "+
			"(`ulimit -n`)? %w", path, err)
	case codeBusy:
		return fmt.Errorf("%s: another process has been writing for too long; try again: %w", path, err)
	case codeIO:
		if code := extendedCode(err); code == codeWrite || code == codeBegin || code == codeGrow {
			return fmt.Errorf("%s: %w, or files may not grow (`ulimit -f`), or the disk fails: %w", path, ErrFull, err)
		}
		return fmt.Errorf("%s: cannot be read or written; is its disk in order? %w", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Report is the result of Check.
type Report struct {
	Path     string         `json:"path"`   // path of the file, or the server's address without secrets
	Server   string         `json:"server"` // the server's version and its extensions for the state; "" = it is a file
	Exists   bool           `json:"exists"` // if false, nothing else is known
	Bytes    int64          `json:"bytes"`  // size of the file and its log, or of the tables
	Parts    map[string]int `json:"parts"`  // version of each part
	Problems []string       `json:"problems"`
	// Checksums reports whether pages have checksums that reveal damage; files of older hosts have none.
	Checksums bool `json:"checksums"`
}

// Check reads the whole file to find damage. It does not make a missing file. The error says why the
// file could not be checked.
func Check(ctx context.Context, path string, opts Options) (Report, error) {
	r := Report{Path: path, Parts: map[string]int{}, Problems: []string{}}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	r.Exists, r.Bytes = true, sizeOf(path)+sizeOf(path+"-wal")
	s, err := Open(ctx, path, opts)
	if err != nil {
		return r, err
	}
	err = s.Read(ctx, func(tx *Tx) error {
		var format int
		if _, err := tx.Get("PRAGMA user_version", nil, &format); err != nil {
			return err
		}
		r.Checksums = format > formatUnchecked
		if err := partVersions(tx, r.Parts); err != nil {
			return err
		}
		return tx.Each("PRAGMA integrity_check(20)", nil, func(scan func(...any) error) error {
			var found string
			err := scan(&found)
			if found != "ok" {
				r.Problems = append(r.Problems, strings.Split(strings.TrimSpace(found), "\n")...)
			}
			return err
		})
	})
	if errors.Is(err, ErrCorrupt) {
		r.Problems, err = append(r.Problems, err.Error()), nil
	}
	return r, errors.Join(err, s.Close())
}

// partVersions adds the version of each part to the map to.
func partVersions(tx *Tx, to map[string]int) error {
	return tx.Each("SELECT name, version FROM parts WHERE name <> $1", []any{pgBase},
		func(scan func(...any) error) error {
			var name string
			var version int
			err := scan(&name, &version)
			to[name] = version
			return err
		})
}
