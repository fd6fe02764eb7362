// Package audit writes the host's audit log: one JSON line for each handled request. Every line contains the SHA-256 of
// the line before it (`prev`), so that [Verify] finds a changed, removed or moved entry.
//
//	audit.go   Log: a sink of events, that writes them in the background
//	entry.go   the lines, their links and signatures
//	file.go    the file, which others may move, and share
//	key.go     what signs
//	verify.go  what checks
//
// If the disk fails, entries are lost, but requests are not affected: entries that do not fit in memory are counted,
// and the count becomes an entry (`audit/dropped`). Several hosts may share one file. A written entry survives the
// death of the process. The file is not synced, so the last entries may be lost if the machine crashes.
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

// Options says where and how a Log writes.
type Options struct {
	// Path is the path of the file. The file may be moved or removed at any time: the next entries go into
	// a new one, whose first entry links to the last one before. Path.lock lies next to it. Missing
	// folders are made (mode 0700) when the first entry is written.
	Path string
	// Key signs the entries.
	Key Key
	// Session is the session id of all entries; "" = the session id of the event.
	Session string
	// Logger receives one line of text, without a newline, when the disk fails (at most once a minute),
	// when it works again and when an incomplete line was removed. It must not block. nil = no messages.
	Logger func(line string)
	// Now returns the time for entries without an event; nil = time.Now.
	Now func() time.Time
}

// Log takes events of the kind Request and writes each as an entry. It is an event.Sink, and safe for concurrent use.
type Log struct {
	*event.Spool
	file    *file
	session string
}

// Open makes a Log. The file is first opened when there is an entry to write. An incomplete line that
// a killed host left at its end is removed then. Disk errors are reported to the Logger, and writing
// is tried again later. The error is for invalid Options.
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
