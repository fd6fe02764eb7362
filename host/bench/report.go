package bench

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// report is the outcome of a run; its JSON form is what --json prints.
type report struct {
	CPUs     int          `json:"cpus"`
	System   string       `json:"system"` // GOOS/GOARCH
	Targets  []targetInfo `json:"targets"`
	Rows     []row        `json:"rows"`
	Failures []failure    `json:"failures"`
}

type targetInfo struct {
	Name    string   `json:"name"`
	Dialect string   `json:"dialect"`
	Command []string `json:"command"`
}

// row is one measure of one case. A target that failed is missing.
type row struct {
	Case    string   `json:"case"`
	Measure string   `json:"measure"`
	Unit    string   `json:"unit"`
	Results []result `json:"results"`
}

// result is the median over the rounds. Ratio is the first target's value
// divided by this one's, the median over rounds too; 0 where there is none.
type result struct {
	Target string  `json:"target"`
	Value  float64 `json:"value"`
	Ratio  float64 `json:"ratio,omitzero"`
}

type failure struct {
	Case   string `json:"case"`
	Target string `json:"target"`
	Error  string `json:"error"`
}

func newReport(targets []*target) *report {
	r := &report{CPUs: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Rows: []row{}, Failures: []failure{}}
	for _, t := range targets {
		r.Targets = append(r.Targets, targetInfo{Name: t.name, Dialect: t.dialect.name, Command: t.command})
	}
	return r
}

// fail notes what could not be measured, once for each case and target.
func (r *report) fail(name, target string, err error) {
	if !slices.ContainsFunc(r.Failures, func(f failure) bool { return f.Case == name && f.Target == target }) {
		r.Failures = append(r.Failures, failure{Case: name, Target: target, Error: err.Error()})
	}
}

// failed is nil if everything could be measured.
func (r *report) failed() error {
	var all []error
	for _, f := range r.Failures {
		all = append(all, fmt.Errorf("bench: %s: %s: %s", f.Case, f.Target, f.Error))
	}
	return errors.Join(all...)
}

// add folds the rounds of one case into rows. results[target][round] is nil
// where that round failed.
func (r *report) add(name string, results [][]sample) {
	for k, v := range shape(results) {
		one := row{Case: name, Measure: v.measure, Unit: v.unit}
		for t := range results {
			var values, ratios []float64
			for round, s := range results[t] {
				if s == nil {
					continue
				}
				values = append(values, s[k].number)
				if base := results[0][round]; t > 0 && base != nil && s[k].number > 0 {
					ratios = append(ratios, base[k].number/s[k].number)
				}
			}
			if len(values) > 0 {
				one.Results = append(one.Results, result{r.Targets[t].Name, median(values), median(ratios)})
			}
		}
		r.Rows = append(r.Rows, one)
	}
}

// shape returns any sample that succeeded: all of one case have the same measures.
func shape(results [][]sample) sample {
	for _, rounds := range results {
		for _, s := range rounds {
			if s != nil {
				return s
			}
		}
	}
	return nil
}

// median of nothing is 0.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (r *report) writeJSON(w io.Writer) error {
	return json.MarshalWrite(w, r, jsontext.WithIndent("  "), jsontext.AllowInvalidUTF8(true))
}

// writeTable prints a line for each measure; a ratio is the first target's value
// divided by that of the column before it.
func (r *report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"case", "measure"}
	for i, target := range r.Targets {
		head = append(head, target.Name+" ("+target.Dialect+")")
		if i > 0 {
			head = append(head, "ratio")
		}
	}
	fmt.Fprintln(t, strings.Join(head, "\t")+"\t")
	for _, one := range r.Rows {
		cells := []string{one.Case, one.Measure}
		for i, target := range r.Targets {
			cells = append(cells, one.cells(target.Name, i > 0)...)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	return t.Flush()
}

// cells returns a target's value and, if asked for, its ratio.
func (o row) cells(target string, ratio bool) []string {
	value, times := "failed", "-"
	for _, res := range o.Results {
		if res.Target == target {
			value = format(res.Value, o.Unit)
			if res.Ratio > 0 {
				times = ratioText(res.Ratio)
			}
		}
	}
	if !ratio {
		return []string{value}
	}
	return []string{value, times}
}

// ratioText prints a ratio with three digits.
func ratioText(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64) + "x"
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + "x"
}

// format prints a number with about three digits and its unit.
func format(v float64, unit string) string {
	if unit == "/s" {
		return group(int64(v+0.5)) + "/s"
	}
	if unit == "us" {
		unit = "µs"
	}
	digits := 2
	if v >= 100 {
		digits = 0
	} else if v >= 10 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}

// group puts a comma between each three digits.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
