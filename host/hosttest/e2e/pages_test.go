package e2e_test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// block is one fenced block of a page.
type block struct {
	// the comment in the line above: "run", "run in the sandbox", "with: FILE", "file: agent.py", "prints", "config",
	// "workers", "mcp client", or ""
	mark string
	lang string
	text string
	line int // number of the fence's line
}

// pageOf returns the blocks of a page in order.
func pageOf(t *testing.T, file string) []block {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(root, file)))(t)
	fence := regexp.MustCompile("(?ms)(?:^<!-- ([^\n]*) -->\n)?^```(\\w*)\n(.*?)^```$")
	var blocks []block
	for _, at := range fence.FindAllSubmatchIndex(text, -1) {
		part := func(i int) string {
			if at[2*i] < 0 {
				return ""
			}
			return string(text[at[2*i]:at[2*i+1]])
		}
		blocks = append(blocks, block{
			mark: part(1), lang: part(2), text: part(3),
			line: bytes.Count(text[:at[4]], []byte("\n")) + 1,
		})
	}
	return blocks
}

// pages lists the README.md files of the repository, the top one first.
func pages(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md"}
	for _, top := range []string{"host", "plugins", "protocol"} {
		must.OK(t, filepath.WalkDir(filepath.Join(root, top), func(path string, entry os.DirEntry, err error) error {
			if entry.Name() == "README.md" {
				path, err = filepath.Rel(root, path)
				files = append(files, path)
			}
			return err
		}))
	}
	return files
}

// marked calls do in a subtest for each block with the mark on all pages, and fails if there are fewer than least.
func marked(t *testing.T, mark string, least int, do func(*testing.T, block)) {
	n := 0
	for _, file := range pages(t) {
		for _, b := range pageOf(t, file) {
			if b.mark == mark {
				n++
				t.Run(fmt.Sprintf("%s:%d", file, b.line), func(t *testing.T) { do(t, b) })
			}
		}
	}
	assert.That(t, n >= least, "the pages show %d of %q, at least %d are known", n, mark, least)
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

// Each example of each page works alone, in an empty folder.
func TestREADMEExamples(t *testing.T) {
	whole, ran := sandboxIsWhole(t), 0
	for _, file := range pages(t) {
		blocks := pageOf(t, file)
		var with []block // files for the next example
		for i, b := range blocks {
			if strings.HasPrefix(b.mark, "with: ") {
				with = append(with, b)
			}
			if !b.runs() {
				continue
			}
			files, next := with, blocks[min(i+1, len(blocks)-1)]
			ran, with = ran+1, nil
			t.Run(fmt.Sprintf("%s:%d", file, b.line), func(t *testing.T) {
				t.Parallel()
				dir := workDir(t)
				for _, one := range files {
					put(t, dir, one)
				}
				b.run(t, dir, next, whole)
			})
		}
	}
	assert.That(t, ran >= 10, "only %d examples ran", ran)
}

// TestREADMEInOneFolder: the examples of the first page, and those of the tutorial, work one after another in one
// folder, as a reader tries them.
func TestREADMEInOneFolder(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "host/cli/TUTORIAL.md"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			blocks, whole, dir := pageOf(t, page), sandboxIsWhole(t), workDir(t)
			for i, b := range blocks {
				if strings.HasPrefix(b.mark, "with: ") {
					put(t, dir, b)
				}
				if b.runs() {
					b.run(t, dir, blocks[min(i+1, len(blocks)-1)], whole)
				}
			}
		})
	}
}

// TestREADMEExamplesStandOnce: no example is on two pages, as a change would miss one of them. The first page stays
// short.
func TestREADMEExamplesStandOnce(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile(filepath.Join(root, "README.md")))(t)
	n := bytes.Count(text, []byte("\n"))
	assert.That(t, n <= 250, "the first page has %d lines; it should have at most 250", n)
	first := map[string]string{}
	for _, file := range pages(t) {
		for _, b := range pageOf(t, file) {
			here := fmt.Sprintf("%s:%d", file, b.line)
			assert.Equal(t, first[b.text], "", "%s shows what … shows", here)
			first[b.text] = here
		}
	}
}

