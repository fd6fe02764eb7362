package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/host/state/store"
	"a2e/plugins"
	"a2e/plugins/learning"
	"a2e/protocol"
)

// learnCmd reads the store directly: it needs no host and changes nothing.
type learnCmd struct {
	Stats   learnStatsCmd   `cmd:"" help:"Show how components did: calls, durations, feedback, weights."`
	History learnHistoryCmd `cmd:"" help:"Show what was refined: edits with their diffs, and how components did before and since."`
	Export  learnExportCmd  `cmd:"" help:"Write training data as JSONL: preference pairs or reward samples."`
}

type learnStatsCmd struct {
	Name string `arg:"" optional:"" help:"The component. Default: all."`
	JSON bool   `name:"json" help:"Print the records as JSON, as learn/stats/req answers them."`
}

// Run prints a line for each component.
func (l learnStatsCmd) Run(cmd *commands, sys *System) error {
	var all []*learning.Component
	err := cmd.withState(sys, true, func(ctx context.Context, _ *config.Config, s store.Store) (err error) {
		all, err = learning.Stats(ctx, s, l.Name)
		if err == nil && len(all) == 0 && l.Name != "" {
			err = noComponent(ctx, s, l.Name)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case l.JSON:
		return printJSON(sys.Out, each(all, (*learning.Component).Message))
	}
	return printStats(sys, all)
}

// noComponent returns the error for an unknown component, with the known ones.
func noComponent(ctx context.Context, s store.Store, name string) error {
	all, err := learning.Stats(ctx, s, "")
	if err != nil {
		return err
	}
	return fail(exitFailed, unknown("record of a component", name, each(all,
		func(c *learning.Component) string { return c.Name })))
}

func printStats(sys *System, all []*learning.Component) error {
	columns, now := []string{"KIND", "CALLS", "OK", "AVG", "P95", "REWARD", "SCORE", "WEIGHT", "LAST", "COMPONENT"},
		time.Now()
	return list(sys, false, all, "no call was recorded yet, and no feedback", columns,
		func(c *learning.Component) []string {
			success, average, p95, last, reward, score := "-", "-", "-", "-", "-", "-"
			if c.Calls > 0 {
				success = fmt.Sprintf("%.0f%%", 100*float64(c.Successes)/float64(c.Calls))
				average, p95 = shortDuration(c.AvgDuration), shortDuration(c.P95Duration)
				last = shortTime(float64(c.LastCalled.UnixMicro())/1e6, now)
			}
			if n := c.Rewards + c.Experiences; n > 0 {
				sum := c.RewardMean*float64(c.Rewards) + c.ExperienceMean*float64(c.Experiences)
				reward = fmt.Sprintf("%.3g (%d)", sum/float64(n), n)
			}
			if c.Feedbacks > 0 {
				score = fmt.Sprintf("%+.2f (%d)", c.Score, c.Feedbacks)
			}
			return []string{
				c.Kind, strconv.FormatInt(c.Calls, 10), success, average, p95, reward, score,
				strconv.FormatFloat(c.Weight, 'f', 2, 64), last, c.Name,
			}
		})
}

// shortDuration formats a duration, rounded to a hundredth of its unit.
func shortDuration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Minute, time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

type learnExportCmd struct {
	Format string `enum:"dpo,rewards" default:"dpo" placeholder:"FORMAT" help:"dpo: a preference pair of each correction. rewards: a sample of each experience and each rated turn. Default: ${default}."`
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run writes the lines, and prints what could not become one.
func (l learnExportCmd) Run(cmd *commands, sys *System) error {
	e := &trainingExport{}
	err := cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		return sys.output(l.Output, plugins.StatePath(cfg),
			func(w io.Writer) error { return e.write(ctx, s, l.Format, w) })
	})
	if err != nil {
		return err
	}
	for _, note := range e.notes(l.Format) {
		say(sys.Err, "%s", note)
	}
	return nil
}

// preferencePair is a line of `--format dpo`. It is derived from a corrective feedback as the
// public specification says, and also names its source.
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

// experienceSample is a line of `--format rewards`, made from an experience.
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

// feedbackSample is a line of `--format rewards`, made from a rated turn.
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

// trainingExport writes lines and counts the records that could not become one.
type trainingExport struct {
	lines  int
	noTurn int // feedbacks without their rated turn
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
				return line(experienceSample{
					x.State, x.Action, x.Reward, x.NextState, x.Done, x.EpisodeID, x.Step,
					x.ExperienceID,
				})
			}),
			learning.EachFeedback(ctx, s, func(f *learning.StoredFeedback) error { return e.sample(f, line) }))
	}
	return errors.Join(err, out.Flush())
}

// pair writes the preference pair of a corrective feedback.
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
	return line(preferencePair{
		f.RatedTurn.Prompt, chosen, f.RatedTurn.Response, f.Dimension, version, f.Confidence,
		f.Source, f.Component, f.FeedbackID,
	})
}

