package learning

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// Times in the tables are microseconds since 1970; values are JSON.
//
//go:embed sql/*.sql
var tables embed.FS

// Part describes what the plugin keeps in a store. An export has components before records about them, and
// leaves out the correlations of recent calls. An import refuses what this build could not have written;
// the counts of a component replace those in the store.
func Part() store.Part {
	records := store.Kinds{
		store.RecordsOf("learning.component", "SELECT kind, name, calls, successes, duration, last_called, rewards, "+
			"reward_mean, reward_m2, durations, reward_min, reward_max FROM learning_components ORDER BY number",
			func(r *componentRecord) []any {
				return []any{
					&r.Kind, &r.Component, &r.Calls, &r.Successes, &r.DurationNS, &r.LastCalled, &r.Rewards,
					&r.RewardMean, &r.RewardM2, &r.Durations,
					&r.RewardMin, &r.RewardMax,
				}
			}, (*componentRecord).take),
		store.RecordsOf("learning.feedback", selectFeedback, func(r *feedbackRecord) []any {
			return []any{&r.Kind, &r.Component, (*[]byte)(&r.Feedback)}
		}, (*feedbackRecord).take),
		{Kind: "learning.experience", Export: exportExperiences, Import: store.ImportOf(importExperience)},
		store.RecordsOf("learning.weight", "SELECT kind, component, updated_at, weight, NULL, strategy FROM "+
			"learning_settings WHERE name = '"+nameWeight+"' ORDER BY kind, component",
			(*weightRecord).columns, func(r *weightRecord, tx *store.Tx) error {
				if err := r.check(); err != nil {
					return err
				}
				return weightOf(r.Kind, r.Component).write(tx,
					&setting{Weight: &r.Weight, Strategy: r.Strategy, UpdatedAt: int64(r.At)})
			}),
		store.RecordsOf("learning.weight_change", selectChanges, (*weightRecord).columns,
			func(r *weightRecord, tx *store.Tx) error {
				if err := r.check(); err != nil {
					return err
				}
				return addHistory(tx, int64(r.At), r.Kind, r.Component, r.Weight, r.Score, r.Strategy)
			}),
		store.RecordsOf("learning.setting", "SELECT kind, component, name, value, updated_at FROM learning_settings "+
			"WHERE name <> '"+nameWeight+"' ORDER BY kind, component, name",
			func(r *settingRecord) []any {
				return []any{&r.Kind, &r.Component, &r.Name, (*[]byte)(&r.Value), &r.UpdatedAt}
			}, (*settingRecord).take),
		{Kind: "learning.refinement", Export: exportRefinements, Import: store.ImportOf((*refinement).take)},
	}
	clearRows := store.ClearTables("learning_edits", "learning_trials", "learning_refinements", "learning_settings",
		"learning_calls", "learning_feedback", "learning_told", "learning_experiences", "learning_components",
		"learning_weight_history")
	return store.Part{
		Name: "learning", SQL: tables, Export: records.Export, Import: records.Import,
		Clear: func(ctx context.Context, tx *store.Tx) error {
			if err := clearRows(ctx, tx); err != nil {
				return err
			}
			// The number of changes goes on, or hosts would take new weights for those that they have in
			// memory.
			if _, err := tx.Exec("DELETE FROM learning_totals WHERE name <> $1", totalWeights); err != nil {
				return err
			}
			_, err := addTotal(tx, totalWeights, total{rows: 1})
			return err
		},
	}
}

// inSeconds returns a time of the store in seconds, as messages and exports have it.
func inSeconds(micros int64) float64 { return store.Micros(micros).Seconds() }

// componentRecord is a component in an export, with the counts of its calls. The sums over its feedback
// follow from the feedback.
type componentRecord struct {
	Kind       string       `json:"kind"`
	Component  string       `json:"component"`
	Calls      int64        `json:"calls"`
	Successes  int64        `json:"successes"`
	DurationNS int64        `json:"duration_ns"` // of all calls
	LastCalled store.Micros `json:"last_called"`
	Rewards    int64        `json:"rewards"`
	RewardMean float64      `json:"reward_mean"`
	RewardM2   float64      `json:"reward_m2"`
	Durations  []byte       `json:"durations"` // see durations

	RewardMin float64 `json:"reward_min"` // missing in the first exports
	RewardMax float64 `json:"reward_max"`
	halfLife
}

