// Package store keeps the host's state: one SQLite file, or one schema of a PostgreSQL server,
// that several hosts share.
//
//	store.go     what a store is, what can go wrong   tx.go    a transaction: queries, rows
//	write.go     one writer, many waiting: group commit
//	journal.go   lines that are kept before their writer goes on, and whose they are
//	prune.go     how many rows stay
//	part.go      who keeps what, how old stores are brought up, export and import as NDJSON
//	sqlite.go    one SQLite file: open, read, close   file.go  whose file it is, and whether it stays
//	pages.go     its checksums of pages                    plans.go how it prepares statements
//	postgres.go  one schema of a PostgreSQL server: connections, commits, what its errors mean
//	pgschema.go  its tables (sql/*.sql)    pgdriver.go  pgx's connections, with what the store needs beside
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

// FileName is the store's file within the host's state_dir.
const FileName = "state.db"

// Store is state that outlives the host. SQLite and Postgres give the same
// guarantees.
type Store interface {
	// Read runs fn on one consistent view of the state. Several run at once.
	Read(ctx context.Context, fn func(*Tx) error) error
	// Write runs fn in a transaction, beside no other write. When it returns nil
	// the change is kept, also through a kill of the host; after any error nothing
	// of it is. Other hosts see the change at once. fn must not keep tx, and must not
	// call Read or Write.
	Write(ctx context.Context, fn func(*Tx) error) error
	// Export writes the state of the parts named, of all when none is, as NDJSON.
	Export(ctx context.Context, w io.Writer, parts ...string) error
	// Import reads what Export wrote, adding to what is there, or in its place.
	// It is imported completely or, after an error, not at all.
	Import(ctx context.Context, r io.Reader, how How) (Counts, error)
	// Dir is the folder that the state is in, for what belongs beside it; "" = in memory.
	Dir() string
	// Close waits for what runs and lets the file go. It may be called twice.
	Close() error
}

// How says what an import does with the state there is.
type How int

// The values of How.
const (
	Merge   How = iota // keep it; the same thing in both is replaced
	Replace            // the parts that the import has are emptied first
)

// Counts is how many records of each kind were taken.
type Counts map[string]int

// Opener returns a store when it is first needed: to open one takes longer than a start may.
// What kept it from opening may be gone at the next call.
type Opener func(context.Context) (Store, error)

// Read is Store.Read on the store that o gives.
func (o Opener) Read(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Read(ctx, fn)
}

// Write is Store.Write on the store that o gives.
func (o Opener) Write(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Write(ctx, fn)
}

// What keeps a store from being used. Errors of Open and of the Store wrap them.
var (
	// ErrForeign is for a file that is no a2e store. It was not touched.
	ErrForeign error = lasting("the file is not an a2e store")
	// ErrNewer is for a file of a newer a2e. It was not touched.
	ErrNewer error = lasting("the file was written by a newer a2e")
	// ErrCorrupt is for a damaged file.
	ErrCorrupt error = lasting("the file is damaged")
	// ErrFull says that the disk, or the space that the store may take, is full.
	// Nothing of the change was kept.
	ErrFull = errors.New("no space is left for the store")
	// ErrMoved says that the file was taken away, or another put in its place.
	// Nothing of the change was kept.
	ErrMoved = errors.New("the file was moved, removed or replaced")
	// ErrUnavailable says that the server of the state cannot be reached for now, or not be
	// written to. Nothing of the change was kept, unless the text says that this cannot be told.
	ErrUnavailable = errors.New("the server of the state cannot be reached")
	// ErrRefused says that the server does not let this user in.
	ErrRefused error = lasting("the server of the state refuses this user")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// lasting is an error that a later try meets again, until somebody mends the file.
type lasting string

// Error implements error.
func (e lasting) Error() string { return string(e) }

// Lasting reports that the same request fails again; the host says so on the wire.
func (lasting) Lasting() bool { return true }

// Result codes of SQLite: the low byte of an extended one.
const (
	codeBusy       = 5
	codeIO         = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCannotOpen = 14
	codeNotADB     = 26
)

// Extended codes of codeIO that a full disk has as well: SQLite says codeFull only where it
// writes to the file or its log, and the system said just that.
const (
	codeWrite = codeIO | 3<<8
	codeBegin = codeIO | 18<<8 // of the shared memory beside the log
	codeGrow  = codeIO | 19<<8
)

// resultCode returns SQLite's primary result code of an error; 0 = not SQLite's.
func resultCode(err error) int { return extendedCode(err) & 0xff }

func extendedCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// explain says what a failure of SQLite means.
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

// Report is what Check found.
type Report struct {
	Path     string         `json:"path"`   // of the file, or the server's address without what is secret
	Server   string         `json:"server"` // its version and the extensions it has for the state; "" = it is a file
	Exists   bool           `json:"exists"` // without a file or a schema nothing else is known
	Bytes    int64          `json:"bytes"`  // of the file and its log, or of the tables
	Parts    map[string]int `json:"parts"`  // the version of each
	Problems []string       `json:"problems"`
	// Checksums reports whether damage of pages is found; files of older hosts have none.
	Checksums bool `json:"checksums"`
}

// Check reads the whole file in search of damage. It makes none where there is
// none. The error says why the file could not be looked at.
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

// partVersions adds the version of each part.
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
