package child_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host/child"
	"a2e/host/guard/redact"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children are started by this test binary
	goleak.VerifyTestMain(m)
}

// stage is one process, with the output that the test has received from it.
type stage struct {
	*child.Process
	t     testing.TB
	dir   string
	log   hosttest.Log
	lines chan string
	goes  sync.WaitGroup
	kill  context.CancelCauseFunc
}

// newStage starts a shell script.
func newStage(t testing.TB, script string, opts child.Options) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), lines: make(chan string, 100)}
	l := must.Get(sandbox.New(sandbox.Options{
		Workspace: t.TempDir(), Mode: sandbox.Off,
		Launcher: hosttest.Launcher(t),
	}))(t)
	program := child.Program{Command: []string{"sh", "-c", script}, Workspace: s.dir}
	policy := must.Get(program.Policy())(t)
	opts.Name, opts.Go, opts.Log = "the child", s.goes.Go, zerolog.New(&s.log)
	opts.Line = func(line []byte) {
		if strings.HasPrefix(string(line), "{") {
			s.lines <- string(line)
		} else {
			s.Skip(line)
		}
	}
	ctx, kill := context.WithCancelCause(context.Background())
	s.kill = kill
	s.Process = child.New(ctx, opts)
	must.OK(t, s.Start(func() (*sandbox.Launcher, error) { return l, nil }, policy))
	t.Cleanup(func() {
		kill(errors.New("the test is over"))
		s.goes.Wait()
		must.OK(t, l.Close())
	})
	return s
}

func (s *stage) ends(want string) {
	s.t.Helper()
	select {
	case <-s.Done():
	case <-time.After(hosttest.Patience):
		s.t.Fatal("it does not end")
	}
	got := s.End().Error()
	assert.That(s.t, got == want, "%q, should be %q", got, want)
}

// TestConversation: a child gets lines and sends lines, sees the end of its input, and its exit status and stderr are
// reported.
func TestConversation(t *testing.T) {
	ended := make(chan *child.Ended, 1)
	s := newStage(t, `while read -r line; do echo "{$line}"; done; echo bye >&2; exit 3`,
		child.Options{Ended: func(e *child.Ended) { ended <- e }})
	for i := range 3 {
		must.OK(t, s.Send(fmt.Appendln(nil, i), i == 0))
		assert.Equal(t, <-s.lines, fmt.Sprintf("{%d}", i))
	}
	if s.PID() <= 0 || s.Context().Err() != nil {
		t.Error(s.PID())
	}
	s.Close()
	s.Await(t.Context(), hosttest.Patience)
	s.ends("the child ended: exit status 3; its stderr ends with: bye")
	e := <-ended
	assert.That(t, e == s.End() && e.Cause == nil && e.Lived > 0, "%+v", e)
	assert.Is(t, s.Send([]byte("late\n"), false), child.ErrInputClosed)
}

// TestEnds: the error of a process that does not end by itself says why it was ended.
func TestEnds(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		s := newStage(t, `sleep 100`, child.Options{})
		s.Kill(errors.New("it is late"))
		s.ends("the child ended: it is late")
	})
	t.Run("context", func(t *testing.T) {
		s := newStage(t, `sleep 100`, child.Options{})
		s.kill(errors.New("the host ends"))
		s.ends("the child ended: the host ends")
	})
	t.Run("input", func(t *testing.T) {
		s := newStage(t, `exec <&-; echo "{}"; sleep 100`, child.Options{Grace: time.Millisecond})
		<-s.lines
		for s.Send([]byte("x\n"), false) == nil {
			time.Sleep(time.Millisecond)
		}
		<-s.Done()
		assert.Fails(t, s.End().Cause, "it does not take its input")
	})
	t.Run("silent", func(t *testing.T) {
		silent := make(chan struct{})
		s := newStage(t, `exec >&-; sleep 100`, child.Options{Silent: func() { close(silent) }})
		<-silent
		s.Kill(errors.New("silent"))
		s.ends("the child ended: silent")
	})
}

