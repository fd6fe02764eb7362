//go:build unix

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestManualPage: the manual page has the commands, is the same each time, and mandoc finds no mistake in it.
func TestManualPage(t *testing.T) {
	dir := workDir(t)
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	page := run(t, dir, nil, "man").want(t, 0, "").stdout
	assert.Equal(t, run(t, dir, nil, "man").stdout, page, "the second one differs")
	for _, has := range []string{
		".TH A2E 1 \"2023-11-14\"", ".SS tools call <name> [<values> ...]\n",
		".B \\-c, \\-\\-config=FILE\n", ".SH EXIT STATUS\n", "\n.B 130\n", ".SS memory add",
	} {
		assert.Contains(t, page, has, "no …")
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "a2e.1"), []byte(page), 0o600))
	_, err := exec.LookPath("mandoc")
	must.That(t, err == nil, "there is no mandoc here: `make tools` installs it")
	said, err := exec.Command("mandoc", "-Tlint", "-Wwarning", filepath.Join(dir, "a2e.1")).CombinedOutput()
	assert.That(t, err == nil && len(said) == 0, "mandoc: %v: %s", err, said)
	shown, err := exec.Command("mandoc", "-Tascii", "-Owidth=70", filepath.Join(dir, "a2e.1")).Output()
	assert.That(t, err == nil && strings.Contains(string(shown), "printf '%s\\n' "+
		"'{\"type\":\"handshake/req\",\"id\":\"1\",\"agent_caps\":[\"tools\"]}' '{\"type\":\"tool/call/req\""),
		"an example is not on one line: %v", err)
}

// proposed returns the completions that a2e proposes for the last of some words.
func proposed(t *testing.T, dir string, words ...string) (values []string) {
	t.Helper()
	out := run(t, dir, nil, append([]string{"__complete"}, words...)...)
	assert.That(t, out.code == 0 && out.stderr == "", "%q: exit status %d, %s", words, out.code, out.stderr)
	for line := range strings.Lines(out.stdout) {
		value, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		values = append(values, value)
	}
	return values
}

// TestCompletionProposes: completion proposes commands, flags, values, and the names of existing things.
func TestCompletionProposes(t *testing.T) {
	t.Parallel()
	dir := skillsDir(t)
	writeConfig(t, dir, "state_dir: state\nplugins:\n  maze: {type: env, env: gridworld}\n  tools: {}\n  skill: "+
		"{}\n  memory: {}\n  planning: {}\n  mcp: {servers: {files: {command: [no-such-program]}}}\n  multi_agent: "+
		"{workers: [{name: coder, command: [cat]}]}\n")
	run(t, dir, nil, "plan", "add", "the release").want(t, 0, "")
	run(t, dir, nil, "plan", "add", "\x1b[31mtrap").want(t, 0, "")
	for _, c := range []struct {
		words, want string // separated by blanks
	}{
		{"tool|", ""},
		{"tools|", "tools"},
		{"env |", "list play reset step close"},
		{"tools call write_|", "write_file"},
		{"--log-level=d|", "--log-level=debug"},
		{"-c|", ""},
		{"--conf|", "--config"},
		{"-c |", ":file"},
		{"--config=x|", ":file"},
		{"memory add --tier |", "semantic episodic"},
		{"memory list --tier=e|", "--tier=episodic"},
		{"tools call write_file |", "path= content= if_unchanged="},
		{
			"tools call write_file path=x |",
			"content= if_unchanged=",
		},
		{"tools call edit_file all=|", "all=true all=false"},
		{"tools call read_file path=s|", ":file"},
		{"skills show g|", "greet"},
		{"skills run greet |", "name="},
		{"env reset |", "maze"},
		{"mcp tools |", "files"},
		{"worker --only |", "coder"},
		{"plan show |", "the release"},
		{"help mem|", "memory"},
		{"state export --part mem|", "memory"},
		{"schema |", "protocol config"},
		{"completion |", "bash zsh fish"},
		{"skills check |", ":dir"},
		{"chain run |", ":file"},
		{"no such command|", ""},
		{"tools call nothing |", ""},
		{"-c none.yaml plan show |", ""},
		{"check -- |", ":file"},
		{"tools call --args |", ""},
		{"__comp|", ""},
	} {
		words := strings.Split(strings.TrimSuffix(c.words, "|"), " ")
		want := strings.Fields(c.want)
		switch c.words {
		case "tool|":
			want = []string{"tools"}
		case "plan show |":
			want = []string{c.want}
		}
		assert.Slice(t, proposed(t, dir, words...), want, "%s", c.words)
	}
}

