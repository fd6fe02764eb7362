package tools

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
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

// shellCall returns a request that runs a shell script.
func shellCall(t *testing.T, script string) *protocol.ToolCallRequest {
	t.Helper()
	args := must.Get(protocol.ParseObject([]byte(commandArgs(t,
		map[string]any{"command": []string{"sh", "-c", script}}))))(t)
	return &protocol.ToolCallRequest{ToolName: "run_command", Arguments: args}
}

// TestCommandIsPrepared: listing the tools prepares the start of a command. Without a list, or if no command may run,
// nothing is started.
func TestCommandIsPrepared(t *testing.T) {
	linux := runtime.GOOS == "linux" // elsewhere there is nothing to prepare
	for _, tc := range []struct {
		opts  Options
		lists bool
		waits bool
	}{
		{Options{}, true, linux},
		{Options{}, false, false},
		{Options{Deny: []string{"run_*"}}, true, false},
		{Options{ReadOnly: true}, true, false},
	} {
		p, _ := bypassStage(t, tc.opts)
		launcher := must.Get(p.env.Launcher())(t)
		if tc.lists {
			must.Get(p.list(t.Context(), &protocol.ToolListRequest{}, silent{}))(t)
		}
		if tc.waits {
			hosttest.Eventually(t, "a launcher that waits", func() bool { return launcher.Mechanism() != "" })
			assert.Equal(t, launcher.Running(), 0, "commands that run")
		}
		must.OK(t, p.Close(t.Context()))
		must.OK(t, launcher.Close())
		started := launcher.Mechanism() != ""
		assert.Equal(t, started, tc.waits, "something was started, options %+v, listed: %t", tc.opts, tc.lists)
	}
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
		{map[string]any{"command": []string{"sh", "-c", "kill -TERM $$"}}, 143, "signal: terminated", "", ""},
		{map[string]any{"command": []string{"cat"}, "stdin": "täxt\n\x00end"}, 0, "", "täxt\n\x00end", ""},
		{map[string]any{"command": []string{"cat"}}, 0, "", "", ""},
		{map[string]any{
			"command": []string{"sh", "-c", `basename "$PWD"; echo "$A"`}, "cwd": "sub",
			"env": map[string]string{"A": "b c"},
		}, 0, "", "sub\nb c\n", ""},
	} {
		out, err := called(t, p, "run_command", commandArgs(t, tc.args))
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		var data commandResult
		must.OK(t, json.Unmarshal(out.Data, &data))
		if data.Stdout != tc.stdout || data.Stderr != tc.stderr || out.ExitCode == nil || *out.ExitCode != tc.code ||
			out.Success != (tc.failure == "") {
			t.Errorf("%v: %s, exit code %v, success %v", tc.args, out.Data, out.ExitCode, out.Success)
		}
		assert.That(t, tc.failure == "" || out.Error != nil && *out.Error == tc.failure,
			"%v: error %v, want %q", tc.args, out.Error, tc.failure)
	}
}

func TestRunCommandStreams(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	// The script goes on only once its first line has arrived as an event.
	emit := &logged{on: func() { _ = os.WriteFile(filepath.Join(dir, "seen"), nil, 0o600) }}
	script := `echo first; until [ -e seen ]; do :; done; printf 'a\r\nb\303\050c\n\nlast'; echo oops >&2; head -c 70000 /dev/zero | tr '\0' x`
	must.Get(p.call(t.Context(), shellCall(t, script), emit))(t)
	got := emit.of("stdout")
	want := []string{"first", "a", "b\ufffd(c", ""}
	assert.That(t, slices.Equal(got[:min(4, len(got))], want), "lines %q, want %q first", got, want)
	rest := strings.Join(got[4:], "")
	assert.That(t, rest == "last"+strings.Repeat("x", 70000) && len(got) == 6, "%d lines; the long one has %d bytes",
		len(got), len(rest))
	assert.Slice(t, emit.of("stderr"), []string{"oops"}, "stderr")
}

