package learning

import (
	"math"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
	"a2e/protocol"
)

// rating is what a row of learning_feedback counts for.
type rating struct {
	component         *int64 // the component's number; nil = none
	score, confidence float64
}

// takeFeedback keeps a batch and gives the score of the last component in it, nil where
// there is none.
func takeFeedback(tx *store.Tx, rows []*rated, maxRows int64) (score *float64, err error) {
	wanted := make(map[string]bool)
	for _, r := range rows {
		if r.CorrelationID != "" {
			wanted[r.CorrelationID] = true
		}
	}
	calls, err := findCalls(tx, wanted)
	if err != nil {
		return nil, err
	}
	var added total
	var last *int64
	for _, r := range rows {
		more, err := r.put(tx, func(old rating, oldRecord string) (*int64, error) {
			about, err := r.about(tx, calls, old, oldRecord)
			if about != nil {
				last = about
			}
			return about, err
		})
		if err != nil {
			return nil, err
		}
		added.rows += more.rows
		added.size += more.size
	}
	if err := feedbackShelf().trim(tx, added.rows, added.size, maxRows); err != nil || last == nil {
		return nil, err
	}
	return readScore(tx, *last)
}

// put keeps one feedback, in place of an earlier one with its id. find gives the number
// of the component that it is about; it gets the earlier one.
func (r *rated) put(tx *store.Tx, find func(old rating, oldRecord string) (*int64, error)) (added total, err error) {
	var number, oldSize int64
	var oldRecord string
	var old rating
	there, err := tx.Get("SELECT number, size, record FROM learning_feedback WHERE id = ?", []any{r.FeedbackID}, &number, &oldSize, &oldRecord)
	if err == nil && there {
		old, err = readRating(tx, number)
	}
	if err != nil {
		return added, err
	}
	now := rating{nil, r.Score, r.Confidence}
	if now.component, err = find(old, oldRecord); err != nil {
		return added, err
	}
	size := int64(len(r.record))
	if !there {
		if _, _, err := tx.Exec("INSERT INTO learning_feedback (id, component, score, confidence, size, record) VALUES (?, ?, ?, ?, ?, ?)",
			r.FeedbackID, now.component, r.Score, r.Confidence, size, string(r.record)); err != nil {
			return added, err
		}
		return total{1, size}, now.count(tx, 1)
	}
	if _, _, err := tx.Exec("UPDATE learning_feedback SET component = ?, score = ?, confidence = ?, size = ?, record = ? WHERE number = ?",
		now.component, r.Score, r.Confidence, size, string(r.record), number); err != nil {
		return added, err
	}
	return total{0, size - oldSize}, now.replace(tx, old)
}

// about gives the component that a feedback is about: that of the call with its
// correlation, or that which an earlier feedback of its id found by the same, else what
// rated_turn names.
func (r *rated) about(tx *store.Tx, calls map[string]component, old rating, oldRecord string) (*int64, error) {
	if c, ok := calls[r.CorrelationID]; ok {
		number, err := ensureComponent(tx, c)
		return &number, err
	}
	if old.component != nil && r.CorrelationID != "" {
		var earlier protocol.Feedback
		if err := json.Unmarshal([]byte(oldRecord), &earlier); err == nil && earlier.CorrelationID == r.CorrelationID && turnName(&earlier) == turnName(&r.Feedback) {
			return old.component, nil
		}
	}
	name := turnName(&r.Feedback)
	if name == "" {
		return nil, nil
	}
	number, err := componentNamed(tx, name)
	return &number, err
}

// componentNamed gives the component of a name, of several kinds the one called last; a
// name that nothing has makes a component of kindModel.
func componentNamed(tx *store.Tx, name string) (number int64, err error) {
	there, err := tx.Get("SELECT number FROM learning_components WHERE name = ? ORDER BY last_called DESC, number LIMIT 1", []any{name}, &number)
	if err != nil || there {
		return number, err
	}
	return ensureComponent(tx, component{kindModel, name})
}

func readRating(tx *store.Tx, number int64) (r rating, err error) {
	_, err = tx.Get("SELECT component, score, confidence FROM learning_feedback WHERE number = ?", []any{number}, &r.component, &r.score, &r.confidence)
	return r, err
}

// replace counts r where old was counted before.
func (r rating) replace(tx *store.Tx, old rating) error {
	same := r.component == old.component || r.component != nil && old.component != nil && *r.component == *old.component
	if same && r.score == old.score && r.confidence == old.confidence {
		return nil
	}
	if err := r.count(tx, 1); err != nil {
		return err
	}
	return old.count(tx, -1)
}

// count adds the rating to its component, or with -1 takes it off. A component that
// nobody has called goes with its last rating.
func (r rating) count(tx *store.Tx, times int64) error {
	if r.component == nil {
		return nil
	}
	if _, _, err := tx.Exec("UPDATE learning_components SET feedbacks = feedbacks + ?, score_sum = score_sum + ?, score_weight = score_weight + ? WHERE number = ?",
		times, times*billionths(r.score*r.confidence), times*billionths(r.confidence), *r.component); err != nil || times > 0 {
		return err
	}
	_, _, err := tx.Exec("DELETE FROM learning_components WHERE number = ? AND calls = 0 AND feedbacks = 0", *r.component)
	return err
}

// readScore gives the confidence-weighted mean of a component's feedback; nil where all
// of it has a confidence of 0.
func readScore(tx *store.Tx, number int64) (*float64, error) {
	var sum, weight int64
	there, err := tx.Get("SELECT score_sum, score_weight FROM learning_components WHERE number = ?", []any{number}, &sum, &weight)
	if err != nil || !there || weight == 0 {
		return nil, err
	}
	return new(meanScore(sum, weight)), nil
}

// meanScore gives the mean of sums of scores and weights; 0 without weight.
func meanScore(sum, weight int64) float64 {
	if weight == 0 {
		return 0
	}
	return min(max(float64(sum)/float64(weight), -1), 1)
}

// billionths is a number as sums of ratings have it: integers add up to the same in any
// order, and what is taken off leaves nothing behind.
func billionths(x float64) int64 { return int64(math.Round(x * 1e9)) }