// corrected returns the response with the characters from span[0] up to span[1] replaced by the
// correction, or only the correction if there is no span. It returns false if the span is outside
// the response.
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
	s := feedbackSample{
		Reward: f.Score, Weight: f.Confidence, Dimension: f.Dimension, Source: f.Source,
		FeedbackID: f.FeedbackID,
	}
	s.State.Prompt, s.Action.Component, s.Action.Response = f.RatedTurn.Prompt, f.Component, f.RatedTurn.Response
	return line(s)
}

// notes returns a note if there are no lines, and one for each kind of record that was left out.
func (e *trainingExport) notes(format string) (notes []string) {
	what := "reward samples: they come from what agents record, steps of environments and feedback with a rated turn"
	if format == "dpo" {
		what = "preference pairs: they come from corrective feedback with a rated turn"
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
		if n.count > 0 {
			notes = append(notes, protocol.Count(n.count, "feedback")+" left out: "+n.why)
		}
	}
	return notes
}

type learnHistoryCmd struct {
	Name string `arg:"" optional:"" help:"Only refinements of this component."`
	JSON bool   `name:"json" help:"Print the entries as JSON, as learn/refinement/history/req answers them."`
}

// pastRefinement is an entry of the history.
type pastRefinement struct {
	ID           string      `json:"refinement_id"`
	Status       string      `json:"status"`
	AppliedAt    float64     `json:"applied_at"`
	RolledBackAt *float64    `json:"rolled_back_at"`
	Rationale    string      `json:"rationale"`
	Edits        []pastEdit  `json:"edits"`
	Measured     []pastTrial `json:"measured"`
}

type pastEdit struct {
	Kind      string         `json:"kind"`
	Component string         `json:"component"`
	Name      string         `json:"name"`
	Version   int64          `json:"version"`
	From      jsontext.Value `json:"from"`
	To        jsontext.Value `json:"to"`
	Diff      *string        `json:"diff"` // nil = the values are no texts
}

type pastTrial struct {
	Kind      string      `json:"kind"`
	Component string      `json:"component"`
	Before    pastFigures `json:"before"`
	Since     pastFigures `json:"since"`
	Verdict   string      `json:"verdict"`
	Note      string      `json:"note"`
}

type pastFigures struct {
	Calls     int64   `json:"calls"`
	Successes int64   `json:"calls_success"`
	Feedbacks int64   `json:"feedback_count"`
	Score     float64 `json:"avg_score"`
}

// Run prints the refinements, the newest first.
func (l learnHistoryCmd) Run(cmd *commands, sys *System) error {
	var entries []map[string]any
	if err := cmd.withState(sys, true, func(ctx context.Context, _ *config.Config, s store.Store) (err error) {
		entries, err = learning.History(ctx, s)
		return err
	}); err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e map[string]any) bool {
		edits, _ := e["edits"].([]map[string]any)
		return l.Name != "" && !slices.ContainsFunc(edits,
			func(edit map[string]any) bool { return edit["component"] == l.Name })
	})
	switch {
	case l.JSON:
		return printJSON(sys.Out, entries)
	case len(entries) == 0 && l.Name != "":
		say(sys.Err, "nothing was refined of %s", oneLine(l.Name))
		return nil
	case len(entries) == 0:
		say(sys.Err, "nothing was refined yet; agents apply refinements as they learn")
		return nil
	}
	raw, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	var all []pastRefinement
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range all {
		r.print(&out)
	}
	_, err = sys.Out.Write([]byte(out.String()))
	return err
}

// print writes one refinement: its rationale, its edits, and how its components did before and since.
func (r *pastRefinement) print(out *strings.Builder) {
	now := time.Now()
	fmt.Fprintf(out, "%s  applied %s", r.ID, shortTime(r.AppliedAt, now))
	if r.RolledBackAt != nil {
		fmt.Fprintf(out, ", rolled back %s", shortTime(*r.RolledBackAt, now))
	}
	if r.Rationale != "" {
		fmt.Fprintf(out, ": %s", oneLine(r.Rationale))
	}
	out.WriteByte('\n')
	for _, e := range r.Edits {
		fmt.Fprintf(out, "  %s %s: %s, version %d", oneLine(e.Kind), oneLine(e.Component), oneLine(e.Name), e.Version)
		if e.Diff == nil {
			fmt.Fprintf(out, ": %s to %s", e.From, e.To)
		}
		out.WriteByte('\n')
		if e.Diff != nil {
			for line := range strings.Lines(cmp.Or(*e.Diff, "(the diff is left out, as there are many)")) {
				fmt.Fprintf(out, "    %s\n", oneLine(strings.TrimRight(line, "\n")))
			}
		}
	}
	for _, t := range r.Measured {
		fmt.Fprintf(out, "  %s %s: %s; %s before, %s since", oneLine(t.Kind), oneLine(t.Component), t.Verdict, t.Before,
			t.Since)
		if t.Note != "" {
			fmt.Fprintf(out, "; %s", oneLine(t.Note))
		}
		out.WriteByte('\n')
	}
}

// String formats the figures for a person.
func (f pastFigures) String() string {
	text := fmt.Sprintf("%d of %s", f.Successes, protocol.Count(f.Calls, "call"))
	if f.Feedbacks > 0 {
		text += fmt.Sprintf(" (score %+.2f of %s)", f.Score, protocol.Count(f.Feedbacks, "rating"))
	}
	return text
}
