//go:build linux

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// TestLevels: children start, run and end in the same way on every level of this machine.
func TestLevels(t *testing.T) {
	all := usable(t)
	for i, lv := range all {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			if i > 0 && lv.mechanism == all[i-1].mechanism {
				lv.sys.AmbientCaps = nil
			}
			l := newLauncher(t, Options{})
			assert.Equal(t, l.Mechanism(), "", "probed before the first start")
			l.start.levels = []level{lv}
			t.Run("ends", func(t *testing.T) { testEnds(t, l) })
			t.Run("stdin", func(t *testing.T) { testStdin(t, l) })
			t.Run("pipe holder", func(t *testing.T) { testPipeHolder(t, l) })
			t.Run("kill", func(t *testing.T) { testKill(t, l) })
			t.Run("pid", func(t *testing.T) { testPID(t, l) })
			t.Run("launcher dies", func(t *testing.T) { testLauncherDies(t, l) })
			t.Run("inherits", func(t *testing.T) { testInherits(t, l) })
			assert.Equal(t, l.Mechanism(), lv.mechanism, "mechanism")
		})
	}
}

func testEnds(t *testing.T, l *Launcher) {
	for script, want := range map[string]State{
		"exit 0":           {Code: 0},
		"exit 3":           {Code: 3},
		"exit 255":         {Code: 255},
		"kill -TERM $$":    {Code: -1, Signal: syscall.SIGTERM},
		"kill -KILL $$":    {Code: -1, Signal: syscall.SIGKILL},
		"kill -SEGV $$":    {Code: -1, Signal: syscall.SIGSEGV},
		"kill -PIPE $$":    {Code: -1, Signal: syscall.SIGPIPE},
		"sleep 0 & exit 9": {Code: 9},
	} {
		policy, _, stderr := shell(t, script)
		got, err := begin(t, l, policy).Wait()
		assert.That(t, got == want && err == nil, "%q: %v, %v, stderr %q; want %v", script, got, err, stderr, want)
	}
}

func testStdin(t *testing.T, l *Launcher) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	policy, stdout, _ := shell(t, "cat; echo done >&2")
	var stderr bytes.Buffer
	policy.Stdin, policy.Stderr = bytes.NewReader(data), &stderr
	must.Get(begin(t, l, policy).Wait())(t)
	if !bytes.Equal(stdout.Bytes(), data) || stderr.String() != "done\n" {
		t.Errorf("%d bytes came back of %d, stderr %q", stdout.Len(), len(data), &stderr)
	}

	// nobody reads this input; the end of the child ends the writing
	policy, _, _ = shell(t, "exit 4")
	policy.Stdin = bytes.NewReader(data)
	p := begin(t, l, policy)
	state, err := p.Wait()
	assert.That(t, state.Code == 4 && err == nil, "unread input: %v, %v", state, err)
}

// testPipeHolder guards against a Wait that hangs because a grandchild keeps a pipe open.
func testPipeHolder(t *testing.T, l *Launcher) {
	seconds := mark.new()
	policy, stdout, _ := shell(t, `setsid sleep "$1" & (sleep "$1" &) ; echo first; until [ -e "$2" ]; do :; done; echo last`, seconds, filepath.Join(t.TempDir(), "go"))
	p := begin(t, l, policy)
	poll.Eventually(t, "both holders run", func() bool { return len(sleepers(t, seconds)) == 2 })
	must.OK(t, os.WriteFile(policy.Args[5], nil, 0o600))
	state, err := p.Wait()
	assert.That(t, state.Code == 0 && err == nil, "%v, %v", state, err)
	assert.Equal(t, stdout.String(), "first\nlast\n", "output %q", stdout)
	left := sleepers(t, seconds)
	assert.That(t, len(left) == 0, "left after Wait: %v", left)
}

