package hosttest

import (
	"bytes"
	"slices"
	"sync"

	"a2e/host/observe/event"
)

// Trail keeps events in memory.
type Trail struct {
	mu     sync.Mutex
	events []event.Event // guarded by mu
}

// Of returns a stream, for host.Options, whose events of the given kinds the trail keeps.
func (a *Trail) Of(kinds event.Kind) *event.Stream { return event.New(nil).With(a, kinds) }

// Take implements event.Sink.
func (a *Trail) Take(e event.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.Message = bytes.Clone(e.Message)
	a.events = append(a.events, e)
}

// Entries returns the events so far.
func (a *Trail) Entries() []event.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

// Log is a writer for the log of a plugin that a test can read. The zero value is ready to use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns everything that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
