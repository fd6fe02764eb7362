package learning

import (
	"cmp"
	"fmt"

	"a2e/host/state/store"
)

// A refinement is on trial from the moment it is applied: the results of its components since then are
// counted separately from those before. A refinement that does worse is rolled back:
//
//	calls ─ a flush of calls adds them to the open trials of their component
//	judge ─ after each flush; from minTrial calls on the intervals of before and since are
//	        compared: of the success rate (Wilson), of the feedback (Hoeffding), both of 99 %
//	worse ─ since lies below before, without overlap: the whole refinement is rolled back,
//	        unless somebody has changed one of its targets meanwhile
//	kept ── after maxTrial calls without that
//
// As calls come one by one, the intervals are compared again and again. If nothing has changed, this rolls
// back less than 2 of 100 refinements.

const (
	minTrial   = 20
	maxTrial   = 500
	trialLevel = 0.99 // the confidence of the intervals
)

// The verdicts of a trial.
const (
	verdictOpen   = ""            // the trial goes on
	verdictKept   = "kept"        // the component does not do worse
	verdictWorse  = "worse"       // the refinement was rolled back because it does worse
	verdictLeft   = "left alone"  // it does worse, but was changed meanwhile, so it stays
	verdictUndone = "rolled back" // it was rolled back for another reason
)

// trial is one row of learning_trials, as exports carry it.
type trial struct {
	Kind      string  `json:"kind"`
	Component string  `json:"component"`
	Before    figures `json:"before"`
	Since     figures `json:"since"`
	Start     figures `json:"start"` // the sums of the component when the trial began; calls are 0
	Verdict   string  `json:"verdict"`
	Note      string  `json:"note,omitzero"` // the reason for the verdict

	refinement int64
	id         string // of the refinement; set when the trial ends badly
}

// figures are the sums for a component over some time. ScoreSum is the sum of score times confidence, and
// ScoreWeight that of the confidences, both in billionths.
type figures struct {
	Calls       int64 `json:"calls"`
	Successes   int64 `json:"successes"`
	Feedbacks   int64 `json:"feedbacks"`
	ScoreSum    int64 `json:"score_sum"`
	ScoreWeight int64 `json:"score_weight"`
}

// columns returns pointers to the figures in the order of the tables.
func (f *figures) columns() []any {
	return []any{&f.Calls, &f.Successes, &f.Feedbacks, &f.ScoreSum, &f.ScoreWeight}
}

// score returns the mean of the feedback, and half the width of the interval around it.
func (f *figures) score() (mean, half float64) {
	return meanScore(float64(f.ScoreSum), float64(f.ScoreWeight)), hoeffding(float64(f.ScoreWeight)/1e9, trialLevel)
}

// worse returns why the figures are worse than those before; "" = that is not certain.
func (f *figures) worse(before *figures) string {
	low, _ := wilson(before.Successes, before.Calls, z99)
	if _, high := wilson(f.Successes, f.Calls, z99); high < low {
		return fmt.Sprintf("%d of %d calls succeeded since, and %d of %d before: at most %.2f, and at least %.2f, "+
			"with 99 %% confidence",
			f.Successes, f.Calls, before.Successes, before.Calls, high, low)
	}
	was, a := before.score()
	is, b := f.score()
	if is+b < was-a {
		return fmt.Sprintf("the mean of %d feedbacks since is %.2f, and that of %d before %.2f: at most %.2f, and "+
			"at least %.2f, with 99 %% confidence",
			f.Feedbacks, is, before.Feedbacks, was, is+b, was-a)
	}
	return ""
}

// newTrial begins the trial of a refinement of a component. The trial compares with the results since the
// refinement before, if there are enough calls, else with all results.
func newTrial(tx *store.Tx, kind, name string) (*trial, error) {
	t := &trial{Kind: kind, Component: name}
	_, err := tx.Get("SELECT calls, successes, feedbacks, score_sum, score_weight FROM learning_components WHERE "+
		"kind = $1 AND name = $2", []any{kind, name}, t.Before.columns()...)
	t.Start = t.Before
	t.Start.Calls, t.Start.Successes = 0, 0
	if err != nil {
		return nil, err
	}
	open, err := readTrials(tx, " WHERE t.kind = $1 AND t.component = $2 AND t.verdict IN ('', $3) ORDER BY "+
		"t.refinement DESC LIMIT 1", kind, name, verdictKept)
	if len(open) > 0 && open[0].Since.Calls >= minTrial {
		t.Before = open[0].Since
	}
	return t, err
}