func testKill(t *testing.T, l *Launcher) {
	cause := errors.New("no longer wanted")
	for name, tc := range map[string]struct {
		end  func(p *Process, cancel context.CancelCauseFunc)
		want error
		sig  syscall.Signal
	}{
		"Kill":   {func(p *Process, _ context.CancelCauseFunc) { p.Kill(); p.Kill() }, ErrKilled, syscall.SIGKILL},
		"ctx":    {func(_ *Process, cancel context.CancelCauseFunc) { cancel(cause) }, cause, syscall.SIGKILL},
		"Signal": {func(p *Process, _ context.CancelCauseFunc) { _ = p.Signal(syscall.SIGUSR1) }, nil, syscall.SIGUSR1},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		seconds := mark.new()
		policy, _, _ := shell(t, treeScript, seconds)
		p := must.Get(l.Command(ctx, policy))(t)
		poll.Eventually(t, "the tree runs", func() bool { return len(sleepers(t, seconds)) == treeSize })
		tc.end(p, cancel)
		state, err := p.Wait()
		assert.That(t, errors.Is(err, tc.want) && state.Signal == tc.sig && state.Code == -1, "%s: %v, %v", name, state,
			err)
		left := sleepers(t, seconds)
		assert.That(t, len(left) == 0, "%s: left after Wait: %v", name, left)
		assert.Fails(t, p.Signal(syscall.SIGTERM), "", "%s: signal to an ended tree: no error", name)
		p.Kill() // a second Kill has no effect
		cancel(nil)
	}
}

// testPID: PID returns the pid of the command itself.
func testPID(t *testing.T, l *Launcher) {
	seconds := mark.new()
	policy, _, _ := shell(t, `exec sleep "$1"`, seconds)
	p := begin(t, l, policy)
	poll.Eventually(t, "it sleeps", func() bool { return slices.Equal(sleepers(t, seconds), []int{p.PID()}) })
	killed(t, p)
}

func launcherOf(p *Process) int { return p.child.(*launched).proc.Pid }

func testLauncherDies(t *testing.T, l *Launcher) {
	seconds := mark.new()
	policy, _, _ := shell(t, `sleep "$1"; :`, seconds)
	p := begin(t, l, policy)
	poll.Eventually(t, "the shell's child runs", func() bool { return len(sleepers(t, seconds)) == 1 })
	must.OK(t, syscall.Kill(launcherOf(p), syscall.SIGKILL))
	_, err := p.Wait()
	assert.That(t, errors.Is(err, ErrLauncher), "error %v", err)
	poll.Eventually(t, "nothing is left", func() bool { return len(sleepers(t, seconds)) == 0 })

	// a command of the same user can stop its launcher
	seconds = mark.new()
	policy, _, _ = shell(t, treeScript, seconds)
	p = begin(t, l, policy)
	poll.Eventually(t, "the tree runs", func() bool { return len(sleepers(t, seconds)) == treeSize })
	ended := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		for launcher := p.child.(*launched).proc; ; {
			select {
			case <-ended:
				return
			default:
				_ = launcher.Signal(syscall.SIGSTOP) // fails once the launcher is gone
			}
		}
	})
	p.Kill()
	_, err = p.Wait()
	close(ended)
	stopping.Wait()
	assert.That(t, errors.Is(err, ErrKilled), "stopped launcher: %v", err)
	poll.Eventually(t, "nothing is left of a stopped launcher's tree",
		func() bool { return len(sleepers(t, seconds)) == 0 })
}