// halfLife has fields of older exports, when evidence counted less with age. They are ignored.
type halfLife struct {
	AgedCalls     float64 `json:"aged_calls,omitzero"`
	AgedSuccesses float64 `json:"aged_successes,omitzero"`
	AgedRewards   float64 `json:"aged_rewards,omitzero"`
	AgedRewardSum float64 `json:"aged_reward_sum,omitzero"`
	AgedAt        float64 `json:"aged_at,omitzero"`
}

// complete estimates the bounds of the rewards if an export has none, as the migration does.
func (r *componentRecord) complete() {
	if r.RewardMin == 0 && r.RewardMax == 0 {
		spread := 2 * math.Sqrt(r.RewardM2/float64(max(r.Rewards, 1)))
		r.RewardMin, r.RewardMax = max(r.RewardMean-spread, -maxReward), min(r.RewardMean+spread, maxReward)
	}
}

func (r *componentRecord) take(tx *store.Tx) error {
	counted, err := decodeDurations(r.Durations)
	switch {
	case err != nil:
		return fmt.Errorf("durations is wrong: %w", err)
	case r.Calls < 0 || r.Successes < 0 || r.Successes > r.Calls || r.Rewards < 0 || r.Rewards > r.Calls ||
		r.DurationNS < 0:
		return fmt.Errorf("the counts of %.100q do not fit together", r.Component)
	case !(r.RewardM2 >= 0 && math.Abs(r.RewardMean) <= maxReward):
		return fmt.Errorf("the rewards of %.100q do not fit together", r.Component)
	}
	if r.complete(); !(-maxReward <= r.RewardMin && r.RewardMin <= r.RewardMax && r.RewardMax <= maxReward) {
		return fmt.Errorf("the bounds of the rewards of %.100q do not fit together", r.Component)
	}
	number, err := takeComponent(tx, r.Kind, r.Component)
	if err != nil {
		return err
	}
	t := tally{
		r.Calls, r.Successes, time.Duration(r.DurationNS), int64(r.LastCalled),
		moments{r.Rewards, r.RewardMean, r.RewardM2, r.RewardMin, r.RewardMax},
		counted,
	}
	return t.write(tx, number)
}

// takeComponent is ensureComponent for an imported record. It refuses a kind or name that is not valid.
func takeComponent(tx *store.Tx, kind, name string) (int64, error) {
	if err := namesFit(kind, name); err != nil {
		return 0, err
	}
	return ensureComponent(tx, component{kind, name})
}

// namesFit refuses a kind or name that is not valid.
func namesFit(kind, name string) error {
	if kind == "" || len(kind) > maxComponent {
		return fmt.Errorf("the kind %.100q of %.100q is unknown", kind, name)
	}
	return nameFits(name)
}

func nameFits(name string) error {
	if name == "" || len(name) > maxComponent {
		return fmt.Errorf("the component's name has %d bytes; 1 to %d are allowed", len(name), maxComponent)
	}
	return nil
}

// feedbackRecord is a feedback in an export.
type feedbackRecord struct {
	Kind      string         `json:"kind"`      // of the component; "" = it is about none
	Component string         `json:"component"` // its name
	Feedback  jsontext.Value `json:"feedback"`
}

func (r *feedbackRecord) take(tx *store.Tx) error {
	var f protocol.Feedback
	if err := json.Unmarshal(r.Feedback, &f); err != nil {
		return err
	}
	if f.FeedbackID == "" {
		return fmt.Errorf("the feedback has no feedback_id")
	}
	if problems := checkFeedback(&f); problems != nil {
		return fmt.Errorf("the feedback %.100q: %s %s", f.FeedbackID, problems[0].Path, problems[0].Message)
	}
	row, err := newRated(&f)
	if err != nil {
		return fmt.Errorf("the feedback %.100q %w", f.FeedbackID, err)
	}
	var about *int64
	if r.Kind != "" || r.Component != "" {
		number, err := takeComponent(tx, r.Kind, r.Component)
		if err != nil {
			return err
		}
		about = &number
	}
	added, err := row.put(tx, func(rating, []byte) (*int64, error) { return about, nil })
	if err == nil {
		_, err = addTotal(tx, totalFeedback, added)
	}
	return err
}

