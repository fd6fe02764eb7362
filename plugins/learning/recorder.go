package learning

import (
	"math"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/plugins/learning/quantile"
)

const (
	// pendingCalls is how many calls wait before they are added up: looking a
	// component up costs more than noting a call.
	pendingCalls = 256
	// maxCorrelations is how many of the last calls feedback finds by their
	// correlation: of one host between two flushes, and in the store.
	maxCorrelations = 10_000
	// maxCorrelation is the length of a correlation that is kept, in bytes.
	maxCorrelation = 200
	// maxReward bounds the rewards that count: the squares of larger ones add up to
	// no number.
	maxReward = 1e100
)

// component is what calls are counted for and feedback is about.
type component struct{ kind, name string }

// noted is a call as it waits to be added up.
type noted struct {
	component
	correlation string
	at          int64 // microseconds since 1970
	duration    time.Duration
	reward      float64 // NaN = none
	success     bool
}

// correlated says which component a correlation belongs to.
type correlated struct {
	component
	correlation string
}

// recorder adds calls up until somebody takes the sums.
type recorder struct {
	now  func() time.Time
	wake chan struct{} // of capacity 1: there is something to take

	mu      sync.Mutex // guards the fields below
	pending []noted    // at most pendingCalls
	counted counted
}

// counted is what was counted since the last flush.
type counted struct {
	tallies map[component]*tally
	recent  recent
}

func newRecorder(now func() time.Time) *recorder {
	return &recorder{now: now, wake: make(chan struct{}, 1), pending: make([]noted, 0, pendingCalls), counted: newCounted()}
}

func newCounted() counted { return counted{tallies: make(map[component]*tally)} }

// add notes one call.
func (r *recorder) add(c host.CallRecord) {
	n := noted{component{c.Kind, c.Component}, c.Correlation, r.now().UnixMicro(), c.Duration, math.NaN(), c.Success}
	if c.Reward != nil {
		n.reward = *c.Reward
	}
	if len(n.correlation) > maxCorrelation {
		n.correlation = ""
	}
	r.mu.Lock()
	first := len(r.pending) == 0
	r.pending = append(r.pending, n)
	if len(r.pending) == pendingCalls {
		r.foldLocked()
	}
	r.mu.Unlock()
	if first {
		select {
		case r.wake <- struct{}{}:
		default: // it is awake
		}
	}
}

// foldLocked adds up the calls that wait.
func (r *recorder) foldLocked() {
	var last *tally
	var of component
	for i := range r.pending {
		n := &r.pending[i]
		if last == nil || of != n.component {
			last, of = r.counted.tally(n.component), n.component
		}
		last.add(n)
		if n.correlation != "" {
			r.counted.recent.add(correlated{n.component, n.correlation})
		}
	}
	r.pending = r.pending[:0]
}

// take gives what was counted, and begins anew.
func (r *recorder) take() counted {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.foldLocked()
	taken := r.counted
	r.counted = newCounted()
	return taken
}

// putBack adds what could not be flushed to what was counted meanwhile.
func (r *recorder) putBack(c counted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	newer := r.counted
	r.counted = c
	for of, t := range newer.tallies {
		c.tally(of).merge(t)
	}
	for _, one := range newer.recent.all() {
		r.counted.recent.add(one)
	}
}

func (c *counted) empty() bool { return len(c.tallies) == 0 }

func (c *counted) tally(of component) *tally {
	t := c.tallies[of]
	if t == nil {
		t = &tally{}
		c.tallies[of] = t
	}
	return t
}

// recent is a ring of the last correlations.
type recent struct {
	ring []correlated // grows up to maxCorrelations
	next int          // where the next one goes, once the ring is full
}

func (r *recent) add(c correlated) {
	if len(r.ring) < maxCorrelations {
		r.ring = append(r.ring, c)
		return
	}
	r.ring[r.next] = c
	r.next = (r.next + 1) % len(r.ring)
}

// all gives them, the oldest first.
func (r *recent) all() []correlated { return slices.Concat(r.ring[r.next:], r.ring[:r.next]) }

// tally is the sums of the calls of one component.
type tally struct {
	calls, successes int64
	duration         time.Duration
	lastCalled       int64 // microseconds since 1970
	rewards          moments
	durations        quantile.Sketch // in seconds
}

func (t *tally) add(n *noted) {
	t.calls++
	if n.success {
		t.successes++
	}
	d := max(n.duration, 0)
	t.duration += d
	t.durations.Add(d.Seconds())
	t.lastCalled = max(t.lastCalled, n.at)
	if math.Abs(n.reward) <= maxReward { // so it is a number
		t.rewards.add(n.reward)
	}
}

// merge adds the sums of other calls of the component.
func (t *tally) merge(o *tally) {
	t.calls += o.calls
	t.successes += o.successes
	t.duration += o.duration
	t.lastCalled = max(t.lastCalled, o.lastCalled)
	t.rewards.merge(o.rewards)
	t.durations.Merge(&o.durations)
}

// moments is the mean of numbers and how they spread around it: Welford's sums, and
// Chan, Golub and LeVeque's way to merge two of them ("Updating Formulae and a
// Pairwise Algorithm for Computing Sample Variances", 1979).
type moments struct {
	n    int64
	mean float64
	m2   float64 // sum of the squares of the distances from the mean
}

func (m *moments) add(x float64) { m.merge(moments{n: 1, mean: x}) }

func (m *moments) merge(o moments) {
	if m.n == 0 {
		*m = o
		return
	}
	n := m.n + o.n
	delta := o.mean - m.mean
	m.mean += delta * float64(o.n) / float64(n)
	m.m2 += o.m2 + delta*delta*float64(m.n)*float64(o.n)/float64(n)
	m.n = n
}

// variance is that of a sample; 0 where there are less than two.
func (m *moments) variance() float64 {
	if m.n < 2 {
		return 0
	}
	return m.m2 / float64(m.n-1)
}