// testInherits: a child inherits only what it is given.
func testInherits(t *testing.T, l *Launcher) {
	// a descriptor without close-on-exec, as a careless parent may have one
	f := must.Get(os.Open(os.DevNull))(t)
	defer f.Close()
	leak := must.Get(syscall.Dup(int(f.Fd())))(t)
	defer syscall.Close(leak)

	const script = `
ls /proc/self/fd | wc -l
grep -E '^(NoNewPrivs|SigBlk|SigIgn):' /proc/self/status | tr '\n' ' '; echo
read -r pid name state parent group session rest < /proc/self/stat
[ "$pid $pid" = "$group $session" ] && echo leader
ulimit -c; umask`
	want := "4\nSigBlk:\t0000000000000000 SigIgn:\t0000000000000000 NoNewPrivs:\t1 \nleader\n0\n"
	got := runShell(t, l, script, nil)
	got = strings.ReplaceAll(got, "NoNewPrivs:\t1 SigBlk:\t0000000000000000 SigIgn:\t0000000000000000 ",
		"SigBlk:\t0000000000000000 SigIgn:\t0000000000000000 NoNewPrivs:\t1 ")
	assert.That(t, strings.HasPrefix(got, want), "got %q, want %q", got, want)
	umask := strings.TrimSpace(strings.TrimPrefix(got, want))
	assert.That(t, strings.HasSuffix(umask, "22") || strings.HasSuffix(umask, "77"), "umask %s lets others write",
		umask)
}