func exportExperiences(tx *store.Tx, emit func(any) error) error {
	return tx.Each(selectExperiences, nil, func(scan func(...any) error) error {
		var raw []byte
		if err := scan(&raw); err != nil {
			return err
		}
		return emit(jsontext.Value(raw))
	})
}

func importExperience(x *protocol.Experience, tx *store.Tx) error {
	if x.ExperienceID == "" {
		return fmt.Errorf("the experience has no experience_id")
	}
	record, err := experienceRecord(x)
	if err != nil {
		return fmt.Errorf("the experience %.100q %w", x.ExperienceID, err)
	}
	added, err := newResolver().putExperience(tx, x, record)
	if err == nil {
		_, err = addTotal(tx, totalExperiences, added)
	}
	if err == nil {
		err = trimTold(tx)
	}
	return err
}

// weightRecord is a weight, or a change of one, in an export.
type weightRecord struct {
	Kind      string       `json:"kind"`
	Component string       `json:"component"`
	At        store.Micros `json:"at"`
	Weight    float64      `json:"weight"`
	Score     *float64     `json:"score,omitzero"`
	Strategy  string       `json:"strategy"`
}

func (r *weightRecord) columns() []any {
	return []any{&r.Kind, &r.Component, &r.At, &r.Weight, &r.Score, &r.Strategy}
}

func (r *weightRecord) check() error {
	if r.Strategy == "" || len(r.Strategy) > maxComponent {
		return fmt.Errorf("the strategy is %.100q; it should say what set the weight", r.Strategy)
	}
	return errors.Join(namesFit(r.Kind, r.Component), checkWeight(r.Weight))
}

// settingRecord is a setting in an export.
type settingRecord struct {
	Kind      string         `json:"kind"`
	Component string         `json:"component"`
	Name      string         `json:"name"`
	Value     jsontext.Value `json:"value"`
	UpdatedAt store.Micros   `json:"updated_at"`
}

func (r *settingRecord) take(tx *store.Tx) error {
	t := settingOf(r.Kind, r.Component, r.Name)
	if why := errors.Join(t.set(new(host.Override), r.Value), nameFits(r.Component)); why != nil {
		return fmt.Errorf("the %s: %w", t, why)
	}
	return t.write(tx, &setting{Value: r.Value, UpdatedAt: int64(r.UpdatedAt)})
}

// exportRefinements exports from the oldest to the newest.
func exportRefinements(tx *store.Tx, emit func(any) error) error {
	all, err := readRefinements(tx, selectRefinements+" ORDER BY number")
	for _, r := range all {
		if err == nil {
			err = emit(r)
		}
	}
	return err
}

// take imports the refinement, and replaces one with the same id.
func (r *refinement) take(tx *store.Tx) error {
	if len(r.ID) != idDigits || strings.Trim(r.ID, "0123456789abcdef") != "" {
		return fmt.Errorf("refinement_id is %.64q; should be %d hex digits", r.ID, idDigits)
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("the refinement %s: %w", r.ID, err)
	}
	old, err := findRefinement(tx, r.ID)
	switch {
	case err != nil:
		return err
	case old != nil:
		err = old.remove(tx)
	default:
		err = trimRefinements(tx)
	}
	if err != nil {
		return err
	}
	return r.insert(tx)
}

// check refuses a refinement that apply would not have written.
func (r *refinement) check() error {
	if n := len(r.Proposal); n > maxProposal || r.Proposal.Kind() != '{' {
		return fmt.Errorf("its proposal should be an object of at most %d bytes", maxProposal)
	}
	if n := len(r.Edits); n == 0 || n > maxEdits {
		return fmt.Errorf("has %d edits; 1 to %d are allowed", n, maxEdits)
	}
	for i, e := range r.Edits {
		if err := errors.Join(nameFits(e.Component), e.checkImage(e.Before), e.checkImage(e.After)); err != nil {
			return fmt.Errorf("edit %d: %w", i+1, err)
		}
	}
	for _, t := range r.Trials {
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

// checkImage refuses an image that is not a row of the target.
func (t target) checkImage(row *setting) error {
	switch t.Target {
	case targetWeight:
		return checkWeight(row.weight())
	case targetSetting, targetText:
		if row == nil {
			return nil
		}
		return t.set(new(host.Override), row.Value)
	}
	return fmt.Errorf("the target is %.64q; there are %s, %s and %s", t.Target, targetWeight, targetSetting, targetText)
}
