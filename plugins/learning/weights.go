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
	next, now := *w, p.env.Now()
	if p.env.StoreExists == nil || p.env.StoreExists() {
		_ = p.env.Store.Read(ctx, func(tx *store.Tx) error {
			sum, err := readTotal(tx, totalWeights)
			if err != nil || sum.rows == w.version && w.of != nil {
				return err
			}
			fresh, err := readSettings(tx, p.opts.RefineTexts)
			if err == nil {
				next = *fresh
				next.version = sum.rows
			}
			return err
		})
	}
	next.asOf = now
	return &next
}

const (
	// neutralWeight is the weight of a component for which none is set.
	neutralWeight = 1.0
	// maxHistory is how many changes of weights are kept; the oldest are deleted first.
	maxHistory = 100_000
)

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

// readSettings reads the weights, settings and texts of components. Settings of a newer build that this build
// does not know are left out.
func readSettings(tx *store.Tx, texts bool) (*weights, error) {
	w := &weights{of: make(map[component]float64), overrides: make(map[string]map[string]*host.Override)}
	return w, tx.Each("SELECT kind, component, name, weight, value FROM learning_settings", nil,
		func(scan func(...any) error) error {
			var of component
			var name string
			var s setting
			err := scan(&of.kind, &of.name, &name, &s.Weight, (*[]byte)(&s.Value))
			if s.Weight != nil {
				w.of[of] = *s.Weight
				return err
			}
			t, o := settingOf(of.kind, of.name, name), w.overrides[of.kind][of.name]
			if o == nil {
				o = &host.Override{}
			}
			if (texts || t.Target != targetText) && t.set(o, s.Value) == nil {
				if w.overrides[of.kind] == nil {
					w.overrides[of.kind] = make(map[string]*host.Override)
				}
				w.overrides[of.kind][of.name] = o
			}
			return err
		})
}

var _ host.Overrider = (*Plugin)(nil)

// Overrides implements host.Overrider. Changes of other hosts are seen within a second.
func (p *Plugin) Overrides(kind string) map[string]*host.Override {
	return p.currentWeights().overrides[kind]
}
