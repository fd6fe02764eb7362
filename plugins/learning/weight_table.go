package learning

import (
	"math"

	"a2e/host/store"
)

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

// readWeight gives nil for a component that has no weight of its own.
func readWeight(tx *store.Tx, kind, component string) (*weightRow, error) {
	var w weightRow
	there, err := tx.Get("SELECT weight, strategy, updated_at FROM learning_weights WHERE kind = ? AND component = ?",
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
		_, _, err = tx.Exec("DELETE FROM learning_weights WHERE kind = ? AND component = ?", kind, component)
	} else {
		_, _, err = tx.Exec(`INSERT INTO learning_weights (kind, component, updated_at, weight, strategy) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (kind, component) DO UPDATE SET updated_at = excluded.updated_at, weight = excluded.weight, strategy = excluded.strategy`,
			kind, component, w.UpdatedAt, w.Weight, w.Strategy)
	}
	if err == nil {
		_, err = addTotal(tx, totalWeights, 1, 0)
	}
	return err
}

// addHistory notes that a component has this weight from now on. score is what it was
// worth, or NaN.
func addHistory(tx *store.Tx, at int64, kind, component string, weight, score float64, strategy string) error {
	var worth any
	if !math.IsNaN(score) {
		worth = score
	}
	_, added, err := tx.Exec("INSERT INTO learning_weight_history (at, kind, component, weight, score, strategy) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		at, kind, component, weight, worth, strategy)
	if err != nil {
		return err
	}
	if added == 0 { // two changes within a microsecond
		_, _, err := tx.Exec("UPDATE learning_weight_history SET weight = ?, score = ?, strategy = ? WHERE kind = ? AND component = ? AND at = ?",
			weight, worth, strategy, kind, component, at)
		return err
	}
	sum, err := addTotal(tx, totalHistory, 1, 0)
	if err != nil || sum.rows <= maxHistory {
		return err
	}
	_, gone, err := tx.Exec("DELETE FROM learning_weight_history WHERE number IN (SELECT number FROM learning_weight_history ORDER BY number LIMIT ?)", sum.rows-maxHistory)
	if err != nil {
		return err
	}
	_, err = addTotal(tx, totalHistory, -gone, 0)
	return err
}
