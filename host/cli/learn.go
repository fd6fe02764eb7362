package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins"
	"a2e/plugins/learning"
)

// learnCmd reads the store itself: it needs no host, and changes nothing.
type learnCmd struct {
	Stats  learnStatsCmd  `cmd:"" help:"Show how components did: calls, durations, feedback, weights."`
	Export learnExportCmd `cmd:"" help:"Write training data as JSONL: preference pairs or reward samples."`
	Plot   learnPlotCmd   `cmd:"" help:"Draw scores and weights over time as an SVG."`
}

type learnStatsCmd struct {
	Name string `arg:"" optional:"" help:"The component; all when not given."`
	JSON bool   `name:"json" help:"Print the records as JSON, as learn/stats/req answers them."`
}

// Run prints a line for each component.
func (l learnStatsCmd) Run(cmd *commands, sys *System) error {
	var all []*learning.Component
	err := cmd.withState(sys, true, func(ctx context.Context, _ *config.Config, s *store.SQLite) (err error) {
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
		records := []map[string]any{}
		for _, c := range all {
			records = append(records, c.Record())
		}
		return printJSON(sys.Out, records)
	case len(all) == 0:
		say(sys.Err, "no call was recorded yet, and no feedback")
		return nil
	}
	return printStats(sys, all)
}

// noComponent says which components there are.
func noComponent(ctx context.Context, s store.Store, name string) error {
	all, err := learning.Stats(ctx, s, "")
	if err != nil {
		return err
	}
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return fail(exitFailed, unknown("record of a component", name, names))
}

func printStats(sys *System, all []*learning.Component) error {
	var t table
	t.row("KIND", "CALLS", "OK", "AVG", "P95", "SCORE", "WEIGHT", "LAST", "COMPONENT")
	now := time.Now()
	for _, c := range all {
		success, average, p95, last, score := "-", "-", "-", "-", "-"
		if c.Calls > 0 {
			success = fmt.Sprintf("%.0f%%", 100*float64(c.Successes)/float64(c.Calls))
			average, p95 = shortDuration(c.AvgDuration), shortDuration(c.P95Duration)
			last = shortTime(float64(c.LastCalled.UnixMicro())/1e6, now)
		}
		if c.Feedbacks > 0 {
			score = fmt.Sprintf("%+.2f (%d)", c.Score, c.Feedbacks)
		}
		t.row(c.Kind, strconv.FormatInt(c.Calls, 10), success, average, p95, score, strconv.FormatFloat(c.Weight, 'f', 2, 64), last, c.Name)
	}
	return t.print(sys.Out, sys.columns())
}

// shortDuration gives three digits of a duration.
func shortDuration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Minute, time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

type learnExportCmd struct {
	Format string `enum:"dpo,rewards" default:"dpo" placeholder:"FORMAT" help:"dpo: a preference pair of each correction. rewards: a sample of each experience and each rated turn. Without it: ${default}."`
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run writes the lines, and tells what could not become one.
func (l learnExportCmd) Run(cmd *commands, sys *System) error {
	e := &trainingExport{}
	err := cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s *store.SQLite) error {
		return sys.output(l.Output, plugins.StatePath(cfg), func(w io.Writer) error { return e.write(ctx, s, l.Format, w) })
	})
	if err != nil {
		return err
	}
	for _, note := range e.notes(l.Format) {
		say(sys.Err, "%s", note)
	}
	return nil
}
