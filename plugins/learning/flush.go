package learning

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/store"
)

// flushEvery is how long a counted call stays in memory only.
const flushEvery = time.Second

// RecordCall implements host.Recorder. A call is in the store a second later, or when
// somebody asks for what was counted.
func (p *Plugin) RecordCall(c host.CallRecord) { p.recorder.add(c) }

// Start implements host.Starter. The store is opened when there is something to put
// into it.
func (p *Plugin) Start(context.Context, *host.Services) error {
	p.goes.Go(p.flushNowAndThen)
	return nil
}

// Close implements host.Plugin. What was counted is in the store when it returns nil.
func (p *Plugin) Close(ctx context.Context) error {
	p.stop() // the last flush goes on ctx
	p.goes.Wait()
	return p.flush(ctx)
}

// flushNowAndThen flushes a while after each first call, until Close.
func (p *Plugin) flushNowAndThen() {
	clock := time.NewTimer(flushEvery)
	defer clock.Stop()
	failing := false
	for {
		select {
		case <-p.recorder.wake:
		case <-p.ctx.Done():
			return
		}
		clock.Reset(flushEvery)
		select {
		case <-clock.C:
		case <-p.ctx.Done():
			return
		}
		err := p.flush(p.ctx)
		if err != nil && !failing && p.ctx.Err() == nil {
			p.env.Log.Error().Err(err).Str("plugin", p.name).Msg("what was counted of calls stays in memory: the store failed")
		}
		failing = err != nil
	}
}

// flush puts what was counted into the store. After an error it is still counted.
func (p *Plugin) flush(ctx context.Context) error {
	select {
	case p.flushing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.flushing }()
	c := p.recorder.take()
	if c.empty() {
		return nil
	}
	s, err := p.env.Store(ctx)
	if err == nil {
		err = s.Write(ctx, c.write)
	}
	if err != nil {
		p.recorder.putBack(c)
	}
	return err
}

// write adds what was counted to what the store has: other hosts count the same
// components.
func (c *counted) write(tx *store.Tx) error {
	for of, t := range c.tallies {
		if err := t.addTo(tx, of); err != nil {
			return err
		}
	}
	return writeRecent(tx, c.recent.all())
}

// addTo adds the sums to the component's row.
func (t *tally) addTo(tx *store.Tx, of component) error {
	number, err := ensureComponent(tx, of)
	if err != nil {
		return err
	}
	sum, err := readTally(tx, number)
	if err != nil {
		return err
	}
	sum.merge(t)
	return sum.write(tx, number)
}

// ensureComponent gives the number of the component's row, made if there is none.
func ensureComponent(tx *store.Tx, of component) (number int64, err error) {
	there, err := tx.Get("SELECT number FROM learning_components WHERE kind = ? AND name = ?", []any{of.kind, of.name}, &number)
	if err != nil || there {
		return number, err
	}
	number, _, err = tx.Exec("INSERT INTO learning_components (kind, name) VALUES (?, ?)", of.kind, of.name)
	return number, err
}

// readTally gives the sums of a component's row.
func readTally(tx *store.Tx, number int64) (*tally, error) {
	t := &tally{}
	var sketch []byte
	_, err := tx.Get("SELECT calls, successes, duration, last_called, rewards, reward_mean, reward_m2, durations FROM learning_components WHERE number = ?", []any{number},
		&t.calls, &t.successes, &t.duration, &t.lastCalled, &t.rewards.n, &t.rewards.mean, &t.rewards.m2, &sketch)
	if err == nil {
		// A sketch that cannot be read counts anew: it is worth less than the calls that
		// wait to be counted.
		_ = t.durations.UnmarshalBinary(sketch)
	}
	return t, err
}

func (t *tally) write(tx *store.Tx, number int64) error {
	var sketch []byte // none for what was never called
	if t.durations.Count() > 0 {
		sketch, _ = t.durations.MarshalBinary() // never fails
	}
	_, _, err := tx.Exec(`UPDATE learning_components SET calls = ?, successes = ?, duration = ?, last_called = ?, rewards = ?, reward_mean = ?, reward_m2 = ?, durations = ?
		WHERE number = ?`, t.calls, t.successes, int64(t.duration), t.lastCalled, t.rewards.n, t.rewards.mean, t.rewards.m2, sketch, number)
	return err
}

// run is calls in a row of one component, as learning_calls keeps them.
type run struct {
	Kind         string   `json:"k"`
	Component    string   `json:"c"`
	Correlations []string `json:"r"`
}

// writeRecent keeps the correlations of the last calls, all hosts together.
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
	raw, err := json.Marshal(runs)
	if err != nil {
		return err
	}
	if _, _, err := tx.Exec("INSERT INTO learning_calls (count, calls) VALUES (?, ?)", len(calls), string(raw)); err != nil {
		return err
	}
	return trimRecent(tx, int64(len(calls)))
}

// trimRecent counts what was added, and removes the oldest rows as long as enough is left
// without them.
func trimRecent(tx *store.Tx, added int64) error {
	sum, err := addTotal(tx, totalCalls, added, 0)
	if err != nil {
		return err
	}
	for sum.rows > maxCorrelations {
		var number, count int64
		there, err := tx.Get("SELECT number, count FROM learning_calls ORDER BY number LIMIT 1", nil, &number, &count)
		if err != nil || !there || sum.rows-count < maxCorrelations {
			return err
		}
		if _, _, err := tx.Exec("DELETE FROM learning_calls WHERE number = ?", number); err != nil {
			return err
		}
		if sum, err = addTotal(tx, totalCalls, -count, 0); err != nil {
			return err
		}
	}
	return nil
}

// findCalls gives the components of those correlations that a recent call had. Of two
// calls with the same one it is the later.
func findCalls(tx *store.Tx, wanted map[string]bool) (map[string]component, error) {
	found := make(map[string]component)
	if len(wanted) == 0 {
		return found, nil
	}
	err := tx.Each("SELECT calls FROM learning_calls ORDER BY number", nil, func(scan func(...any) error) error {
		var raw string
		if err := scan(&raw); err != nil {
			return err
		}
		var runs []run
		if err := json.Unmarshal([]byte(raw), &runs); err != nil {
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
