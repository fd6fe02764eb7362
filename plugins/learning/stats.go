package learning

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/store"
	"a2e/plugins/learning/quantile"
	"a2e/protocol"
)

// Component is what is known of a component.
type Component struct {
	Kind, Name       string // the kind is one of host.KindTool…, or "model" for what only feedback names
	Calls, Successes int64
	AvgDuration      time.Duration
	P95Duration      time.Duration // within 1 %
	LastCalled       time.Time     // zero = never
	Rewards          int64         // calls that brought one
	RewardMean       float64
	RewardVariance   float64 // of a sample
	Feedbacks        int64
	Score            float64 // confidence-weighted mean of the feedback, -1 to 1; 0 without any
	ScoreWeight      float64 // sum of the confidences
	Weight           float64 // routing weight, 1 is neutral

	number   int64
	ppo      seen  // what ppo has learned from
	scoreSum int64 // in billionths
}

// seen is what a strategy has looked at.
type seen struct{ calls, successes, scoreSum int64 }

// Record is the component as messages carry it: a ComponentPerformanceRecord of the
// public specification, and more.
func (c *Component) Record() map[string]any {
	return map[string]any{
		"component_name": c.Name, "kind": c.Kind,
		"calls_total": c.Calls, "calls_success": c.Successes, "calls_failed": c.Calls - c.Successes,
		"avg_duration_ms": millis(c.AvgDuration), "p95_duration_ms": millis(c.P95Duration), "last_called": c.lastCalled(),
		"avg_score": c.Score, "feedback_count": c.Feedbacks,
		"reward_count": c.Rewards, "reward_mean": c.RewardMean, "reward_variance": c.RewardVariance,
		"routing_weight": c.Weight,
	}
}

func (c *Component) lastCalled() float64 {
	if c.LastCalled.IsZero() {
		return 0
	}
	return inSeconds(c.LastCalled.UnixMicro())
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// stats answers learn/stats with what the store knows, the last calls included.
func (p *Plugin) stats(ctx context.Context, req *protocol.LearnStatsRequest, _ host.Emitter) (*protocol.LearnStatsResponse, error) {
	if err := p.flush(ctx); err != nil {
		return nil, p.noted(ctx, err)
	}
	resp := &protocol.LearnStatsResponse{}
	return resp, p.read(ctx, func(tx *store.Tx) error {
		all, err := readComponents(tx, req.ComponentName)
		for _, c := range all {
			resp.Components = append(resp.Components, c.Record())
		}
		return err
	})
}

// readComponents returns the components of a name, or all for "", by kind and name.
func readComponents(tx *store.Tx, name string) ([]*Component, error) {
	const query = `SELECT c.number, c.kind, c.name, c.calls, c.successes, c.duration, c.last_called, c.rewards, c.reward_mean, c.reward_m2, c.feedbacks,
		c.score_sum, c.score_weight, c.durations, c.ppo_calls, c.ppo_successes, c.ppo_score, coalesce(w.weight, 1)
		FROM learning_components c LEFT JOIN learning_weights w ON w.kind = c.kind AND w.component = c.name`
	where, args := "", []any(nil)
	if name != "" {
		where, args = " WHERE c.name = ?", []any{name}
	}
	var all []*Component
	err := tx.Each(query+where+" ORDER BY c.kind, c.name", args, func(scan func(...any) error) error {
		c, err := scanComponent(scan)
		all = append(all, c)
		return err
	})
	return all, err
}

func scanComponent(scan func(...any) error) (*Component, error) {
	c := &Component{}
	var duration, lastCalled, scoreWeight int64
	var rewards moments
	var raw []byte
	if err := scan(&c.number, &c.Kind, &c.Name, &c.Calls, &c.Successes, &duration, &lastCalled, &rewards.n, &rewards.mean, &rewards.m2, &c.Feedbacks,
		&c.scoreSum, &scoreWeight, &raw, &c.ppo.calls, &c.ppo.successes, &c.ppo.scoreSum, &c.Weight); err != nil {
		return nil, err
	}
	if c.Calls > 0 {
		c.AvgDuration, c.LastCalled = time.Duration(duration/c.Calls), time.UnixMicro(lastCalled)
	}
	var durations quantile.Sketch
	if err := durations.UnmarshalBinary(raw); err == nil {
		c.P95Duration = time.Duration(durations.Quantile(0.95) * float64(time.Second))
	}
	c.Rewards, c.RewardMean, c.RewardVariance = rewards.n, rewards.mean, rewards.variance()
	c.Score, c.ScoreWeight = meanScore(c.scoreSum, scoreWeight), float64(scoreWeight)/1e9
	return c, nil
}

// Stats returns what the store knows of the components of a name, or of all for "", by
// kind and name. Calls that a running host counted within the last second may miss.
func Stats(ctx context.Context, s store.Store, name string) (all []*Component, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		all, err = readComponents(tx, name)
		return err
	})
	return all, err
}

// What a store keeps, the oldest first: see feedbackRecord and weightRecord.
const (
	selectFeedback = `SELECT coalesce(c.kind, ''), coalesce(c.name, ''), f.record FROM learning_feedback f
		LEFT JOIN learning_components c ON c.number = f.component ORDER BY f.number`
	selectExperiences = "SELECT record FROM learning_experiences ORDER BY number"
	selectChanges     = "SELECT kind, component, at, weight, score, strategy FROM learning_weight_history ORDER BY number"
)

// each calls do for each row of a query, which read reads.
func each[R any](ctx context.Context, s store.Store, query string, do func(*R) error, read func(*R, func(...any) error) error) error {
	return s.Read(ctx, func(tx *store.Tx) error {
		return tx.Each(query, nil, func(scan func(...any) error) error {
			r := new(R)
			if err := read(r, scan); err != nil {
				return err
			}
			return do(r)
		})
	})
}

// StoredFeedback is a feedback and what it is about.
type StoredFeedback struct {
	Kind, Component string // of the component; both "" = of none
	protocol.Feedback
}

// EachFeedback calls do for each feedback that is kept, the oldest first. do must not use
// the store; its error ends the iteration and is given back.
func EachFeedback(ctx context.Context, s store.Store, do func(*StoredFeedback) error) error {
	return each(ctx, s, selectFeedback, do, func(f *StoredFeedback, scan func(...any) error) error {
		var raw []byte
		if err := scan(&f.Kind, &f.Component, &raw); err != nil {
			return err
		}
		return json.Unmarshal(raw, &f.Feedback)
	})
}

// EachExperience calls do for each experience that is kept, as EachFeedback does.
func EachExperience(ctx context.Context, s store.Store, do func(*protocol.Experience) error) error {
	return each(ctx, s, selectExperiences, do, func(x *protocol.Experience, scan func(...any) error) error {
		var raw []byte
		if err := scan(&raw); err != nil {
			return err
		}
		return json.Unmarshal(raw, x)
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
	return each(ctx, s, selectChanges, do, func(w *WeightChange, scan func(...any) error) error {
		var at int64
		err := scan(&w.Kind, &w.Component, &at, &w.Weight, &w.Score, &w.Strategy)
		w.At = time.UnixMicro(at)
		return err
	})
}
