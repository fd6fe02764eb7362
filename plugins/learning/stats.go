package learning

import (
	"context"
	"time"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// Component is what is known about a component.
type Component struct {
	Kind, Name string // the kind is one of host.KindTool…, or "model" for what only feedback names
	outcomes
	AvgDuration    time.Duration
	P95Duration    time.Duration // within 1 %
	LastCalled     time.Time     // zero = never
	RewardMean     float64
	RewardVariance float64 // of a sample
	ExperienceMean float64 // of the rewards of the experiences that name it, among the last ones
	Feedbacks      int64
	Score          float64 // mean of the feedback, weighted by confidence, -1 to 1; 0 without any
	ScoreWeight    float64 // sum of these weights
	Weight         float64 // routing weight, 1 is neutral

	number         int64
	scoreSum       int64 // in billionths
	lastExperience int64 // number of the last one
	scale          scale // of its own rewards
	since          since
}

// since is what was recorded since ppo last learned from the component.
type since struct {
	outcomes
	rated bool // its feedback has changed
}

// Message returns the component as messages carry it: a ComponentPerformanceRecord of the public
// specification, with more fields.
func (c *Component) Message() map[string]any {
	return map[string]any{
		"component_name": c.Name, "kind": c.Kind,
		"calls_total": c.Calls, "calls_success": c.Successes, "calls_failed": c.Calls - c.Successes,
		"avg_duration_ms": millis(c.AvgDuration), "p95_duration_ms": millis(c.P95Duration),
		"last_called": c.lastCalled(),
		"avg_score":   c.Score, "feedback_count": c.Feedbacks,
		"reward_count": c.Rewards, "reward_mean": c.RewardMean, "reward_variance": c.RewardVariance,
		"experience_count": c.Experiences, "experience_reward_mean": c.ExperienceMean,
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

// stats answers learn/stats from the store, with the last calls included.
func (p *Plugin) stats(ctx context.Context, req *protocol.LearnStatsRequest,
	_ host.Emitter,
) (*protocol.LearnStatsResponse, error) {
	if err := p.flush(ctx); err != nil {
		return nil, p.kept.Noted(ctx, err)
	}
	resp := &protocol.LearnStatsResponse{}
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := components(tx, req.ComponentName)
		for _, c := range all {
			resp.Components = append(resp.Components, c.Message())
		}
		if err == nil && req.History {
			resp.History, err = overTime(tx, req.ComponentName)
		}
		return err
	})
	p.showTexts(ctx, resp.Components)
	return resp, err
}

// components returns the components with a name, or all for "", by kind and name.
func components(tx *store.Tx, name string) ([]*Component, error) {
	if name == "" {
		return read(tx, "")
	}
	return read(tx, " WHERE c.name = $1", name)
}

// read returns the components that meet a condition, by kind and name.
func read(tx *store.Tx, where string, args ...any) (all []*Component, err error) {
	const query = `SELECT c.number, c.kind, c.name, c.calls, c.successes, c.duration, c.last_called, c.rewards,
		c.reward_mean, c.reward_m2, c.reward_min, c.reward_max,
		c.feedbacks, c.score_sum, c.score_weight, c.durations,
		c.ppo_calls, c.ppo_successes, c.ppo_rewards, c.ppo_reward_sum, c.ppo_score, coalesce(w.weight, 1)
		FROM learning_components c LEFT JOIN learning_settings w ON w.kind = c.kind AND w.component = c.name AND
			w.name = '` + nameWeight + `'`
	of := make(map[int64]*Component)
	if err := tx.Each(query+where+" ORDER BY c.kind, c.name", args, func(scan func(...any) error) error {
		c, err := scanComponent(scan)
		if err == nil {
			all, of[c.number] = append(all, c), c
		}
		return err
	}); err != nil {
		return nil, err
	}
	const told = `SELECT x.component, count(*), sum(x.reward), min(x.reward), max(x.reward),
		sum(CASE WHEN x.number > c.ppo_experience THEN 1 ELSE 0 END),
		sum(CASE WHEN x.number > c.ppo_experience THEN x.reward ELSE 0 END), max(x.number)
		FROM learning_told x JOIN learning_components c ON c.number = x.component`
	return all, tx.Each(told+where+" GROUP BY x.component", args, func(scan func(...any) error) error {
		var x Component
		if err := scan(&x.number, &x.Experiences, &x.toldSum, &x.scale.low, &x.scale.high, &x.since.Experiences,
			&x.since.toldSum, &x.lastExperience); err != nil {
			return err
		}
		c := of[x.number]
		c.Experiences, c.toldSum, c.lastExperience = x.Experiences, x.toldSum, x.lastExperience
		c.since.Experiences, c.since.toldSum = x.since.Experiences, x.since.toldSum
		c.ExperienceMean, c.scale = x.toldSum/float64(x.Experiences), scaleOf([]*Component{c, &x})
		return nil
	})
}

func scanComponent(scan func(...any) error) (*Component, error) {
	c := &Component{}
	var duration, lastCalled, scoreWeight, ppoScore int64
	var rewards moments
	var seen sums
	var raw []byte
	if err := scan(&c.number, &c.Kind, &c.Name, &c.Calls, &c.Successes, &duration, &lastCalled, &c.Rewards,
		&rewards.mean, &rewards.m2, &rewards.low, &rewards.high,
		&c.Feedbacks, &c.scoreSum, &scoreWeight, &raw,
		&seen.Calls, &seen.Successes, &seen.Rewards, &seen.rewardSum, &ppoScore, &c.Weight); err != nil {
		return nil, err
	}
	if c.Calls > 0 {
		c.AvgDuration, c.LastCalled = time.Duration(duration/c.Calls), time.UnixMicro(lastCalled)
	}
	if counted, err := decodeDurations(raw); err == nil {
		c.P95Duration = counted.quantile(0.95)
	}
	rewards.n = c.Rewards
	c.RewardMean, c.RewardVariance, c.rewardSum = rewards.mean, rewards.variance(), rewards.sum()
	c.Score, c.ScoreWeight = meanScore(float64(c.scoreSum), float64(scoreWeight)), float64(scoreWeight)/1e9
	c.scale = scale{min(rewards.low, 0), max(rewards.high, 0)}
	c.since.rated = c.scoreSum != ppoScore
	c.since.sums = sums{
		c.Calls - seen.Calls, c.Successes - seen.Successes, c.Rewards - seen.Rewards,
		c.rewardSum - seen.rewardSum,
	}
	return c, nil
}

// maxPoints bounds the points of weights, and those of scores, in one answer, which has the last ones.
const maxPoints = 10_000

// overTime returns the history of the weights and then that of the scores, each the oldest first: for one
// component, or for all if name is "".
func overTime(tx *store.Tx, name string) ([]map[string]any, error) {
	weights, err := weightsOverTime(tx, name)
	if err != nil {
		return nil, err
	}
	scores, err := scoresOverTime(tx, name)
	return append(weights, scores...), err
}

func weightsOverTime(tx *store.Tx, name string) ([]map[string]any, error) {
	const query = `SELECT * FROM (SELECT number, kind, component, at, weight, score, strategy
		FROM learning_weight_history
		WHERE $1 = '' OR component = $1 ORDER BY number DESC LIMIT $2) AS last ORDER BY number`
	points := []map[string]any{}
	err := tx.Each(query, []any{name, maxPoints}, func(scan func(...any) error) error {
		var number, at int64
		var kind, component, strategy string
		var weight float64
		var worth *float64
		if err := scan(&number, &kind, &component, &at, &weight, &worth, &strategy); err != nil {
			return err
		}
		p := map[string]any{
			"ts": inSeconds(at), "kind": kind, "component_name": component, "routing_weight": weight,
			"strategy": strategy,
		}
		if worth != nil {
			p["worth"] = *worth
		}
		points = append(points, p)
		return nil
	})
	return points, err
}

// scoresOverTime returns for each feedback the mean of the feedback up to it. It reads all
// stored feedback, as the mean needs it, and returns the last maxPoints points.
func scoresOverTime(tx *store.Tx, name string) (points []map[string]any, err error) {
	const query = `SELECT c.kind, c.name, c.number, f.at, f.score, f.confidence FROM learning_feedback f
		JOIN learning_components c ON c.number = f.component WHERE ($1 = '' OR c.name = $1) AND f.confidence > 0
			ORDER BY f.at, f.number`
	type sums struct{ score, weight float64 }
	so := make(map[int64]sums)
	err = tx.Each(query, []any{name}, func(scan func(...any) error) error {
		var number, at int64
		var kind, component string
		var score, confidence float64
		if err := scan(&kind, &component, &number, &at, &score, &confidence); err != nil {
			return err
		}
		sum := so[number]
		sum.score, sum.weight = sum.score+score*confidence, sum.weight+confidence
		so[number] = sum
		if len(points) == 2*maxPoints {
			points = append(points[:0], points[maxPoints:]...)
		}
		points = append(points, map[string]any{
			"ts": inSeconds(at), "kind": kind, "component_name": component,
			"avg_score": sum.score / sum.weight,
		})
		return nil
	})
	return points[max(0, len(points)-maxPoints):], err
}

// Stats returns what the store knows about the components with a name, or all for "", by
// kind and name. Calls that a running host counted within the last second may be missing.
func Stats(ctx context.Context, s store.Store, name string) (all []*Component, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		all, err = components(tx, name)
		return err
	})
	return all, err
}

