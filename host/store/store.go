// Package store keeps the host's state on disk: one SQLite file that several
// hosts share.
//
//	store.go   what a store is            sqlite.go    open, read, close
//	check.go   looks for damage           file.go      whose file it is, and whether it stays
//	part.go    who keeps what, and how    write.go     one writer, many waiting: group commit
//	           old files are brought up   conn.go      a connection, its statements
//	opener.go  a store that is opened when it is needed
//	errors.go  what can go wrong          transfer.go  export and import as NDJSON
package store

import (
	"context"
	"io"
)

// FileName is the store's file within the host's state_dir.
const FileName = "state.db"

// Store is state that outlives the host. SQLite is the one there is; whatever
// else stands behind it one day gives the same guarantees.
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
	// All of it is taken or, after an error, nothing.
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
