package learning

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
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
	Before jsontext.Value `json:"before"` // the row as JSON; null = there was none
	After  jsontext.Value `json:"after"`
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

func (t target) args() []any { return []any{t.Target, t.Kind, t.Component, t.Name} }

func (r *refinement) insert(tx *store.Tx) (err error) {
	r.number, err = tx.Insert("INSERT INTO learning_refinements (id, proposal_id, applied_at, rolled_back_at, "+
		"proposal) VALUES ($1, $2, $3, $4, $5) RETURNING number",
		r.ID, r.ProposalID, r.AppliedAt, r.RolledBackAt, string(r.Proposal))
	for i, e := range r.Edits {
		if err == nil {
			_, err = tx.Exec("INSERT INTO learning_edits (refinement, place, target, kind, component, name, before, "+
				"after, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
				r.number, i, e.Target, e.Kind, e.Component, e.Name, string(e.Before), string(e.After), e.Version)
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
						&e.Target, &e.Kind, &e.Component, &e.Name, (*[]byte)(&e.Before), (*[]byte)(&e.After),
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

// setting is one row of learning_settings, also as JSON in an edit.
type setting struct {
	Value     jsontext.Value `json:"value"`
	UpdatedAt int64          `json:"updated_at"` // microseconds since 1970
}

// readSetting returns nil if the component has no setting of this name.
func readSetting(tx *store.Tx, t target) (*setting, error) {
	var s setting
	there, err := tx.Get("SELECT value, updated_at FROM learning_settings WHERE kind = $1 AND component = $2 AND "+
		"name = $3",
		[]any{t.Kind, t.Component, t.Name}, (*[]byte)(&s.Value), &s.UpdatedAt)
	if err != nil || !there {
		return nil, err
	}
	return &s, nil
}

// writeSetting writes the row, or deletes it for nil, and makes all hosts read the settings again.
func writeSetting(tx *store.Tx, t target, s *setting) (err error) {
	if s == nil {
		_, err = tx.Exec("DELETE FROM learning_settings WHERE kind = $1 AND component = $2 AND name = $3", t.Kind,
			t.Component, t.Name)
	} else {
		_, err = tx.Exec(`INSERT INTO learning_settings (kind, component, name, updated_at, value) VALUES ($1, $2,
			$3, $4, $5)
			ON CONFLICT (kind, component, name) DO UPDATE SET updated_at = excluded.updated_at, value = excluded.value`,
			t.Kind, t.Component, t.Name, s.UpdatedAt, string(s.Value))
	}
	if err != nil {
		return err
	}
	return weightsChanged(tx)
}

// fromImage returns the row that an edit keeps as JSON; nil = there was none.
func fromImage[T any](raw jsontext.Value) (row *T, err error) {
	err = json.Unmarshal(raw, &row)
	return row, err
}
