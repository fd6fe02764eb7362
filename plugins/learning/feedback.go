package learning

import (
	"context"
	"fmt"
	"math"
	"slices"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	// maxID bounds ids that agents choose, in bytes.
	maxID = 512
	// maxProblems is how many mistakes a refusal lists.
	maxProblems = 100
	// maxRow bounds the text of one row of feedback or experience, in bytes. maxText bounds the text of
	// all rows of a table.
	maxRow  = 1 << 20
	maxText = 1 << 30
)

// feedback answers learn/feedback. It stores all of the batch, or nothing.
func (p *Plugin) feedback(ctx context.Context, req *protocol.LearnFeedbackRequest,
	_ host.Emitter,
) (*protocol.LearnFeedbackResponse, error) {
	rows, problems := p.rateds(req.Feedbacks)
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	resp := &protocol.LearnFeedbackResponse{Recorded: len(rows)}
	if len(rows) == 0 {
		return resp, nil
	}
	if err := p.flush(ctx); err != nil { // the feedback may be about the last calls
		return nil, p.kept.Noted(ctx, err)
	}
	var names []component
	for _, r := range rows {
		names = append(names, turnNames(&r.Feedback)...)
	}
	about, err := p.resolver(ctx, names)
	if err != nil {
		return nil, err
	}
	err = p.kept.Write(ctx, func(tx *store.Tx) (err error) {
		resp.NewScore, err = about.take(tx, rows, int64(p.opts.MaxFeedback))
		return err
	})
	p.forgetArms()
	return resp, err
}

// rated is a feedback that is ready to be stored.
type rated struct {
	protocol.Feedback
	record []byte // the feedback as JSON
}

// rateds checks a batch and makes it ready to be stored. Of several feedbacks with the same feedback_id
// the last one counts.
func (p *Plugin) rateds(batch []protocol.Feedback) (rows []*rated, problems []protocol.FieldError) {
	places := make(map[string]int, len(batch))
	for i := range batch {
		f := &batch[i]
		path := fmt.Sprintf("/feedbacks/%d", i)
		found := checkFeedback(f)
		if f.Source == protocol.SourceEnv && !p.opts.TrustAgentEnv {
			f.Source = protocol.SourceSelf // only the host speaks for environments
		}
		if f.FeedbackID == "" {
			f.FeedbackID = "b_" + newID()
		}
		if f.TS == 0 {
			f.TS = inSeconds(p.nowMicros())
		}
		r, err := newRated(f)
		if err != nil {
			found = append(found, protocol.FieldError{Message: err.Error()})
		}
		for _, one := range found {
			problems = append(problems, protocol.FieldError{Path: path + one.Path, Message: one.Message})
		}
		if len(problems) >= maxProblems {
			break
		}
		if at, twice := places[f.FeedbackID]; twice {
			rows[at] = r
			continue
		}
		places[f.FeedbackID] = len(rows)
		rows = append(rows, r)
	}
	return rows, problems
}

func newRated(f *protocol.Feedback) (*rated, error) {
	raw, err := protocol.AppendJSON(nil, f)
	if err == nil && len(raw) > maxRow {
		err = fmt.Errorf("has %d bytes; at most %d are allowed", len(raw), maxRow)
	}
	return &rated{*f, raw}, err
}

