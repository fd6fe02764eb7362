package learning

import (
	"context"
	"fmt"
	"slices"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

const (
	// kindModel is the kind of what feedback names by rated_turn and nobody has called
	// here: a model, or a prompt.
	kindModel = "model"
	// maxID bounds ids that agents choose, in bytes.
	maxID = 512
	// maxProblems is how many mistakes a refusal lists.
	maxProblems = 100
)

// feedback answers learn/feedback: all of the batch is kept, or nothing.
func (p *Plugin) feedback(ctx context.Context, req *protocol.LearnFeedbackRequest, _ host.Emitter) (*protocol.LearnFeedbackResponse, error) {
	rows, problems := p.rateds(req.Feedbacks)
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	resp := &protocol.LearnFeedbackResponse{Recorded: len(rows)}
	if len(rows) == 0 {
		return resp, nil
	}
	if err := p.flush(ctx); err != nil { // the calls that are rated may be the last ones
		return nil, p.noted(ctx, err)
	}
	err := p.write(ctx, func(tx *store.Tx) (err error) {
		resp.NewScore, err = takeFeedback(tx, rows, int64(p.opts.MaxFeedback))
		return err
	})
	return resp, err
}

// rated is a feedback that may be kept.
type rated struct {
	protocol.Feedback
	record []byte // the feedback as JSON
}

// rateds checks a batch and makes it ready. A feedback_id that stands twice counts once,
// as the later one says.
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

// checkFeedback gives what is wrong with a feedback, paths relative to it.
func checkFeedback(f *protocol.Feedback) (problems []protocol.FieldError) {
	wrong := func(path, format string, args ...any) {
		problems = append(problems, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	oneOf(wrong, "/polarity", f.Polarity, protocol.PolarityPositive, protocol.PolarityNegative, protocol.PolarityNeutral, protocol.PolarityCorrective)
	oneOf(wrong, "/dimension", f.Dimension, protocol.DimensionCorrectness, protocol.DimensionHelpfulness, protocol.DimensionSafety,
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
		wrong("/correction_span", "is [%d,%d]; should be where the corrected text begins and ends, counted from 0", s[0], s[1])
	}
	if !(f.TS >= 0 && f.TS < maxSeconds) {
		wrong("/ts", "is %g; should be seconds since 1970", f.TS)
	}
	texts := []struct{ path, text string }{{"/feedback_id", f.FeedbackID}, {"/correlation_id", f.CorrelationID}, {"/rated_turn", turnName(f)}}
	for _, t := range texts {
		if len(t.text) > maxID {
			wrong(t.path, "has a name of %d bytes; at most %d are allowed", len(t.text), maxID)
		}
	}
	return problems
}

// maxSeconds is the year 10000.
const maxSeconds = 253402300800

// oneOf refuses a value that is none of those known.
func oneOf[T ~string](wrong func(path, format string, args ...any), path string, value T, known ...T) {
	switch {
	case slices.Contains(known, value):
	case value == "":
		wrong(path, "is missing; should be one of %q", known)
	default:
		wrong(path, "is %.64q; should be one of %q", value, known)
	}
}

// turnName is what a feedback is about where no call has its correlation.
func turnName(f *protocol.Feedback) string {
	switch t := f.RatedTurn; {
	case t == nil:
		return ""
	case t.Version != nil && *t.Version != "":
		return *t.Version
	default:
		return t.Model
	}
}
