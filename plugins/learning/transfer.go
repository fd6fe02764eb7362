package learning

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/plugins/learning/quantile"
	"a2e/protocol"
)

// The kinds of records in an export; refine_transfer.go has those of refinements.
const (
	kindComponent  = "learning.component"
	kindFeedback   = "learning.feedback"
	kindExperience = "learning.experience"
	kindWeight     = "learning.weight"
	kindChange     = "learning.weight_change"
)

// Part is what the plugin keeps in a store.
func Part() store.Part {
	return store.Part{Name: "learning", Migrations: migrations(), Export: export, Import: importRecord, Clear: clearAll}
}

// componentRecord is a component in an export, with what was counted of its calls. What
// its feedback adds up to follows from the feedback.
type componentRecord struct {
	Kind       string  `json:"kind"`
	Component  string  `json:"component"`
	Calls      int64   `json:"calls"`
	Successes  int64   `json:"successes"`
	DurationNS int64   `json:"duration_ns"` // of all calls
	LastCalled float64 `json:"last_called"` // seconds since 1970
	Rewards    int64   `json:"rewards"`
	RewardMean float64 `json:"reward_mean"`
	RewardM2   float64 `json:"reward_m2"`
	Durations  []byte  `json:"durations"` // a sketch
}

// feedbackRecord is a feedback in an export.
type feedbackRecord struct {
	Kind      string         `json:"kind"`      // of the component; "" = it is about none
	Component string         `json:"component"` // its name
	Feedback  jsontext.Value `json:"feedback"`
}

// weightRecord is a weight, or a change of one, in an export.
type weightRecord struct {
	Kind      string   `json:"kind"`
	Component string   `json:"component"`
	At        float64  `json:"at"` // seconds since 1970
	Weight    float64  `json:"weight"`
	Score     *float64 `json:"score,omitzero"`
	Strategy  string   `json:"strategy"`
}

// export gives components before what is about them. The correlations of recent calls
// are not in it.
func export(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	for _, part := range []func(*store.Tx, func(string, any) error) error{
		exportComponents, exportFeedback, exportExperiences, exportWeights, exportChanges, exportRefinements,
	} {
		if err := part(tx, emit); err != nil {
			return err
		}
	}
	return nil
}

func exportComponents(tx *store.Tx, emit func(string, any) error) error {
	return tx.Each(`SELECT kind, name, calls, successes, duration, last_called, rewards, reward_mean, reward_m2, durations FROM learning_components ORDER BY number`, nil,
		func(scan func(...any) error) error {
			var r componentRecord
			var lastCalled int64
			if err := scan(&r.Kind, &r.Component, &r.Calls, &r.Successes, &r.DurationNS, &lastCalled, &r.Rewards, &r.RewardMean, &r.RewardM2, &r.Durations); err != nil {
				return err
			}
			r.LastCalled = inSeconds(lastCalled)
			return emit(kindComponent, r)
		})
}

func exportFeedback(tx *store.Tx, emit func(string, any) error) error {
	return eachFeedback(tx, func(of component, raw string) error {
		return emit(kindFeedback, feedbackRecord{of.kind, of.name, jsontext.Value(raw)})
	})
}

func exportExperiences(tx *store.Tx, emit func(string, any) error) error {
	return eachExperience(tx, func(raw string) error { return emit(kindExperience, jsontext.Value(raw)) })
}

func exportWeights(tx *store.Tx, emit func(string, any) error) error {
	return tx.Each("SELECT kind, component, updated_at, weight, strategy FROM learning_weights ORDER BY kind, component", nil, func(scan func(...any) error) error {
		var r weightRecord
		var at int64
		if err := scan(&r.Kind, &r.Component, &at, &r.Weight, &r.Strategy); err != nil {
			return err
		}
		r.At = inSeconds(at)
		return emit(kindWeight, r)
	})
}

func exportChanges(tx *store.Tx, emit func(string, any) error) error {
	return eachChange(tx, func(of component, at int64, weight float64, score *float64, strategy string) error {
		return emit(kindChange, weightRecord{of.kind, of.name, inSeconds(at), weight, score, strategy})
	})
}

// importRecord takes a record of export in, and no other. The counts of a component
// replace those there are.
func importRecord(_ context.Context, tx *store.Tx, kind string, raw jsontext.Value) error {
	switch kind {
	case kindComponent:
		return takeRecord[componentRecord](tx, raw)
	case kindFeedback:
		return takeRecord[feedbackRecord](tx, raw)
	case kindExperience:
		return importExperience(tx, raw)
	case kindWeight:
		return takeRecord[weightRecord](tx, raw)
	case kindChange:
		return takeRecord[changeRecord](tx, raw)
	}
	if mine, err := importRefinement(tx, kind, raw); mine {
		return err
	}
	return fmt.Errorf("there is no such record; there are %s, %s, %s, %s, %s, %s and %s",
		kindComponent, kindFeedback, kindExperience, kindWeight, kindChange, kindSetting, kindRefinement)
}

