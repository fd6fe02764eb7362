package cli

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Sizes of the picture, in its own units.
const (
	svgWidth   = 960
	svgLeft    = 72  // of the plots: labels of values stand there
	svgRight   = 700 // end of the plots; the legend stands beyond
	svgTop     = 56  // above the first plot: the title
	panelHigh  = 200
	panelGap   = 72 // between plots: labels of times, and the next one's title
	legendLine = 20
)

// point is a value at a time, in seconds since 1970.
type point struct{ at, value float64 }

// series is the values of one component, in the order of time.
type series struct {
	name   string
	points []point
}

// panel is one plot: values hold until the next one.
type panel struct {
	title     string
	low, high float64 // what the axis shows at least
	series    []series
}

// svgLooks tell the series apart. The colors stand out on white and on black. Source: M. Okabe and
// K. Ito, "Color Universal Design" (2008), black and yellow left out; from the seventh on lines are dashed.
func svgLooks() []string {
	var looks []string
	for _, dash := range []string{"", ` stroke-dasharray="6 3"`} {
		for _, color := range []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"} {
			looks = append(looks, `stroke="`+color+`"`+dash)
		}
	}
	return looks
}

// maxPlotted is how many components a picture can tell apart.
const maxPlotted = 12

// svg writes a picture.
type svg struct {
	strings.Builder
	looks map[string]string // of each name of the legend, in all panels
	times axis
}

func (s *svg) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// escaped makes text fit for an SVG, within a tag or a quote.
func escaped(text string) string { return html.EscapeString(oneLine(text)) }

// writeSVG draws the panels below each other over one span of time. Its colors follow
// whether the viewer prefers light or dark.
func writeSVG(w io.Writer, title string, panels []panel) error {
	var names []string
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range panels {
		for _, one := range p.series {
			names = append(names, one.name)
			low, high = min(low, one.points[0].at), max(high, one.points[len(one.points)-1].at)
		}
	}
	if high-low < 1 { // a moment becomes a minute
		low, high = low-30, high+30
	}
	slices.Sort(names)
	names = slices.Compact(names)
	s := &svg{looks: map[string]string{}, times: axis{low, high, svgLeft, svgRight}}
	for i, name := range names {
		s.looks[name] = svgLooks()[i%maxPlotted]
	}
	s.head(title, max(svgTop+len(panels)*(panelHigh+panelGap), svgTop+(len(names)+1)*legendLine))
	for i, p := range panels {
		s.panel(p, float64(svgTop+i*(panelHigh+panelGap)))
	}
	for i, name := range names {
		y := svgTop + i*legendLine
		s.line(`<path class="data" %s d="M%d %dh28"/>`, s.looks[name], svgRight+24, y)
		s.line(`<text x="%d" y="%d">%s</text>`, svgRight+60, y+4, escaped(cut(name, 28)))
	}
	s.line("</svg>")
	_, err := io.WriteString(w, s.String())
	return err
}

func (s *svg) head(title string, height int) {
	s.line(`<?xml version="1.0" encoding="UTF-8"?>`)
	s.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title" font-family="system-ui, sans-serif" font-size="12">`,
		svgWidth, height, svgWidth, height)
	s.line(`<title id="title">%s</title>`, escaped(title))
	s.line(`<style>`)
	s.line(`svg { color-scheme: light dark; }`)
	s.line(`.back { fill: #ffffff; } text { fill: #1f2328; } .faint { stroke: #d0d7de; } .edge { stroke: #59636e; }`)
	s.line(`@media (prefers-color-scheme: dark) { .back { fill: #0d1117; } text { fill: #e6edf3; } .faint { stroke: #30363d; } .edge { stroke: #9198a1; } }`)
	s.line(`.data { fill: none; stroke-width: 2; stroke-linejoin: round; }`)
	s.line(`</style>`)
	s.line(`<rect class="back" width="%d" height="%d"/>`, svgWidth, height)
	s.line(`<text x="%d" y="24" font-size="16" font-weight="600">%s</text>`, svgLeft, escaped(title))
}

