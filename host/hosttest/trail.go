package hosttest

import (
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
