package learning

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
	"a2e/protocol"
)

// Stats gives what the store knows of the components of a name, or of all for "", by
// kind and name. Calls that a running host counted within the last second may miss.
func Stats(ctx context.Context, s store.Store, name string) (all []*Component, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		all, err = readComponents(tx, name)
		return err
	})
	return all, err
}

// StoredFeedback is a feedback and what it is about.
type StoredFeedback struct {
	Kind, Component string // of the component; both "" = of none
	protocol.Feedback
}

// EachFeedback calls do for each feedback that is kept, the oldest first. do must not use
// the store; its error ends the iteration and is given back.
func EachFeedback(ctx context.Context, s store.Store, do func(*StoredFeedback) error) error {
	return s.Read(ctx, func(tx *store.Tx) error {
		return eachFeedback(tx, func(of component, raw string) error {
			f := &StoredFeedback{Kind: of.kind, Component: of.name}
			if err := json.Unmarshal([]byte(raw), &f.Feedback); err != nil {
				return err
			}
			return do(f)
		})
	})
}

// EachExperience calls do for each experience that is kept, as EachFeedback does.
func EachExperience(ctx context.Context, s store.Store, do func(*protocol.Experience) error) error {
	return s.Read(ctx, func(tx *store.Tx) error {
		return eachExperience(tx, func(raw string) error {
			x := &protocol.Experience{}
			if err := json.Unmarshal([]byte(raw), x); err != nil {
				return err
			}
			return do(x)
		})
	})
}

// WeightChange is a routing weight that a component got.
type WeightChange struct {
	At              time.Time
	Kind, Component string
	Weight          float64
	Score           *float64 // what the component was worth then, see Component.Reward; nil = nobody looked
	Strategy        string   // what set it: a strategy of learn/adapt, a refinement or a rollback
}

// EachWeightChange calls do for each change of a weight that is kept, the oldest first, as
// EachFeedback does.
func EachWeightChange(ctx context.Context, s store.Store, do func(*WeightChange) error) error {
	return s.Read(ctx, func(tx *store.Tx) error {
		return eachChange(tx, func(of component, at int64, weight float64, score *float64, strategy string) error {
			return do(&WeightChange{At: time.UnixMicro(at), Kind: of.kind, Component: of.name, Weight: weight, Score: score, Strategy: strategy})
		})
	})
}

func eachFeedback(tx *store.Tx, do func(of component, raw string) error) error {
	return tx.Each(`SELECT coalesce(c.kind, ''), coalesce(c.name, ''), f.record FROM learning_feedback f
		LEFT JOIN learning_components c ON c.number = f.component ORDER BY f.number`, nil, func(scan func(...any) error) error {
		var of component
		var raw string
		if err := scan(&of.kind, &of.name, &raw); err != nil {
			return err
		}
		return do(of, raw)
	})
}

func eachExperience(tx *store.Tx, do func(raw string) error) error {
	return tx.Each("SELECT record FROM learning_experiences ORDER BY number", nil, func(scan func(...any) error) error {
		var raw string
		if err := scan(&raw); err != nil {
			return err
		}
		return do(raw)
	})
}

func eachChange(tx *store.Tx, do func(of component, at int64, weight float64, score *float64, strategy string) error) error {
	return tx.Each("SELECT kind, component, at, weight, score, strategy FROM learning_weight_history ORDER BY number", nil, func(scan func(...any) error) error {
		var of component
		var at int64
		var weight float64
		var score *float64
		var strategy string
		if err := scan(&of.kind, &of.name, &at, &weight, &score, &strategy); err != nil {
			return err
		}
		return do(of, at, weight, score, strategy)
	})
}
