package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins/learning"
)

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
	Diff      *string        `json:"diff"` // nil = it is no text
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

// Run prints what was refined, the newest first.
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
		return l.Name != "" && !slices.ContainsFunc(edits, func(edit map[string]any) bool { return edit["component"] == l.Name })
	})
	switch {
	case l.JSON:
		return printJSON(sys.Out, entries)
	case len(entries) == 0 && l.Name != "":
		say(sys.Err, "nothing was refined of %s", oneLine(l.Name))
		return nil
	case len(entries) == 0:
		say(sys.Err, "nothing was refined yet; learn/refinement/apply/req does that")
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

// print writes one refinement: what it is, its edits, and how its components do.
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
		fmt.Fprintf(out, "  %s %s: %s; %s before, %s since", oneLine(t.Kind), oneLine(t.Component), t.Verdict, t.Before, t.Since)
		if t.Note != "" {
			fmt.Fprintf(out, "; %s", oneLine(t.Note))
		}
		out.WriteByte('\n')
	}
}

// String returns the figures in words.
func (f pastFigures) String() string {
	text := fmt.Sprintf("%d of %d calls", f.Successes, f.Calls)
	if f.Feedbacks > 0 {
		text += fmt.Sprintf(" (score %+.2f of %d ratings)", f.Score, f.Feedbacks)
	}
	return text
}
