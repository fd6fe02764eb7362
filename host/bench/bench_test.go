package bench

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

// buildPeers builds the two programs to compare against and gives their paths.
func buildPeers(t *testing.T) (line, mcp string) {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator),
		"a2e/host/hosttest/peers/lineecho", "a2e/host/hosttest/peers/mcpecho").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "lineecho"), filepath.Join(dir, "mcpecho")
}

// tiny is enough to see every case work.
func tiny() Options {
	return Options{Duration: 5 * time.Millisecond, Rounds: 1, Starts: 1}
}

func TestRunMeasuresBothPeers(t *testing.T) {
	line, mcp := buildPeers(t)
	opts := tiny()
	opts.Command, opts.Vs, opts.JSON = []string{line}, []string{"'" + mcp + "'"}, true
	var out, progress bytes.Buffer
	if err := Run(t.Context(), opts, &out, &progress); err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if len(got.Targets) != 2 || got.Targets[0].Dialect != "line" || got.Targets[1].Dialect != "mcp" {
		t.Fatalf("targets %+v, want a line echo and an MCP server", got.Targets)
	}
	seen := map[string]int{}
	for _, r := range got.Rows {
		seen[r.Case]++
		if len(r.Results) != 2 || r.Results[0].Value <= 0 || r.Results[1].Value <= 0 || r.Results[1].Ratio <= 0 {
			t.Errorf("%s %s: %+v, want a positive value for each and a ratio", r.Case, r.Measure, r.Results)
		}
	}
	for _, c := range allCases() {
		want := 2
		if c.starts {
			want = 1
		}
		if seen[c.name] != want {
			t.Errorf("case %s has %d rows, want %d", c.name, seen[c.name], want)
		}
		if !strings.Contains(progress.String(), c.name) {
			t.Errorf("no progress for %s", c.name)
		}
	}
}

func TestRunPrintsATable(t *testing.T) {
	self := fakeHost(t, "")
	opts := tiny()
	opts.Command, opts.Vs, opts.Cases = []string{self}, []string{self}, []string{"ping-w*", "start"}
	var out bytes.Buffer
	if err := Run(t.Context(), opts, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := 1 + 1 + 4*2; len(lines) != want {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), want, out.String())
	}
	for _, word := range []string{"(a2e)", "-2 (a2e)", "ratio"} {
		if !strings.Contains(lines[0], word) {
			t.Errorf("the head %q lacks %q", lines[0], word)
		}
	}
	if !strings.Contains(lines[2], "/s") || !strings.HasSuffix(strings.TrimSpace(lines[2]), "x") {
		t.Errorf("%q has no rate and no ratio", lines[2])
	}
}

func TestRunRefuses(t *testing.T) {
	self := fakeHost(t, "")
	run := func(change func(*Options)) error {
		opts := tiny()
		opts.Command, opts.Cases = []string{self}, []string{"ping-w1"}
		change(&opts)
		return Run(t.Context(), opts, io.Discard, io.Discard)
	}
	if err := run(func(*Options) {}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no such case":    {func(o *Options) { o.Cases = []string{"pong"} }, "no case matches pong"},
		"bad pattern":     {func(o *Options) { o.Cases = []string{"["} }, "no valid pattern"},
		"no such program": {func(o *Options) { o.Command = []string{"./nothing-here"} }, "nothing-here"},
		"no such dialect": {func(o *Options) { o.Dialect = "soap" }, `"soap" is no dialect`},
		"open quote":      {func(o *Options) { o.Vs = []string{"'" + self} }, "quote is not closed"},
		"not a host":      {func(o *Options) { o.Command = []string{"git", "version"} }, "neither a2e nor MCP"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(c.change); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	self := fakeHost(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	opts := Options{Command: []string{self}, Duration: time.Hour, Cases: []string{"ping-w8"}}
	err := Run(ctx, opts, io.Discard, writerFunc(func(p []byte) (int, error) {
		cancel() // the first progress comes when the first case begins
		return len(p), nil
	}))
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestListNamesTheCases(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), Options{List: true, Short: true}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(out.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	want := []string{"start", "memory", "seq-echo-100B", "ping-w1024", "echo-100B-w64", "echo-10KB-w64", "echo-1MB-w8"}
	if !tellsMemory {
		want = slices.Delete(want, 1, 2)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestOptionsAreAKongCommand(t *testing.T) {
	var cli struct {
		Bench Options `cmd:"" help:"Measure a host."`
	}
	parser, err := kong.New(&cli)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := parser.Parse([]string{"bench", "--vs", "peer a,b", "--vs", "other", "--in", dir, "--json", "--quick", "host", "--flag", "x"}); err != nil {
		t.Fatal(err)
	}
	got := cli.Bench.defaults()
	want := Options{Vs: []string{"peer a,b", "other"}, In: dir, JSON: true, Quick: true, Command: []string{"host", "--flag", "x"},
		Dialect: "auto", Duration: 200 * time.Millisecond, Rounds: 1, Starts: 5, Pipe: 1 << 20}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := parser.Parse([]string{"bench", "--quick", "--", "host", "--flag"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"host", "--flag"}, cli.Bench.defaults().Command); diff != "" {
		t.Errorf("after --:\n%s", diff)
	}
	var zero Options
	cli.Bench = zero
	if _, err := parser.Parse([]string{"bench"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(zero.defaults(), cli.Bench); diff != "" {
		t.Errorf("kong's defaults are not those of the zero value:\n%s", diff)
	}
}

func TestSplit(t *testing.T) {
	for line, want := range map[string][]string{
		"a":                  {"a"},
		" a  b\t c ":         {"a", "b", "c"},
		`'a b' "c d"`:        {"a b", "c d"},
		`--x='a "b"' ""`:     {`--x=a "b"`, ""},
		`C:\dir\host.exe -v`: {`C:\dir\host.exe`, "-v"},
		"":                   nil,
		"'a":                 nil,
		`a "b`:               nil,
	} {
		got, err := split(line)
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("split(%q): %v\n%s", line, err, diff)
		}
	}
}

func TestHomeIsNotTheUsers(t *testing.T) {
	env := (&target{dir: "/empty"}).strange([]string{"PATH=/bin", "HOME=/home/me", "A2E_CONFIG=/home/me/a2e.yaml"})
	cmd := exec.Cmd{Env: env}
	if got := cmd.Environ(); !slices.Contains(got, "PATH=/bin") || !slices.Contains(got, "HOME=/empty") ||
		slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "home/me") }) {
		t.Errorf("%q", got)
	}
}

func TestMain(m *testing.M) {
	if fault, ok := os.LookupEnv(faultVariable); ok {
		serveFake(fault)
		return
	}
	os.Exit(m.Run())
}