// TestHelpHasEachPage: `a2e help` has all pages, except those of programs for the tests.
func TestHelpHasEachPage(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	files := slices.DeleteFunc(pages(t), func(file string) bool { return strings.HasPrefix(file, "host/hosttest/") })
	for _, file := range files {
		topic := filepath.Base(filepath.Dir(file))
		if topic == "." {
			topic = "a2e"
		}
		text := must.Get(os.ReadFile(filepath.Join(root, file)))(t)
		text = regexp.MustCompile(`(?m)^<!--.*?-->\n?`).ReplaceAll(text, nil) // only GitHub and tests read these
		if out, err := command(t, dir, "./a2e", "help", topic).CombinedOutput(); err != nil ||
			!strings.Contains(string(out), string(text)) {
			t.Errorf("a2e help %s does not print %s, which main.go embeds: %v\n%.300s", topic, file, err, out)
		}
	}
	out, err := command(t, dir, "./a2e", "help").Output()
	lines := strings.Count(string(out), "\n")
	assert.That(t, err == nil && lines == len(files)+2 && strings.Contains(string(out), "\nconfig "),
		"the list of pages: %v\n%s", err, out)
	out, err = command(t, dir, "./a2e", "help", "confg").CombinedOutput()
	assert.That(t, exitCode(err) == 2 && strings.Contains(string(out), `did you mean "config"?`),
		"a page that there is not: %v\n%s", err, out)
}

// TestConfigReference: the reference describes the keys of the config and of the plugins, and `a2e help config`
// prints it.
func TestConfigReference(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	out := must.Get(command(t, dir, "./a2e", "schema", "config", "--markdown").Output())(t)
	for _, want := range []string{
		"\n| `limits.max_queue` | integer, 1 to 16777216 | `65536` | Requests that may wait; ",
		"\n| `auth[].agent_id` | string | required | ",
		"\n## Options of tools\n", "\n| `commands[].parameters[].name` | string | required | Its name",
	} {
		assert.Contains(t, string(out), want, "the reference lacks")
	}
	help, err := command(t, dir, "./a2e", "help", "config").Output()
	assert.That(t, err == nil && strings.Contains(string(help), string(out)), "a2e help config prints something "+
		"else: %v", err)
}

// runs reports whether a block is a command or a program to run.
func (b block) runs() bool {
	return strings.HasPrefix(b.mark, "run") || strings.HasPrefix(b.mark, "file: ")
}

// run runs an example, and compares its output with the block below it. whole = this machine has all parts of the
// sandbox.
func (b block) run(t *testing.T, dir string, next block, whole bool) {
	t.Helper()
	if file, ok := strings.CutPrefix(b.mark, "file: "); ok {
		runExample(t, dir, file, b, next)
		return
	}
	cmd := command(t, dir, "sh", "-c", b.text)
	if strings.Contains(b.text, "coder.yaml") {
		cmd.Env = append(cmd.Env, "LLM_URL="+poet(t).URL)
	}
	out, err := cmd.Output()
	assert.That(t, err == nil, "%s\nfailed: %v", b.text, err)
	got, want := settle(string(out)), settle(next.text)
	if b.mark == "run in the sandbox" {
		if got, want = withoutCgroup(got), withoutCgroup(want); !whole {
			want = got // the page shows a machine with all parts
		}
	}
	assert.Equal(t, got, want, "%s\nprints:\n%s\nthe page shows", b.text, out)
}

