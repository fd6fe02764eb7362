package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins"
	"a2e/plugins/learning"
)

type learnPlotCmd struct {
	Name   []string `arg:"" optional:"" help:"Only these components; the busiest when not given."`
	Output string   `short:"o" default:"-" placeholder:"FILE.svg" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run draws the picture.
func (l learnPlotCmd) Run(cmd *commands, sys *System) error {
	if ext := filepath.Ext(l.Output); ext != "" && !strings.EqualFold(ext, ".svg") {
		return fail(exitUsage, fmt.Errorf("--output %s: the picture is an SVG; call the file %s.svg", oneLine(l.Output), oneLine(strings.TrimSuffix(l.Output, ext))))
	}
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s *store.SQLite) error {
		p := &plotter{names: l.Name, lines: make(map[lineKey]*series)}
		if err := p.read(ctx, s); err != nil {
			return err
		}
		panels, left := p.panels()
		if len(panels) == 0 {
			return p.nothing(ctx, cfg, s)
		}
		if left > 0 {
			say(sys.Err, "%d components are not in the picture, which holds %d; name those that it should show", left, maxPlotted)
		}
		return sys.output(l.Output, plugins.StatePath(cfg), func(w io.Writer) error { return writeSVG(w, "Scores and weights over time", panels) })
	})
}

// What a panel shows.
const (
	plotScore = iota
	plotWorth
	plotWeight
	plots
)

// lineKey is one line of one panel.
type lineKey struct {
	plot            int
	kind, component string
}

// plotter collects the lines.
type plotter struct {
	names []string // "" = all
	lines map[lineKey]*series
}

func (p *plotter) add(plot int, kind, component string, at point) {
	if len(p.names) > 0 && !slices.Contains(p.names, component) {
		return
	}
	key := lineKey{plot, kind, component}
	if p.lines[key] == nil {
		p.lines[key] = &series{name: kind + " " + oneLine(component)}
	}
	p.lines[key].points = append(p.lines[key].points, at)
}

func (p *plotter) read(ctx context.Context, s store.Store) error {
	if err := learning.EachWeightChange(ctx, s, func(c *learning.WeightChange) error {
		at := float64(c.At.UnixMicro()) / 1e6
		p.add(plotWeight, c.Kind, c.Component, point{at, c.Weight})
		if c.Score != nil {
			p.add(plotWorth, c.Kind, c.Component, point{at, *c.Score})
		}
		return nil
	}); err != nil {
		return err
	}
	var rated []*learning.StoredFeedback
	if err := learning.EachFeedback(ctx, s, func(f *learning.StoredFeedback) error {
		if f.Component != "" && f.Confidence > 0 {
			f.RatedTurn = nil // may be long
			rated = append(rated, f)
		}
		return nil
	}); err != nil {
		return err
	}
	p.addScores(rated)
	for _, one := range p.lines {
		slices.SortStableFunc(one.points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	}
	return nil
}

// addScores adds the mean of the feedback up to each of them.
func (p *plotter) addScores(rated []*learning.StoredFeedback) {
	slices.SortStableFunc(rated, func(a, b *learning.StoredFeedback) int { return cmp.Compare(a.TS, b.TS) })
	type sums struct{ score, weight float64 }
	so := make(map[lineKey]sums)
	for _, f := range rated {
		key := lineKey{plotScore, f.Kind, f.Component}
		sum := so[key]
		sum.score, sum.weight = sum.score+f.Score*f.Confidence, sum.weight+f.Confidence
		so[key] = sum
		p.add(plotScore, f.Kind, f.Component, point{f.TS, sum.score / sum.weight})
	}
}

// panels returns a panel for each kind of line that there is, of the busiest components;
// left is how many others there are.
func (p *plotter) panels() (panels []panel, left int) {
	points := make(map[string]int)
	for _, one := range p.lines {
		points[one.name] += len(one.points)
	}
	var names []string
	for name := range points {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(points[b]-points[a], strings.Compare(a, b)) })
	left = max(0, len(names)-maxPlotted)
	names = names[:len(names)-left]
	for plot, about := range [plots]panel{
		plotScore:  {title: "Score: mean of the feedback so far, -1 to 1", low: -1, high: 1},
		plotWorth:  {title: "Worth when weights were adapted, 0 to 1", low: 0, high: 1},
		plotWeight: {title: "Routing weight, 1 is neutral", low: 0, high: 1},
	} {
		for key, one := range p.lines {
			if key.plot == plot && slices.Contains(names, one.name) {
				about.series = append(about.series, *one)
			}
		}
		if about.series == nil {
			continue
		}
		slices.SortFunc(about.series, func(a, b series) int { return strings.Compare(a.name, b.name) })
		panels = append(panels, about)
	}
	return panels, left
}

// nothing says why there is no picture.
func (p *plotter) nothing(ctx context.Context, cfg *config.Config, s store.Store) error {
	for _, name := range p.names {
		there, err := plugins.LearningStats(ctx, cfg, s, name)
		if err != nil {
			return err
		}
		if len(there) == 0 {
			return noComponent(ctx, cfg, s, name)
		}
	}
	return errors.New("there is nothing to draw yet: weights come from learn/adapt/req and refinements, scores from learn/feedback/req")
}
