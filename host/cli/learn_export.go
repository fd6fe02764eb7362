package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
	"a2e/plugins/learning"
	"a2e/protocol"
)

// preferencePair is a line of `--format dpo`, as the public specification derives it from a
// corrective feedback, and where it is from.
type preferencePair struct {
	Prompt       string                     `json:"prompt"`
	Chosen       string                     `json:"chosen"`
	Rejected     string                     `json:"rejected"`
	Dimension    protocol.FeedbackDimension `json:"dimension"`
	ModelVersion string                     `json:"model_version"`
	Confidence   float64                    `json:"confidence"` // 0 to 1
	Source       protocol.FeedbackSource    `json:"source"`
	Component    string                     `json:"component_name"`
	FeedbackID   string                     `json:"feedback_id"`
}

// experienceSample is a line of `--format rewards` from an experience.
type experienceSample struct {
	State        protocol.Object `json:"state"`
	Action       protocol.Object `json:"action"`
	Reward       float64         `json:"reward"`
	NextState    protocol.Object `json:"next_state"`
	Done         bool            `json:"done"`
	EpisodeID    string          `json:"episode_id"`
	Step         int             `json:"step"`
	ExperienceID string          `json:"experience_id"`
}

// feedbackSample is a line of `--format rewards` from a rated turn.
type feedbackSample struct {
	State struct {
		Prompt string `json:"prompt"`
	} `json:"state"`
	Action struct {
		Component string `json:"component_name"`
		Response  string `json:"response"`
	} `json:"action"`
	Reward     float64                    `json:"reward"` // the score, -1 to 1
	Weight     float64                    `json:"weight"` // the confidence, 0 to 1
	Dimension  protocol.FeedbackDimension `json:"dimension"`
	Source     protocol.FeedbackSource    `json:"source"`
	FeedbackID string                     `json:"feedback_id"`
}

// trainingExport writes lines and counts what could not become one.
type trainingExport struct {
	lines  int
	noTurn int // feedbacks without the turn that they are about
	misfit int // corrections whose correction_span lies outside the response
	equal  int // corrections that change nothing
}

func (e *trainingExport) write(ctx context.Context, s store.Store, format string, w io.Writer) error {
	out := bufio.NewWriter(w)
	line := func(v any) error {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		e.lines++
		_, err = out.Write(append(raw, '\n'))
		return err
	}
	var err error
	if format == "dpo" {
		err = learning.EachFeedback(ctx, s, func(f *learning.StoredFeedback) error { return e.pair(f, line) })
	} else {
		err = errors.Join(
			learning.EachExperience(ctx, s, func(x *protocol.Experience) error {
				return line(experienceSample{x.State, x.Action, x.Reward, x.NextState, x.Done, x.EpisodeID, x.Step, x.ExperienceID})
			}),
			learning.EachFeedback(ctx, s, func(f *learning.StoredFeedback) error { return e.sample(f, line) }))
	}
	return errors.Join(err, out.Flush())
}

// pair writes the pair of a corrective feedback.
func (e *trainingExport) pair(f *learning.StoredFeedback, line func(any) error) error {
	if f.Polarity != protocol.PolarityCorrective || f.Correction == "" {
		return nil
	}
	if f.RatedTurn == nil {
		e.noTurn++
		return nil
	}
	chosen, ok := corrected(f.RatedTurn.Response, f.Correction, f.CorrectionSpan)
	switch {
	case !ok:
		e.misfit++
		return nil
	case chosen == f.RatedTurn.Response:
		e.equal++
		return nil
	}
	version := f.RatedTurn.Model
	if v := f.RatedTurn.Version; v != nil && *v != "" {
		version = *v
	}
	return line(preferencePair{f.RatedTurn.Prompt, chosen, f.RatedTurn.Response, f.Dimension, version, f.Confidence, f.Source, f.Component, f.FeedbackID})
}

// corrected gives the response with the correction in place of the characters from
// span[0] up to span[1], or the correction alone where there is no span. It gives false
// for a span that the response does not have.
func corrected(response, correction string, span *[2]int) (string, bool) {
	if span == nil {
		return correction, true
	}
	if span[0] < 0 || span[1] < span[0] || span[1] > utf8.RuneCountInString(response) {
		return "", false
	}
	runes := []rune(response)
	return string(runes[:span[0]]) + correction + string(runes[span[1]:]), true
}

// sample writes the reward of a rated turn.
func (e *trainingExport) sample(f *learning.StoredFeedback, line func(any) error) error {
	if f.RatedTurn == nil {
		e.noTurn++
		return nil
	}
	s := feedbackSample{Reward: f.Score, Weight: f.Confidence, Dimension: f.Dimension, Source: f.Source, FeedbackID: f.FeedbackID}
	s.State.Prompt, s.Action.Component, s.Action.Response = f.RatedTurn.Prompt, f.Component, f.RatedTurn.Response
	return line(s)
}

// notes says what there was nothing to make a line of.
func (e *trainingExport) notes(format string) (notes []string) {
	what := "reward samples: they come from learn/experience/req, steps of environments and learn/feedback/req with a rated_turn"
	if format == "dpo" {
		what = `preference pairs: they come from learn/feedback/req with polarity "corrective" and a rated_turn`
	}
	if e.lines == 0 {
		notes = append(notes, "there are no "+what)
	}
	for _, n := range []struct {
		count int
		why   string
	}{
		{e.noTurn, "no rated_turn says what was asked and answered"},
		{e.misfit, "the correction_span lies outside the response"},
		{e.equal, "the correction changes nothing"},
	} {
		switch {
		case n.count == 1:
			notes = append(notes, "1 feedback left out: "+n.why)
		case n.count > 1:
			notes = append(notes, fmt.Sprintf("%d feedbacks left out: %s", n.count, n.why))
		}
	}
	return notes
}
