package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// harmful is a config that starts a program as soon as the tools are listed.
const harmful = "plugins:\n  - {name: words, type: exec, metadata: {command: [sh, -c, 'touch pwned; cat'], start_timeout: 1}}\n  - {name: tools, type: tools}\n"

// Trust is for one content at one path, in a list that only the user can write. Each attempt
// begins with a trusted file, which does what it says.
func TestWallTrustIsForWhatWasSeen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, p *place)
		says   string
	}{
		"changed": {func(t *testing.T, p *place) {
			writeFile(t, p.dir, "a2e.yaml", strings.Replace(harmful, "cat", "cat;", 1))
		}, "it has changed"},
		"appended":              {func(t *testing.T, p *place) { writeFile(t, p.dir, "a2e.yaml", harmful+"# x\n") }, "it has changed"},
		"cut":                   {func(t *testing.T, p *place) { writeFile(t, p.dir, "a2e.yaml", strings.TrimSuffix(harmful, "\n")) }, "it has changed"},
		"a document put before": {func(t *testing.T, p *place) { writeFile(t, p.dir, "a2e.yaml", "---\n"+harmful) }, "it has changed"},
		"link in its place": {func(t *testing.T, p *place) {
			writeFile(t, p.out, "other.yaml", strings.Replace(harmful, "words", "other", 1))
			must(t, os.Remove(filepath.Join(p.dir, "a2e.yaml")))
			must(t, os.Symlink(filepath.Join(p.out, "other.yaml"), filepath.Join(p.dir, "a2e.yaml")))
		}, "it has changed"},
		"removed from the list": {func(t *testing.T, p *place) {
			p.run(t, []string{"trust", "--remove"}, nil).want(t, 0, "no longer trusted")
		}, "nobody has run"},
		"other home":           {func(t *testing.T, p *place) { p.home = t.TempDir() }, "nobody has run"},
		"list cut off":         {func(t *testing.T, p *place) { must(t, os.Truncate(p.list(), 30)) }, "it is damaged"},
		"list for everybody":   {func(t *testing.T, p *place) { must(t, os.Chmod(p.list(), 0o666)) }, "may be written by others"},
		"folder for everybody": {func(t *testing.T, p *place) { must(t, os.Chmod(filepath.Dir(p.list()), 0o777)) }, "may be written by others"},
		"folder in its place":  {func(t *testing.T, p *place) { must(t, os.Remove(p.list())); must(t, os.Mkdir(p.list(), 0o700)) }, "is a folder"},
		"link to a list": {func(t *testing.T, p *place) {
			must(t, os.Rename(p.list(), filepath.Join(p.dir, "l")))
			must(t, os.Symlink(filepath.Join(p.dir, "l"), p.list()))
		}, "is a link"},
		"same content elsewhere": {func(t *testing.T, p *place) { p.dir = workDir(t); writeFile(t, p.dir, "a2e.yaml", harmful) }, "nobody has run"},
		"same content below": {func(t *testing.T, p *place) {
			below := filepath.Join(p.dir, "below")
			must(t, os.Mkdir(below, 0o700))
			must(t, os.Link(filepath.Join(p.dir, "a2e"), filepath.Join(below, "a2e")))
			p.dir = below
			writeFile(t, p.dir, "a2e.yaml", harmful)
		}, "nobody has run"},
		"folder renamed": {func(t *testing.T, p *place) {
			moved := filepath.Join(p.out, "moved")
			must(t, os.Rename(p.dir, moved))
			p.dir = moved
		}, "nobody has run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			writeFile(t, p.dir, "a2e.yaml", harmful)
			p.run(t, []string{"trust"}, nil).want(t, 0, "trusted until it changes")
			if o := p.run(t, []string{"tools", "list"}, nil); !started(p, o) || strings.Contains(o.stderr, "not trusted") {
				t.Fatalf("the trusted file does not count: %s", o.stderr)
			}
			must(t, os.Remove(filepath.Join(p.dir, "pwned")))
			c.change(t, p)
			for _, args := range [][]string{{"tools", "list"}, {"check"}, {"doctor"}, {"serve"}} {
				o := p.run(t, args, []string{greeting})
				if told := o.stdout + o.stderr; o.code != 0 || started(p, o) || !strings.Contains(told, c.says) {
					t.Errorf("%s: exit status %d, started %t:\n%s", args, o.code, started(p, o), told)
				}
			}
		})
	}
}

// list is where the list of what is trusted lies.
func (p *place) list() string { return filepath.Join(p.home, ".config", "a2e", "trusted.json") }