// TestCompletionLeavesNothing: in a folder with untrusted files, completion starts no program that they name, and
// creates no file.
func TestCompletionLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "a2e.yaml", "plugins:\n  evil: {type: exec, metadata: {command: [touch, ran], capabilities: "+
		"[tools, skill, planning]}}\n  mcp: {servers: {e: {command: [touch, ran]}}}\n")
	writeFile(t, dir, ".mcp.json", `{"mcpServers":{"e":{"command":"touch","args":["ran"]}}}`)
	before := namesIn(t, dir)
	for _, words := range []string{
		"tools call r", "skills show x", "plan show x", "chain show x", "env reset c",
		"mcp tools e", "worker --only x",
	} {
		proposed(t, dir, strings.Fields(words)...)
	}
	assert.Slice(t, namesIn(t, dir), before)
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	must.OK(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

// TestCompletionInShells: TAB completes words in each shell, and never runs a name.
func TestCompletionInShells(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	must.OK(t, os.Rename(filepath.Join(dir, "a2e"), filepath.Join(dir, "bin/a2e")))
	must.OK(t, os.Symlink("bin/a2e", filepath.Join(dir, "a2e")))
	run(t, dir, nil, "plan", "add", "it's a $(touch ran) release").want(t, 0, "")
	must.OK(t, os.WriteFile(filepath.Join(dir, "some config.yaml"), nil, 0o600))
	for shell, begin := range map[string][]string{
		"bash": {"bash", "--norc", "--noprofile", "-i"}, "zsh": {"zsh", "-f", "-i"},
		"fish": {"fish", "--no-config", "-i"},
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			_, err := exec.LookPath(shell)
			must.That(t, err == nil, "there is no %s here: `make tools` installs it", shell)
			script := run(t, dir, nil, "completion", shell).want(t, 0, "").stdout
			must.OK(t, os.WriteFile(filepath.Join(dir, "complete."+shell), []byte(script), 0o600))
			p := atShell(t, dir, begin)
			if shell == "zsh" {
				p.types("autoload -Uz compinit && compinit -D -u; setopt noautolist noautomenu\n")
			}
			p.types("source ./complete." + shell + "; echo read''y\n")
			p.await("ready")
			for typed, want := range map[string]string{
				"a2e tools call wr": "a2e tools call write_file ", "a2e memory list --tier=ep": "a2e memory list " +
					"--tier=episodic ",
				"a2e tools call read_file off": "a2e tools call read_file offset=", "a2e -c some": "a2e -c some\\ " +
					"config.yaml ",
			} {
				p.types(typed + "\t")
				p.await(want)
				p.types("\x15") // deletes the line
			}
			p.types("a2e plan show it\t\necho do''ne\n")
			p.await("done")
			p.types("exit\n")
			_ = p.cmd.Wait() // its exit status is that of its last command
			<-p.read
			assert.Contains(t, p.shown, "no such task", "the plan was not found by its name")
			_, err = os.Stat(filepath.Join(dir, "ran"))
			assert.That(t, os.IsNotExist(err), "a name was run")
		})
	}
}

// atShell starts a shell on a terminal, with a2e on its PATH.
func atShell(t *testing.T, dir string, begin []string) *typist {
	t.Helper()
	cmd := command(t, dir, begin[0], begin[1:]...)
	cmd.Env = slices.DeleteFunc(cmd.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") })
	cmd.Env = append(cmd.Env, "TERM=dumb", "PS1=", "INPUTRC=/dev/null", "PATH="+filepath.Join(dir,
		"bin")+":"+os.Getenv("PATH"))
	p := &typist{t: t, cmd: cmd, read: make(chan struct{})}
	p.terminal = must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 200}))(t)
	go p.follow()
	return p
}

// TestHelpIsGrouped: the help of the program is one screen of groups; the help of a group lists its commands first.
func TestHelpIsGrouped(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	whole := run(t, dir, nil, "--help").want(t, 0, "").stdout
	for _, has := range []string{
		"\nSet up init  ", "\nServe  serve  ", "\nState  memory  ", "\n       chain  ",
		"\nOther  schema, help", "\nFlags  -h, --help  ",
	} {
		assert.Contains(t, whole, has, "a2e --help")
	}
	for _, args := range []string{"-h", "-c x --help", "-hc x"} {
		assert.Equal(t, run(t, dir, nil, strings.Fields(args)...).want(t, 0, "").stdout, whole, args)
	}
	lines := strings.Count(whole, "\n")
	wide := slices.MaxFunc(strings.Split(whole, "\n"), func(a, b string) int { return len(a) - len(b) })
	assert.That(t, len(wide) <= 80, "a2e --help has a line of %d columns: %s", len(wide), wide)
	assert.That(t, lines <= 40 && !strings.Contains(whole, "chain run"), "a2e --help has %d lines:\n%s", lines, whole)
	group := run(t, dir, nil, "chain", "--help").want(t, 0, "").stdout
	commands, flags := strings.Index(group, "\nCommands:\n  chain run "), strings.Index(group,
		"\nFlags of every command:\n")
	assert.That(t, 0 < commands && commands < flags, "a2e chain --help:\n%s", group)
}

// TestHelpPageOnATerminal: on a terminal a page is shown in the pager, without the marks of Markdown. If the pager
// cannot be started, the page is written to the terminal.
func TestHelpPageOnATerminal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for pager, begins := range map[string]string{
		"sed s/^/:/": ":\x1b[1mThe command line\x1b[0m\n", "no-such-pager 2>/dev/null": "\x1b[1mThe command " +
			"line\x1b[0m\n",
	} {
		shown, code := onTerminal(t, dir, 80, []string{"PAGER=" + pager}, "help", "cli")
		assert.That(t, code == 0 && strings.HasPrefix(shown, begins), "%s: exit status %d: %.300q", pager, code, shown)
		for _, mark := range []string{"```", "<!--", "](", "\n# ", "\n:# "} {
			assert.That(t, !strings.Contains(shown, mark), "%s: the page has %q", pager, mark)
		}
	}
	plain, _ := onTerminal(t, dir, 80, []string{"PAGER=cat", "NO_COLOR=1"}, "help", "cli")
	assert.That(t, strings.HasPrefix(plain, "The command line\n") && !strings.Contains(plain, "\x1b"), "%.300q", plain)
}