func TestNotStarted(t *testing.T) {
	p := child.New(t.Context(), child.Options{Name: "the child", Line: func([]byte) {}})
	err := p.Start(func() (*sandbox.Launcher, error) { return nil, errors.New("no sandbox") }, sandbox.Policy{})
	if <-p.Done(); err == nil || p.End().Error() != "the child ended: programs cannot be started: no sandbox" ||
		p.Context().Err() == nil {
		t.Error(err, p.End())
	}
}

// TestLog: lines that are not messages, and lines of stderr, go to the log: only a bounded number per second, and
// without secrets.
func TestLog(t *testing.T) {
	secrets := redact.New(nil)
	secrets.AddSecret("sesame-open")
	var heard []string
	s := newStage(t, `echo "junk sesame-open"; head -c 5000 /dev/zero | tr '\0' x; echo
i=0; while [ $i -lt 1000 ]; do echo "noise $i"; echo "words $i" >&2; i=$((i+1)); done
printf '%04090d%s%08000d\n' 0 sesame-open 0 >&2; echo "last sesame-open" >&2`,
		child.Options{
			MaxLine: 100, Secrets: secrets, Level: zerolog.DebugLevel,
			Stderr: func(line []byte) { heard = append(heard, string(line)) },
			Now: func() time.Time {
				return time.Unix(1_000_000,
					0)
			},
		}) // all lines in one second, as the log takes only so many a second
	<-s.Done()
	text := s.End().Error()
	assert.That(t, strings.HasSuffix(text, "last [redacted]") && len(text) <= 3000, "%q", text)
	log := s.log.String()
	for _, want := range []string{
		"junk [redacted]", "a line of more than 100 bytes", `"level":"debug"`,
		`"stderr":"words 1"`,
	} {
		assert.Contains(t, log, want, "no … in the log")
	}
	if n := strings.Count(log, "\n"); s.Skipped() != 1002 || n < 100 || n > 300 ||
		strings.Contains(log+strings.Join(heard, ""), "ses") {
		t.Errorf("%d skipped, %d lines in the log: %.3000s", s.Skipped(), n, log)
	}
	assert.Equal(t, len(heard), 1002, "… lines of stderr")
}

// TestDeaf: a child that does not read its input costs only bounded memory and delays nobody, even if the child seems
// to have nothing else to read. No line is torn.
func TestDeaf(t *testing.T) {
	s := newStage(t, `echo "{}"; until test -e go; do sleep 0.01; done; cat >all`, child.Options{})
	<-s.lines
	var want []byte
	line := append(bytes.Repeat([]byte("x"), 4088), '\n') // no pipe holds a whole number of these lines
	for range 100 {
		must.OK(t, s.Send(line, true))
		want = append(want, line...)
	}
	big := append(bytes.Repeat([]byte("y"), 1<<20), '\n')
	for {
		if err := s.Send(big, false); errors.Is(err, child.ErrInputFull) {
			break
		}
		if want = append(want, big...); len(want) > 40<<20 { // 16 MiB may wait, and as many be in the write under way
			t.Fatal("it takes more and more")
		}
	}
	must.OK(t, os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600))
	s.Close()
	s.ends("the child ended: exit status 0")
	got, err := os.ReadFile(filepath.Join(s.dir, "all"))
	assert.That(t, err == nil && bytes.Equal(got, want), "%d bytes of %d, %v", len(got), len(want), err)
}