// The queries of what a store keeps, the oldest first: see feedbackRecord and weightRecord.
const (
	selectFeedback = `SELECT coalesce(c.kind, ''), coalesce(c.name, ''), f.record FROM learning_feedback f
		LEFT JOIN learning_components c ON c.number = f.component ORDER BY f.number`
	selectExperiences = "SELECT record FROM learning_experiences ORDER BY number"
	selectChanges     = "SELECT kind, component, at, weight, score, strategy FROM learning_weight_history ORDER BY " +
		"number"
)

// each calls do for each row of a query; read reads one row.
func each[R any](ctx context.Context, s store.Store, query string, do func(*R) error,
	read func(*R, func(...any) error) error,
) error {
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

// StoredFeedback is a feedback with the component that it is about.
type StoredFeedback struct {
	Kind, Component string // of the component; both "" = none
	protocol.Feedback
}

// EachFeedback calls do for each stored feedback, the oldest first. do must not use the store; an error of
// do ends the iteration and is returned.
func EachFeedback(ctx context.Context, s store.Store, do func(*StoredFeedback) error) error {
	return each(ctx, s, selectFeedback, do, func(f *StoredFeedback, scan func(...any) error) error {
		return scan(&f.Kind, &f.Component, store.JSON(&f.Feedback))
	})
}

// EachExperience calls do for each stored experience, as EachFeedback does.
func EachExperience(ctx context.Context, s store.Store, do func(*protocol.Experience) error) error {
	return each(ctx, s, selectExperiences, do, func(x *protocol.Experience, scan func(...any) error) error {
		return scan(store.JSON(x))
	})
}

// The rows of learning_totals.
const (
	totalCalls       = "calls"       // correlations in learning_calls
	totalFeedback    = "feedback"    // rows of learning_feedback and their size
	totalExperiences = "experiences" // rows of learning_experiences and their size
	totalHistory     = "history"     // rows of learning_weight_history
	totalWeights     = "weights"     // number of changes of learning_settings so far
)

// total is one row of learning_totals.
type total struct{ rows, size int64 }

func (t *total) add(more total) {
	t.rows += more.rows
	t.size += more.size
}

// addTotal adds to a total, and returns the new one.
func addTotal(tx *store.Tx, name string, more total) (sum total, err error) {
	_, err = tx.Get(`INSERT INTO learning_totals (name, rows, size) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET rows = learning_totals.rows + excluded.rows,
		size = learning_totals.size + excluded.size RETURNING rows, size`,
		[]any{name, more.rows, more.size}, &sum.rows, &sum.size)
	return sum, err
}

func readTotal(tx *store.Tx, name string) (sum total, err error) {
	_, err = tx.Get("SELECT rows, size FROM learning_totals WHERE name = $1", []any{name}, &sum.rows, &sum.size)
	return sum, err
}
