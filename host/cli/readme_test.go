package cli_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
)

// block is one fenced block of the README.
type block struct {
	mark string // the comment in the line above: "run", "run in the sandbox", "with: FILE", "file: agent.py", "prints", "config", "workers", "mcp client", or ""
	lang string
	text string
}

// readme gives the README's fenced blocks in order.
func readme(t *testing.T) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("(?ms)(?:^<!-- ([^\n]*) -->\n)?^```(\\w*)\n(.*?)^```$")
	var blocks []block
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block{mark: m[1], lang: m[2], text: m[3]})
	}
	return blocks
}

// settle replaces what differs from run to run.
func settle(out string) string {
	for _, r := range []struct{ pattern, with string }{
		{`"[0-9a-f]{32}"`, `"ID"`},
		{`\b[0-9a-f]{12}\b`, `ID`},
		{`\b\d{10}\.\d+`, `TIME`},
		{`"duration_ms":\d+`, `"duration_ms":0`},
		{`"pid": ?\d+`, `"pid":0`},
		{`,"sandbox_missing":\[[^\]]*\]`, ``},
	} {
		out = regexp.MustCompile(r.pattern).ReplaceAllString(out, r.with)
	}
	return strings.TrimSpace(out)
}

func TestREADMECommandsPrintWhatItShows(t *testing.T) {
	blocks, ran, whole := readme(t), 0, sandboxIsWhole(t)
	var with []block // files for the next command
	for i, b := range blocks {
		if strings.HasPrefix(b.mark, "with: ") {
			with = append(with, b)
		}
		if !runs(b) {
			continue
		}
		ran++
		dir := workDir(t)
		for _, file := range with {
			put(t, dir, file)
		}
		with = nil
		runShown(t, dir, b, blocks[i+1].text, whole)
	}
	if ran < 3 {
		t.Errorf("only %d commands of the README ran", ran)
	}
}

// A reader tries the examples in one folder, from the top of the page to its end.
func TestREADMEInOneFolder(t *testing.T) {
	t.Parallel()
	blocks, whole, dir := readme(t), sandboxIsWhole(t), workDir(t)
	for i, b := range blocks {
		file, program := strings.CutPrefix(b.mark, "file: ")
		switch {
		case strings.HasPrefix(b.mark, "with: "):
			put(t, dir, b)
		case runs(b):
			runShown(t, dir, b, blocks[i+1].text, whole)
		case program:
			runExample(t, dir, file, b, blocks[i+1])
		}
	}
}

// runs reports whether a block is a command with what it prints below it.
func runs(b block) bool { return b.mark == "run" || b.mark == "run in the sandbox" }

// runShown runs a command, which should print what the README shows.
func runShown(t *testing.T, dir string, b block, shown string, whole bool) {
	t.Helper()
	out, err := command(t, dir, "sh", "-c", b.text).Output()
	if err != nil {
		t.Errorf("%s\nfailed: %v", b.text, err)
	}
	got, want := settle(string(out)), settle(shown)
	if b.mark == "run in the sandbox" {
		if got, want = withoutCgroup(got), withoutCgroup(want); !whole {
			want = got // the README shows a machine that has it all
		}
	}
	if got != want {
		t.Errorf("%s\nprints:\n%s\nthe README shows:\n%s", b.text, out, want)
	}
}

// put writes a file that the README shows, for the command below it. TypeScript is compiled.
func put(t *testing.T, dir string, b block) {
	t.Helper()
	name := strings.TrimPrefix(b.mark, "with: ")
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(b.text), 0o755); err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(file) == ".ts" {
		compile(t, dir, name)
	}
}

// sandboxIsWhole tells whether this machine has all that the sandbox is made of.
func sandboxIsWhole(t *testing.T) bool {
	t.Helper()
	out, err := command(t, workDir(t), "./a2e", "doctor", "--json").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return readDiagnosis(t, out).missing() == nil
}

