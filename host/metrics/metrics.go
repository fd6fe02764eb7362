// Package metrics counts what hosts answer, and tells of it as OpenMetrics and to Prometheus.
//
//	metrics.go  counts of requests and their durations
//	text.go     the page
//	process.go  what the process uses
package metrics

import (
	"slices"
	"sync"
	"time"

	"a2e/host/event"
	"a2e/protocol"
)

// Options say what is measured beside requests.
type Options struct {
	Version   string                     // of this program
	Sessions  func() int                 // that there are
	Processes func() int                 // that run
	Load      func() (open, waiting int) // requests without an answer, and those of them that did not begin
}

// Metrics counts requests: it is an event.Sink. It is safe for concurrent use.
type Metrics struct {
	opts  Options
	begun time.Time

	mu    sync.Mutex
	types map[string]*requests // guarded by mu
	pairs int                  // of type and outcome; guarded by mu
}

// requests are those of one type.
type requests struct {
	outcomes map[string]uint64
	buckets  []uint64 // of bounds, and one for what took longer
	seconds  float64
}

const (
	maxPairs = 1000    // of type and outcome: what clients say must not make more
	other    = "other" // in the place of further ones
	maxLabel = 100     // bytes
)

// bounds are the upper bounds of the buckets of durations, in seconds.
func bounds() []float64 { return []float64{.0001, .001, .005, .025, .1, .5, 1, 5, 10, 60, 600} }

// New returns a Metrics without a request.
func New(o Options) *Metrics {
	return &Metrics{opts: o, begun: time.Now(), types: make(map[string]*requests)}
}

// Take implements event.Sink.
func (m *Metrics) Take(e event.Event) {
	outcome := e.Outcome()
	at, _ := slices.BinarySearch(bounds(), e.Duration.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.ofLocked(e)
	if r.outcomes[outcome] == 0 {
		if m.pairs++; m.pairs > maxPairs || len(outcome) > maxLabel {
			outcome = other
		}
	}
	r.outcomes[outcome]++
	r.buckets[at]++
	r.seconds += e.Duration.Seconds()
}

// ofLocked returns the counts of an event's type. Types that nothing here has answered well are
// no label, unless the protocol has them: a client may send any.
func (m *Metrics) ofLocked(e event.Event) *requests {
	name := e.Type
	_, known := protocol.Lookup(protocol.Type(name))
	foreign := !known && e.ErrorCode != ""
	if m.types[name] == nil && (foreign || m.pairs >= maxPairs || len(name) > maxLabel || name == "") {
		name = other
	}
	if m.types[name] == nil {
		m.types[name] = &requests{outcomes: make(map[string]uint64), buckets: make([]uint64, len(bounds())+1)}
	}
	return m.types[name]
}