// checkFeedback returns what is wrong with a feedback, with paths relative to it.
func checkFeedback(f *protocol.Feedback) (problems []protocol.FieldError) {
	wrong := func(path, format string, args ...any) {
		problems = append(problems, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	oneOf(wrong, "/polarity", f.Polarity, protocol.PolarityPositive, protocol.PolarityNegative,
		protocol.PolarityNeutral, protocol.PolarityCorrective)
	oneOf(wrong, "/dimension", f.Dimension, protocol.DimensionCorrectness, protocol.DimensionHelpfulness,
		protocol.DimensionSafety,
		protocol.DimensionTone, protocol.DimensionPlanQuality)
	oneOf(wrong, "/source", f.Source, protocol.SourceHuman, protocol.SourceEnv, protocol.SourceSelf)
	if !(f.Score >= -1 && f.Score <= 1) {
		wrong("/score", "is %g; should be from -1 to 1", f.Score)
	}
	if !(f.Confidence >= 0 && f.Confidence <= 1) {
		wrong("/confidence", "is %g; should be from 0 to 1", f.Confidence)
	}
	if f.Polarity == protocol.PolarityCorrective && f.Correction == "" {
		wrong("/correction", `is empty; polarity "corrective" needs the text that would have been right`)
	}
	if s := f.CorrectionSpan; s != nil && (s[0] < 0 || s[1] < s[0]) {
		wrong("/correction_span", "is [%d,%d]; should be where the corrected text begins and ends, counted from 0",
			s[0], s[1])
	}
	if !(f.TS >= 0 && f.TS < maxSeconds) {
		wrong("/ts", "is %g; should be seconds since 1970", f.TS)
	}
	texts := []struct{ path, text string }{{"/feedback_id", f.FeedbackID}, {"/correlation_id", f.CorrelationID}}
	for _, of := range turnNames(f) {
		texts = append(texts, struct{ path, text string }{"/rated_turn", of.name})
	}
	for _, t := range texts {
		if len(t.text) > maxID {
			wrong(t.path, "has a name of %d bytes; at most %d are allowed", len(t.text), maxID)
		}
	}
	return problems
}

// maxSeconds is the year 10000.
const maxSeconds = 253402300800

// oneOf notes a value that is not one of the known ones.
func oneOf[T ~string](wrong func(path, format string, args ...any), path string, value T, known ...T) {
	switch {
	case slices.Contains(known, value):
	case value == "":
		wrong(path, "is missing; should be one of %q", known)
	default:
		wrong(path, "is %.64q; should be one of %q", value, known)
	}
}

// rating is what a row of learning_feedback contributes to the sums of its component.
type rating struct {
	component         *int64 // the component's number; nil = none
	score, confidence float64
}

// take stores a batch and returns the score of the last component in it. It returns nil if there is no
// component, or if all of its feedback has a confidence of 0.
func (r *resolver) take(tx *store.Tx, rows []*rated, maxRows int64) (score *float64, err error) {
	wanted := make(map[string]bool)
	for _, one := range rows {
		if one.CorrelationID != "" {
			wanted[one.CorrelationID] = true
		}
	}
	if r.calls, err = findCalls(tx, wanted); err != nil {
		return nil, err
	}
	var added total
	var last *int64
	for _, one := range rows {
		more, err := one.put(tx, func(old rating, oldRecord []byte) (*int64, error) {
			about, err := r.about(tx, &one.Feedback, old, oldRecord)
			if about != nil {
				last = about
			}
			return about, err
		})
		if err != nil {
			return nil, err
		}
		added.add(more)
	}
	if err := trim(tx, "learning_feedback", "component, score, confidence", totalFeedback, added,
		maxRows); err != nil || last == nil {
		return nil, err
	}
	all, err := read(tx, " WHERE c.number = $1", *last)
	if err != nil || len(all) == 0 || all[0].ScoreWeight == 0 {
		return nil, err
	}
	return &all[0].Score, nil
}

// put stores one feedback, and replaces an earlier one with its id. find returns the number of the
// component that the feedback is about; it is called with the earlier feedback.
func (r *rated) put(tx *store.Tx, find func(old rating, oldRecord []byte) (*int64, error)) (added total, err error) {
	var old rating
	var oldSize int64
	var oldRecord []byte
	there, err := tx.Get("SELECT component, score, confidence, size, record FROM learning_feedback WHERE id = $1",
		[]any{r.FeedbackID},
		&old.component, &old.score, &old.confidence, &oldSize, &oldRecord)
	if err != nil {
		return added, err
	}
	now := rating{nil, r.Score, r.Confidence}
	if now.component, err = find(old, oldRecord); err != nil {
		return added, err
	}
	size := int64(len(r.record))
	if _, err := tx.Exec(`INSERT INTO learning_feedback (id, component, score, confidence, at, size, record) VALUES
		($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET
		component = excluded.component, score = excluded.score, confidence = excluded.confidence, at = excluded.at,
		size = excluded.size, record = excluded.record`,
		r.FeedbackID, now.component, r.Score, r.Confidence, int64(r.TS*1e6), size, string(r.record)); err != nil {
		return added, err
	}
	if err := now.count(tx, 1); err != nil || !there {
		return total{1, size}, err
	}
	return total{0, size - oldSize}, old.takeOff(tx)
}

// count adds the rating to the sums of its component, times times.
func (r rating) count(tx *store.Tx, times int64) error {
	if r.component == nil {
		return nil
	}
	_, err := tx.Exec("UPDATE learning_components SET feedbacks = feedbacks + $1, score_sum = score_sum + $2, "+
		"score_weight = score_weight + $3 WHERE number = $4",
		times, times*billionths(r.score*r.confidence), times*billionths(r.confidence), *r.component)
	return err
}

// takeOff undoes count, and drops the component if nothing refers to it.
func (r rating) takeOff(tx *store.Tx) error {
	if err := r.count(tx, -1); err != nil {
		return err
	}
	return r.drop(tx)
}

// drop deletes the component if it was never called and no feedback or experience is about it.
func (r rating) drop(tx *store.Tx) error {
	if r.component == nil {
		return nil
	}
	_, err := tx.Exec(`DELETE FROM learning_components WHERE number = $1 AND calls = 0 AND feedbacks = 0
		AND NOT EXISTS (SELECT 1 FROM learning_told WHERE component = learning_components.number)`, *r.component)
	return err
}

// meanScore returns the mean score for a sum of weighted scores and the sum of the weights; 0 if weight is
// 0.
func meanScore(sum, weight float64) float64 {
	if weight == 0 {
		return 0
	}
	return min(max(sum/weight, -1), 1)
}

// billionths returns a number as the sums of ratings store it. Sums of integers are the same in any order,
// and subtracting leaves no rest.
func billionths(x float64) int64 { return int64(math.Round(x * 1e9)) }

// experience answers learn/experience. It stores all of the batch, or nothing. An experience replaces an
// earlier one with its id.
func (p *Plugin) experience(ctx context.Context, req *protocol.LearnExperienceRequest,
	_ host.Emitter,
) (*protocol.LearnExperienceResponse, error) {
	var problems []protocol.FieldError
	var names []component
	records := make([][]byte, len(req.Experiences))
	for i := range req.Experiences {
		x := &req.Experiences[i]
		if x.ExperienceID == "" {
			x.ExperienceID = newID()
		}
		if x.TS == 0 {
			x.TS = inSeconds(p.nowMicros())
		}
		raw, err := experienceRecord(x)
		if err != nil {
			problems = append(problems, protocol.FieldError{
				Path:    fmt.Sprintf("/experiences/%d", i),
				Message: err.Error(),
			})
		}
		if len(problems) >= maxProblems {
			break
		}
		records[i], names = raw, append(names, actor(x))
	}
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	resp := &protocol.LearnExperienceResponse{Stored: len(records)}
	if len(records) == 0 {
		return resp, nil
	}
	if err := p.flush(ctx); err != nil { // what acted may have been called just now
		return nil, p.kept.Noted(ctx, err)
	}
	about, err := p.resolver(ctx, names)
	if err != nil {
		return nil, err
	}
	return resp, p.kept.Write(ctx, func(tx *store.Tx) error {
		var added total
		for i, raw := range records {
			more, err := about.putExperience(tx, &req.Experiences[i], raw)
			if err != nil {
				return err
			}
			added.add(more)
		}
		if err := trim(tx, "learning_experiences", "NULL, 0, 0", totalExperiences, added,
			int64(p.opts.MaxExperiences)); err != nil {
			return err
		}
		return trimTold(tx)
	})
}

// experienceRecord returns an experience as the store keeps it. The error continues a sentence about the
// experience.
func experienceRecord(x *protocol.Experience) ([]byte, error) {
	if len(x.ExperienceID) > maxID {
		return nil, fmt.Errorf("has an experience_id of %d bytes; at most %d are allowed", len(x.ExperienceID), maxID)
	}
	if name := actor(x).name; len(name) > maxID {
		return nil, fmt.Errorf("names what acted by %d bytes; at most %d are allowed", len(name), maxID)
	}
	if !(x.TS >= 0 && x.TS < maxSeconds) {
		return nil, fmt.Errorf("has a ts of %g; should be seconds since 1970", x.TS)
	}
	raw, err := protocol.AppendJSON(nil, x)
	if err == nil && len(raw) > maxRow {
		err = fmt.Errorf("has %d bytes; at most %d are allowed", len(raw), maxRow)
	}
	return raw, err
}

// putExperience stores one experience, and replaces one with the same id.
func (r *resolver) putExperience(tx *store.Tx, x *protocol.Experience, raw []byte) (added total, err error) {
	size := int64(len(raw))
	var number, oldSize int64
	there, err := tx.Get("SELECT number, size FROM learning_experiences WHERE id = $1", []any{x.ExperienceID},
		&number, &oldSize)
	switch {
	case err != nil:
		return added, err
	case there:
		added = total{0, size - oldSize}
		_, err = tx.Exec("UPDATE learning_experiences SET size = $1, record = $2 WHERE number = $3", size,
			string(raw), number)
	default:
		added = total{1, size}
		number, err = tx.Insert("INSERT INTO learning_experiences (id, size, record) VALUES ($1, $2, $3) RETURNING "+
			"number", x.ExperienceID, size, string(raw))
	}
	if err != nil {
		return added, err
	}
	return added, r.tell(tx, x, number, there)
}

// tell counts an experience for the component that acted in it, unless its reward is too large to add up.
func (r *resolver) tell(tx *store.Tx, x *protocol.Experience, number int64, again bool) error {
	of := actor(x)
	about, found := r.actors[of]
	switch {
	case math.Abs(x.Reward) > maxReward:
		about = nil
	case !found:
		var err error
		if about, err = r.find(tx, []component{of}); err != nil {
			return err
		}
		r.actors[of] = about
	}
	var old rating
	if again {
		if _, err := tx.Get("DELETE FROM learning_told WHERE number = $1 RETURNING component", []any{number},
			&old.component); err != nil {
			return err
		}
	}
	if about != nil {
		if _, err := tx.Exec("INSERT INTO learning_told (number, component, reward) VALUES ($1, $2, $3)",
			number, *about, x.Reward); err != nil {
			return err
		}
	}
	if old.component != nil {
		clear(r.actors) // drop may delete one of them
	}
	return old.drop(tx)
}

// maxTold is how many of the last experiences are counted.
const maxTold = 10_000

// trimTold stops counting experiences that were deleted or are not among the last maxTold.
func trimTold(tx *store.Tx) error {
	gone := make(map[int64]bool)
	if err := tx.Each(`DELETE FROM learning_told WHERE number < (SELECT min(number) FROM learning_experiences)
		OR number <= (SELECT max(number) FROM learning_experiences) - $1 RETURNING component`, []any{maxTold},
		func(scan func(...any) error) error {
			var number int64
			err := scan(&number)
			gone[number] = true
			return err
		}); err != nil {
		return err
	}
	for number := range gone {
		if err := (rating{component: &number}).drop(tx); err != nil {
			return err
		}
	}
	return nil
}

// trim adds what was added to the total of a table, and deletes the oldest rows beyond maxRows and
// maxText. columns names the component, score and confidence of a row, which are taken off its component.
func trim(tx *store.Tx, table, columns, counted string, added total, maxRows int64) error {
	sum, err := addTotal(tx, counted, added)
	for err == nil && (sum.rows > maxRows || sum.size > maxText) {
		var size int64
		var r rating
		there, err := tx.Get("DELETE FROM "+table+" WHERE number = (SELECT min(number) FROM "+table+") RETURNING "+
			"size, "+columns, nil,
			&size, &r.component, &r.score, &r.confidence)
		if err != nil || !there {
			return err
		}
		if err := r.takeOff(tx); err != nil {
			return err
		}
		if sum, err = addTotal(tx, counted, total{-1, -size}); err != nil {
			return err
		}
	}
	return err
}
