package learning

import (
	"context"
	"time"

	"a2e/host"
	"a2e/host/state/store"
)

const (
	// weightsAge is how old the weights in memory may be before the store is asked
	// whether another host has changed them.
	weightsAge = time.Second
	// weightsWait bounds that question: it is asked on the way of some request. Where
	// nothing is known yet, or no longer, the answer is worth firstWait.
	weightsWait = 250 * time.Millisecond
	firstWait   = 5 * time.Second
)

// weights is what the store had at some time. It does not change.
type weights struct {
	of        map[component]float64                // of those that have one
	overrides map[string]map[string]*host.Override // by kind and name
	version   int64                                // totalWeights
	asOf      time.Time                            // zero = never read
}

// Weight implements host.Weigher. A component that nobody set a weight for has 1. What
// other hosts change is seen within a second.
func (p *Plugin) Weight(kind, name string) float64 {
	if w, ok := p.currentWeights().of[component{kind, name}]; ok {
		return w
	}
	return neutralWeight
}

// currentWeights returns the weights in memory, read again when they are old.
func (p *Plugin) currentWeights() *weights {
	w := p.weights.Load()
	if age := p.env.Now().Sub(w.asOf); age >= 0 && age < weightsAge {
		return w
	}
	if w.asOf.IsZero() {
		p.refreshing.Lock()
	} else if !p.refreshing.TryLock() {
		return w // somebody is at it
	}
	defer p.refreshing.Unlock()
	if now := p.weights.Load(); now != w {
		return now
	}
	wait := weightsWait
	if w.asOf.IsZero() {
		wait = firstWait
	}
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	next := p.readWeights(ctx, w)
	p.weights.CompareAndSwap(w, next) // unless they were forgotten meanwhile
	return next
}

// forgetWeights has the weights read anew at the next question. Whoever has changed
// them in the store calls it.
func (p *Plugin) forgetWeights() {
	p.weights.Store(&weights{})
	p.forgetArms()
}

// readWeights reads the weights where they are not those of w. Where the store fails
// those of w stand for another while.
func (p *Plugin) readWeights(ctx context.Context, w *weights) *weights {
	next := &weights{of: w.of, overrides: w.overrides, version: w.version, asOf: p.env.Now()}
	if p.env.StoreExists != nil && !p.env.StoreExists() {
		return next
	}
	s, err := p.env.Store(ctx)
	if err != nil {
		return next
	}
	err = s.Read(ctx, func(tx *store.Tx) error {
		sum, err := readTotal(tx, totalWeights)
		if err != nil || sum.rows == w.version && w.of != nil {
			return err
		}
		of := make(map[component]float64)
		next.version = sum.rows
		err = tx.Each("SELECT kind, component, weight FROM learning_weights", nil, func(scan func(...any) error) error {
			var c component
			var weight float64
			err := scan(&c.kind, &c.name, &weight)
			of[c] = weight
			return err
		})
		if err != nil {
			return err
		}
		overrides, err := readOverrides(tx, p.opts.RefineTexts)
		if err == nil {
			next.of, next.overrides = of, overrides
		}
		return err
	})
	if err != nil {
		next.version = w.version
	}
	return next
}

const (
	// neutralWeight is that of a component nobody set a weight for.
	neutralWeight = 1.0
	// maxHistory is how many changes of weights are kept; the oldest go first.
	maxHistory = 100_000
)

// weightRow is one row of learning_weights.
type weightRow struct {
	Weight    float64 `json:"weight"`
	Strategy  string  `json:"strategy"`   // what set it: a strategy of adapt, or "refinement"
	UpdatedAt int64   `json:"updated_at"` // microseconds since 1970
}

// readWeight returns nil for a component that has no weight of its own.
func readWeight(tx *store.Tx, kind, component string) (*weightRow, error) {
	var w weightRow
	there, err := tx.Get("SELECT weight, strategy, updated_at FROM learning_weights WHERE kind = $1 AND component = $2",
		[]any{kind, component}, &w.Weight, &w.Strategy, &w.UpdatedAt)
	if err != nil || !there {
		return nil, err
	}
	return &w, nil
}

// writeWeight puts the row in place, nil taking it away, and lets all hosts know. The
// caller adds to the history.
func writeWeight(tx *store.Tx, kind, component string, w *weightRow) (err error) {
	if w == nil {
		_, err = tx.Exec("DELETE FROM learning_weights WHERE kind = $1 AND component = $2", kind, component)
	} else {
		_, err = tx.Exec(`INSERT INTO learning_weights (kind, component, updated_at, weight, strategy) VALUES ($1,
			$2, $3, $4, $5)
			ON CONFLICT (kind, component) DO UPDATE SET updated_at = excluded.updated_at, weight = excluded.weight,
			strategy = excluded.strategy`,
			kind, component, w.UpdatedAt, w.Weight, w.Strategy)
	}
	if err != nil {
		return err
	}
	return weightsChanged(tx)
}

// weightsChanged has all hosts read the weights and settings anew.
func weightsChanged(tx *store.Tx) error {
	_, err := addTotal(tx, totalWeights, total{rows: 1})
	return err
}

// addHistory notes that a component has this weight from now on. score is what it was
// worth; nil = nobody looked.
func addHistory(tx *store.Tx, at int64, kind, component string, weight float64, score *float64, strategy string) error {
	added, err := tx.Exec("INSERT INTO learning_weight_history (at, kind, component, weight, score, strategy) VALUES "+
		"($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
		at, kind, component, weight, score, strategy)
	if err != nil {
		return err
	}
	if added == 0 { // two changes within a microsecond
		_, err := tx.Exec("UPDATE learning_weight_history SET weight = $1, score = $2, strategy = $3 WHERE kind = $4 "+
			"AND component = $5 AND at = $6",
			weight, score, strategy, kind, component, at)
		return err
	}
	sum, err := addTotal(tx, totalHistory, total{rows: 1})
	if err != nil || sum.rows <= maxHistory {
		return err
	}
	gone, err := tx.Exec("DELETE FROM learning_weight_history WHERE number IN (SELECT number FROM "+
		"learning_weight_history ORDER BY number LIMIT $1)", sum.rows-maxHistory)
	if err == nil {
		_, err = addTotal(tx, totalHistory, total{rows: -gone})
	}
	return err
}

// readOverrides returns what components were set to, by kind and name. What this build does
// not know, as a newer one has set it, is left out.
func readOverrides(tx *store.Tx, texts bool) (map[string]map[string]*host.Override, error) {
	all := make(map[string]map[string]*host.Override)
	return all, tx.Each("SELECT kind, component, name, value FROM learning_settings", nil,
		func(scan func(...any) error) error {
			var t target
			var raw []byte
			err := scan(&t.Kind, &t.Component, &t.Name, &raw)
			o := all[t.Kind][t.Component]
			if o == nil {
				o = &host.Override{}
			}
			if t.Target = targetSetting; len(textTargets(t.Kind, t.Name)) == 1 {
				t.Target = targetText
			}
			if (texts || t.Target != targetText) && t.set(o, raw) == nil {
				if all[t.Kind] == nil {
					all[t.Kind] = make(map[string]*host.Override)
				}
				all[t.Kind][t.Component] = o
			}
			return err
		})
}

var _ host.Overrider = (*Plugin)(nil)

// Overrides implements host.Overrider. What other hosts change is seen within a second.
func (p *Plugin) Overrides(kind string) map[string]*host.Override {
	return p.currentWeights().overrides[kind]
}