// withoutCgroup takes out of a doctor's report what is optional, and the width of
// the columns with it.
func withoutCgroup(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(?m)^  \w+ +cgroup.*\n`, ``},
		{` but the optional cgroup`, ``},
		{` {2,}`, `  `},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

func TestREADMESetUpIsTwoCommands(t *testing.T) {
	var shell []string
	for _, b := range readme(t) {
		if b.lang == "sh" && b.mark == "" {
			shell = append(shell, strings.TrimSpace(b.text))
		}
	}
	// the first is hosttest.BuildCommand, as binary_test.go builds; .ci/run runs the second and nothing else
	if want := []string{hosttest.BuildCommand, "make check"}; strings.Join(shell, "|") != strings.Join(want, "|") {
		t.Errorf("set-up and test commands are %q, want %q", shell, want)
	}
	ci, err := os.ReadFile(filepath.Join(root, ".ci/run"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(string(ci)), "\n"); lines[len(lines)-1] != "make check" {
		t.Errorf(".ci/run ends with %q, not with the README's test command", lines[len(lines)-1])
	}
}

// What that command builds is one file that needs no other, without symbols.
func TestREADMEBinaryIsStatic(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("other systems have other formats, and programs link their system's library")
		return
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	loader := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if err != nil || len(libraries) > 0 || loader || file.Section(".symtab") != nil || file.Section(".debug_info") != nil {
		t.Errorf("libraries %q, loader %t, symbols %t, debug information %t, %v", libraries, loader, file.Section(".symtab") != nil, file.Section(".debug_info") != nil, err)
	}
}

func TestREADMEExamplesSpawnTheHost(t *testing.T) {
	blocks := readme(t)
	for i, b := range blocks {
		if file, ok := strings.CutPrefix(b.mark, "file: "); ok {
			t.Run(file, func(t *testing.T) { runExample(t, workDir(t), file, b, blocks[i+1]) })
		}
	}
}

// runExample runs a program of the README.
func runExample(t *testing.T, dir, file string, b, next block) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runner(t, dir, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := "hello from " + map[string]string{".py": "python", ".ts": "typescript", ".go": "go"}[filepath.Ext(file)]
	if next.mark == "prints" {
		want = next.text
	}
	if got, want := settle(string(out)), settle(want); got != want {
		t.Errorf("%s prints:\n%s\nwant:\n%s", file, out, want)
	}
}

// runner gives the command that runs an example.
func runner(t *testing.T, dir, file string) *exec.Cmd {
	t.Helper()
	switch filepath.Ext(file) {
	case ".py":
		return command(t, dir, "python3", file)
	case ".go":
		cmd := command(t, dir, "go", "run", file)
		cmd.Env = append(cmd.Env, "HOME="+os.Getenv("HOME")) // Go's caches live there
		return cmd
	}
	compile(t, dir, file)
	return command(t, dir, "node", strings.TrimSuffix(file, ".ts")+".js")
}

// compile makes JavaScript of a TypeScript file.
func compile(t *testing.T, dir, file string) {
	t.Helper()
	tools, err := filepath.Abs(filepath.Join(root, "testdata/readme/node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	tsc := command(t, dir, "node", filepath.Join(tools, "typescript/bin/tsc"), file, "--strict", "--skipLibCheck", "--target", "es2022",
		"--module", "commonjs", "--types", "node", "--typeRoots", filepath.Join(tools, "@types"))
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Fatalf("the TypeScript example does not compile (make tools installs the compiler): %v\n%s", err, out)
	}
}

// Entries for MCP clients are what those clients read, and name what serves them.
func TestREADMEClientEntries(t *testing.T) {
	n := 0
	for _, b := range readme(t) {
		if b.mark != "mcp client" {
			continue
		}
		n++
		dir := workDir(t)
		put(t, dir, block{mark: "with: client.json", text: b.text})
		out, err := command(t, dir, "./a2e", "check", "client.json").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "a2e") {
			t.Errorf("check: %v\n%s", err, out)
		}
		if !strings.Contains(b.text, `"args": ["mcp", "serve"`) {
			t.Errorf("the entry does not start the MCP server: %s", b.text)
		}
	}
	if n < 2 {
		t.Errorf("%d entries", n)
	}
}

// The entries for agent programs fit the config, whatever keys a user has.
func TestREADMEWorkersFit(t *testing.T) {
	names := 0
	for _, b := range readme(t) {
		if b.mark != "workers" {
			continue
		}
		dir := workDir(t)
		writeConfig(t, dir, b.text)
		cmd := command(t, dir, "./a2e", "check")
		for _, found := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(b.text, -1) {
			cmd.Env = append(cmd.Env, found[1]+"=x")
		}
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
			t.Errorf("check: %v\n%s", err, out)
		}
		names += strings.Count(b.text, "- name: ")
	}
	if names < 10 {
		t.Errorf("%d entries", names)
	}
}

// The README's plugin is the one that the tests of plugins/exec know.
func TestREADMEPluginIsTested(t *testing.T) {
	tested, err := os.ReadFile(filepath.Join(root, "testdata/exec/word_tools.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range readme(t) {
		if b.mark == "with: word_tools.py" && b.text == string(tested) {
			return
		}
	}
	t.Error("the README shows another plugin than testdata/exec/word_tools.py")
}

func TestREADMEConfigIsValid(t *testing.T) {
	found := false
	for _, b := range readme(t) {
		if b.mark != "config" {
			continue
		}
		found = true
		dir := workDir(t)
		writeConfig(t, dir, b.text)
		out, err := command(t, dir, "./a2e", "check").CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning") {
			t.Fatalf("check: %v\n%s", err, out)
		}
		out, err = command(t, dir, "./a2e", "tools", "call", "word_count", "path=a2e.yaml").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "a2e.yaml") {
			t.Errorf("the declared tool: %v\n%s", err, out)
		}
	}
	if !found {
		t.Error("the README has no config block")
	}
}