func (s *svg) panel(p panel, top float64) {
	for _, one := range p.series {
		for _, at := range one.points {
			p.low, p.high = min(p.low, at.value), max(p.high, at.value)
		}
	}
	values, ticks := valueAxis(p.low, p.high, top+panelHigh, top)
	s.line(`<text x="%d" y="%.0f" font-weight="600">%s</text>`, svgLeft, top-10, escaped(p.title))
	for _, v := range ticks {
		y := values.at(v)
		s.line(`<line class="faint" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, svgLeft, y, svgRight, y)
		s.line(`<text x="%d" y="%.1f" text-anchor="end">%.6g</text>`, svgLeft-8, y+4, v)
	}
	for _, t := range timeTicks(s.times.low, s.times.high) {
		x := s.times.at(t.at)
		s.line(`<line class="faint" x1="%.1f" y1="%.0f" x2="%.1f" y2="%.0f"/>`, x, top, x, top+panelHigh)
		s.line(`<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, x, top+panelHigh+18, t.text)
	}
	s.line(`<path class="edge" fill="none" d="M%d %.0fV%.0fH%d"/>`, svgLeft, top, top+panelHigh, svgRight)
	s.line(`<text x="%d" y="%.0f" text-anchor="end">UTC, %s</text>`, svgRight, top+panelHigh+36, time.Unix(int64(s.times.high), 0).UTC().Format(time.DateOnly))
	for _, one := range p.series {
		s.series(one, values)
	}
}

// series draws steps, and a dot at the last value. Of points that share a place the first, the
// lowest, the highest and the last are drawn: more cannot be seen.
func (s *svg) series(one series, values axis) {
	var d strings.Builder
	place := func(p point) float64 { return math.Floor(s.times.at(p.at)) }
	byValue := func(a, b point) int { return int(math.Copysign(1, a.value-b.value)) }
	for from := 0; from < len(one.points); {
		to := from + 1
		for to < len(one.points) && place(one.points[to]) == place(one.points[from]) {
			to++
		}
		same := one.points[from:to]
		if len(same) > 4 {
			same = []point{same[0], slices.MinFunc(same, byValue), slices.MaxFunc(same, byValue), same[len(same)-1]}
			slices.SortStableFunc(same, func(a, b point) int { return int(math.Copysign(1, a.at-b.at)) })
		}
		for _, p := range same {
			step := "H%.1fV%.1f"
			if d.Len() == 0 {
				step = "M%.1f %.1f"
			}
			fmt.Fprintf(&d, step, s.times.at(p.at), values.at(p.value))
		}
		from = to
	}
	last := one.points[len(one.points)-1]
	s.line(`<path class="data" %s d="%sH%d"><title>%s</title></path>`, s.looks[one.name], d.String(), svgRight, escaped(one.name)) // it holds until the end
	s.line(`<circle class="data" %s cx="%.1f" cy="%.1f" r="3"/>`, s.looks[one.name], s.times.at(last.at), values.at(last.value))
}

// axis maps values to places of a picture.
type axis struct {
	low, high float64 // values at the ends
	from, to  float64 // their places
}

func (a axis) at(v float64) float64 { return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from) }

// valueAxis makes an axis from low to high or a little beyond, as it begins and ends at
// ticks, about five of them.
func valueAxis(low, high, from, to float64) (axis, []float64) {
	if high-low <= math.Abs(high)*1e-9 {
		half := max(math.Abs(high)/2, 0.5)
		low, high = low-half, high+half
	}
	power := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	step := 10 * power
	for _, m := range []float64{5, 2, 1} {
		if m*power >= (high-low)/5*(1-1e-9) {
			step = m * power
		}
	}
	first, last := math.Floor(low/step), math.Ceil(high/step)
	var ticks []float64
	for i := first; i <= last; i++ {
		ticks = append(ticks, i*step)
	}
	return axis{first * step, last * step, from, to}, ticks
}

// timeTick is a label on a time axis.
type timeTick struct {
	at   float64 // seconds since 1970
	text string
}

// timeTicks returns at most seven labels between two times, at round ones in UTC.
func timeTicks(low, high float64) (ticks []timeTick) {
	const most, minute, hour, day = 7, 60, 3600, 86400
	step := 365.0 * day
	for _, s := range []float64{
		90 * day, 30 * day, 14 * day, 7 * day, 2 * day, day, 12 * hour, 6 * hour, 3 * hour, hour,
		30 * minute, 10 * minute, 5 * minute, 2 * minute, minute, 30, 10, 5, 2, 1,
	} {
		if (high-low)/s <= most-1 {
			step = s
		}
	}
	layout := time.TimeOnly
	switch {
	case step >= day:
		layout = time.DateOnly
	case step >= hour:
		layout = "01-02 15:04"
	case step >= minute:
		layout = "15:04"
	}
	step *= max(1, math.Ceil((high-low)/step/(most-1)))
	for at := math.Ceil(low/step) * step; at <= high; at += step {
		ticks = append(ticks, timeTick{at, time.Unix(int64(at), 0).UTC().Format(layout)})
	}
	return ticks
}
