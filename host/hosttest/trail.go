package hosttest

import (
	"bytes"
	"slices"
	"sync"

	"a2e/host/audit"
)

// Trail is an audit trail in memory, for host.Options.
type Trail struct {
	mu      sync.Mutex
	entries []audit.Entry // guarded by mu
}

// Record keeps one entry.
func (a *Trail) Record(e audit.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entries = append(a.entries, e)
}

// Entries returns those so far.
func (a *Trail) Entries() []audit.Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.entries)
}

// Log is what a plugin logs to, and its test reads. The zero value works.
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

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