// A file that cannot be used does not stop a host that happens to be started beside it, and
// is not passed over in silence.
func TestUntrustedFileStopsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, file string)
		says string
	}{
		"no YAML":            {func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte("a: ["), 0o600)) }, "it is wrong besides: a2e.yaml:2:1: not valid YAML"},
		"two documents":      {func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte("{}\n---\n{}\n"), 0o600)) }, "it is wrong besides: "},
		"unknown keys":       {func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte("sandbxo: off\n"), 0o600)) }, "left out: sandbxo"},
		"huge":               {func(t *testing.T, file string) { must(t, os.WriteFile(file, make([]byte, 2<<20), 0o600)) }, "larger than"},
		"folder":             {func(t *testing.T, file string) { must(t, os.Mkdir(file, 0o700)) }, "not a regular file"},
		"device":             {func(t *testing.T, file string) { must(t, os.Symlink("/dev/zero", file)) }, "not a regular file"},
		"link to itself":     {func(t *testing.T, file string) { must(t, os.Symlink(file, file)) }, "cannot be read"},
		"control characters": {func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte("\"a\\e[2J\": 1\n"), 0o600)) }, "left out: …"},
		"pattern that is none": {func(t *testing.T, file string) {
			must(t, os.WriteFile(file, []byte("plugins: {tools: {deny: ['[']}}\n"), 0o600))
		}, "left out: plugins.tools.deny"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			c.make(t, filepath.Join(p.dir, "a2e.yaml"))
			o := p.run(t, []string{"tools", "call", "echo", "text=hi"}, nil)
			if o.code != 0 || !strings.Contains(o.stdout, "hi") || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, c.says) {
				t.Errorf("exit status %d, %s%s", o.code, o.stdout, o.stderr)
			}
		})
	}
}

// What tightens counts without being trusted, and says so.
func TestUntrustedFileTightens(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	writeFile(t, p.dir, "a2e.yaml", "auth_token: word\nplugins:\n  - {name: tools, type: tools, metadata: {read_only: true, deny: [http_get], allowed_commands: [ls]}}\n")
	o := p.run(t, []string{"tools", "list"}, nil).want(t, 0, "it only tightens: auth_token, plugins, plugins[0].metadata.allowed_commands, plugins[0].metadata.deny, plugins[0].metadata.read_only. Look")
	if strings.Contains(o.stdout, "write_file") || strings.Contains(o.stdout, "http_get") || !strings.Contains(o.stdout, "read_file") {
		t.Errorf("it lists:\n%s", o.stdout)
	}
	if o := p.run(t, nil, []string{greeting}); !strings.Contains(o.stdout, "auth_failed") {
		t.Errorf("without the token: %s", o.stdout)
	}
	// the user's own config is what is tightened
	put(t, p.home, block{mark: "with: .config/a2e/config.yaml", text: "plugins: {proc: {exec: strict}}\n"})
	for _, off := range []string{"plugins: {proc: false}\n", "plugins: [{name: tools, type: tools}]\n"} {
		writeFile(t, p.dir, "a2e.yaml", off)
		p.run(t, []string{"tools", "call", "run_command", `command=["sh","-c","true"]`}, nil).want(t, 1, "sh")
	}
	put(t, p.home, block{mark: "with: .config/a2e/config.yaml", text: "plugins:\n  - {name: t, type: tools, metadata: {commands: [{name: own, command: [echo, mine]}], allowed_commands: [cat]}}\n"})
	writeFile(t, p.dir, "a2e.yaml", "plugins: [{name: t, type: tools, metadata: {allowed_commands: [ls, cat], deny: [glob]}}]\n")
	o = p.run(t, []string{"tools", "list"}, nil).want(t, 0, "left out: plugins[0].metadata.allowed_commands.")
	if strings.Contains(o.stdout, "glob") || !strings.Contains(o.stdout, "own") {
		t.Errorf("it lists:\n%s", o.stdout)
	}
	p.run(t, []string{"tools", "call", "run_command", `command=["ls"]`}, nil).want(t, 1, "allowed are: cat")
}

