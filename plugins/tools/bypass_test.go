package tools

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// loot is what a bypass would bring to light.
const loot = "LOOT-7fd1"

// bypassStage is a workspace with programs that print loot, and a plugin that
// allows a few harmless ones.
func bypassStage(t *testing.T, opts Options) (p *Plugin, dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "#!/bin/sh\necho " + loot + "\n"
	for _, name := range []string{"evil", "ls", "cat", "echo", "sub/ls", "my prog", "ls;evil", "$(evil)", "-evil", "лs"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if opts.AllowedCommands == nil {
		opts.AllowedCommands = []string{"ls", "cat", "echo", "printf", "env", "python3"}
	}
	p, err := New("tools", opts, Env{Workspace: dir, StateDir: t.TempDir(), Launcher: launcherIn(t, dir)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(t.Context()) })
	return p, dir
}

func commandArgs(t *testing.T, args map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Nothing but the allowed programs starts, however they are named, and they are
// the system's, whatever lies in the workspace.
func TestAllowListBypasses(t *testing.T) {
	p, dir := bypassStage(t, Options{})
	if out, err := called(t, p, "run_command", `{"command":["echo","fine"]}`); err != nil || !strings.Contains(string(out.Data), "fine") {
		t.Fatalf("an allowed program does not run: %v %s", err, out.Data)
	}
	evil := filepath.Join(dir, "evil")
	words := []string{
		"", " ", "evil", "./evil", "./ls", "sub/ls", "sub/../evil", evil, "/bin/sh", "/bin/ls", "/usr/bin/env", "/bin/../bin/sh", "//bin/sh",
		"sh", "bash", "rm", "perl", "dash", "busybox", "link", "./link", filepath.Join(dir, "link"), "../" + filepath.Base(dir) + "/evil",
		"ls ", " ls", "ls\n", "\tls", "ls\r", "LS", "Ls", "l\u200bs", "\ufeffls", "ls\u0301", "\u043bs", "ｌｓ", "ls;evil", "ls&&evil", "ls|evil", "$(evil)", "`evil`", "$SHELL",
		"${SHELL}", "~/evil", "*", "l*", "ls evil", "ls -la", "'ls'", `"ls"`, `ls\`, `.\evil`, "-evil", "--", ".", "..", "/", "my prog", "evil.exe", "ls.sh", "file:///bin/sh",
		"/proc/self/exe", "/proc/1/root/bin/sh", "/dev/stdin", "sh -c evil", "env sh", "%2e%2fevil", "@evil", strings.Repeat("a", 5000), strings.Repeat("../", 50) + "bin/sh",
	}
	if len(words) < 60 {
		t.Fatalf("only %d attempts", len(words))
	}
	for _, word := range words {
		out, err := called(t, p, "run_command", commandArgs(t, map[string]any{"command": []string{word, "-c", "echo " + loot}}))
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.CodeToolDenied {
			t.Errorf("%.80q: %v %s", word, err, out.Data)
		}
	}
}

// The environment and the working directory of a call do not change what runs.
func TestCommandSurroundingsAreSafe(t *testing.T) {
	p, dir := bypassStage(t, Options{})
	run := func(args map[string]any) (string, error) {
		out, err := called(t, p, "run_command", commandArgs(t, args))
		return string(out.Data), err
	}
	if out, err := run(map[string]any{"command": []string{"env"}, "env": map[string]string{"A": "of the call"}, "cwd": "sub"}); err != nil || !strings.Contains(out, "A=of the call") {
		t.Fatalf("a harmless variable does not arrive: %v %s", err, out)
	}
	for _, name := range []string{
		"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_EXEC_PATH", "PERL5OPT", "PERL5LIB", "RUBYOPT", "BASH_FUNC_ls%%", "A=B", "", "A\x00B", "GCONV_PATH", "LD_PRELOAD_32",
	} {
		if out, err := run(map[string]any{"command": []string{"env"}, "env": map[string]string{name: dir}}); err == nil {
			t.Errorf("the variable %q is taken: %s", name, out)
		}
	}
	if err := os.Symlink(os.TempDir(), filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, cwd := range []string{"..", "../..", "/", "/tmp", "out", "sub/../..", "sub/../../x", "evil", "missing", "a\x00b", "./../"} {
		if out, err := run(map[string]any{"command": []string{"ls"}, "cwd": cwd}); err == nil {
			t.Errorf("the folder %q is entered: %s", cwd, out)
		}
	}
	for _, name := range []string{"ls", "cat", "echo"} { // the workspace's own programs of these names print loot
		if out, err := run(map[string]any{"command": []string{name, "evil"}}); err != nil || strings.Contains(out, loot) && name != "cat" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if out, _ := run(map[string]any{"command": []string{"env"}}); strings.Contains(strings.ReplaceAll(out, "A2E_SANDBOX=1", ""), "A2E") || !strings.Contains(out, "PATH=") {
		t.Errorf("the environment of a child: %s", out)
	}
}

// A parameter of a command tool fills one argument and nothing more.
func TestCommandToolInjections(t *testing.T) {
	text := CommandParameter{Name: "text", Required: true}
	p, _ := bypassStage(t, Options{Commands: []CommandTool{
		{Name: "show", Command: []string{"printf", "[%s]", "{text}"}, Parameters: []CommandParameter{text}},
		{Name: "within", Command: []string{"printf", "[%s]", "--name={text}"}, Parameters: []CommandParameter{text}},
		{Name: "shown", Command: []string{"printf", "--", "[%s]", "{text}", "{more}"}, Parameters: []CommandParameter{text, {Name: "more"}}},
		{Name: "number", Command: []string{"printf", "[%s]", "{n}"}, Parameters: []CommandParameter{{Name: "n", Type: "integer", Required: true}}},
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
		"plain", "two words", "; evil", "$(./evil)", "`./evil`", "| ./evil", "&& ./evil", "'", `"`, `\`, "\n./evil", "*", "{text}", "{more}", "%s", "$PATH", "~", "é\u2028", "> out", "<evil", "#", "!!",
	} {
		got, err := stdout("show", commandArgs(t, map[string]any{"text": value}))
		if err != nil || got != "["+value+"]" {
			t.Errorf("show %q: %q, %v", value, got, err)
		}
		if got, err = stdout("within", commandArgs(t, map[string]any{"text": value})); err != nil || got != "[--name="+value+"]" {
			t.Errorf("within %q: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"-", "-v", "--help", "-c", "-rf"} {
		if got, err := stdout("show", commandArgs(t, map[string]any{"text": value})); err == nil {
			t.Errorf("%q is taken as an option: %q", value, got)
		}
		if got, err := stdout("shown", commandArgs(t, map[string]any{"text": value})); err != nil || got != "["+value+"]" {
			t.Errorf("behind --, %q: %q, %v", value, got, err)
		}
	}
	if got, err := stdout("number", `{"n":12}`); err != nil || got != "[12]" {
		t.Errorf("number: %q, %v", got, err)
	}
	for _, args := range []string{`{}`, `{"text":1}`, `{"text":"a","other":"b"}`, `{"text":null}`, `{"text":["a","b"]}`} {
		if got, err := stdout("show", args); err == nil {
			t.Errorf("show %s: %q", args, got)
		}
	}
}

func TestCommandToolDeclarations(t *testing.T) {
	for _, tc := range []struct {
		cfg  CommandTool
		says string
	}{
		{CommandTool{Name: "a", Command: []string{"echo"}}, ""},
		{CommandTool{Name: "a"}, "at least a program"},
		{CommandTool{Name: "a", Command: []string{"{p}"}, Parameters: []CommandParameter{{Name: "p"}}}, "must be fixed"},
		{CommandTool{Name: "a", Command: []string{"echo", "{p}"}}, "no declared parameter"},
		{CommandTool{Name: "a", Command: []string{"echo"}, Parameters: []CommandParameter{{Name: "p"}}}, "stands nowhere"},
		{CommandTool{Name: "a", Command: []string{"no-such-program-a2e"}}, "no-such-program-a2e"},
		{CommandTool{Name: "a", Command: []string{"./evil"}}, "neither a bare program name"},
		{CommandTool{Name: "echo", Command: []string{"echo"}}, "taken"},
	} {
		dir := t.TempDir()
		p, err := New("tools", Options{Commands: []CommandTool{tc.cfg}}, Env{Workspace: dir})
		if err == nil {
			_ = p.Close(t.Context())
		}
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: %v, want %q", tc.cfg, err, tc.says)
		}
	}
}

// Output beyond the limit is in a file, and all of it is somewhere.
func TestLongCommandOutputIsSpilled(t *testing.T) {
	p, _ := bypassStage(t, Options{MaxOutputBytes: 1000})
	out, err := called(t, p, "run_command", `{"command":["python3","-c","import sys; sys.stdout.write('x'*50000); sys.stdout.flush(); sys.stderr.write('why')"]}`)
	if err != nil || out.Truncated == nil || !*out.Truncated {
		t.Fatalf("%v %s", err, out.Data)
	}
	var data commandResult
	if err := json.Unmarshal(out.Data, &data); err != nil {
		t.Fatal(err)
	}
	rest, err := os.ReadFile(data.Spilled)
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Count(data.Stdout, "x") + strings.Count(string(rest), "x"); all < 50000 {
		t.Errorf("%d of 50000 bytes are left: %d in the answer, %d in the file", all, len(data.Stdout), len(rest))
	}
	if data.Stderr != "why" {
		t.Errorf("the flood hides the error: %q", data.Stderr)
	}
	if len(out.Data) > 2000 {
		t.Errorf("the answer has %d bytes of data", len(out.Data))
	}
}
