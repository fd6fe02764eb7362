package learning

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/protocol"
)

// refinement is one row of learning_refinements with its edits and trials, as exports have it.
type refinement struct {
	number       int64
	ID           string         `json:"refinement_id"`
	ProposalID   string         `json:"proposal_id"` // "" = the agent sent none
	AppliedAt    store.Micros   `json:"applied_at"`
	RolledBackAt *store.Micros  `json:"rolled_back_at"` // nil = in effect
	Proposal     jsontext.Value `json:"proposal"`
	Edits        []*appliedEdit `json:"edits"`
	Trials       []*trial       `json:"trials,omitzero"` // nil = written by an older build
}

// appliedEdit is one row of learning_edits.
type appliedEdit struct {
	target
	Before *setting `json:"before"` // nil = there was none
	After  *setting `json:"after"`
	// Version counts the edits of the target, from 1; 0 = written by an older build.
	Version int64 `json:"version,omitzero"`
}

// target is what an edit changes.
type target struct {
	Target    string `json:"target"` // targetWeight, targetSetting or targetText
	Kind      string `json:"kind"`
	Component string `json:"component"`
	Name      string `json:"name"` // of the setting or text; nameWeight for a weight
}

// weightOf returns the target of a component's weight.
func weightOf(kind, component string) target {
	return target{targetWeight, kind, component, nameWeight}
}

// settingOf returns the target of a setting or text.
func settingOf(kind, component, name string) target {
	if len(textTargets(kind, name)) == 1 {
		return target{targetText, kind, component, name}
	}
	return target{targetSetting, kind, component, name}
}

func (t target) args() []any { return []any{t.Target, t.Kind, t.Component, t.Name} }

func (r *refinement) insert(tx *store.Tx) (err error) {
	r.number, err = tx.Insert("INSERT INTO learning_refinements (id, proposal_id, applied_at, rolled_back_at, "+
		"proposal) VALUES ($1, $2, $3, $4, $5) RETURNING number",
		r.ID, r.ProposalID, r.AppliedAt, r.RolledBackAt, string(r.Proposal))
	for i, e := range r.Edits {
		if err == nil {
			_, err = tx.Exec("INSERT INTO learning_edits (refinement, place, target, kind, component, name, before, "+
				"after, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
				r.number, i, e.Target, e.Kind, e.Component, e.Name, store.JSON(e.Before), store.JSON(e.After),
				e.Version)
		}
	}
	for _, t := range r.Trials {
		if t.refinement = r.number; err == nil {
			err = t.insert(tx)
		}
	}
	return err
}

// remove deletes the refinement from the store; its changes stay.
func (r *refinement) remove(tx *store.Tx) error {
	for _, table := range []string{"learning_edits", "learning_trials"} {
		if _, err := tx.Exec("DELETE FROM "+table+" WHERE refinement = $1", r.number); err != nil {
			return err
		}
	}
	_, err := tx.Exec("DELETE FROM learning_refinements WHERE number = $1", r.number)
	return err
}

// selectRefinements begins each query for refinements.
const selectRefinements = "SELECT number, id, proposal_id, applied_at, rolled_back_at, proposal FROM " +
	"learning_refinements"

// readRefinements returns the refinements that a query finds, with edits and trials.
func readRefinements(tx *store.Tx, query string, args ...any) ([]*refinement, error) {
	all, err := store.Rows(tx, query, args, func(r *refinement) []any {
		return []any{&r.number, &r.ID, &r.ProposalID, &r.AppliedAt, &r.RolledBackAt, (*[]byte)(&r.Proposal)}
	})
	for _, r := range all {
		if err == nil {
			r.Edits, err = store.Rows(tx, "SELECT target, kind, component, name, before, after, version FROM "+
				"learning_edits WHERE refinement = $1 ORDER BY place", []any{r.number},
				func(e *appliedEdit) []any {
					return []any{
						&e.Target, &e.Kind, &e.Component, &e.Name, store.JSON(&e.Before), store.JSON(&e.After),
						&e.Version,
					}
				})
		}
		if err == nil {
			r.Trials, err = readTrials(tx, " WHERE t.refinement = $1 ORDER BY t.kind, t.component", r.number)
		}
	}
	return all, err
}