func (t *trial) insert(tx *store.Tx) error {
	_, err := tx.Exec("INSERT INTO learning_trials (refinement, kind, component, verdict, note, calls, successes, "+
		"before, since, start) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		t.refinement, t.Kind, t.Component, t.Verdict, t.Note, t.Since.Calls, t.Since.Successes, store.JSON(t.Before),
		store.JSON(t.Since), store.JSON(t.Start))
	return err
}

// readTrials returns the trials that a condition finds. For open ones the feedback since their start is
// computed from the sums of the component.
func readTrials(tx *store.Tx, where string, args ...any) ([]*trial, error) {
	all := []*trial{} // not nil, which in an export means an older build
	err := tx.Each(`SELECT t.refinement, t.kind, t.component, t.verdict, t.note, t.before, t.since, t.start,
		t.calls, t.successes, coalesce(c.feedbacks, 0), coalesce(c.score_sum, 0), coalesce(c.score_weight, 0)
		FROM learning_trials t LEFT JOIN learning_components c ON c.kind = t.kind AND c.name = t.component`+where,
		args, func(scan func(...any) error) error {
			var t trial
			var sum figures
			err := scan(append([]any{
				&t.refinement, &t.Kind, &t.Component, &t.Verdict, &t.Note, store.JSON(&t.Before),
				store.JSON(&t.Since), store.JSON(&t.Start),
			}, sum.columns()...)...)
			if sum.minus(&t.Start); t.Verdict == verdictOpen {
				t.Since = sum
			}
			all = append(all, &t)
			return err
		})
	return all, err
}

// minus subtracts other figures. If feedback was deleted meanwhile, no feedback is left.
func (f *figures) minus(o *figures) {
	f.Calls, f.Successes = max(0, f.Calls-o.Calls), max(0, f.Successes-o.Successes)
	f.Feedbacks, f.ScoreSum, f.ScoreWeight = f.Feedbacks-o.Feedbacks, f.ScoreSum-o.ScoreSum, f.ScoreWeight-o.ScoreWeight
	if f.Feedbacks <= 0 || f.ScoreWeight <= 0 || max(f.ScoreSum, -f.ScoreSum) > f.ScoreWeight {
		f.Feedbacks, f.ScoreSum, f.ScoreWeight = 0, 0, 0
	}
}

// countTrials adds calls to the open trials of their component.
func countTrials(tx *store.Tx, of component, t *tally) error {
	_, err := tx.Exec("UPDATE learning_trials SET calls = calls + $1, successes = successes + $2 WHERE kind = $3 AND "+
		"component = $4 AND verdict = ''",
		t.calls, t.successes, of.kind, of.name)
	return err
}

// endTrials ends the trials that have a verdict, and logs those that do worse. Of several refinements of one
// component only the last one can be judged as worse in one pass: the earlier ones may look bad only because
// of it.
func (p *Plugin) endTrials(tx *store.Tx) error {
	all, err := readTrials(tx, " WHERE t.verdict = '' AND t.calls >= $1 ORDER BY t.refinement DESC", minTrial)
	seen := make(map[component]bool)
	for _, t := range all {
		of := component{t.Kind, t.Component}
		verdict := t.verdict()
		if err != nil || verdict == verdictOpen || seen[of] {
			continue
		}
		if verdict == verdictWorse {
			seen[of] = true
			verdict, err = t.undo(tx, p.nowMicros())
		}
		if err == nil {
			err = t.end(tx, verdict)
		}
		if seen[of] {
			tx.After(func() { p.tellWorse(t) })
		}
	}
	return err
}

// tellWorse logs that a component did worse, and drops what the host knew of its refinement.
func (p *Plugin) tellWorse(t *trial) {
	p.forgetWeights()
	p.env.Log.Warn().Str("plugin", p.name).Str("refinement", t.id).Str("kind", t.Kind).Str("component",
		t.Component).Str("verdict", t.Verdict).Msg("a refinement does worse than what was before: " + t.Note)
}

