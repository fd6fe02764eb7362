package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// buildPeers builds the two programs to compare against, and returns their paths.
func buildPeers(t *testing.T) (line, mcp string) {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator),
		"a2e/host/hosttest/peers/lineecho", "a2e/host/hosttest/peers/mcpecho").CombinedOutput()
	must.That(t, err == nil, "go build: %v\n%s", err, out)
	return filepath.Join(dir, "lineecho"), filepath.Join(dir, "mcpecho")
}

// tiny returns options for the shortest run of each case.
func tiny() Options {
	return Options{Duration: 5 * time.Millisecond, Rounds: 1, Starts: 1}
}

func TestRunMeasuresBothPeers(t *testing.T) {
	line, mcp := buildPeers(t)
	opts := tiny()
	opts.Command, opts.Vs, opts.JSON = []string{line}, []string{mcp}, true
	var out, progress bytes.Buffer
	must.OK(t, Run(t.Context(), opts, &out, &progress))
	var got report
	err := json.Unmarshal(out.Bytes(), &got)
	must.That(t, err == nil, "%v in %s", err, out.String())
	must.That(t, len(got.Targets) == 2 && got.Targets[0].Dialect == "line" && got.Targets[1].Dialect == "mcp",
		"targets %+v, want a line echo and an MCP server", got.Targets)
	seen := map[string]int{}
	for _, r := range got.Rows {
		seen[r.Case]++
		assert.That(t, len(r.Results) == 2 && !(r.Results[0].Value <= 0) && !(r.Results[1].Value <= 0) &&
			!(r.Results[1].Ratio <= 0),
			"%s %s: %+v, want a positive value for each and a ratio", r.Case, r.Measure, r.Results)
	}
	for _, c := range allCases() {
		want := 2
		if c.starts {
			want = 1
		}
		assert.Equal(t, seen[c.name], want, "case %s has … rows", c.name)
		assert.Contains(t, progress.String(), c.name, "no progress")
	}
}

func TestRunPrintsATable(t *testing.T) {
	self := fakeHost(t, "")
	opts := tiny()
	opts.Command, opts.Vs, opts.Cases = []string{self}, []string{self}, []string{"ping-w*", "start"}
	var out bytes.Buffer
	must.OK(t, Run(t.Context(), opts, &out, io.Discard))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := 1 + 1 + 4*2
	must.Equal(t, len(lines), want, "… lines, want …:\n%s", out.String())
	for _, word := range []string{"(a2e)", "-2 (a2e)", "ratio"} {
		assert.Contains(t, lines[0], word, "the head … lacks")
	}
	assert.That(t, strings.Contains(lines[2], "/s") && strings.HasSuffix(strings.TrimSpace(lines[2]), "x"),
		"%q has no rate and no ratio", lines[2])
}

func TestRunRefuses(t *testing.T) {
	self := fakeHost(t, "")
	run := func(change func(*Options)) error {
		opts := tiny()
		opts.Command, opts.Cases = []string{self}, []string{"ping-w1"}
		change(&opts)
		return Run(t.Context(), opts, io.Discard, io.Discard)
	}
	must.OK(t, run(func(*Options) {}))
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no such case":    {func(o *Options) { o.Cases = []string{"pong"} }, "no case matches pong"},
		"bad pattern":     {func(o *Options) { o.Cases = []string{"["} }, "not a valid pattern"},
		"no such program": {func(o *Options) { o.Command = []string{"./nothing-here"} }, "nothing-here"},
		"no such dialect": {func(o *Options) { o.Dialect = "soap" }, `"soap" is not a dialect`},
		"not a host":      {func(o *Options) { o.Command = []string{"git", "version"} }, "neither a2e nor MCP"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Fails(t, run(c.change), c.want)
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
	assert.Fails(t, err, context.Canceled.Error(), "got …, want %v", context.Canceled)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestListNamesTheCases(t *testing.T) {
	var out bytes.Buffer
	must.OK(t, Run(t.Context(), Options{List: true, Short: true}, &out, io.Discard))
	var names []string
	for line := range strings.Lines(out.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	want := []string{"start", "memory", "seq-echo-100B", "ping-w1024", "echo-100B-w64", "echo-10KB-w64", "echo-1MB-w8"}
	if !tellsMemory {
		want = slices.Delete(want, 1, 2)
	}
	assert.Diff(t, want, names)
}

func TestOptionsAreFlags(t *testing.T) {
	parse := func(words ...string) (Options, error) {
		var opts Options
		_, err := must.Get(kong.New(&opts))(t).Parse(words)
		return opts.defaults(), err
	}
	dir := t.TempDir()
	got, err := parse("--vs", "peer a,b", "--vs", "other", "--in", dir, "--json", "--quick", "host", "--flag", "x")
	must.OK(t, err)
	want := Options{
		Vs: []string{"peer a,b", "other"}, In: dir, JSON: true, Quick: true,
		Command: []string{"host", "--flag", "x"},
		Dialect: "auto", Duration: 200 * time.Millisecond, Rounds: 1, Starts: 5, Pipe: 1 << 20,
	}
	assert.Diff(t, want, got)
	got, err = parse("--quick", "--", "host", "--flag")
	must.OK(t, err)
	assert.Diff(t, []string{"host", "--flag"}, got.Command)
	_, err = parse("--quick")
	assert.Fails(t, err, "name the host to measure")
	for _, flag := range []string{"--rounds=0", "--starts=-1", "--duration=0s"} {
		_, err = parse(flag, "--list")
		assert.Fails(t, err, "must be above 0")
	}
}

func TestHomeIsNotTheUsers(t *testing.T) {
	env := (&target{dir: "/empty"}).strange([]string{"PATH=/bin", "HOME=/home/me", "A2E_CONFIG=/home/me/a2e.yaml"})
	cmd := exec.Cmd{Env: env}
	got := cmd.Environ()
	assert.That(t, slices.Contains(got, "PATH=/bin") && slices.Contains(got, "HOME=/empty") &&
		!slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "home/me") }), "%q", got)
}

