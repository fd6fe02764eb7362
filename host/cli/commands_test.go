package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/alecthomas/kong"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestEachCommandRuns: each command has a method Run, and a row that names its request if it sends one.
func TestEachCommandRuns(t *testing.T) {
	t.Parallel()
	for _, leaf := range must.Get(kong.New(new(commands)))(t).Model.Leaves(false) {
		assert.That(t, leaf.Target.Addr().MethodByName("Run").IsValid(), "%s has no Run", leaf.Path())
		_, sends := leaf.Target.Type().FieldByName("sends")
		assert.That(t, sends == (requests()[leaf.Path()].print != nil),
			"%s sends a request: %t; it has a row: %t", leaf.Path(),
			sends, !sends)
	}
}

// runWithin runs a command line in this process, and returns its exit status and what it printed.
func runWithin(t *testing.T, args ...string) (code int, printed string) {
	t.Helper()
	dir := t.TempDir()
	in, out, errs := must.Get(os.Open(os.DevNull))(t), must.Get(os.Create(filepath.Join(dir, "out")))(t),
		must.Get(os.Create(filepath.Join(dir, "err")))(t)
	defer in.Close()
	defer out.Close()
	defer errs.Close()
	code = Main(args, System{
		In: in, Out: NewOutput(out), Err: errs,
		Environ: append(os.Environ(), "HOME="+dir), Exit: func(int) {},
		Pages: fstest.MapFS{"plugins/tools/README.md": {Data: []byte("# Tools\n\nThe tools.\n")}},
	})
	return code, string(must.Get(os.ReadFile(out.Name()))(t)) + string(must.Get(os.ReadFile(errs.Name()))(t))
}

// TestExitCodes: each command ends with the right exit status and message.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good.yaml": "workspace: DIR\nstate_dir: DIR/state\n", "bad.yaml": "max_paralel: 3\n",
		"chain.yaml":    "nodes: [{node_id: a, kind: tool, name: echo, input: {text: deep}}]\n",
		"export.ndjson": `{"a2e_state":1,"parts":[]}` + "\n",
		"other.json":    `{"mcpServers": {"tiny": {"command": "tiny-server"}}}`,
		"tasks.ndjson":  `{"brief":"x"}` + "\n", "skills/one/SKILL.md": "---\nname: one\ndescription: First of " +
			"all.\n---\nDo it.\n",
	} {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600))
	}
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"version", 0, "protocol 1.0"},
		{"--version", 0, "protocol 1.0"},
		{"nonsense", 2, "--help"},
		{"--help", 0, "printf"},
		{"tools call --help", 0, "Example"},
		{"help", 0, "config  Every key"},
		{"help tols", 2, `did you mean "tools"`},
		{"schema config", 0, `"max_parallel"`},
		{"schema config --markdown", 0, "## Options of tools"},
		{"schema protocol", 0, `"handshake/req"`},
		{"schema protocol --markdown", 0, "### `tool/call/req`"},
		{"check -c DIR/missing.yaml", 3, "missing.yaml"},
		{"check -c DIR/bad.yaml", 3, "max_parallel"},
		{"serve -c DIR/bad.yaml", 3, "max_parallel"},
		{"check DIR/other.json", 0, "tiny-server"},
		{"check --audit DIR/export.ndjson -c DIR/good.yaml", 1, "broken"},
		{"check", 0, "plugin tools"},
		{"doctor", 0, "(as configured): children start"},
		{"tools list", 0, "echo"},
		{"tools list --json files", 0, `"name": `},
		{"tools call echo text=hi", 0, `"text": "hi"`},
		{"tools call run_command command=[\"sh\",\"-c\",\"exit\\u00203\"]", 1, "exit status 3"},
		{"tools call nope", 1, `unknown tool "nope"`},
		{"tools call echo text", 2, "key=value"},
		{"skills list", 0, ""},
		{"skills check DIR/skills", 0, "1 good, 0 broken"},
		{"skills show nope", 1, `no skill "nope"`},
		{"chain check DIR/chain.yaml", 0, "ok, 1 node"},
		{"chain graph DIR/chain.yaml -o DIR/c.dot", 0, ""},
		{"chain run DIR/chain.yaml", 0, "deep"},
		{"mcp list", 0, "no MCP server"},
		{"mcp tools nope", 1, `no MCP server "nope"`},
		{"state import DIR/export.ndjson", 0, "no record"},
		{"state export", 0, "a2e_state"},
		{"state path", 0, "state.db"},
		{"state reembed", 0, "the config has no embeddings"},
		{"memory list", 0, "no entry"},
		{"memory search words --json", 0, "[]"},
		{"memory forget --tag x", 0, "0 deleted"},
		{"plan board", 0, "no plan yet"},
		{"learn stats", 0, "no call was recorded"},
		{"learn export", 0, "no preference pairs"},
		{"dispatch DIR/tasks.ndjson", 3, "no worker is configured"},
		{"trust DIR --dry-run", 3, "a2e.yaml"},
	} {
		args := strings.Fields(strings.ReplaceAll(tc.args, "DIR", dir))
		if !strings.Contains(tc.args, "-c DIR") && !strings.HasPrefix(tc.args, "-") {
			args = append(args, "-c", filepath.Join(dir, "good.yaml"))
		}
		if code, printed := runWithin(t, args...); code != tc.code || !strings.Contains(printed, tc.says) {
			t.Errorf("a2e %s: exit status %d, want %d and %q in:\n%.1000s", tc.args, code, tc.code, tc.says, printed)
		}
	}
}