func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	venv := t.TempDir()
	for _, name := range []string{
		filepath.Join(dir, "tool"), filepath.Join(venv, "pyvenv.cfg"),
		filepath.Join(venv, "bin", "python"),
	} {
		_ = os.MkdirAll(filepath.Dir(name), 0o700)
		must.OK(t, os.WriteFile(name, []byte("#!/bin/sh\n"), 0o700))
	}
	python := filepath.Join(venv, "bin", "python")
	for name, c := range map[string]struct {
		program child.Program
		want    string // path, args, folder, read, write, network
		err     string
	}{
		"relative": {child.Program{Command: []string{"./tool", "x"}}, "WS/tool [WS/tool x] WS [] [] ", ""},
		"bare":     {child.Program{Command: []string{"tool"}, Dirs: []string{"/bin"}}, "", "tool"},
		"itself": {
			child.Program{Command: []string{"a2e"}, Dirs: []string{}, Self: "a2e"},
			"SELF [a2e] WS [] [] ", "",
		},
		"venv": {
			child.Program{Command: []string{python}},
			python + " [" + python + "] WS [" + venv + "] [] ",
			"",
		},
		"gone": {child.Program{Command: []string{"./nothing"}}, "", `program "./nothing" does not exist`},
		"read and write": {child.Program{
			Command: []string{"./tool"}, Read: []string{"a", "/b/../c"},
			Write: []string{"d"}, Network: true,
		}, "WS/tool [WS/tool] WS [WS/a /c] [WS/d] host", ""},
		"folder": {
			child.Program{Command: []string{"./tool"}, Cwd: "/usr/"},
			"WS/tool [WS/tool] /usr [/usr] [] ", "",
		},
		"own folder": {
			child.Program{Command: []string{"./tool"}, Cwd: "/usr/lib", Write: []string{"/usr"}},
			"WS/tool [WS/tool] /usr/lib [] [/usr] ", "",
		},
		"outside": {child.Program{Command: []string{"./tool"}, Cwd: ".."}, "", "cwd: "},
		"no workspace": {
			child.Program{Command: []string{"/bin/sh"}, Workspace: filepath.Join(dir, "none")},
			"",
			"workspace: ",
		},
	} {
		if c.program.Workspace == "" {
			c.program.Workspace = dir
		}
		policy, err := c.program.Policy()
		if policy.DirFile != nil {
			policy.DirFile.Close()
		}
		assert.That(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)), "%s: %v",
			name, err)
		if err != nil {
			continue
		}
		self, _ := os.Executable()
		got := fmt.Sprintf("%s %v %s %v %v %s", policy.Path, policy.Args, policy.Dir, policy.Read, policy.Write,
			policy.Network)
		if got = strings.ReplaceAll(strings.ReplaceAll(got, dir, "WS"), self, "SELF"); got != c.want {
			t.Errorf("%s: %s, should be %s", name, got, c.want)
		}
	}
	for _, command := range [][]string{nil, {""}, {"a", "b\x00"}} {
		assert.Fails(t, child.CheckCommand(command, "the program"), "", "%q is fine", command)
	}
	assert.OK(t, child.CheckCommand([]string{"a", ""}, "the program"))
}

func TestPending(t *testing.T) {
	var p child.Pending[string, int]
	alone := func(id string, want bool) {
		t.Helper()
		got, ok := p.Add(id, len(id))
		assert.That(t, ok && got == want, "%s: alone %v, %v", id, got, ok)
	}
	alone("a", true)
	alone("bb", false)
	req, ok := p.Get("bb")
	assert.That(t, ok && req == 2 && p.Len() == 2, "%v %v", req, ok)
	for _, want := range []bool{true, false} { // only the first Take finds the request
		req, ok := p.Take("a")
		assert.That(t, ok == want && (!want || req == 1), "%v %v", req, ok)
	}
	assert.That(t, p.Drop("bb") && !p.Drop("bb"), "dropped")
	alone("c", false) // the child may not have read "bb" yet
	p.Take("c")
	alone("d", true)
	p.Told()
	p.Take("d")
	alone("e", false) // the child may not have read what it was told
	p.Take("e")
	alone("f", true)
	assert.Slice(t, p.End(), []int{1})
	_, ok = p.Add("g", 1)
	assert.That(t, !ok && p.Len() == 0, "taken after the end")
}