// findRefinement returns nil if there is none with this id.
func findRefinement(tx *store.Tx, id string) (*refinement, error) {
	all, err := readRefinements(tx, selectRefinements+" WHERE id = $1", id)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// refinementsOf returns the last hundred refinements that changed a target, the newest first.
func refinementsOf(tx *store.Tx, t target) ([]*refinement, error) {
	return readRefinements(tx, selectRefinements+
		" WHERE number IN (SELECT refinement FROM learning_edits WHERE target = $1 AND kind = $2 AND component = $3 "+
		"AND name = $4) ORDER BY number DESC LIMIT 100", t.args()...)
}

// laterRefinement returns the id of the last refinement in effect that changed the target after the
// refinement number; "" = none.
func laterRefinement(tx *store.Tx, t target, number int64) (id string, err error) {
	_, err = tx.Get(`SELECT r.id FROM learning_edits e JOIN learning_refinements r ON r.number = e.refinement
		WHERE e.target = $1 AND e.kind = $2 AND e.component = $3 AND e.name = $4 AND r.number > $5 AND
			r.rolled_back_at IS NULL ORDER BY r.number DESC LIMIT 1`,
		append(t.args(), number), &id)
	return id, err
}

// nextVersion returns the version number of the next edit of a target.
func nextVersion(tx *store.Tx, t target) (version int64, err error) {
	_, err = tx.Get("SELECT coalesce(max(version), 0) + 1 FROM learning_edits WHERE target = $1 AND kind = $2 AND "+
		"component = $3 AND name = $4", t.args(), &version)
	return version, err
}

// appliedProposal returns the id of the refinement in effect that applied a proposal; "" = none.
func appliedProposal(tx *store.Tx, proposalID string) (id string, err error) {
	if proposalID != "" {
		_, err = tx.Get("SELECT id FROM learning_refinements WHERE proposal_id = $1 AND rolled_back_at IS NULL",
			[]any{proposalID}, &id)
	}
	return id, err
}

// idDigits is the length of the ids of plans, proposals and refinements.
const idDigits = 12

// setting is one row of learning_settings, also as JSON in an edit: a weight, a setting or a text.
type setting struct {
	Weight    *float64       `json:"weight,omitzero"`
	Strategy  string         `json:"strategy,omitzero"` // what set the weight: one of adapt, or refinementStrategy
	Value     jsontext.Value `json:"value,omitzero"`    // nil = the row is a weight
	UpdatedAt int64          `json:"updated_at"`        // microseconds since 1970
}

// read returns the row of a target; nil = there is none.
func (t target) read(tx *store.Tx) (*setting, error) {
	s := new(setting)
	there, err := tx.Get("SELECT weight, strategy, value, updated_at FROM learning_settings WHERE kind = $1 AND "+
		"component = $2 AND name = $3", []any{t.Kind, t.Component, t.Name},
		&s.Weight, &s.Strategy, (*[]byte)(&s.Value), &s.UpdatedAt)
	if err != nil || !there {
		return nil, err
	}
	return s, nil
}

// write writes the row of a target, or deletes it for nil, and makes all hosts read the settings again. For a
// weight the caller adds to the history.
func (t target) write(tx *store.Tx, s *setting) (err error) {
	if s == nil {
		_, err = tx.Exec("DELETE FROM learning_settings WHERE kind = $1 AND component = $2 AND name = $3", t.Kind,
			t.Component, t.Name)
	} else {
		var value any // NULL for a weight
		if s.Value != nil {
			value = string(s.Value)
		}
		_, err = tx.Exec(`INSERT INTO learning_settings (kind, component, name, updated_at, weight, strategy, value)
			VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (kind, component, name) DO UPDATE SET
			updated_at = excluded.updated_at, weight = excluded.weight, strategy = excluded.strategy,
			value = excluded.value`, t.Kind, t.Component, t.Name, s.UpdatedAt, s.Weight, s.Strategy, value)
	}
	if err != nil {
		return err
	}
	_, err = addTotal(tx, totalWeights, total{rows: 1})
	return err
}

// same reports whether two rows are equal.
func (s *setting) same(o *setting) bool {
	one, _ := json.Marshal(s) // a row can be encoded
	other, _ := json.Marshal(o)
	return bytes.Equal(canonical(one), canonical(other))
}

// weight returns the weight in a row; 1 = none is set.
func (s *setting) weight() float64 {
	if s == nil || s.Weight == nil {
		return neutralWeight
	}
	return *s.Weight
}

// valueIn returns the value in a row of the target; null = none is set.
func (t target) valueIn(s *setting) jsontext.Value {
	if s == nil {
		return jsontext.Value("null")
	}
	if t.Target == targetWeight {
		value, _ := json.Marshal(s.weight()) // a number from JSON can be encoded
		return value
	}
	if v := t.textIn(s); v != nil {
		return protocol.AppendString(nil, v.Text)
	}
	return canonical(s.Value)
}

// textIn returns the text in a row; nil = the row is not that of a text.
func (t target) textIn(s *setting) *textValue {
	v := new(textValue)
	if t.Target != targetText || s == nil || json.Unmarshal(s.Value, v) != nil {
		return nil
	}
	return v
}