func TestMain(m *testing.M) {
	if fault, ok := os.LookupEnv(faultVariable); ok {
		serveFake(fault)
		return
	}
	os.Exit(m.Run())
}

// faultVariable is the environment variable that makes the test binary a host; its value is the fault
// of the host, or "" for none.
const faultVariable = "BENCH_TEST_FAULT"

// fakeHost returns the path of a small a2e host.
func fakeHost(t *testing.T, fault string) string {
	t.Helper()
	self := must.Get(os.Executable())(t)
	t.Setenv(faultVariable, fault)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each fake host takes a second to end
	return self
}

// strikes is the number of the answer with the fault: the first answer of a load, after those to the
// handshake and to a probe. A slow machine may not send many more answers.
const strikes = 3

// serveFake answers the requests on stdin with lines on stdout. Only answer number strikes has the
// fault.
func serveFake(fault string) {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<21), bufio.NewWriter(os.Stdout)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if err != nil {
			out.Flush()
			return
		}
		answer := fakeAnswer(line)
		if n == strikes {
			switch fault {
			case "error":
				answer = strings.NewReplacer(`"tool/call/resp"`, `"error"`, `"pong"`, `"error"`).Replace(answer)
			case "short":
				answer = strings.Replace(answer, payload(text100)[:2*slack], "", 1)
			case "twice":
				answer += answer
			case "missing":
				answer = ""
			case "dies":
				fmt.Fprintln(os.Stderr, "a bug in the host")
				return
			case "notification":
				answer = `{"jsonrpc":"2.0","method":"notifications/message"}` + "\n" + answer
			}
		}
		out.WriteString(answer)
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

