package tools

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// logged is an emitter that keeps the lines of output.
type logged struct {
	silent
	on func() // called at each line; may be nil

	mu    sync.Mutex
	lines []string // "stream: line"; guarded by mu
}

func (l *logged) Streaming() bool { return true }

func (l *logged) Log(_, message, stream string) {
	l.mu.Lock()
	l.lines = append(l.lines, stream+": "+message)
	l.mu.Unlock()
	if l.on != nil {
		l.on()
	}
}

// of returns the lines of one stream.
func (l *logged) of(stream string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if text, ok := strings.CutPrefix(line, stream+": "); ok {
			lines = append(lines, text)
		}
	}
	return lines
}

// shellCall is a request that runs a shell script.
func shellCall(t *testing.T, script string) *protocol.ToolCallRequest {
	t.Helper()
	args, err := protocol.ParseObject([]byte(commandArgs(t, map[string]any{"command": []string{"sh", "-c", script}})))
	if err != nil {
		t.Fatal(err)
	}
	return &protocol.ToolCallRequest{ToolName: "run_command", Arguments: args}
}

func TestRunCommandEnds(t *testing.T) {
	p, _ := bypassStage(t, Options{AllowedCommands: []string{"sh", "cat"}})
	for _, tc := range []struct {
		args    map[string]any
		code    int
		failure string
		stdout  string
		stderr  string
	}{
		{map[string]any{"command": []string{"sh", "-c", "echo out; echo err >&2"}}, 0, "", "out\n", "err\n"},
		{map[string]any{"command": []string{"sh", "-c", "echo out; exit 7"}}, 7, "exit status 7", "out\n", ""},
		{map[string]any{"command": []string{"sh", "-c", "kill -TERM $$"}}, -1, "signal: terminated", "", ""},
		{map[string]any{"command": []string{"cat"}, "stdin": "täxt\n\x00end"}, 0, "", "täxt\n\x00end", ""},
		{map[string]any{"command": []string{"cat"}}, 0, "", "", ""},
		{map[string]any{"command": []string{"sh", "-c", `basename "$PWD"; echo "$A"`}, "cwd": "sub", "env": map[string]string{"A": "b c"}}, 0, "", "sub\nb c\n", ""},
	} {
		out, err := called(t, p, "run_command", commandArgs(t, tc.args))
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		var data commandResult
		if err := json.Unmarshal(out.Data, &data); err != nil {
			t.Fatal(err)
		}
		if data.Stdout != tc.stdout || data.Stderr != tc.stderr || out.ExitCode == nil || *out.ExitCode != tc.code || out.Success != (tc.failure == "") {
			t.Errorf("%v: %s, exit code %v, success %v", tc.args, out.Data, out.ExitCode, out.Success)
		}
		if tc.failure != "" && (out.Error == nil || *out.Error != tc.failure) {
			t.Errorf("%v: error %v, want %q", tc.args, out.Error, tc.failure)
		}
	}
}

func TestRunCommandStreams(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	// The script goes on only once its first line has arrived as an event.
	emit := &logged{on: func() { _ = os.WriteFile(filepath.Join(dir, "seen"), nil, 0o600) }}
	script := `echo first; until [ -e seen ]; do :; done; printf 'a\r\nb\303\050c\n\nlast'; echo oops >&2; head -c 70000 /dev/zero | tr '\0' x`
	if _, err := p.set.call(t.Context(), shellCall(t, script), emit); err != nil {
		t.Fatal(err)
	}
	got := emit.of("stdout")
	if want := []string{"first", "a", "b\ufffd(c", ""}; !slices.Equal(got[:min(4, len(got))], want) {
		t.Errorf("lines %q, want %q first", got, want)
	}
	if rest := strings.Join(got[4:], ""); rest != "last"+strings.Repeat("x", 70000) || len(got) != 6 {
		t.Errorf("%d lines; the long one has %d bytes", len(got), len(rest))
	}
	if got := emit.of("stderr"); !slices.Equal(got, []string{"oops"}) {
		t.Errorf("stderr %q", got)
	}
}