func TestTrustCommand(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.run(t, []string{"trust"}, nil).want(t, 3, "a2e.yaml: no such file")
	p.run(t, []string{"trust", "--list"}, nil).want(t, 0, "no file is trusted")
	p.run(t, []string{"trust", "--remove"}, nil).want(t, 1, "is not trusted anyway")
	writeFile(t, p.dir, "a2e.yaml", "a: [")
	p.run(t, []string{"trust"}, nil).want(t, 3, "a2e.yaml:2:1: not valid YAML")
	writeFile(t, p.dir, "a2e.yaml", "sandbox: off\nauth_token: word\nmax_parallel: 3\nplugins: [{name: tools, type: tools, metadata: {commands: [{name: x, command: [\"a\\e[2Jb\", \"${LEAK}\"]}], \"odd\\nkey\": 1}}]\n")
	shown := p.run(t, []string{"trust", "--dry-run"}, nil).want(t, 0, "")
	want := `a2e.yaml does more than tighten
it starts programs
  plugins[0].metadata.commands[0].command: ["a\x1b[2Jb", "${LEAK}"]
it loosens the walls
  sandbox: off
it also sets
  plugins[0].metadata.commands[0].name: x
  plugins[0].metadata.…: 1
it takes environment variables
  LEAK
`
	if shown.stdout != want {
		t.Errorf("it shows:\n%s", shown.stdout)
	}
	written := "a2e.yaml"
	writeFile(t, p.dir, written, "plugins: {env: {max_experiences: 5}, words: {type: exec, command: [sh, x]}, env.x: {type: exec, command: [sh, y]}, '': {type: exec, command: [sh, z]}}\nmcpServers: {s: {command: srv}}\n")
	shown = p.run(t, []string{"trust", "--dry-run"}, nil).want(t, 0, "")
	starts, sets, _ := strings.Cut(shown.stdout, "it also sets")
	for _, program := range []string{"plugins.words.command: [sh, x]", "plugins.env.x.command: [sh, y]", ".command: [sh, z]", "mcpServers.s.command: srv"} {
		if !strings.Contains(starts, program) {
			t.Errorf("no %q among the programs of:\n%s", program, shown.stdout)
		}
	}
	if !strings.Contains(sets, "  plugins.env.max_experiences: 5\n") {
		t.Errorf("it shows:\n%s", shown.stdout)
	}
	p.run(t, []string{"tools", "list"}, nil).want(t, 0, "nobody has run")
	writeFile(t, p.dir, written, "host_id: x\n")
	p.run(t, []string{"trust", "."}, nil).want(t, 0, "trusted until it changes: ")
	if o := p.run(t, []string{"trust", "--list"}, nil).want(t, 0, ""); !strings.Contains(o.stdout, "trusted  ") || !strings.Contains(o.stdout, "/a2e.yaml") {
		t.Errorf("it lists %s", o.stdout)
	}
	writeFile(t, p.dir, "a2e.yaml", "sandbox: required\n")
	if o := p.run(t, []string{"trust", "--list"}, nil); !strings.Contains(o.stdout, "changed  ") {
		t.Errorf("it lists %s", o.stdout)
	}
	if o := p.run(t, []string{"trust", filepath.Join(p.dir, "a2e.yaml")}, nil).want(t, 0, "trusted until"); !strings.Contains(o.stdout, "only tightens: it counts as it is") {
		t.Errorf("it shows %s", o.stdout)
	}
	writeFile(t, p.dir, "other.yaml", "sandbox: off\n")
	p.run(t, []string{"trust", "other.yaml"}, nil).want(t, 2, "--config or A2E_CONFIG names them")
	p.run(t, []string{"trust", "--list", "--remove"}, nil).want(t, 2, "--list")
	must(t, os.Remove(filepath.Join(p.dir, "a2e.yaml")))
	if o := p.run(t, []string{"trust", "--list"}, nil); !strings.Contains(o.stdout, "gone   ") {
		t.Errorf("it lists %s", o.stdout)
	}
	p.run(t, []string{"trust", "--remove"}, nil).want(t, 0, "no longer trusted")
}

// Where no list can be kept nothing is trusted, and the reason is told.
func TestTrustWithoutAFolderForTheList(t *testing.T) {
	for name, c := range map[string]struct {
		home func(t *testing.T) string
		says string
	}{
		"no home": {func(*testing.T) string { return "" }, "set HOME"},
		"home is a file": {func(t *testing.T) string {
			file := filepath.Join(t.TempDir(), "f")
			must(t, os.WriteFile(file, nil, 0o600))
			return file
		}, "list of trusted files cannot be"},
		"home that cannot be made": {func(*testing.T) string { return "/proc/nowhere" }, "list of trusted files cannot be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.home = c.home(t)
			writeFile(t, p.dir, "a2e.yaml", harmful)
			p.run(t, []string{"trust"}, nil).want(t, 1, c.says)
			if o := p.run(t, []string{"--config", "a2e.yaml", "tools", "list"}, nil); !started(p, o) {
				t.Errorf("named it should count: %s", o.stderr)
			}
			must(t, os.Remove(filepath.Join(p.dir, "pwned")))
			if o := p.run(t, []string{"tools", "list"}, nil); started(p, o) || !strings.Contains(o.stderr, "a2e.yaml: not trusted") && o.code != 3 { // 3: the user's own config cannot be read
				t.Errorf("it counts: %s", o.stderr)
			}
		})
	}
}
