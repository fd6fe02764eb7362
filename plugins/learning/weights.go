package learning

import (
	"context"
	"time"

	"a2e/host"
	"a2e/host/state/store"
)

const (
	// weightsAge is how old the weights in memory may be before the store is asked whether another host
	// has changed them.
	weightsAge = time.Second
	// weightsWait bounds that request to the store, as a request of an agent waits for it.
	// If no weights are in memory, the wait may be as long as firstWait.
	weightsWait = 250 * time.Millisecond
	firstWait   = 5 * time.Second
)

// weights is what the store had at some time. It does not change.
type weights struct {
	of        map[component]float64                // components with a weight
	overrides map[string]map[string]*host.Override // by kind and name
	version   int64                                // totalWeights
	asOf      time.Time                            // zero = never read
}

// Weight implements host.Weigher. A component without a weight has 1. Changes of other hosts are seen
// within a second.
func (p *Plugin) Weight(kind, name string) float64 {
	if w, ok := p.currentWeights().of[component{kind, name}]; ok {
		return w
	}
	return neutralWeight
}

// currentWeights returns the weights in memory, and reads them again if they are old.
func (p *Plugin) currentWeights() *weights {
	w := p.weights.Load()
	if age := p.env.Now().Sub(w.asOf); age >= 0 && age < weightsAge {
		return w
	}
	if w.asOf.IsZero() {
		p.refreshing.Lock()
	} else if !p.refreshing.TryLock() {
		return w // another goroutine is reading them
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
	p.weights.CompareAndSwap(w, next) // unless forgetWeights was called meanwhile
	return next
}

// forgetWeights makes the next use read the weights again. It must be called after a change of them in the
// store.
func (p *Plugin) forgetWeights() {
	p.weights.Store(&weights{})
	p.forgetArms()
}

// readWeights reads the weights if they differ from those of w. After an error of the store it returns
// those of w.
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
	// neutralWeight is the weight of a component for which none is set.
	neutralWeight = 1.0
	// maxHistory is how many changes of weights are kept; the oldest are deleted first.
	maxHistory = 100_000
)

// weightRow is one row of learning_weights.
type weightRow struct {
	Weight    float64 `json:"weight"`
	Strategy  string  `json:"strategy"`   // what set it: a strategy of adapt, or "refinement"
	UpdatedAt int64   `json:"updated_at"` // microseconds since 1970
}

// readWeight returns nil for a component without a weight of its own.
func readWeight(tx *store.Tx, kind, component string) (*weightRow, error) {
	var w weightRow
	there, err := tx.Get("SELECT weight, strategy, updated_at FROM learning_weights WHERE kind = $1 AND component = $2",
		[]any{kind, component}, &w.Weight, &w.Strategy, &w.UpdatedAt)
	if err != nil || !there {
		return nil, err
	}
	return &w, nil
}

// writeWeight writes the row, or deletes it for nil, and makes all hosts read the weights again. The
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

// weightsChanged makes all hosts read the weights and settings again.
func weightsChanged(tx *store.Tx) error {
	_, err := addTotal(tx, totalWeights, total{rows: 1})
	return err
}

// addHistory records that a component has this weight from now on. score is what the component was worth;
// nil = it was not computed.
func addHistory(tx *store.Tx, at int64, kind, component string, weight float64, score *float64, strategy string) error {
	added, err := tx.Exec("INSERT INTO learning_weight_history (at, kind, component, weight, score, strategy) VALUES "+
		"($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
		at, kind, component, weight, score, strategy)
	if err != nil {
		return err
	}
	if added == 0 { // there was a change in the same microsecond
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

// readOverrides returns the settings and texts of components, by kind and name. Settings of a newer build
// that this build does not know are left out.
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

// Overrides implements host.Overrider. Changes of other hosts are seen within a second.
func (p *Plugin) Overrides(kind string) map[string]*host.Override {
	return p.currentWeights().overrides[kind]
}