// verdict returns the verdict for the figures of an open trial.
func (t *trial) verdict() string {
	switch {
	case t.Since.worse(&t.Before) != "":
		return verdictWorse
	case t.Since.Calls >= maxTrial:
		return verdictKept
	}
	return verdictOpen
}

// undo rolls back the refinement of a trial, and notes the reason; or it notes why that is impossible.
func (t *trial) undo(tx *store.Tx, at int64) (verdict string, err error) {
	t.Note = t.Since.worse(&t.Before)
	all, err := readRefinements(tx, selectRefinements+" WHERE number = $1", t.refinement)
	if err != nil || len(all) == 0 {
		return verdictUndone, err
	}
	if t.id = all[0].ID; all[0].RolledBackAt != nil { // another component did worse as well
		return verdictUndone, nil
	}
	why, err := all[0].stale(tx)
	if err != nil || why != "" {
		t.Note += "; it stays: " + why
		return verdictLeft, err
	}
	return verdictWorse, all[0].rollBack(tx, at)
}

// end closes a trial with its current figures.
func (t *trial) end(tx *store.Tx, verdict string) error {
	t.Verdict = verdict
	_, err := tx.Exec("UPDATE learning_trials SET verdict = $1, since = $2, note = $3 WHERE refinement = $4 AND kind "+
		"= $5 AND component = $6",
		verdict, store.JSON(t.Since), t.Note, t.refinement, t.Kind, t.Component)
	return err
}

// endTrials closes the trials of a refinement that is rolled back. The results under it no longer count
// for earlier refinements.
func (r *refinement) endTrials(tx *store.Tx) error {
	for _, t := range r.Trials {
		if t.Verdict != verdictOpen {
			continue
		}
		if err := t.end(tx, verdictUndone); err != nil {
			return err
		}
		earlier, err := readTrials(tx, " WHERE t.kind = $1 AND t.component = $2 AND t.verdict = '' AND t.refinement "+
			"< $3", t.Kind, t.Component, r.number)
		for _, e := range earlier {
			if err == nil {
				err = e.forget(tx, &t.Since)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget subtracts the results of some time from an open trial.
func (t *trial) forget(tx *store.Tx, f *figures) error {
	start := figures{
		0, 0, t.Start.Feedbacks + f.Feedbacks, t.Start.ScoreSum + f.ScoreSum,
		t.Start.ScoreWeight + f.ScoreWeight,
	}
	_, err := tx.Exec(`UPDATE learning_trials SET calls = CASE WHEN calls > $1 THEN calls - $1 ELSE 0 END, successes
		= CASE WHEN successes > $2 THEN successes - $2 ELSE 0 END, start = $3
		WHERE refinement = $4 AND kind = $5 AND component = $6`,
		f.Calls, f.Successes, store.JSON(start), t.refinement, t.Kind, t.Component)
	return err
}

// entry returns the trial for history.
func (t *trial) entry() map[string]any {
	return map[string]any{
		"kind": t.Kind, "component": t.Component, "before": t.Before.entry(), "since": t.Since.entry(),
		"verdict": cmp.Or(t.Verdict, "measuring"), "note": t.Note,
	}
}

func (f *figures) entry() map[string]any {
	low, high := wilson(f.Successes, f.Calls, z99)
	score, _ := f.score()
	return map[string]any{
		"calls": f.Calls, "calls_success": f.Successes, "success_low": round4(low), "success_high": round4(high),
		"feedback_count": f.Feedbacks, "avg_score": round4(score),
	}
}

// check refuses a trial that apply would not have written.
func (t *trial) check() error {
	for _, f := range []*figures{&t.Before, &t.Since} {
		if f.Calls < 0 || f.Successes < 0 || f.Successes > f.Calls || f.Feedbacks < 0 || f.ScoreWeight < 0 ||
			max(f.ScoreSum, -f.ScoreSum) > f.ScoreWeight {
			return fmt.Errorf("the figures of %.100q do not fit together", t.Component)
		}
	}
	return namesFit(t.Kind, t.Component)
}