func fakeAnswer(line []byte) string {
	var q struct {
		Type string            `json:"type"`
		ID   string            `json:"id"`
		Args map[string]string `json:"arguments"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return `{"type":"error"}` + "\n"
	}
	head := `{"a2e":"1.0","req_id":"` + q.ID + `","type":`
	switch q.Type {
	case "handshake/req":
		return head + `"handshake/resp","ok":true}` + "\n"
	case "ping":
		return head + `"pong"}` + "\n"
	}
	return head + `"tool/call/resp","data":{"success":true,"data":{"text":"` + q.Args["text"] + `"}}}` + "\n"
}

// TestFaultsAreNoticed: the bench reports wrong, missing and surplus answers as errors, so that it does
// not count them.
func TestFaultsAreNoticed(t *testing.T) {
	for _, c := range []struct{ fault, want string }{ // want is a regular expression; "" = no error
		{"", ""},
		{"notification", ""},
		{"error", "not an answer"},
		{"short", "cut short"},
		{"twice", "more than requests|req_id is"}, // the text depends on who sees the second answer first
		{"missing", "no answer in time"},
		{"dies", "a bug in the host"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			self := fakeHost(t, c.fault)
			dir := t.TempDir()
			for _, window := range []int{1, 8} {
				tg := &target{
					command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, pipe: 1 << 20,
					patience: time.Minute,
				}
				if c.fault == "missing" {
					tg.patience = 300 * time.Millisecond
				}
				var got tally
				_, err := tg.session(t.Context(), text100, window, 20*time.Millisecond, func(l *load) (err error) {
					got, err = l.run()
					return err
				})
				switch {
				case c.want == "" && (err != nil || got.answers < 1):
					t.Errorf("window %d: %d answers, %v", window, got.answers, err)
				case c.want != "" && (err == nil || !regexp.MustCompile(c.want).MatchString(err.Error())):
					t.Errorf("window %d: got %v, want %q", window, err, c.want)
				}
			}
		})
	}
}

// TestWindowLargerThanThePipes: a load reads while it writes, so it ends even if its requests do not
// fit into the pipes. If it only wrote, the load and the host would wait for each other.
func TestWindowLargerThanThePipes(t *testing.T) {
	self := fakeHost(t, "")
	dir := t.TempDir()
	tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, patience: time.Minute}
	_, err := tg.session(t.Context(), text1M, 8, 50*time.Millisecond, func(l *load) error {
		got, err := l.run()
		assert.That(t, err != nil || got.answers != 0, "no answers")
		return err
	})
	assert.OK(t, err)
}

func TestLinesOfAllLengths(t *testing.T) {
	sizes := []int{
		0, 1, 10, keepSize, keepSize + 1, readSize - 1, readSize, readSize + 1, 3 * readSize, 5, 1_000_000,
		0,
	}
	for _, whole := range []bool{true, false} {
		r, w, err := os.Pipe()
		must.OK(t, err)
		go func() {
			defer w.Close()
			for i, n := range sizes {
				fmt.Fprintf(w, "%s\n", strings.Repeat(string(rune('a'+i)), n))
			}
		}()
		l := newLines(r)
		l.whole = whole
		var got []int
		for {
			for line := l.next(); line != nil; line = l.next() {
				want := strings.Repeat(string(rune('a'+len(got))), len(line))
				assert.Equal(t, string(line), want, "line %d holds another line", len(got))
				assert.That(t, !whole || l.cut == 0, "line %d was cut", len(got))
				got = append(got, len(line)+l.cut)
			}
			if err := l.fill(); err != nil {
				break
			}
		}
		r.Close()
		assert.Equal(t, fmt.Sprint(got), fmt.Sprint(sizes), "whole %v: lengths %v, want %v", whole, got, sizes)
		assert.That(t, whole || len(l.buf) == readSize, "the buffer grew to %d bytes", len(l.buf))
	}
}

func TestEveryRequestHasItsOwnID(t *testing.T) {
	for _, d := range []*dialect{a2eDialect(), mcpDialect(), lineDialect()} {
		for _, size := range []string{"", text100, text1M} {
			q := ask(d, size)
			b := newBatch(q, 64)
			seen := map[string]bool{}
			for range 3 {
				data, n := b.take(64)
				must.That(t, strings.Count(string(data), "\n") == n, "%s %s: %d requests, but not as many lines",
					d.name, size, n)
				for line := range strings.Lines(string(data)) {
					seen[line] = true
				}
			}
			want := 3 * b.slots
			assert.That(t, len(seen) == want, "%s %s: %d different requests of %d", d.name, size, len(seen), want)
		}
	}
}

func TestEchoOfALineIsAsLongAsItsName(t *testing.T) {
	for size, want := range map[string]int{text100: 100, text10K: 10_000, text1M: 1_000_000} {
		assert.Equal(t, newBatch(ask(lineDialect(), size), 1).size-1, want, "%s: … bytes", size)
		assert.Equal(t, len(ask(a2eDialect(), size).text), want, "%s: a text of … bytes", size)
	}
}

func TestALoadEndsWithItsContext(t *testing.T) {
	self := fakeHost(t, "")
	dir := t.TempDir()
	tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, patience: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := tg.session(ctx, "", 8, time.Second, func(l *load) error {
		cancel()
		_, err := l.run()
		return err
	})
	assert.Fails(t, err, "", "the load went on to its end")
}

// TestRunOfAnInstant: the figures are valid numbers even if all answers arrive after the end of the
// time.
func TestRunOfAnInstant(t *testing.T) {
	self, dir := fakeHost(t, ""), t.TempDir()
	tg := &target{
		command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, pipe: 1 << 20,
		patience: time.Minute,
	}
	for _, window := range []int{1, 8} {
		var got tally
		_, err := tg.session(t.Context(), text100, window, time.Nanosecond, func(l *load) (err error) {
			got, err = l.run()
			return err
		})
		assert.That(t, err == nil && got.answers >= 1 && got.answers <= window && got.elapsed > 0, "window %d: %+v, %v",
			window, got, err)
	}
}