func TestTimeout(t *testing.T) {
	l := newLauncher(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	policy, stdout, _ := shell(t, `echo begun; sleep "$1"`, mark.new())
	p, err := l.Command(ctx, policy)
	if err != nil {
		must.That(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		return // the machine is too slow to start anything in time
	}
	if _, err := p.Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, output %q", err, stdout)
	}
}

func TestStartErrors(t *testing.T) {
	l := newLauncher(t, Options{})
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	must.OK(t, os.WriteFile(plain, []byte("text"), 0o600))
	truth := program(t, "true")
	for name, tc := range map[string]struct {
		policy Policy
		want   error
	}{
		"missing program":     {Policy{Path: filepath.Join(dir, "none")}, syscall.ENOENT},
		"no executable":       {Policy{Path: plain}, syscall.EACCES},
		"missing directory":   {Policy{Path: truth, Dir: filepath.Join(dir, "none")}, syscall.ENOENT},
		"directory is a file": {Policy{Path: truth, Dir: plain}, syscall.ENOTDIR},
		"arguments too long":  {Policy{Path: truth, Args: []string{"true", strings.Repeat("x", 1<<20)}}, syscall.E2BIG},
	} {
		_, err := l.Command(t.Context(), tc.policy)
		var start *StartError
		assert.That(t, errors.As(err, &start) && errors.Is(err, tc.want), "%s: %v", name, err)
	}
	for name, policy := range map[string]Policy{
		"relative path":      {Path: "true"},
		"relative directory": {Path: truth, Dir: "x"},
		"NUL in path":        {Path: truth + "\x00"},
		"NUL in argument":    {Path: truth, Args: []string{"true", "a\x00b"}},
		"NUL in directory":   {Path: truth, Dir: "/\x00"},
	} {
		_, err := l.Command(t.Context(), policy)
		assert.That(t, err != nil, "%s: started", name)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Command(ended, Policy{Path: truth}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	p, err := l.Command(t.Context(), Policy{Path: truth, Dir: dir}) // a check that a good command starts
	must.OK(t, err)
	if state, err := p.Wait(); state != (State{}) || err != nil {
		t.Errorf("control: %v, %v", state, err)
	}
}

func TestClose(t *testing.T) {
	l := must.Get(New(Options{}))(t)
	seconds := mark.new()
	var all []*Process
	for range 3 {
		policy, _, _ := shell(t, treeScript, seconds)
		p := begin(t, l, policy)
		all = append(all, p)
	}
	poll.Eventually(t, "all trees run", func() bool { return len(sleepers(t, seconds)) == 3*treeSize })
	runShell(t, l, `mkdir -p "$HOME/a/b"; touch "$HOME/a/b/c"; chmod 500 "$HOME/a/b"`, nil)
	made := l.env.home.folder()
	must.OK(t, l.Close(), l.Close())
	left := sleepers(t, seconds)
	assert.That(t, len(left) == 0, "left after Close: %v", left)
	for _, p := range all {
		_, err := p.Wait()
		assert.That(t, errors.Is(err, ErrKilled), "error %v", err)
	}
	takeOver(t, made) // that Close removes the folder has its own test
	_, err := l.Command(t.Context(), Policy{Path: program(t, "true")})
	assert.That(t, errors.Is(err, ErrClosed), "after Close: %v", err)
}

func TestLimits(t *testing.T) {
	l := newLauncher(t, Options{})
	dir := t.TempDir()
	write := func(limits Limits) (State, error) {
		policy, _, _ := shell(t, `exec head -c 100000 /dev/zero > big`)
		policy.Dir, policy.Limits = dir, limits
		return begin(t, l, policy).Wait()
	}
	if state, err := write(Limits{}); state.Code != 0 || err != nil { // a check without limits
		t.Fatal(state, err)
	}
	state, err := write(Limits{FileBytes: 5000})
	assert.That(t, state.Signal == syscall.SIGXFSZ && err == nil, "too large a file: %v, %v", state, err)
	got := runShell(t, l, "ulimit -n; ulimit -t", func(p *Policy) { p.Limits = Limits{OpenFiles: 77, CPUSeconds: 55} })
	assert.Equal(t, got, "77\n55\n", "limits")
}

// TestDirFile guards against a folder that is swapped for a link after it was checked.
func TestDirFile(t *testing.T) {
	l := newLauncher(t, Options{})
	base := t.TempDir()
	good, other := filepath.Join(base, "good"), filepath.Join(base, "other")
	for _, dir := range []string{good, other} {
		must.OK(t, os.Mkdir(dir, 0o700))
	}
	opened := must.Get(os.Open(good))(t)
	defer opened.Close()
	moved := filepath.Join(base, "moved")
	must.OK(t, os.Rename(good, moved), os.Symlink(other, good))
	// A check that the swap works.
	if got := runShell(t, l, "pwd -P", func(p *Policy) { p.Dir = good }); got != other+"\n" {
		t.Fatalf("by name: %q", got)
	}
	policy, _, _ := shell(t, "pwd -P")
	policy.Dir, policy.DirFile = good, opened
	// In a plain container the child enters the folder by its descriptor instead.
	if !plainContainer() {
		_, err := l.Command(t.Context(), policy)
		assert.That(t, err != nil && strings.Contains(err.Error(), "another folder"), "by descriptor: %v", err)
	}
	got := runShell(t, l, "pwd -P", func(p *Policy) { p.Dir, p.DirFile = moved, opened })
	assert.Equal(t, got, moved+"\n", "by descriptor and its name: …, want %q", moved)
}

// TestStreams: a stream can be shared, nil, a file, or a writer that fails.
func TestStreams(t *testing.T) {
	l := newLauncher(t, Options{})
	var both bytes.Buffer
	runShell(t, l, "echo 1; echo 2 >&2; echo 3", func(p *Policy) { p.Stdout, p.Stderr = &both, &both })
	assert.That(t, both.String() == "1\n2\n3\n", "shared: %q", &both)
	runShell(t, l, "echo 1; echo 2 >&2; cat", func(p *Policy) { p.Stdout, p.Stderr = nil, nil })

	file := must.Get(os.Create(filepath.Join(t.TempDir(), "out")))(t)
	defer file.Close()
	runShell(t, l, "echo into a file", func(p *Policy) { p.Stdout = file })
	if data, err := os.ReadFile(file.Name()); string(data) != "into a file\n" || err != nil {
		t.Errorf("file: %q, %v", data, err)
	}

	policy, _, _ := shell(t, "while :; do echo more; done")
	policy.Stdout = brokenWriter{}
	if _, err := begin(t, l, policy).Wait(); !errors.Is(err, errBroken) {
		t.Errorf("broken writer: %v", err)
	}

	// the output of a child that closes its stream ends at once
	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	policy, _, _ = shell(t, `exec >&-; sleep "$1"`, mark.new())
	policy.Stdout = w
	p := begin(t, l, policy)
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v", n, err)
	}
	killed(t, p)
	ended := make(chan struct{})
	policy, _, _ = shell(t, `exec >&-; sleep "$1"`, mark.new())
	policy.Silent = func() { close(ended) }
	p = begin(t, l, policy)
	<-ended
	killed(t, p)
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestReadSoon: callers that wait for an answer can read it themselves, several at the same time. No output is lost
// or repeated, and unexpected output, late output and the end are read too.
func TestReadSoon(t *testing.T) {
	l := newLauncher(t, Options{})
	in, ours, err := os.Pipe()
	must.OK(t, err)
	defer in.Close()
	var mu sync.Mutex
	var got []byte
	waiting := 0
	lines := func() int {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Count(got, []byte("\n"))
	}
	policy := Policy{Path: program(t, "sh"), Args: []string{
		"sh", "-c",
		`while read -r l; do test "$l" = late && sleep 0.05; echo "$l"; test "$l" = twice && echo "$l"; done; echo bye`,
	}}
	policy.Stdin, policy.Stdout = in, writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, p...)
		return len(p), nil
	})
	policy.Idle = func() bool {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Count(got, []byte("\n")) >= waiting
	}
	p := begin(t, l, policy)
	var want []byte
	ask := func(line string, answers int) {
		mu.Lock()
		waiting += answers
		mu.Unlock()
		want = append(want, bytes.Repeat([]byte(line+"\n"), answers)...)
		must.Get(io.WriteString(ours, line+"\n"))(t)
	}
	arrived := func() bool { return lines() >= bytes.Count(want, []byte("\n")) }
	for i := range 300 {
		switch {
		case i%50 == 7:
			ask("late", 1)
		case i%20 == 3:
			ask("twice", 2)
		default:
			ask(strconv.Itoa(i), 1)
		}
		var both sync.WaitGroup
		for range 1 + i%3 {
			both.Go(func() { p.ReadSoon(arrived) })
		}
		both.Wait()
		poll.Eventually(t, "the answer is there", arrived)
	}
	want = append(want, "bye\n"...)
	must.OK(t, ours.Close())
	must.Get(p.Wait())(t)
	p.ReadSoon(arrived)
	assert.That(t, bytes.Equal(got, want), "%d bytes came, want %d", len(got), len(want))
}

