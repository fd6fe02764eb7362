package learning

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/state/store"
)

const (
	// flushEvery is how long a counted call may be only in memory.
	flushEvery = time.Second
	// maxCorrelations is how many of the last calls feedback can find by their correlation: of one host
	// between two flushes, and in the store.
	maxCorrelations = 10_000
	// maxCorrelation bounds a correlation that is kept, in bytes.
	maxCorrelation = 200
	// maxReward bounds the rewards that are counted: the squares of larger ones would overflow.
	maxReward = 1e100
)

// component identifies what calls are counted for and what feedback is about.
type component struct{ kind, name string }

// correlated is the component of a correlation.
type correlated struct {
	component
	correlation string
}

// callBuffer sums up calls until they are flushed.
type callBuffer struct {
	wake chan struct{} // of capacity 1: there is something to flush

	mu      sync.Mutex // guards the fields below
	counted counted
	arms    map[component]*arm // components to choose from
	random  *rand.Rand
}

// counted is what was counted since the last flush.
type counted struct {
	tallies map[component]*tally
	last    *tally // the tally of lastOf, as calls of one component often come in a row
	lastOf  component
	recent  []correlated // grows up to maxCorrelations, then it is a ring
	oldest  int          // index of the oldest in recent, once recent is full
}

func newCallBuffer() *callBuffer {
	return &callBuffer{
		wake: make(chan struct{}, 1), counted: counted{tallies: make(map[component]*tally)},
		arms: make(map[component]*arm), random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
}

// CountCall implements host.CallCounter. A call is in the store a second later, or when something asks for
// the counts.
func (p *Plugin) CountCall(c host.CallOutcome) {
	at, r := c.Ended.UnixMicro(), p.buffer
	if c.Ended.IsZero() {
		at = p.nowMicros()
	}
	if c.Reward != nil && !(math.Abs(*c.Reward) <= maxReward) { // this also refuses NaN
		c.Reward = nil
	}
	r.mu.Lock()
	first := len(r.counted.tallies) == 0
	of := component{c.Kind, c.Component}
	r.counted.tally(of).add(&c, at)
	if a := r.arms[of]; a != nil {
		a.count(&c)
	}
	if c.Correlation != "" && len(c.Correlation) <= maxCorrelation {
		r.counted.correlate(correlated{of, c.Correlation})
	}
	r.mu.Unlock()
	if first {
		r.flushSoon()
	}
}

// flushSoon wakes the goroutine that flushes.
func (r *callBuffer) flushSoon() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// take returns what was counted, and starts again from zero.
func (r *callBuffer) take() counted {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.counted
	r.counted = counted{tallies: make(map[component]*tally)}
	return taken
}

// putBack adds what could not be flushed to what was counted meanwhile.
func (r *callBuffer) putBack(c counted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	newer := r.counted
	for of, t := range newer.tallies {
		c.tally(of).merge(t)
	}
	for _, one := range newer.correlations() {
		c.correlate(one)
	}
	r.counted = c
}

func (c *counted) tally(of component) *tally {
	if c.last != nil && c.lastOf == of {
		return c.last
	}
	t := c.tallies[of]
	if t == nil {
		t = &tally{}
		c.tallies[of] = t
	}
	c.last, c.lastOf = t, of
	return t
}

func (c *counted) correlate(one correlated) {
	if len(c.recent) < maxCorrelations {
		c.recent = append(c.recent, one)
		return
	}
	c.recent[c.oldest] = one
	c.oldest = (c.oldest + 1) % len(c.recent)
}

// correlations returns the correlations of the last calls, the oldest first.
func (c *counted) correlations() []correlated {
	return slices.Concat(c.recent[c.oldest:], c.recent[:c.oldest])
}

// tally is the sums over the calls of one component.
type tally struct {
	calls, successes int64
	duration         time.Duration
	lastCalled       int64 // microseconds since 1970
	rewards          moments
	durations        durations
}

// sums returns the sums that choices use.
func (t *tally) sums() sums { return sums{t.calls, t.successes, t.rewards.n, t.rewards.sum()} }

func (t *tally) add(c *host.CallOutcome, at int64) {
	t.calls++
	if c.Success {
		t.successes++
	}
	d := max(c.Duration, 0)
	t.duration += d
	t.durations.add(d, 1)
	t.lastCalled = max(t.lastCalled, at)
	if c.Reward != nil {
		t.rewards.merge(moments{1, *c.Reward, 0, *c.Reward, *c.Reward})
	}
}

// merge adds the sums over other calls of the component.
func (t *tally) merge(o *tally) {
	t.calls += o.calls
	t.successes += o.successes
	t.duration += o.duration
	t.lastCalled = max(t.lastCalled, o.lastCalled)
	t.rewards.merge(o.rewards)
	t.durations.merge(&o.durations)
}

// moments is the mean and the spread of numbers. They are merged by the method of Chan, Golub and LeVeque
// ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
type moments struct {
	n    int64
	mean float64
	m2   float64 // sum of the squares of the distances from the mean

	low, high float64 // the smallest and the greatest number
}

func (m *moments) merge(o moments) {
	if m.n == 0 {
		*m = o
		return
	}
	n := m.n + o.n
	delta := o.mean - m.mean
	m.mean += delta * float64(o.n) / float64(n)
	m.m2 += o.m2 + delta*delta*float64(m.n)*float64(o.n)/float64(n)
	m.n, m.low, m.high = n, min(m.low, o.low), max(m.high, o.high)
}

func (m *moments) sum() float64 { return float64(m.n) * m.mean }

// variance returns the sample variance; 0 for less than two numbers.
func (m *moments) variance() float64 {
	if m.n < 2 {
		return 0
	}
	return m.m2 / float64(m.n-1)
}

// Start implements host.Starter. The store is opened only when something is to be written.
func (p *Plugin) Start(_ context.Context, s *host.Services) error {
	p.services = s
	p.goes.Go(p.flushNowAndThen)
	return nil
}

// CloseTimeout implements host.SlowCloser: Close may take as long as saving does, as what is not flushed
// is lost.
func (p *Plugin) CloseTimeout() time.Duration { return host.SaveTime }

// Close implements host.Plugin. If it returns nil, everything that was counted is in the store.
func (p *Plugin) Close(ctx context.Context) error {
	p.stop() // the last flush uses ctx
	p.goes.Wait()
	return p.flush(ctx)
}

// flushNowAndThen flushes flushEvery after each first call, until Close.
func (p *Plugin) flushNowAndThen() {
	failing := false
	for {
		select {
		case <-p.buffer.wake:
		case <-p.ctx.Done():
			return
		}
		select {
		case <-time.After(flushEvery):
		case <-p.ctx.Done():
			return
		}
		err := p.flush(p.ctx)
		if err != nil && !failing && p.ctx.Err() == nil {
			p.env.Log.Error().Err(err).Str("plugin", p.name).Msg("what was counted of calls stays in memory: the " +
				"store failed")
		}
		if failing = err != nil; failing {
			p.buffer.flushSoon() // no call wakes this while some are counted
		}
	}
}

// flush writes what was counted to the store. After an error it is still counted.
func (p *Plugin) flush(ctx context.Context) error {
	select {
	case p.flushing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.flushing }()
	return p.flushHeld(ctx)
}

// flushHeld is flush for a caller that holds flushing.
func (p *Plugin) flushHeld(ctx context.Context) error {
	c := p.buffer.take()
	if len(c.tallies) == 0 {
		return nil
	}
	err := p.env.Store.Write(ctx, func(tx *store.Tx) error {
		if err := c.write(tx); err != nil {
			return err
		}
		return p.endTrials(tx)
	})
	if err != nil {
		p.buffer.putBack(c)
	}
	return err
}

// write adds what was counted to the sums in the store, as other hosts count the same components.
func (c *counted) write(tx *store.Tx) error {
	for of, t := range c.tallies {
		number, err := ensureComponent(tx, of)
		if err != nil {
			return err
		}
		sum, err := readTally(tx, number)
		if err != nil {
			return err
		}
		sum.merge(t)
		if err := sum.write(tx, number); err != nil {
			return err
		}
		if err := countTrials(tx, of, t); err != nil {
			return err
		}
	}
	return writeRecent(tx, c.correlations())
}

// ensureComponent returns the number of the component's row, and makes the row if there is none.
func ensureComponent(tx *store.Tx, of component) (number int64, err error) {
	there, err := tx.Get("SELECT number FROM learning_components WHERE kind = $1 AND name = $2", []any{
		of.kind,
		of.name,
	}, &number)
	if err != nil || there {
		return number, err
	}
	number, err = tx.Insert("INSERT INTO learning_components (kind, name) VALUES ($1, $2) RETURNING number", of.kind,
		of.name)
	return number, err
}

// readTally returns the sums in a component's row.
func readTally(tx *store.Tx, number int64) (*tally, error) {
	t := &tally{}
	var raw []byte
	_, err := tx.Get(`SELECT calls, successes, duration, last_called, rewards, reward_mean, reward_m2, reward_min,
		reward_max, durations FROM learning_components WHERE number = $1`, []any{number},
		&t.calls, &t.successes, &t.duration, &t.lastCalled, &t.rewards.n, &t.rewards.mean, &t.rewards.m2,
		&t.rewards.low, &t.rewards.high, &raw)
	if err == nil {
		// Durations that cannot be read are counted anew: they are worth less than the calls that wait to
		// be counted.
		t.durations, _ = decodeDurations(raw)
	}
	return t, err
}

func (t *tally) write(tx *store.Tx, number int64) error {
	_, err := tx.Exec(`UPDATE learning_components SET calls = $1, successes = $2, duration = $3, last_called = $4,
		rewards = $5, reward_mean = $6, reward_m2 = $7,
		reward_min = $8, reward_max = $9, durations = $10 WHERE number = $11`,
		t.calls, t.successes, int64(t.duration), t.lastCalled, t.rewards.n, t.rewards.mean, t.rewards.m2,
		t.rewards.low, t.rewards.high, t.durations.encode(), number)
	return err
}

// run is consecutive calls of one component, as learning_calls keeps them.
type run struct {
	Kind         string   `json:"k"`
	Component    string   `json:"c"`
	Correlations []string `json:"r"`
}

// writeRecent stores the correlations of the last calls, together with those of other hosts, and deletes
// the oldest rows as long as enough are left.
func writeRecent(tx *store.Tx, calls []correlated) error {
	if len(calls) == 0 {
		return nil
	}
	var runs []run
	for i, c := range calls {
		if i == 0 || c.component != calls[i-1].component {
			runs = append(runs, run{Kind: c.kind, Component: c.name})
		}
		last := &runs[len(runs)-1]
		last.Correlations = append(last.Correlations, c.correlation)
	}
	if _, err := tx.Exec("INSERT INTO learning_calls (count, calls) VALUES ($1, $2)", len(calls),
		store.JSON(runs)); err != nil {
		return err
	}
	sum, err := addTotal(tx, totalCalls, total{rows: int64(len(calls))})
	for err == nil && sum.rows > maxCorrelations {
		var number, count int64
		there, err := tx.Get("SELECT number, count FROM learning_calls ORDER BY number LIMIT 1", nil, &number, &count)
		if err != nil || !there || sum.rows-count < maxCorrelations {
			return err
		}
		if _, err := tx.Exec("DELETE FROM learning_calls WHERE number = $1", number); err != nil {
			return err
		}
		if sum, err = addTotal(tx, totalCalls, total{rows: -count}); err != nil {
			return err
		}
	}
	return err
}

// findCalls returns the components of the wanted correlations that recent calls had. If two calls had the
// same one, the later counts.
func findCalls(tx *store.Tx, wanted map[string]bool) (map[string]component, error) {
	found := make(map[string]component)
	if len(wanted) == 0 {
		return found, nil
	}
	err := tx.Each("SELECT calls FROM learning_calls ORDER BY number", nil, func(scan func(...any) error) error {
		var runs []run
		if err := scan(store.JSON(&runs)); err != nil {
			return err
		}
		for _, r := range runs {
			for _, c := range r.Correlations {
				if wanted[c] {
					found[c] = component{r.Kind, r.Component}
				}
			}
		}
		return nil
	})
	return found, err
}
