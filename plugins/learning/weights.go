package learning

import (
	"context"
	"time"

	"a2e/host/store"
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
	of       map[component]float64 // of those that have one
	settings map[target]any        // of those that were set; see refine_settings.go
	version  int64                 // totalWeights
	asOf     time.Time             // zero = never read
}

// Weight implements host.Weigher. A component that nobody set a weight for has 1. What
// other hosts change is seen within a second.
func (p *Plugin) Weight(kind, name string) float64 {
	if w, ok := p.currentWeights().of[component{kind, name}]; ok {
		return w
	}
	return neutralWeight
}

// currentWeights gives the weights in memory, read again when they are old.
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
func (p *Plugin) forgetWeights() { p.weights.Store(&weights{}) }

// readWeights reads the weights where they are not those of w. Where the store fails
// those of w stand for another while.
func (p *Plugin) readWeights(ctx context.Context, w *weights) *weights {
	next := &weights{of: w.of, settings: w.settings, version: w.version, asOf: p.env.Now()}
	if p.env.Kept != nil && !p.env.Kept() {
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
		settings, err := readSettings(tx)
		if err == nil {
			next.of, next.settings = of, settings
		}
		return err
	})
	if err != nil {
		next.version = w.version
	}
	return next
}