// TestReadSoonEnds guards against a soon that takes longer than a moment: for the rest of an answer whose first part
// took long to pass on, and for output without end.
func TestReadSoonEnds(t *testing.T) {
	for _, flood := range []bool{false, true} {
		slow := writerFunc(func(p []byte) (int, error) {
			time.Sleep(2 * soonWithin)
			return len(p), nil
		})
		p, w, err := openPump(slow, nil, func() bool { return false })
		must.OK(t, err)
		must.Get(io.WriteString(w, "a part of a line"))(t)
		var writes sync.WaitGroup
		if flood {
			writes.Go(func() {
				for err := error(nil); err == nil; {
					_, err = w.Write(make([]byte, 100_000))
				}
			})
		}
		p.soon(func() bool { return false })
		p.close()
		writes.Wait()
		must.OK(t, w.Close())
	}
}

// TestPumpStranger guards against waiting for a process outside of the tree that keeps the pipe open. Only the output
// from before the end is read.
func TestPumpStranger(t *testing.T) {
	for _, idle := range []func() bool{nil, func() bool { return true }} {
		var got bytes.Buffer
		p, w, err := openPump(&got, nil, idle)
		must.OK(t, err)
		defer w.Close()
		want := bytes.Repeat([]byte("x"), 50_000)
		must.Get(w.Write(want))(t)
		p.stop()
		p.run()
		if !bytes.Equal(got.Bytes(), want) || p.err != nil {
			t.Errorf("%d of %d bytes, %v", got.Len(), len(want), p.err)
		}
	}
}
