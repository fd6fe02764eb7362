package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// chainDir returns a folder with the binary and files.
func chainDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := workDir(t)
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

const greetChain = `
initial_input: {greeting: hello, n: 12345678901234567890}
nodes:
- {node_id: join, kind: tool, name: echo, input_map: {text: "join(' ', [input.greeting, input.name])"}, next_node: end}
- {node_id: end, kind: tool, name: echo, input_map: {text: join.text}}
`

func TestChainRun(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{
		"greet.yaml":       greetChain,
		"fails.yaml":       "nodes:\n- {node_id: a, kind: tool, name: read_file, input: {path: nothing}}\n",
		"outer.json":       "\ufeff" + `{"nodes":[{"node_id":"c","kind":"chain","name":"saved","input":{"name":"eve"}}]}`,
		"chains/saved.yml": "\ufeff" + greetChain,
		"input.json":       "\ufeff" + `{"name":"bob"}`,
	})
	for _, tc := range []struct {
		args           []string
		stdin          string
		code           int
		stdout, stderr string
	}{
		{[]string{"greet.yaml", "name=ada"}, "", 0, "{\n  \"text\": \"hello ada\"\n}\n", "done   join  "},
		{
			[]string{"greet.yaml", "--input", `{"name":"ada","greeting":"hi"}`, "-q"},
			"", 0,
			"{\n  \"text\": \"hi ada\"\n}\n", "",
		},
		{[]string{"greet.yaml", "--input", "@input.json"}, "", 0, "{\n  \"text\": \"hello bob\"\n}\n", "done   end  "},
		{
			[]string{"greet.yaml", "--input", "-"},
			"\ufeff" + `{"name":"eve"}`, 0, "{\n  \"text\": \"hello eve\"\n}\n",
			"",
		},
		{[]string{"-", "name=ada"}, greetChain, 0, "{\n  \"text\": \"hello ada\"\n}\n", ""},
		{[]string{"outer.json"}, "", 0, "{\n  \"text\": \"hello eve\"\n}\n", "done   c/join  "},
		{[]string{"greet.yaml"}, "", 1, "null\n", "a2e: the chain failed: node \"join\": the expression of " +
			"input_map/text"},
		{[]string{"fails.yaml"}, "", 1, "null\n", "a2e: the chain failed: node \"a\": "},
		{[]string{"-", "--input", "-"}, "", 2, "", "stdin cannot be both"},
		{[]string{"greet.yaml", "name=ada", "--input", "{}"}, "", 2, "", "not both"},
		{[]string{"greet.yaml", "--input", "[]"}, "", 2, "", "a JSON object should be here"},
		{[]string{"nothing.yaml"}, "", 2, "", "nothing.yaml"},
		{
			[]string{"-"},
			"nodes:\n- {node_id: a, kind: tool, name: echo, next_node: b}\n", 1, "",
			"stdin:2: /nodes/0/next_node: is \"b\", which is not a node",
		},
		{[]string{"-"}, "nodes:\n- {node_id: a, kind: tool, name: echo, next_node: a}\n", 1, "", "circle: a → a"},
	} {
		out := run(t, dir, []byte(tc.stdin), append([]string{"chain", "run"}, tc.args...)...)
		if out.code != tc.code || out.stdout != tc.stdout || !strings.Contains(out.stderr, tc.stderr) {
			t.Errorf("chain run %q: exit status %d, %q, %q; should be %d, %q, %q", tc.args, out.code, out.stdout,
				out.stderr, tc.code, tc.stdout, tc.stderr)
		}
	}
	var whole struct {
		Success bool           `json:"success"`
		Outputs map[string]any `json:"outputs"`
		Ran     int            `json:"nodes_run"`
	}
	out := run(t, dir, nil, "chain", "run", "greet.yaml", "name=ada", "--json", "-q").want(t, 0, "")
	err := json.Unmarshal([]byte(out.stdout), &whole)
	assert.That(t, err == nil && whole.Success && whole.Ran == 2 && len(whole.Outputs) == 2 && out.stderr == "",
		"--json: %v, %+v, %q", err, whole, out.stderr)
}