// poet starts the model of the examples that use one.
func poet(t *testing.T) *llm.Server {
	t.Helper()
	s := llm.New(t)
	s.Answer(func(r *llm.Request) llm.Reply {
		if r.Rounds() == 0 {
			return llm.Calls(llm.Call{
				Name:      "write_file",
				Arguments: `{"path":"haiku.txt","content":"bytes flow in one end\neach line waits for the next line\nthe reader is slow\n"}`,
			}).Used(1000, 50)
		}
		return llm.Text(`{"status": "done", "summary": `, `"The haiku is in haiku.txt."}`).Used(1060, 20)
	})
	return s
}

// put writes a block to the file that its mark names, for the command below it. TypeScript is compiled.
func put(t *testing.T, dir string, b block) {
	t.Helper()
	name := strings.TrimPrefix(b.mark, "with: ")
	file := filepath.Join(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.OK(t, os.WriteFile(file, []byte(b.text), 0o755))
	if filepath.Ext(file) == ".ts" {
		compile(t, dir, name)
	}
}

// sandboxIsWhole reports whether this machine has all parts of the sandbox.
func sandboxIsWhole(t *testing.T) bool {
	t.Helper()
	out, err := command(t, workDir(t), "./a2e", "doctor", "--json").Output()
	must.That(t, err == nil, "%v\n%s", err, out)
	return readReport(t, out).missing() == nil
}

// withoutCgroup removes the optional cgroup from a doctor's report, and the padding of the columns, as their width
// depends on it.
func withoutCgroup(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(?m)^\w+ +cgroup.*\n`, ``},
		{` but the optional cgroup`, ``},
		{` {2,}`, `  `},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

func TestREADMESetUpIsTwoCommands(t *testing.T) {
	t.Parallel()
	var shell []string
	for _, b := range pageOf(t, "README.md") {
		if b.lang == "sh" && b.mark == "" {
			shell = append(shell, strings.TrimSpace(b.text))
		}
	}
	// the first is hosttest.BuildCommand, by which package built builds; .ci/run runs only the second
	want := []string{hosttest.BuildCommand, "make check"}
	assert.Equal(t, strings.Join(shell, "|"), strings.Join(want, "|"), "set-up and test commands are %q, want %q",
		shell, want)
	ci := must.Get(os.ReadFile(filepath.Join(root, ".ci/run")))(t)
	lines := strings.Split(strings.TrimSpace(string(ci)), "\n")
	assert.Equal(t, lines[len(lines)-1], "make check", ".ci/run ends with …, not with the README's test command")
}

// TestREADMEBinaryIsStatic: the build command makes one file that needs no libraries, without symbols.
func TestREADMEBinaryIsStatic(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("other systems have other formats, and programs link their system's library")
		return
	}
	path := hosttest.Program(t, "a2e")
	file, err := elf.Open(path)
	must.OK(t, err)
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	loader := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if err != nil || len(libraries) > 0 || loader || file.Section(".symtab") != nil ||
		file.Section(".debug_info") != nil {
		t.Errorf("libraries %q, loader %t, symbols %t, debug information %t, %v", libraries, loader,
			file.Section(".symtab") != nil, file.Section(".debug_info") != nil, err)
	}
}

// runExample runs a program of a page, and checks what it prints.
func runExample(t *testing.T, dir, file string, b, next block) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(dir, file), []byte(b.text), 0o600))
	addFiles(t, dir, "clients")
	out, err := runner(t, dir, file).CombinedOutput()
	must.That(t, err == nil, "%v\n%s", err, out)
	want := "hello from " + map[string]string{
		".py": "python", ".ts": "typescript", ".go": "go",
		".sh": "bash",
	}[filepath.Ext(file)]
	if next.mark == "prints" {
		want = next.text
	}
	if got, want := settle(string(out)), settle(want); got != want {
		t.Errorf("%s prints:\n%s\nwant:\n%s", file, out, want)
	}
}

// runner returns the command that runs an example.
func runner(t *testing.T, dir, file string) *exec.Cmd {
	t.Helper()
	switch filepath.Ext(file) {
	case ".py":
		return command(t, dir, "python3", file)
	case ".sh":
		return command(t, dir, "bash", file)
	case ".go":
		cmd := command(t, dir, "go", "run", file, "client.go")
		caches := strings.Fields(string(must.Get(exec.CommandContext(t.Context(), "go", "env", "GOCACHE",
			"GOMODCACHE").Output())(t))) // command sets another HOME
		cmd.Env = append(cmd.Env, "GOCACHE="+caches[0], "GOMODCACHE="+caches[1])
		return cmd
	}
	compile(t, dir, file)
	return command(t, dir, "node", strings.TrimSuffix(file, ".ts")+".js")
}

// compile compiles a TypeScript file to JavaScript.
func compile(t *testing.T, dir, file string) {
	t.Helper()
	tools := tools(t, "readme/node_modules")
	tsc := command(t, dir, "node", filepath.Join(tools, "typescript/bin/tsc"), file, "--strict", "--skipLibCheck",
		"--target", "es2022", "--module", "commonjs",
		"--erasableSyntaxOnly", "--rewriteRelativeImportExtensions", "--types", "node", "--typeRoots",
		filepath.Join(tools, "@types"))
	out, err := tsc.CombinedOutput()
	must.That(t, err == nil, "the TypeScript example does not compile (make tools installs the compiler): %v\n%s", err,
		out)
}

// TestREADMEClientEntries: the entries for MCP clients are valid, and start a2e's MCP server.
func TestREADMEClientEntries(t *testing.T) {
	t.Parallel()
	marked(t, "mcp client", 2, func(t *testing.T, b block) {
		dir := workDir(t)
		put(t, dir, block{mark: "with: client.json", text: b.text})
		out, err := command(t, dir, "./a2e", "check", "client.json").CombinedOutput()
		assert.That(t, err == nil && strings.Contains(string(out), "a2e"), "check: %v\n%s", err, out)
		assert.Contains(t, b.text, `"args": ["mcp", "serve"`, "the entry does not start the MCP server")
	})
}

// TestREADMEConfigs: the configs on the pages are valid with any values of their variables, and without warnings
// about keys that have no effect.
func TestREADMEConfigs(t *testing.T) {
	t.Parallel()
	workers, declared := 0, 0
	check := func(t *testing.T, b block) {
		dir := workDir(t)
		writeConfig(t, dir, b.text)
		cmd := command(t, dir, "./a2e", "check")
		for _, found := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(b.text, -1) {
			cmd.Env = append(cmd.Env, found[1]+"=x")
		}
		out, err := cmd.CombinedOutput()
		must.That(t, err == nil && !strings.Contains(string(out), "warning"), "check: %v\n%s", err, out)
		if b.mark == "workers" {
			workers += strings.Count(b.text, "- name: ")
		}
		if strings.Contains(b.text, "- name: word_count") {
			declared++
			out, err := command(t, dir, "./a2e", "tools", "call", "word_count", "path=a2e.yaml").CombinedOutput()
			assert.That(t, err == nil && strings.Contains(string(out), "a2e.yaml"), "the declared tool: %v\n%s", err,
				out)
		}
	}
	marked(t, "config", 1, check)
	marked(t, "workers", 1, check)
	assert.That(t, workers >= 10 && declared != 0, "%d entries of workers, %d declared tools", workers, declared)
}

// TestREADMEPluginIsTested: the plugins on the pages are the files in testdata that other tests run.
func TestREADMEPluginIsTested(t *testing.T) {
	t.Parallel()
	for shown, file := range map[string]string{
		"word_tools.py":  "testdata/exec/word_tools.py",
		"greet/greet.go": "testdata/greet/greet.go", "notes/notes.go": "testdata/notes/notes.go",
	} {
		tested := must.Get(os.ReadFile(filepath.Join(root, file)))(t)
		marked(t, "with: "+shown, 1, func(t *testing.T, b block) {
			assert.Equal(t, b.text, string(tested), "the page shows another plugin than %s", file)
		})
	}
}
