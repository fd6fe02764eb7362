package learning

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
)

// The kinds of records that the refinements have in an export.
const (
	kindSetting    = "learning.setting"
	kindRefinement = "learning.refinement"
)

// settingRecord is a setting in an export.
type settingRecord struct {
	Kind      string         `json:"kind"`
	Component string         `json:"component"`
	Name      string         `json:"name"`
	Value     jsontext.Value `json:"value"`
	UpdatedAt float64        `json:"updated_at"` // seconds since 1970
}

// refinementRecord is a refinement in an export.
type refinementRecord struct {
	RefinementID string         `json:"refinement_id"`
	ProposalID   string         `json:"proposal_id"`
	AppliedAt    float64        `json:"applied_at"`     // seconds since 1970
	RolledBackAt *float64       `json:"rolled_back_at"` // null = in force
	Proposal     jsontext.Value `json:"proposal"`
	Edits        []editRecord   `json:"edits"`
}

// editRecord is one edit of a refinementRecord; before and after are rows of the store.
type editRecord struct {
	Target    string         `json:"target"`
	Kind      string         `json:"kind"`
	Component string         `json:"component"`
	Name      string         `json:"name"`
	Before    jsontext.Value `json:"before"`
	After     jsontext.Value `json:"after"`
}

// exportRefinements gives the settings and then the refinements, the oldest first.
func exportRefinements(tx *store.Tx, emit func(string, any) error) error {
	var settings []settingRecord
	err := eachSetting(tx, func(t target, s *setting) error {
		settings = append(settings, settingRecord{t.Kind, t.Component, t.Name, s.Value, inSeconds(s.UpdatedAt)})
		return nil
	})
	for _, s := range settings {
		if err == nil {
			err = emit(kindSetting, s)
		}
	}
	if err != nil {
		return err
	}
	all, err := readRefinements(tx, selectRefinements+" ORDER BY number")
	for _, r := range all {
		if err == nil {
			err = emit(kindRefinement, r.record())
		}
	}
	return err
}

func (r *refinement) record() refinementRecord {
	out := refinementRecord{RefinementID: r.id, ProposalID: r.proposalID, AppliedAt: inSeconds(r.appliedAt), Proposal: r.proposal, Edits: []editRecord{}}
	if r.rolledBackAt != nil {
		at := inSeconds(*r.rolledBackAt)
		out.RolledBackAt = &at
	}
	for _, e := range r.edits {
		out.Edits = append(out.Edits, editRecord{e.Target, e.Kind, e.Component, e.Name, e.before, e.after})
	}
	return out
}

// importRefinement takes a record of exportRefinements in; mine is false for one of
// another kind. What the store has of the same key or id is replaced.
func importRefinement(tx *store.Tx, kind string, raw jsontext.Value) (mine bool, err error) {
	switch kind {
	case kindSetting:
		var r settingRecord
		if err = json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err == nil {
			err = r.take(tx)
		}
	case kindRefinement:
		var r refinementRecord
		if err = json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err == nil {
			err = r.take(tx)
		}
	default:
		return false, nil
	}
	return true, err
}

func (r *settingRecord) take(tx *store.Tx) error {
	t := target{targetSetting, r.Kind, r.Component, r.Name}
	if why := errors.Join(checkSetting(t, r.Value), nameFits("component", r.Component)); why != nil {
		return fmt.Errorf("the %s: %w", t, why)
	}
	at, err := microseconds("updated_at", r.UpdatedAt)
	if err != nil {
		return err
	}
	return writeSetting(tx, t, &setting{Value: r.Value, UpdatedAt: at})
}

func (r *refinementRecord) take(tx *store.Tx) error {
	in := refinement{id: r.RefinementID, proposalID: r.ProposalID, proposal: r.Proposal}
	if len(in.id) != idDigits || strings.Trim(in.id, "0123456789abcdef") != "" {
		return fmt.Errorf("refinement_id is %.64q; should be %d hex digits", in.id, idDigits)
	}
	var err error
	if in.appliedAt, err = microseconds("applied_at", r.AppliedAt); err != nil {
		return err
	}
	if r.RolledBackAt != nil {
		at, err := microseconds("rolled_back_at", *r.RolledBackAt)
		if err != nil {
			return err
		}
		in.rolledBackAt = &at
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("the refinement %s: %w", in.id, err)
	}
	for _, e := range r.Edits {
		in.edits = append(in.edits, appliedEdit{target{e.Target, e.Kind, e.Component, e.Name}, e.Before, e.After})
	}
	old, err := findRefinement(tx, in.id)
	if err != nil {
		return err
	}
	if old != nil {
		if err := old.remove(tx); err != nil {
			return err
		}
	} else if err := trimRefinements(tx); err != nil {
		return err
	}
	return in.insert(tx)
}

// check refuses what no apply would have written.
func (r *refinementRecord) check() error {
	if n := len(r.Proposal); n > maxProposal || r.Proposal.Kind() != '{' {
		return fmt.Errorf("its proposal should be an object of at most %d bytes", maxProposal)
	}
	if n := len(r.Edits); n == 0 || n > maxEdits {
		return fmt.Errorf("has %d edits; 1 to %d are allowed", n, maxEdits)
	}
	for i, e := range r.Edits {
		t := target{e.Target, e.Kind, e.Component, e.Name}
		if err := errors.Join(nameFits("component", e.Component), t.checkImage(e.Before), t.checkImage(e.After)); err != nil {
			return fmt.Errorf("edit %d: %w", i+1, err)
		}
	}
	return nil
}

// checkImage refuses what is no row of the target.
func (t target) checkImage(raw jsontext.Value) error {
	switch t.Target {
	case targetWeight:
		row, err := fromImage[weightRow](raw)
		if err != nil || row == nil {
			return err
		}
		return checkWeight(row.Weight)
	case targetSetting:
		row, err := fromImage[setting](raw)
		if err != nil || row == nil {
			return err
		}
		return checkSetting(t, row.Value)
	}
	return fmt.Errorf("the target is %.64q; there are %s and %s", t.Target, targetWeight, targetSetting)
}

func clearRefinements(tx *store.Tx) error {
	for _, q := range []string{"DELETE FROM learning_edits", "DELETE FROM learning_refinements", "DELETE FROM learning_settings"} {
		if _, _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return nil
}

// inSeconds gives a time of the store as messages and exports carry it.
func inSeconds(micros int64) float64 { return float64(micros) / 1e6 }

// microseconds refuses what is no time of this era, and gives it as the store keeps it.
func microseconds(name string, seconds float64) (int64, error) {
	const year10000 = 253402300800
	if !(seconds >= 0 && seconds < year10000) {
		return 0, fmt.Errorf("%s is %g; should be seconds since 1970", name, seconds)
	}
	return int64(math.Round(seconds * 1e6)), nil
}
