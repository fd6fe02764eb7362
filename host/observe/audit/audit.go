// Package audit keeps the host's trail: one JSON line for each handled request,
// every line carrying the SHA-256 of the line before it (`prev`), so that a
// changed, removed or moved entry is found by [Verify].
//
//	audit.go   Log: a sink of events, that writes them in the background
//	entry.go   the lines, their links and signatures
//	file.go    the file, which others may move, and share
//	key.go     what signs
//	verify.go  what checks
//
// A disk that fails costs entries, never requests: what does not fit in memory
// is counted and the count becomes an entry of its own (`audit/dropped`).
// Several hosts may share one file. Entries survive the death of the process
// from the moment they are written; nothing is synced, so the last ones may be
// lost when the machine itself goes down.
package audit

import (
	"cmp"
	"errors"
	"time"

	"a2e/host/observe/event"
)

const (
	maxPending = 4 << 20
	batchDelay = 5 * time.Millisecond
)

// Options says where a Log writes.
type Options struct {
	// Path is the file. It may be moved or removed at any time: the next entries go into a new one,
	// whose first entry has the link of the last. Path.lock lies beside it. Missing folders are made
	// (mode 0700) when the first entry is written.
	Path string
	// Key signs the entries.
	Key Key
	// Session is the session id of all entries; "" = that of the event.
	Session string
	// Logger gets one line for a person, without a newline, when the disk fails
	// (at most once a minute), when it works again and when a half line was cut
	// off. It must not block. nil keeps quiet.
	Logger func(line string)
	// Now is the clock of what no event tells the time of; nil means time.Now.
	Now func() time.Time
}

// Log takes events of the kind Request and writes each as an entry. It is an event.Sink, and safe for
// concurrent use.
type Log struct {
	*event.Spool
	file    *file
	session string
}

// Open makes a Log. The file is first opened when there is an entry to write: a half line
// that a killed host left at its end is cut off then; trouble with the disk is told to the
// Logger and tried again later. The error is for Options that cannot work.
func Open(o Options) (*Log, error) {
	if o.Path == "" {
		return nil, errors.New("audit: no path given: name the file to write to")
	}
	if o.Logger == nil {
		o.Logger = func(string) {}
	}
	l := &Log{file: &file{path: o.Path, note: o.Logger, key: o.Key}, session: o.Session}
	l.Spool = event.NewSpool(event.SpoolOptions{
		Name: "audit: " + o.Path, Max: maxPending, Delay: batchDelay, Warn: o.Logger, Now: o.Now,
		Append: appendEntry, Write: l.file.write,
	})
	return l, nil
}

// Take implements event.Sink.
func (l *Log) Take(e event.Event) {
	e.SessionID = cmp.Or(l.session, e.SessionID)
	l.Add(e)
}