// TestPendingEndsWhileAdded: End returns each request that Add has accepted, also one that is added at the same moment.
func TestPendingEndsWhileAdded(t *testing.T) {
	for range 300 {
		var p child.Pending[int, int]
		var added int
		var adds sync.WaitGroup
		began := make(chan struct{})
		adds.Go(func() {
			close(began)
			for ok := true; ok; added++ {
				_, ok = p.Add(added, added)
			}
		})
		<-began
		ended := p.End()
		adds.Wait()
		must.Equal(t, len(ended), added-1) // Add refused the last one
	}
}

func TestBackoff(t *testing.T) {
	now, why := time.Unix(1000, 0), errors.New("why")
	const s = time.Second
	for name, c := range map[string]struct {
		child.Backoff
		want []time.Duration // waits after each failure in a row
	}{
		"grows": {child.Backoff{First: s, Most: 5 * s}, []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s}},
		"free":  {child.Backoff{First: s, Most: 5 * s, Free: 2}, []time.Duration{0, 0, s, 2 * s}},
		"gives up": {
			child.Backoff{First: s, Most: 5 * s, Limit: 3, Pause: 60 * s, PauseMost: 100 * s},
			[]time.Duration{s, 2 * s, 60 * s, 100 * s, 100 * s},
		},
		"keeps trying": {
			child.Backoff{First: s, Most: 5 * s, Limit: 2, Pause: 60 * s},
			[]time.Duration{s, 60 * s, 60 * s},
		},
	} {
		b := c.Backoff
		b.Enough = 10 * s
		assert.That(t, b.Wait(now) == 0 && b.Reason(now) == "", "%s: it waits for its first start", name)
		for i, want := range c.want {
			if b.Down(now, why, s, false); b.Wait(now) != want || b.Paused() != (b.Limit > 0 && i+1 >= b.Limit) {
				t.Errorf("%s: %s after %d failures", name, b.Wait(now), i+1)
			}
		}
		got := b.Reason(now.Add(-s))
		assert.That(t, strings.HasPrefix(got, "why; it is tried again in "), "%s: %s", name, got)
		for _, lived := range []time.Duration{10 * s, s} { // it lived long enough, or it was useful
			if b.Down(now, why, lived, lived == s); b.Wait(now) != 0 || b.Failures != 0 {
				t.Errorf("%s: %+v", name, b)
			}
		}
		if b.Up(); b.Last != nil {
			t.Errorf("%s: %+v", name, b)
		}
	}
	b := child.Backoff{First: s, Most: s, Jitter: 0.5}
	for range 100 {
		if b.Down(now, why, 0, false); b.Wait(now) < s/2 || b.Wait(now) > s*3/2 {
			t.Fatal(b.Wait(now))
		}
	}
}

// events is an Emitter that keeps its events as text.
type events []string

func (e *events) Progress(pct float64, message string)      { *e = append(*e, fmt.Sprint(pct, message)) }
func (e *events) Status(message string)                     { *e = append(*e, message) }
func (e *events) Log(level, message, stream string)         { *e = append(*e, level+message+stream) }
func (e *events) Artifact(name, _ string, c []byte, _ bool) { *e = append(*e, name+string(c)) }
func (e *events) Streaming() bool                           { return true }

func TestEmit(t *testing.T) {
	for _, c := range []struct {
		kind protocol.EventKind
		data string
		want string
	}{
		{protocol.EventProgress, `{"pct":5,"message":"half"}`, "true <nil> [5half]"},
		{protocol.EventStatus, `{"message":"on"}`, "true <nil> [on]"},
		{protocol.EventLog, `{"level":"warn","message":"text","stream":"stdout"}`, "true <nil> [warntextstdout]"},
		{protocol.EventArtifact, `{"name":"f","chunk":"YWI="}`, "true <nil> [fab]"},
		{"other", `{}`, "false <nil> []"},
	} {
		var e events
		known, err := child.Emit(&e, c.kind, protocol.Value(c.data))
		assert.Equal(t, fmt.Sprint(known, err, e), c.want, "%s", c.kind)
	}
	for _, data := range []string{`[]`, `{"pct":"x"}`, ``} {
		var e events
		known, err := child.Emit(&e, protocol.EventProgress, protocol.Value(data))
		assert.That(t, known && err != nil && len(e) == 0, "%q: %v %v", data, err, e)
	}
}

