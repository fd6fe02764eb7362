package cli

import (
	"encoding/xml"
	"fmt"
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
	title  string
	low    float64 // the axis shows at least low to high
	high   float64
	series []series
}

// colors stand out on white and on black. Source: M. Okabe and K. Ito, "Color Universal
// Design" (2008), black and yellow left out; a dash tells those with the same color apart.
func colors() []string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
}

func dashes() []string { return []string{"", "6 3", "2 3", "8 3 2 3"} }

// svg writes a picture.
type svg struct {
	w     io.Writer
	err   error
	names []string // of the legend: each has its look in all panels
	times axis
}

func (s *svg) line(format string, args ...any) {
	if s.err == nil {
		_, s.err = fmt.Fprintf(s.w, format+"\n", args...)
	}
}

// escaped makes text fit for an SVG, within a tag or a quote.
func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder never fails
	return b.String()
}

// writeSVG draws the panels below each other over one span of time. Its colors follow
// whether the viewer prefers light or dark.
func writeSVG(w io.Writer, title string, panels []panel) error {
	s := &svg{w: w, names: seriesNames(panels)}
	low, high := span(panels)
	s.times = axis{low, high, svgLeft, svgRight}
	height := svgTop + len(panels)*(panelHigh+panelGap)
	height = max(height, svgTop+len(s.names)*legendLine+legendLine)
	s.head(title, height)
	for i, p := range panels {
		s.panel(p, float64(svgTop+i*(panelHigh+panelGap)), low, high)
	}
	s.legend()
	s.line("</svg>")
	return s.err
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

// seriesNames gives the names in the panels, in the order in which they come first.
func seriesNames(panels []panel) (names []string) {
	for _, p := range panels {
		for _, one := range p.series {
			if !slices.Contains(names, one.name) {
				names = append(names, one.name)
			}
		}
	}
	return names
}

// span gives the times of the first and the last point; a moment becomes a minute.
func span(panels []panel) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, p := range panels {
		for _, one := range p.series {
			for _, at := range one.points {
				low, high = min(low, at.at), max(high, at.at)
			}
		}
	}
	if low > high {
		return 0, 60
	}
	if high-low < 1 {
		low, high = low-30, high+30
	}
	return low, high
}

func (s *svg) panel(p panel, top, first, last float64) {
	low, high := p.low, p.high
	for _, one := range p.series {
		for _, at := range one.points {
			low, high = min(low, at.value), max(high, at.value)
		}
	}
	values, ticks := valueAxis(low, high, top+panelHigh, top)
	s.line(`<text x="%d" y="%.0f" font-weight="600">%s</text>`, svgLeft, top-10, escaped(p.title))
	for _, v := range ticks {
		y := values.at(v)
		s.line(`<line class="faint" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, svgLeft, y, svgRight, y)
		s.line(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, svgLeft-8, y+4, tickText(v))
	}
	for _, t := range timeTicks(first, last) {
		x := s.times.at(t.at)
		s.line(`<line class="faint" x1="%.1f" y1="%.0f" x2="%.1f" y2="%.0f"/>`, x, top, x, top+panelHigh)
		s.line(`<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, x, top+panelHigh+18, t.text)
	}
	s.line(`<path class="edge" fill="none" d="M%d %.0fV%.0fH%d"/>`, svgLeft, top, top+panelHigh, svgRight)
	s.line(`<text x="%d" y="%.0f" text-anchor="end">UTC, %s</text>`, svgRight, top+panelHigh+36, time.Unix(int64(last), 0).UTC().Format(time.DateOnly))
	for _, one := range p.series {
		s.series(one, values)
	}
}

// series draws steps, and a dot at the last value.
func (s *svg) series(one series, values axis) {
	if len(one.points) == 0 {
		return
	}
	var d strings.Builder
	for i, at := range thin(one.points, s.times) {
		x, y := s.times.at(at.at), values.at(at.value)
		if i == 0 {
			fmt.Fprintf(&d, "M%.1f %.1f", x, y)
		} else {
			fmt.Fprintf(&d, "H%.1fV%.1f", x, y)
		}
	}
	last := one.points[len(one.points)-1]
	fmt.Fprintf(&d, "H%d", svgRight) // it holds until the end
	color, dash := s.look(one.name)
	s.line(`<path class="data" stroke="%s"%s d="%s"><title>%s</title></path>`, color, dash, d.String(), escaped(one.name))
	s.line(`<circle fill="%s" cx="%.1f" cy="%.1f" r="3"/>`, color, s.times.at(last.at), values.at(last.value))
}

// thin leaves of the points that share a place the first, the lowest, the highest and
// the last: more cannot be seen.
func thin(all []point, times axis) []point {
	var kept []point
	for from := 0; from < len(all); {
		place := math.Floor(times.at(all[from].at))
		low, high, to := from, from, from
		for ; to < len(all) && math.Floor(times.at(all[to].at)) == place; to++ {
			if all[to].value < all[low].value {
				low = to
			}
			if all[to].value > all[high].value {
				high = to
			}
		}
		chosen := []int{from, low, high, to - 1}
		slices.Sort(chosen)
		for _, i := range slices.Compact(chosen) {
			kept = append(kept, all[i])
		}
		from = to
	}
	return kept
}

// look gives the color and the dash of a series.
func (s *svg) look(name string) (color, dash string) {
	i := slices.Index(s.names, name)
	color = colors()[i%len(colors())]
	if d := dashes()[i/len(colors())%len(dashes())]; d != "" {
		dash = fmt.Sprintf(` stroke-dasharray="%s"`, d)
	}
	return color, dash
}

func (s *svg) legend() {
	for i, name := range s.names {
		color, dash := s.look(name)
		y := svgTop + i*legendLine
		s.line(`<path class="data" stroke="%s"%s d="M%d %dh28"/>`, color, dash, svgRight+24, y)
		s.line(`<text x="%d" y="%d">%s</text>`, svgRight+60, y+4, escaped(cut(name, 28)))
	}
}