// TestRunCommandStopped: the error of a program that ran out of time has the program's output so far. A cancelled call
// ends with its cause.
func TestRunCommandStopped(t *testing.T) {
	p, _ := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	for name, cause := range map[string]error{
		"time is up": context.DeadlineExceeded,
		"cancelled":  errors.New("not wanted"),
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		done, printed := make(chan error, 1), make(chan struct{}, 2)
		go func() {
			_, err := p.call(ctx, shellCall(t, "echo begun; echo why >&2; sleep 1000"),
				&logged{on: func() { printed <- struct{}{} }})
			done <- err
		}()
		<-printed // the stop comes only after both lines: so the program has surely started
		<-printed
		cancel(cause)
		err := <-done
		if cause != context.DeadlineExceeded {
			assert.Is(t, err, cause, "%s", name)
		} else {
			wantPrinted(t, err)
		}
	}
}

// TestRunCommandStoppedIsSpilled: the error of a program that is stopped by its time limit names the file with all of
// the program's output.
func TestRunCommandStoppedIsSpilled(t *testing.T) {
	p, dir := bypassStage(t, Options{MaxOutputBytes: 1000, AllowedCommands: []string{"sh"}})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.call(ctx, shellCall(t, "head -c 50000 /dev/zero | tr '\\0' x; : > printed; sleep 1000"),
			host.Mute{})
		done <- err
	}()
	hosttest.Eventually(t, "the output", func() bool {
		_, err := os.Stat(filepath.Join(dir, "printed"))
		return err == nil
	})
	cancel(context.DeadlineExceeded)
	err := <-done
	wantCode(t, err, protocol.CodeTimeout, "")
	e, _ := errors.AsType[*protocol.Error](err)
	file, _ := e.Detail["spilled"].(string)
	assert.Equal(t, string(must.Get(os.ReadFile(file))(t)), strings.Repeat("x", 50000), "the file")
}

func wantPrinted(t *testing.T, err error) {
	t.Helper()
	wantCode(t, err, protocol.CodeTimeout, "")
	e, ok := errors.AsType[*protocol.Error](err)
	assert.That(t, ok && e.Detail["stdout"] == "begun\n" && e.Detail["stderr"] == "why\n", "detail %v", e.Detail)
}

