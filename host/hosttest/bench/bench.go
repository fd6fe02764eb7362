// Command bench measures any host that talks over its standard streams: how soon it answers, how long
// one call takes, how many calls a second it serves, and what the calls cost in processor time and
// memory.
//
// The bench shares the machine with the measured host, so it uses little processor
// time: it encodes requests once and changes only their ids, writes a batch of
// requests at once, and counts answers in big reads. It still checks the answers:
// the first and the last exchange of each case in full, every answer between them
// by its kind and length, and the number of answers.
//
//	go run ./host/hosttest/bench [--short] [--vs CMD]... -- CMD
//
//	plan ─ case ─ round ─ target:  spawn ─ greet ─ probe ─ load ─ probe ─ close
//
// With several targets each round visits all of them in turn, so that disturbances
// of the machine affect all of them; a ratio is the median over rounds.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Options are the flags and arguments of the command. The zero value of a field means
// its default.
type Options struct {
	Vs        []string      `sep:"none" placeholder:"CMD" help:"Another host to alternate with, as one command line, whose words have blanks between them. May be given several times; each gets a column of ratios."`
	Dialect   string        `enum:"auto,a2e,mcp,line" default:"auto" help:"What the host speaks: a2e, mcp (JSON-RPC with a tool named echo), line (each line comes back as it is), or auto to find out."`
	VsDialect []string      `placeholder:"DIALECT" help:"The same for each --vs, in order."`
	Cases     []string      `placeholder:"GLOB" help:"Only the cases whose name matches, such as 'echo-100B-*' or 'start'. --list names them."`
	List      bool          `help:"Name the cases and stop."`
	Short     bool          `help:"Only the seven cases that tell most."`
	Quick     bool          `help:"0.2 s a case, one round, five starts: a rough look."`
	Duration  time.Duration `default:"1s" help:"How long each case sends requests, for each host and round."`
	Rounds    int           `default:"3" help:"How often each case is repeated; the median counts."`
	Starts    int           `default:"15" help:"How often each host is started for the start-up time."`
	Pipe      int           `default:"1048576" help:"Bytes of each pipe's buffer; --pipe=-1 leaves the system's own."`
	In        string        `type:"existingdir" placeholder:"DIR" help:"Run the hosts in this folder with the environment as it is. Otherwise they get an empty folder that is also their home."`
	JSON      bool          `name:"json" help:"Print one JSON object instead of the table."`
	Command   []string      `arg:"" optional:"" passthrough:"partial" help:"The host to measure and its arguments."`
}

// defaults returns the options with the defaults and the effects of Quick filled in,
// and without a leading `--` in the command.
func (o Options) defaults() Options {
	o.Dialect = cmp.Or(o.Dialect, "auto")
	o.Duration = cmp.Or(o.Duration, time.Second)
	o.Rounds = max(1, cmp.Or(o.Rounds, 3))
	o.Starts = max(1, cmp.Or(o.Starts, 15))
	o.Pipe = cmp.Or(o.Pipe, 1<<20)
	if len(o.Command) > 0 && o.Command[0] == "--" { // kong does not remove it
		o.Command = o.Command[1:]
	}
	if o.Quick {
		o.Duration, o.Rounds, o.Starts = min(o.Duration, 200*time.Millisecond), 1, min(o.Starts, 5)
	}
	return o
}