func TestSplitter(t *testing.T) {
	const kept = 4 << 10
	long := strings.Repeat("x", kept)
	for _, size := range []int{1, 2, 3, 7, 1 << 20} { // bytes of one write
		var lines []string
		var over bytes.Buffer
		s := child.Splitter{
			Over: &over, Max: kept + 2, Line: func(line []byte) { lines = append(lines, string(line)) },
			Long: func(head []byte) { lines = append(lines, "long:"+string(head)) },
		}
		for text := "\ufeffa\n\ufeffbc\n" + long + "yyyyy\nd\r\n" + long + "\nlast"; text != ""; {
			n := min(size, len(text))
			got, err := s.Write([]byte(text[:n]))
			must.That(t, got == n && err == nil, "%v %v", got, err)
			text = text[n:]
		}
		s.End()
		want := []string{"a", "\ufeffbc", "long:" + long, "d\r", long, "last"}
		assert.Slice(t, lines, want, "in pieces of %d", size)
		assert.Equal(t, over.String(), long+"yyyyy", "the line that is too long, in pieces of %d", size)
	}
}

func TestSplitterHead(t *testing.T) {
	var heads []string
	s := child.Splitter{
		Max: 3, Head: 2, Line: func(line []byte) { heads = append(heads, string(line)) },
		Long: func(head []byte) { heads = append(heads, string(head)+"…") },
	}
	_, _ = s.Write([]byte("abc\nabcd\n")) // Write never fails
	want := []string{"abc", "ab…"}
	assert.That(t, slices.Equal(heads, want), "%v", heads)
}

func TestLimiter(t *testing.T) {
	l, now := child.Limiter{Burst: 2, PerSecond: 1}, time.Unix(0, 0)
	var got []int
	for i := range 10 {
		if hidden, ok := l.Allow(now.Add(time.Duration(i) * 500 * time.Millisecond)); ok {
			got = append(got, i, hidden)
		}
	}
	want := []int{0, 0, 1, 0, 2, 0, 4, 1, 6, 1, 8, 1}
	assert.That(t, slices.Equal(got, want), "when, and how many were hidden before it: %v, want %v", got, want)
}

func TestTail(t *testing.T) {
	tail := child.Tail{Size: 10}
	for range 100 {
		tail.Add([]byte("12345"))
	}
	tail.Add([]byte("\xffend"))
	assert.Equal(t, tail.String(), "2345\n\uFFFDend")
}

// TestTailOfAStream: a Tail keeps the end of all pieces as one text, which begins with a whole character. Left
// returns how many bytes are missing before it.
func TestTailOfAStream(t *testing.T) {
	const text = "the begin, ü and the end \n"
	for _, size := range []int{1, 2, 5, 1 << 20} { // bytes of one write
		for _, kept := range []int{len(text) - 11, len(text) - 12, len(text) - 13} { // ü is the bytes 11 and 12
			tail := child.Tail{Size: kept}
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				got, err := tail.Write([]byte(rest[:n]))
				must.That(t, got == n && err == nil, "%v %v", got, err)
				rest = rest[n:]
			}
			want, left := "ü and the end", 11
			if kept < len(text)-11 {
				want, left = "and the end", 13
			}
			if tail.String() != want || tail.Left() != left {
				t.Errorf("in pieces of %d, %d kept: %q after %d bytes", size, kept, tail.String(), tail.Left())
			}
		}
	}
	var tail child.Tail
	if tail.Size = 10; tail.String() != "" || tail.Left() != 0 {
		t.Errorf("nothing is %q", tail.String())
	}
	for range 100 {
		_, _ = tail.Write([]byte(strings.Repeat("x", 100_000))) // Write never fails
	}
	assert.Equal(t, tail.Left(), 10_000_000-10, "… bytes left out")
}