// TestWallRunCommandSwappedFolder: the folder that was checked is the folder in which the program runs, even if a link
// takes its place in between.
func TestWallRunCommandSwappedFolder(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	outside := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	must.OK(t, os.Mkdir(a, 0o755), os.WriteFile(filepath.Join(outside, "loot"), []byte(loot), 0o600),
		os.Symlink(outside, b))
	if data, err := os.ReadFile(filepath.Join(b, "loot")); err != nil ||
		string(data) != loot { // the control: the link leads out
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
	if entered == 0 { // it may take many tries, before and after a swap
		t.Error("the folder was never entered while it changed places")
	}
	if _, err := os.Readlink(a); err == nil {
		must.OK(t, exchange(a, b))
	}
	out, err := called(t, p, "run_command", `{"command":["sh","-c","echo entered"],"cwd":"a"}`)
	assert.That(t, err == nil && strings.Contains(string(out.Data), "entered"), "the folder itself: %v %s", err,
		out.Data)
	t.Logf("entered %d of %d times", entered, tries)
}

// TestRunCommandLeavesNobodyBehind: a call ends with its program, even if the program has left other processes running
// that hold its pipes open.
func TestRunCommandLeavesNobodyBehind(t *testing.T) {
	p, dir := bypassStage(t, Options{AllowedCommands: []string{"sh"}})
	out, err := p.call(t.Context(), shellCall(t,
		`(while :; do echo x >> alive; done) & until [ -s alive ]; do :; done; echo done`), silent{})
	must.That(t, err == nil && strings.Contains(string(out.data.(rawData)), "done"), "%v", err)
	alive := filepath.Join(dir, "alive")
	before, err := os.Stat(alive) // the control: it did run
	must.That(t, err == nil && before.Size() != 0, "%v", err)
	// This call takes time, in which a process that is still there would write.
	if _, err := p.call(t.Context(), shellCall(t, "exit 0"), silent{}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(alive); err != nil || after.Size() != before.Size() {
		t.Errorf("it writes on: %d bytes, then %d, %v", before.Size(), after.Size(), err)
	}
}

// TestRunCommandHidesTheHost: a program never sees the host's own environment variables.
func TestRunCommandHidesTheHost(t *testing.T) {
	t.Setenv("A2E_AUTH_TOKEN", loot)
	t.Setenv("SOME_API_KEY", loot)
	p, _ := bypassStage(t, Options{AllowedCommands: []string{"sh", "env"}})
	for _, word := range []string{"A2E_AUTH_TOKEN", "SOME_API_KEY"} {
		if os.Getenv(word) != loot { // the control: the host has the variable
			t.Fatal(word)
		}
	}
	out, err := called(t, p, "run_command", `{"command":["sh","-c","env; cat /proc/self/environ /proc/$PPID/environ"]}`)
	assert.That(t, err == nil && !strings.Contains(string(out.Data), loot), "%v %s", err, out.Data)
}

// loot is the text that only a successful bypass would show.
const loot = "LOOT-7fd1"

// bypassStage returns a workspace with programs that print loot, and a plugin that allows a few harmless programs.
func bypassStage(t *testing.T, opts Options) (p *Plugin, dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "#!/bin/sh\necho " + loot + "\n"
	for _, name := range []string{
		"evil", "ls", "cat", "echo", "sub/ls", "my prog", "ls;evil", "$(evil)", "-evil",
		"лs",
	} {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(script), 0o755))
	}
	must.OK(t, os.Symlink("/bin/sh", filepath.Join(dir, "link")))
	if opts.AllowedCommands == nil {
		opts.AllowedCommands = []string{"ls", "cat", "echo", "printf", "env", "python3"}
	}
	p = must.Get(New("tools", opts, host.Env{Workspace: dir, StateDir: t.TempDir(), Launcher: launcherIn(t, dir)}))(t)
	t.Cleanup(func() { _ = p.Close(t.Context()) })
	return p, dir
}

func commandArgs(t *testing.T, args map[string]any) string {
	t.Helper()
	raw := must.Get(json.Marshal(args))(t)
	return string(raw)
}