func TestChainCheckAndGraph(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"greet.yaml": greetChain, "broken.yaml": "nodes:\n- node_id: a\n  kind: " +
		"tool\n  nme: echo\n", "circle.json": `{"nodes":[{"node_id":"a","kind":"branch","condition":"a"}]}`})
	out := run(t, dir, nil, "chain", "check", "greet.yaml", "broken.yaml", "circle.json").want(t, 1,
		"2 of 3 files wrong")
	if out.stdout != "greet.yaml: ok, 2 nodes\n" || !strings.Contains(out.stderr, "broken.yaml:4: /nodes/0/nme: is "+
		"not known") || !strings.Contains(out.stderr, "circle.json: nodes wait for each other") {
		t.Errorf("%q, %q", out.stdout, out.stderr)
	}
	out = run(t, dir, nil, "chain", "graph", "greet.yaml").want(t, 0, "")
	assert.Equal(t, out.stdout, "flowchart TD\n  n0[\"join<br/>tool echo\"]\n  n1[\"end<br/>tool echo\"]\n  n0 --> n1\n", "Mermaid")
	run(t, dir, nil, "chain", "graph", "greet.yaml", "-o", "greet.dot").want(t, 0, "")
	text, err := os.ReadFile(filepath.Join(dir, "greet.dot"))
	assert.That(t, err == nil && strings.HasPrefix(string(text), "digraph chain {\n"), "DOT: %v, %.100s", err, text)
	run(t, dir, nil, "chain", "graph", "greet.yaml", "-o", "greet.svg").want(t, 2, "dot -Tsvg")
	if out = run(t, dir, nil, "chain", "graph", "greet.yaml", "--format", "dot").want(t, 0,
		""); out.stdout != string(text) {
		t.Errorf("to stdout: %.100s", out.stdout)
	}
	run(t, dir, nil, "chain", "graph", "broken.yaml").want(t, 1, "broken.yaml:4")
}

// TestChainJournal: other processes see a chain with a journal, decide its approvals, and resume it.
func TestChainJournal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"c.yaml": `
nodes:
- {node_id: a, kind: tool, name: echo, input: {text: one}}
- {node_id: go, kind: approve, message: "Go on?", timeout: 1, deps: [a]}
- {node_id: b, kind: tool, name: echo, input_map: {text: a.text}, deps: [go]}
`})
	run(t, dir, nil, "chain", "run", "c.yaml", "--resume").want(t, 2, "--resume needs --id")
	run(t, dir, nil, "chain", "run", "c.yaml", "--id", "x", "-q").want(t, 1, "nobody decided")
	out := run(t, dir, nil, "chain", "list").want(t, 0, "")
	assert.Contains(t, out.stdout, "\nx      failed  1 of 3 nodes done, waits for approval: Go on?")
	run(t, dir, nil, "chain", "run", "c.yaml", "--id", "x").want(t, 1, "has started and not ended")
	run(t, dir, nil, "chain", "show", "y").want(t, 1, "no journal of a chain")
	run(t, dir, nil, "chain", "resume", "x", "--resolve", "a").want(t, 2, "NODE=WHAT")
	run(t, dir, nil, "chain", "resume", "x", "--resolve", "a=run").want(t, 1, "not a node whose end is unknown")
	run(t, dir, nil, "chain", "approve", "x", "--node", "a").want(t, 1, "there are: go")
	run(t, dir, nil, "chain", "approve", "x", "--deny").want(t, 0, "resume x resumes it")
	run(t, dir, nil, "chain", "resume", "x", "-q").want(t, 1, "it was denied (person)")
	assert.Contains(t, run(t, dir, nil, "chain", "list").want(t, 0, "").stdout, " done, denied: Go on?\n")
	run(t, dir, nil, "chain", "approve", "x").want(t, 0, "is approved")
	assert.Contains(t, run(t, dir, nil, "chain", "resume", "x", "-q").want(t, 0, "").stdout, `"text": "one"`)
	run(t, dir, nil, "chain", "cancel", "x").want(t, 0, "no host runs x")
	run(t, dir, nil, "chain", "cancel", "x", "--forget").want(t, 0, "was removed")
	assert.Equal(t, run(t, dir, nil, "chain", "list", "--json").want(t, 0, "").stdout, "[]\n")
}

// TestFoldersAreApart: chains and checkpoints of one workspace are not those of another, although both share a
// state_dir.
func TestFoldersAreApart(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	files := map[string]string{
		"c.yaml":     "state_dir: " + state + "\ncheckpoints: true\n",
		"chain.yaml": "nodes:\n- {node_id: a, kind: tool, name: write_file, input: {path: f.txt, content: new}}\n",
		"f.txt":      "old",
	}
	one, other := chainDir(t, files), chainDir(t, files)
	run(t, one, nil, "-c", "c.yaml", "chain", "run", "chain.yaml", "--id", "x", "-q").want(t, 0, "")
	assert.That(t, run(t, other, nil, "-c", "c.yaml", "chain", "list").want(t, 0, "").stdout == "",
		"the chain of another folder is listed")
	run(t, other, nil, "-c", "c.yaml", "undo").want(t, 1, "no checkpoints of this workspace")
	assert.Contains(t, run(t, one, nil, "-c", "c.yaml", "chain", "list").want(t, 0, "").stdout, "\nx      done ")
	run(t, one, nil, "-c", "c.yaml", "undo").want(t, 0, "restored")
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(one, "f.txt")))(t)), "old")
}