// takeRecord reads a record and has it taken in.
func takeRecord[R any, T interface {
	*R
	take(tx *store.Tx) error
}](tx *store.Tx, raw jsontext.Value) error {
	var r R
	if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
		return err
	}
	return T(&r).take(tx)
}

func (r *componentRecord) take(tx *store.Tx) error {
	at, err := microseconds("last_called", r.LastCalled)
	if err != nil {
		return err
	}
	var sketch quantile.Sketch
	switch {
	case len(r.Durations) > 0 && sketch.UnmarshalBinary(r.Durations) != nil:
		return fmt.Errorf("durations is no sketch of durations")
	case r.Calls < 0 || r.Successes < 0 || r.Successes > r.Calls || r.Rewards < 0 || r.Rewards > r.Calls || r.DurationNS < 0:
		return fmt.Errorf("the counts of %.100q do not fit together", r.Component)
	case !(r.RewardM2 >= 0 && math.Abs(r.RewardMean) <= maxReward):
		return fmt.Errorf("the rewards of %.100q do not fit together", r.Component)
	}
	if err := namesFit(r.Kind, r.Component); err != nil {
		return err
	}
	number, err := ensureComponent(tx, component{r.Kind, r.Component})
	if err != nil {
		return err
	}
	t := tally{r.Calls, r.Successes, time.Duration(r.DurationNS), at, moments{r.Rewards, r.RewardMean, r.RewardM2}, sketch}
	return t.write(tx, number)
}

// namesFit refuses what is no component.
func namesFit(kind, name string) error {
	if kind == "" || len(kind) > maxComponent {
		return fmt.Errorf("the kind %.100q of %.100q is none", kind, name)
	}
	return nameFits("component", name)
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
		if err := namesFit(r.Kind, r.Component); err != nil {
			return err
		}
		number, err := ensureComponent(tx, component{r.Kind, r.Component})
		if err != nil {
			return err
		}
		about = &number
	}
	added, err := row.put(tx, func(rating, string) (*int64, error) { return about, nil })
	if err != nil {
		return err
	}
	_, err = addTotal(tx, totalFeedback, added.rows, added.size)
	return err
}

func importExperience(tx *store.Tx, raw jsontext.Value) error {
	var x protocol.Experience
	if err := json.Unmarshal(raw, &x); err != nil {
		return err
	}
	if x.ExperienceID == "" {
		return fmt.Errorf("the experience has no experience_id")
	}
	record, err := experienceRecord(&x)
	if err != nil {
		return fmt.Errorf("the experience %.100q %w", x.ExperienceID, err)
	}
	added, err := putExperience(tx, x.ExperienceID, record)
	if err != nil {
		return err
	}
	_, err = addTotal(tx, totalExperiences, added.rows, added.size)
	return err
}

func (r *weightRecord) check() (at int64, err error) {
	if err := namesFit(r.Kind, r.Component); err != nil {
		return 0, err
	}
	if err := checkWeight(r.Weight); err != nil {
		return 0, err
	}
	if r.Strategy == "" || len(r.Strategy) > maxComponent {
		return 0, fmt.Errorf("the strategy is %.100q; it should say what set the weight", r.Strategy)
	}
	return microseconds("at", r.At)
}

func (r *weightRecord) take(tx *store.Tx) error {
	at, err := r.check()
	if err != nil {
		return err
	}
	return writeWeight(tx, r.Kind, r.Component, &weightRow{Weight: r.Weight, Strategy: r.Strategy, UpdatedAt: at})
}

// changeRecord is a weightRecord of the history.
type changeRecord struct{ weightRecord }

func (r *changeRecord) take(tx *store.Tx) error {
	at, err := r.check()
	if err != nil {
		return err
	}
	score := math.NaN()
	if r.Score != nil {
		score = *r.Score
	}
	return addHistory(tx, at, r.Kind, r.Component, r.Weight, score, r.Strategy)
}

func clearAll(_ context.Context, tx *store.Tx) error {
	if err := clearRefinements(tx); err != nil {
		return err
	}
	for _, table := range []string{"learning_calls", "learning_feedback", "learning_components", "learning_experiences", "learning_weights", "learning_weight_history"} {
		if _, _, err := tx.Exec("DELETE FROM " + table); err != nil {
			return err
		}
	}
	// The changes of weights are counted on, or hosts would take other weights for those
	// that they have in memory.
	if _, _, err := tx.Exec("DELETE FROM learning_totals WHERE name <> ?", totalWeights); err != nil {
		return err
	}
	_, err := addTotal(tx, totalWeights, 1, 0)
	return err
}