// TestAllowListBypasses: only the allowed programs start, however they are named, and they are those of the system,
// whatever the workspace contains.
func TestAllowListBypasses(t *testing.T) {
	p, dir := bypassStage(t, Options{})
	out, err := called(t, p, "run_command", `{"command":["echo","fine"]}`)
	must.That(t, err == nil && strings.Contains(string(out.Data), "fine"), "an allowed program does not run: %v %s",
		err, out.Data)
	evil := filepath.Join(dir, "evil")
	words := []string{
		"", " ", "evil", "./evil", "./ls", "sub/ls", "sub/../evil", evil, "/bin/sh", "/bin/ls", "/usr/bin/env",
		"/bin/../bin/sh", "//bin/sh",
		"sh", "bash", "rm", "perl", "dash", "busybox", "link", "./link", filepath.Join(dir, "link"),
		"../" + filepath.Base(dir) + "/evil",
		"ls ", " ls", "ls\n", "\tls", "ls\r", "LS", "Ls", "l\u200bs", "\ufeffls", "ls\u0301", "\u043bs", "ｌｓ",
		"ls;evil", "ls&&evil", "ls|evil", "$(evil)", "`evil`", "$SHELL",
		"${SHELL}", "~/evil", "*", "l*", "ls evil", "ls -la", "'ls'", `"ls"`, `ls\`, `.\evil`, "-evil", "--", ".", "..",
		"/", "my prog", "evil.exe", "ls.sh", "file:///bin/sh",
		"/proc/self/exe", "/proc/1/root/bin/sh", "/dev/stdin", "sh -c evil", "env sh", "%2e%2fevil", "@evil",
		strings.Repeat("a", 5000), strings.Repeat("../", 50) + "bin/sh",
	}
	must.That(t, len(words) >= 60, "only %d attempts", len(words))
	for _, word := range words {
		out, err := called(t, p, "run_command", commandArgs(t,
			map[string]any{"command": []string{word, "-c", "echo " + loot}}))
		e, ok := errors.AsType[*protocol.Error](err)
		assert.That(t, ok && e.Code == protocol.CodeToolDenied, "%.80q: %v %s", word, err, out.Data)
	}
}

// TestCommandSurroundingsAreSafe: neither the environment nor the working directory of a call changes which program
// runs.
func TestCommandSurroundingsAreSafe(t *testing.T) {
	p, dir := bypassStage(t, Options{})
	run := func(args map[string]any) (string, error) {
		out, err := called(t, p, "run_command", commandArgs(t, args))
		return string(out.Data), err
	}
	out, err := run(map[string]any{
		"command": []string{"env"}, "env": map[string]string{"A": "of the call"},
		"cwd": "sub",
	})
	must.That(t, err == nil && strings.Contains(out, "A=of the call"), "a harmless variable does not arrive: %v %s",
		err, out)
	for _, name := range []string{
		"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PYTHONPATH",
		"PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_EXEC_PATH", "PERL5OPT", "PERL5LIB", "RUBYOPT",
		"BASH_FUNC_ls%%", "A=B", "", "A\x00B", "GCONV_PATH", "LD_PRELOAD_32",
	} {
		out, err := run(map[string]any{"command": []string{"env"}, "env": map[string]string{name: dir}})
		assert.That(t, err != nil, "the variable %q is taken: %s", name, out)
	}
	must.OK(t, os.Symlink(os.TempDir(), filepath.Join(dir, "out")))
	for _, cwd := range []string{
		"..", "../..", "/", "/tmp", "out", "sub/../..", "sub/../../x", "evil", "missing",
		"a\x00b", "./../",
	} {
		out, err := run(map[string]any{"command": []string{"ls"}, "cwd": cwd})
		assert.That(t, err != nil, "the folder %q is entered: %s", cwd, out)
	}
	for _, name := range []string{"ls", "cat", "echo"} { // the workspace's own programs of these names print loot
		out, err := run(map[string]any{"command": []string{name, "evil"}})
		assert.That(t, err == nil && (!strings.Contains(out, loot) || name == "cat"), "%s: %v %s", name, err, out)
	}
	if out, _ := run(map[string]any{"command": []string{"env"}}); strings.Contains(strings.ReplaceAll(out,
		"A2E_SANDBOX=1", ""), "A2E") || !strings.Contains(out, "PATH=") {
		t.Errorf("the environment of a child: %s", out)
	}
}

// TestCommandToolInjections: a parameter of a command tool fills one argument and no more.
func TestCommandToolInjections(t *testing.T) {
	text := CommandParameter{Name: "text", Required: true}
	p, _ := bypassStage(t, Options{Commands: []CommandTool{
		{Name: "show", Command: []string{"printf", "[%s]", "{text}"}, Parameters: []CommandParameter{text}},
		{Name: "within", Command: []string{"printf", "[%s]", "--name={text}"}, Parameters: []CommandParameter{text}},
		{
			Name: "shown", Command: []string{"printf", "--", "[%s]", "{text}", "{more}"},
			Parameters: []CommandParameter{text, {Name: "more"}},
		},
		{
			Name: "number", Command: []string{"printf", "[%s]", "{n}"},
			Parameters: []CommandParameter{{Name: "n", Type: "integer", Required: true}},
		},
	}})
	stdout := func(tool, args string) (string, error) {
		out, err := called(t, p, tool, args)
		var data commandResult
		if err == nil {
			err = json.Unmarshal(out.Data, &data)
		}
		return data.Stdout, err
	}
	for _, value := range []string{
		"plain", "two words", "; evil", "$(./evil)", "`./evil`", "| ./evil", "&& ./evil", "'", `"`, `\`, "\n./evil",
		"*", "{text}", "{more}", "%s", "$PATH", "~", "é\u2028", "> out", "<evil", "#", "!!",
	} {
		got, err := stdout("show", commandArgs(t, map[string]any{"text": value}))
		assert.That(t, err == nil && got == "["+value+"]", "show %q: %q, %v", value, got, err)
		if got, err = stdout("within", commandArgs(t, map[string]any{"text": value})); err != nil ||
			got != "[--name="+value+"]" {
			t.Errorf("within %q: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"-", "-v", "--help", "-c", "-rf"} {
		got, err := stdout("show", commandArgs(t, map[string]any{"text": value}))
		assert.That(t, err != nil, "%q is taken as an option: %q", value, got)
		got, err = stdout("shown", commandArgs(t, map[string]any{"text": value}))
		assert.That(t, err == nil && got == "["+value+"]", "behind --, %q: %q, %v", value, got, err)
	}
	got, err := stdout("number", `{"n":12}`)
	assert.That(t, err == nil && got == "[12]", "number: %q, %v", got, err)
	for _, args := range []string{
		`{}`, `{"text":1}`, `{"text":"a","other":"b"}`, `{"text":null}`,
		`{"text":["a","b"]}`,
	} {
		got, err := stdout("show", args)
		assert.That(t, err != nil, "show %s: %q", args, got)
	}
}

func TestCommandToolDeclarations(t *testing.T) {
	for _, tc := range []struct {
		cfg  CommandTool
		says string
	}{
		{CommandTool{Name: "a", Command: []string{"echo"}}, ""},
		{CommandTool{Name: "a"}, "at least a program"},
		{
			CommandTool{Name: "a", Command: []string{"{p}"}, Parameters: []CommandParameter{{Name: "p"}}},
			"must be fixed",
		},
		{CommandTool{Name: "a", Command: []string{"echo", "{p}"}}, "not a declared parameter"},
		{
			CommandTool{Name: "a", Command: []string{"echo"}, Parameters: []CommandParameter{{Name: "p"}}},
			"stands nowhere",
		},
		{CommandTool{Name: "a", Command: []string{"no-such-program-a2e"}}, "no-such-program-a2e"},
		{CommandTool{Name: "a", Command: []string{"./evil"}}, "neither a bare program name"},
		{CommandTool{Name: "echo", Command: []string{"echo"}}, "already"},
	} {
		dir := t.TempDir()
		p, err := New("tools", Options{Commands: []CommandTool{tc.cfg}}, host.Env{Workspace: dir})
		if err == nil {
			_ = p.Close(t.Context())
		}
		assert.That(t, (err == nil) == (tc.says == "") && (err == nil || strings.Contains(err.Error(), tc.says)),
			"%+v: %v, want %q", tc.cfg, err, tc.says)
	}
}

// TestLongCommandOutputIsSpilled: output beyond the limit is in a file, and no part of the output is lost.
func TestLongCommandOutputIsSpilled(t *testing.T) {
	p, _ := bypassStage(t, Options{MaxOutputBytes: 1000})
	out, err := called(t, p, "run_command", `{"command":["python3","-c","import sys; sys.stdout.write('x'*50000); sys.stdout.flush(); sys.stderr.write('why')"]}`)
	must.That(t, err == nil && out.Truncated != nil && *out.Truncated, "%v %s", err, out.Data)
	var data commandResult
	must.OK(t, json.Unmarshal(out.Data, &data))
	rest := must.Get(os.ReadFile(data.Spilled))(t)
	all := strings.Count(data.Stdout, "x") + strings.Count(string(rest), "x")
	assert.That(t, all >= 50000, "%d of 50000 bytes are left: %d in the answer, %d in the file", all, len(data.Stdout),
		len(rest))
	assert.Equal(t, data.Stderr, "why", "the flood hides the error")
	assert.That(t, len(out.Data) <= 2000, "the answer has %d bytes of data", len(out.Data))
}