// What a program printed before its time was up is in the error.
func TestRunCommandStopped(t *testing.T) {
	p, _ := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	for name, cause := range map[string]error{"time is up": context.DeadlineExceeded, "cancelled": errors.New("not wanted")} {
		ctx, cancel := context.WithCancelCause(t.Context())
		done, printed := make(chan error, 1), make(chan struct{}, 2)
		go func() {
			_, err := p.set.call(ctx, shellCall(t, "echo begun; echo why >&2; sleep 1000"), &logged{on: func() { printed <- struct{}{} }})
			done <- err
		}()
		<-printed // what it prints comes only once it counts as started
		<-printed
		cancel(cause)
		err := <-done
		if cause != context.DeadlineExceeded {
			if !errors.Is(err, cause) {
				t.Errorf("%s: %v", name, err)
			}
		} else {
			wantPrinted(t, err)
		}
	}
}

func wantPrinted(t *testing.T, err error) {
	t.Helper()
	wantCode(t, err, protocol.CodeTimeout, "")
	var e *protocol.Error
	if !errors.As(err, &e) || e.Detail["stdout"] != "begun\n" || e.Detail["stderr"] != "why\n" {
		t.Errorf("detail %v", e.Detail)
	}
}

// The folder that was checked is the one that is entered, also when a link
// stands in its place by then.
func TestWallRunCommandSwappedFolder(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	outside := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := errors.Join(os.Mkdir(a, 0o755), os.WriteFile(filepath.Join(outside, "loot"), []byte(loot), 0o600), os.Symlink(outside, b)); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(b, "loot")); err != nil || string(data) != loot { // the control: the link leads out
		t.Fatal(err)
	}
	stop, swapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-stop:
				return
			default: // a is now the folder, now the link
				if err := exchange(a, b); err != nil {
					t.Errorf("swap: %v", err)
					return
				}
			}
		}
	}()
	entered, tries := 0, 0
	for end := time.Now().Add(patience); entered < 5 && time.Now().Before(end); tries++ {
		out, err := called(t, p, "run_command", `{"command":["sh","-c","cat loot; echo entered"],"cwd":"a"}`)
		if err != nil {
			continue // the link was refused, or the folder was away
		}
		if strings.Contains(string(out.Data), loot) {
			t.Errorf("outside: %s", out.Data)
			break
		}
		entered++
	}
	close(stop)
	<-swapped
	if entered == 0 { // which may take many tries, on either side of a change
		t.Error("the folder was never entered while it changed places")
	}
	if _, err := os.Readlink(a); err == nil {
		check(t, exchange(a, b))
	}
	if out, err := called(t, p, "run_command", `{"command":["sh","-c","echo entered"],"cwd":"a"}`); err != nil || !strings.Contains(string(out.Data), "entered") {
		t.Errorf("the folder itself: %v %s", err, out.Data)
	}
	t.Logf("entered %d of %d times", entered, tries)
}

// A call ends with its program, whatever that left running with its pipes open.
func TestRunCommandLeavesNobodyBehind(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	out, err := p.set.call(t.Context(), shellCall(t, `(while :; do echo x >> alive; done) & until [ -s alive ]; do :; done; echo done`), silent{})
	if err != nil || !strings.Contains(string(out.data.(rawData)), "done") {
		t.Fatalf("%v", err)
	}
	alive := filepath.Join(dir, "alive")
	before, err := os.Stat(alive) // the control: it did run
	if err != nil || before.Size() == 0 {
		t.Fatal(err)
	}
	if _, err := p.set.call(t.Context(), shellCall(t, "exit 0"), silent{}); err != nil { // time passes
		t.Fatal(err)
	}
	if after, err := os.Stat(alive); err != nil || after.Size() != before.Size() {
		t.Errorf("it writes on: %d bytes, then %d, %v", before.Size(), after.Size(), err)
	}
}

// A program of the host's environment never sees what the host knows.
func TestRunCommandHidesTheHost(t *testing.T) {
	t.Setenv("A2E_AUTH_TOKEN", loot)
	t.Setenv("SOME_API_KEY", loot)
	p, _ := bypassStage(t, Options{AllowedCommands: []string{"sh", "env"}})
	for _, word := range []string{"A2E_AUTH_TOKEN", "SOME_API_KEY"} {
		if os.Getenv(word) != loot { // the control
			t.Fatal(word)
		}
	}
	out, err := called(t, p, "run_command", `{"command":["sh","-c","env; cat /proc/self/environ /proc/$PPID/environ"]}`)
	if err != nil || strings.Contains(string(out.Data), loot) {
		t.Errorf("%v %s", err, out.Data)
	}
}