func main() {
	var opts Options
	kong.Parse(&opts, kong.Name("bench"), kong.ShortUsageOnError(),
		kong.Description("Measure hosts on stdio, side by side: how soon they answer, how fast, and what that costs."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := Run(ctx, opts, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// Validate implements kong's check of the parsed flags.
func (o Options) Validate() error {
	if o.Duration <= 0 || o.Rounds < 1 || o.Starts < 1 {
		return errors.New("--duration, --rounds and --starts must be above 0")
	}
	if len(o.Command) == 0 && !o.List {
		return errors.New("name the host to measure, such as `-- ./a2e serve`")
	}
	return nil
}

// Run measures the cases of the options and prints the result to stdout: a table,
// or one JSON object. It prints a line of progress per case to stderr. The error says
// which cases could not be measured; the others are printed all the same.
func Run(ctx context.Context, opts Options, stdout, stderr io.Writer) error {
	opts = opts.defaults()
	plan, err := choose(opts)
	if err != nil {
		return err
	}
	if opts.List {
		for _, c := range plan {
			fmt.Fprintf(stdout, "%-15s %s\n", c.name, c.about)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "a2e-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &runner{opts: opts, dir: dir, progress: stderr}
	if err := r.findTargets(ctx); err != nil {
		return err
	}
	report := r.run(ctx, plan)
	if opts.JSON {
		err = report.writeJSON(stdout)
	} else {
		err = report.writeTable(stdout)
	}
	return errors.Join(err, report.failed())
}

// choose returns the cases that the options ask for, in their usual order.
func choose(opts Options) ([]benchCase, error) {
	var plan []benchCase
	for _, c := range allCases() {
		if opts.Short && !c.short {
			continue
		}
		wanted := len(opts.Cases) == 0
		for _, pattern := range opts.Cases {
			ok, err := path.Match(pattern, c.name)
			if err != nil {
				return nil, fmt.Errorf("bench: --cases %q is not a valid pattern", pattern)
			}
			wanted = wanted || ok
		}
		if wanted {
			plan = append(plan, c)
		}
	}
	if len(plan) == 0 {
		return nil, fmt.Errorf("bench: no case matches %s; --list names them", strings.Join(opts.Cases, " "))
	}
	return plan, nil
}

// runner holds what all cases of one run share.
type runner struct {
	opts     Options
	dir      string // removed at the end; the hosts' home unless opts.In is set
	progress io.Writer
	targets  []*target
}

// findTargets resolves the command lines and finds the dialect of each target.
func (r *runner) findTargets(ctx context.Context) error {
	if err := r.addTarget(ctx, r.opts.Command, r.opts.Dialect); err != nil {
		return err
	}
	for i, line := range r.opts.Vs {
		dialect := "auto"
		if i < len(r.opts.VsDialect) {
			dialect = r.opts.VsDialect[i]
		}
		if err := r.addTarget(ctx, strings.Fields(line), dialect); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) addTarget(ctx context.Context, command []string, dialect string) error {
	t, err := newTarget(command, r.opts, r.dir)
	if err != nil {
		return err
	}
	if t.dialect, err = findDialect(ctx, t, dialect); err != nil {
		return fmt.Errorf("bench: %s: %w", t.name, err)
	}
	for _, other := range r.targets {
		if other.name == t.name {
			t.name = fmt.Sprintf("%s-%d", t.name, len(r.targets)+1)
			break
		}
	}
	r.targets = append(r.targets, t)
	return nil
}

// run measures every case, all targets in turn within each round.
func (r *runner) run(ctx context.Context, plan []benchCase) *report {
	rep := newReport(r.targets)
	for _, c := range plan {
		rounds := r.opts.Rounds
		if c.starts {
			rounds = r.opts.Starts
		}
		fmt.Fprintf(r.progress, "bench: %s\n", c.name)
		results := make([][]sample, len(r.targets))
		for range rounds {
			for i, t := range r.targets {
				if ctx.Err() != nil {
					rep.fail(c.name, "", context.Cause(ctx))
					return rep
				}
				s, err := c.run(ctx, t, r.opts.Duration)
				if err != nil {
					rep.fail(c.name, t.name, err)
				}
				results[i] = append(results[i], s)
			}
		}
		rep.add(c.name, results)
	}
	return rep
}

// newTarget looks the command up and gives it a name for the table.
func newTarget(command []string, opts Options, home string) (*target, error) {
	if len(command) == 0 {
		return nil, errors.New("bench: an empty command line")
	}
	file, err := lookUp(command[0])
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	t := &target{
		name: strings.TrimSuffix(filepath.Base(file), ".exe"), command: append([]string{file}, command[1:]...),
		dir: opts.In, pipe: opts.Pipe, logs: home, patience: usualPatience,
	}
	if t.dir == "" {
		t.dir, t.home = filepath.Join(home, "home"), true
		if err := os.MkdirAll(t.dir, 0o700); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	return t, nil
}

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

// result is the median over the rounds. Ratio is the first target's value divided by this target's
// value, also as the median over the rounds; 0 = no ratio.
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
	r := &report{
		CPUs: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Rows: []row{},
		Failures: []failure{},
	}
	for _, t := range targets {
		r.Targets = append(r.Targets, targetInfo{Name: t.name, Dialect: t.dialect.name, Command: t.command})
	}
	return r
}

// fail records a failure, once for each case and target.
func (r *report) fail(name, target string, err error) {
	if !slices.ContainsFunc(r.Failures, func(f failure) bool { return f.Case == name && f.Target == target }) {
		r.Failures = append(r.Failures, failure{Case: name, Target: target, Error: err.Error()})
	}
}

// failed returns an error with all failures, or nil if there are none.
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

// median returns the median of v, or 0 if v is empty.
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
