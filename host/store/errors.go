package store

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
)

// What keeps a store from being used. Errors of Open and of the Store wrap them.
var (
	// ErrForeign is for a file that is no a2e store. It was not touched.
	ErrForeign error = lasting("the file is no a2e store")
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
	codeBusy    = 5
	codeIO      = 10
	codeCorrupt = 11
	codeFull    = 13
	codeNotADB  = 26
)

// resultCode gives SQLite's primary result code of an error; 0 = not SQLite's.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// explain says what a failure of SQLite means.
func explain(path string, err error) error {
	switch resultCode(err) {
	case 0:
		return err
	case codeCorrupt:
		return fmt.Errorf("%s: %w; `a2e doctor` checks it, a snapshot or an export can replace it: %w", path, ErrCorrupt, err)
	case codeNotADB:
		return fmt.Errorf("%s: %w; move it away, or set another state_dir: %w", path, ErrForeign, err)
	case codeFull:
		return fmt.Errorf("%s: %w: %w", path, ErrFull, err)
	case codeBusy:
		return fmt.Errorf("%s: another process has been writing for too long; try again: %w", path, err)
	case codeIO:
		return fmt.Errorf("%s: cannot be read or written: %w", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}
