//go:build unix

package cli_test

import (
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// onTerminal runs a2e on a terminal so many columns wide and returns what that got, its line
// ends as a file has them, and the exit status.
func onTerminal(t *testing.T, dir string, columns uint16, env []string, args ...string) (shown string, code int) {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	cmd.Env = append(cmd.Env, append([]string{"TERM=xterm", "NO_COLOR=", "COLUMNS="}, env...)...)
	terminal := must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns}))(t)
	defer terminal.Close()
	text, _ := io.ReadAll(terminal) // ends in an error once the program has ended
	_ = cmd.Wait()                  // its status is looked at by the caller
	return strings.ReplaceAll(string(text), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// Tables are as wide as the terminal and have colors there; in a pipe nothing is cut or colored.
func TestTablesOnATerminal(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	piped := run(t, dir, nil, "tools", "list").want(t, 0, "").stdout
	assert.That(t, !strings.Contains(piped, "…") && !strings.Contains(piped, "\x1b"), "in a pipe: %s", piped)
	for columns, colored := range map[uint16]bool{40: true, 80: false, 200: true} {
		env := []string{"NO_COLOR=1"}
		if colored {
			env = nil
		}
		shown, code := onTerminal(t, dir, columns, env, "tools", "list")
		assert.That(t, code == 0 && strings.HasPrefix(shown, "\x1b[1mTOOL\x1b[0m") == colored, "exit status %d: %q", code, shown)
		plain := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(shown)
		widest := 0
		for line := range strings.Lines(plain) {
			widest = max(widest, len([]rune(line))-1)
		}
		assert.That(t, widest <= int(columns) && (widest == int(columns) || columns == 200) && strings.Contains(plain, "\nwrite_file "),
			"%d columns on %d:\n%s", widest, columns, plain)
	}
	shown, _ := onTerminal(t, dir, 200, []string{"COLUMNS=40"}, "tools", "list")
	assert.Contains(t, shown, "…", "COLUMNS does not count: no … in")
}

// Who waits at a terminal sees what for, on a line that goes away; in a pipe there is none.
func TestWaitingIsShown(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	writeConfig(t, dir, "state_dir: state\nplugins: {tools: {allowed_commands: [sleep]}}\n")
	shown, code := onTerminal(t, dir, 60, nil, "tools", "call", "run_command", "command=sleep", "command=2.5")
	assert.That(t, code == 0 && strings.Contains(shown, "\r\x1b[2Krun_command… 2s") && strings.Contains(shown, "\r\x1b[2K{\n"), "exit status %d: %q", code, shown)
	out := run(t, dir, nil, "tools", "call", "run_command", "command=sleep", "command=1.2").want(t, 0, "")
	assert.Equal(t, out.stderr, "", "in a pipe")
}

// A command that is mistyped at a terminal ends at once: it is not taken for the host, which would
// wait for requests.
func TestMistypedAtATerminal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for typed, says := range map[string]string{
		"srve": `did you mean "serve"?`, "sereve --config x": `did you mean "serve"?`, "env lst": `did you mean "list"?`, "help mcq": `did you mean "mcp"`, "--versoin": "--version",
		"tools": "expected one of", "schema confg": `must be one of`, "completion csh": "must be one of", "agents": `expected "list"`, "xyzzy": "unexpected argument xyzzy",
	} {
		shown, code := onTerminal(t, dir, 80, nil, strings.Fields(typed)...)
		assert.That(t, code == 2 && strings.Contains(shown, says), "%s: exit status %d, want 2 and %s: %s", typed, code, says, shown)
	}
}
