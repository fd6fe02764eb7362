package e2e_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// addFiles copies the files of folders of testdata into a folder, which it returns.
func addFiles(t *testing.T, dir string, folders ...string) string {
	t.Helper()
	for _, folder := range folders {
		for _, file := range must.Get(filepath.Glob(filepath.Join(root, "testdata", folder, "*.*")))(t) {
			must.OK(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), must.Get(os.ReadFile(file))(t), 0o600))
		}
	}
	return dir
}

// TestClients: the test program of each client passes: a thousand requests at once, large and odd texts, events,
// errors, cancels, time limits, a host that is killed, one that refuses, one that asks, and the end.
func TestClients(t *testing.T) {
	t.Parallel()
	for language, file := range map[string]string{
		"python": "try.py", "typescript": "try.ts", "go": "try.go",
		"bash": "try.sh",
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			dir := addFiles(t, workDir(t), "clients")
			must.OK(t, os.WriteFile(filepath.Join(dir, "token.yaml"), []byte("auth_token: a-right-one\n"), 0o600))
			must.OK(t, os.WriteFile(filepath.Join(dir, "asks.yaml"), []byte("mcpServers: {asks: {command: python3, "+
				"args: [asks.py]}}\n"), 0o600))
			cmd := runner(t, dir, file)
			cmd.Args = append(cmd.Args, "./a2e")
			out, err := cmd.CombinedOutput()
			assert.That(t, err == nil && strings.Contains(string(out), "hello from "+language), "%v\n%s", err, out)
		})
	}
}

// TestRecipes: each recipe has a model call tools of the host in the workspace, and sends it the results and errors.
func TestRecipes(t *testing.T) {
	t.Parallel()
	recipes := must.Get(filepath.Glob(filepath.Join(root, "testdata/recipes/*_*.*")))(t)
	assert.Equal(t, len(recipes), 5, "recipes")
	for _, recipe := range recipes {
		file := filepath.Base(recipe)
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dir := addFiles(t, workDir(t), "clients", "recipes")
			model := llm.New(t,
				llm.Calls(llm.Call{
					ID: "one", Name: "write_file",
					Arguments: `{"path":"haiku.txt","content":"bytes flow\n"}`,
				}).Used(1, 1),
				llm.Calls(llm.Call{ID: "two", Name: "read_file", Arguments: `{"path":"no such file"}`}).Used(1, 1),
				llm.Text("It is written.").Used(1, 1))
			cmd := command(t, dir, filepath.Join(tools(t, "recipes/venv"), "bin/python3"), file, "Write a haiku.")
			if filepath.Ext(file) == ".mjs" {
				must.OK(t, os.Symlink(tools(t, "recipes/node_modules"), filepath.Join(dir, "node_modules")))
				cmd = command(t, dir, "node", file, "Write a haiku.")
			}
			cmd.Env = append(cmd.Env, "OPENAI_BASE_URL="+model.URL, "OPENAI_API_KEY=none", "NO_PROXY=*",
				"LANGSMITH_TRACING=false")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr // a loaded machine's host warns here that it ended late
			out, err := cmd.Output()
			must.That(t, err == nil && strings.HasSuffix(string(out), "It is written.\n"), "%v\n%s\n%s", err, out,
				stderr.String())
			written := must.Get(os.ReadFile(filepath.Join(dir, "haiku.txt")))(t)
			assert.Equal(t, string(written), "bytes flow\n", "in the workspace")
			asked := model.Requests()
			must.Equal(t, len(asked), 3, "rounds")
			for _, tool := range []string{"read_file", "write_file", "run_command", "grep"} {
				assert.That(t, strings.Contains(strings.Join(asked[0].Tools, " "), tool),
					"the model is not told of %s: %v", tool, asked[0].Tools)
			}
			assert.Contains(t, asked[1].Last("tool"), `11`, "the result of write_file") // the number of bytes
			assert.Contains(t, asked[2].Last("tool"), "no such file", "the error of read_file")
		})
	}
}

// tools returns the folder of packages that `make tools` has installed.
func tools(t *testing.T, folder string) string {
	t.Helper()
	path := must.Get(filepath.Abs(filepath.Join(root, "testdata", folder)))(t)
	_, err := os.Stat(path)
	must.That(t, err == nil, "%v: make tools installs it", err)
	return path
}

// oddServer is an MCP server with tools that no API accepts unchanged.
const oddServer = `import json, sys
tools = [
    {"name": "x" * 80, "description": "d" * 3000, "inputSchema": {"type": "object", "properties": {"a": {"type": "array"}}}},
    {"name": "x" * 81, "inputSchema": {"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "array", "prefixItems": [{}], "items": False}}}},
    {"name": "refs", "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"$ref": "#/definitions/d"}}, "definitions": {"d": {"oneOf": [{"type": "string"}]}}}},
    {"name": "brackets", "inputSchema": {"type": "object", "properties": {"filter[a]": {"type": "string"}}}},
]
for line in sys.stdin:
    m = json.loads(line)
    result = {"initialize": {"protocolVersion": "2025-06-18", "serverInfo": {"name": "odd", "version": "1"}, "capabilities": {"tools": {}}}, "tools/list": {"tools": tools}}.get(m.get("method"), {})
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
`

// TestToolsExport: the exported tools, among them those of an MCP server and a command of the config, fit the types
// of the vendors' own libraries, and each name leads back to its tool.
func TestToolsExport(t *testing.T) {
	t.Parallel()
	dir := addFiles(t, workDir(t), "recipes")
	must.OK(t, os.WriteFile(filepath.Join(dir, "odd.py"), []byte(oddServer), 0o600))
	writeConfig(t, dir, `mcpServers: {odd: {command: python3, args: [odd.py]}}
plugins: {tools: {commands: [{name: greet, description: Says hello., command: [echo, hi]}]}}
`)
	export := func(args ...string) (string, string) {
		cmd := command(t, dir, "./a2e", append([]string{"tools", "export", "--format"}, args...)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		must.That(t, err == nil, "%v: %v\n%s", args, err, stderr.String())
		notes := slices.DeleteFunc(slices.Collect(strings.Lines(stderr.String())), func(line string) bool {
			return strings.HasPrefix(line, "waiting for MCP servers: ") // on a slow machine
		})
		return string(out), strings.Join(notes, "")
	}
	all := map[string]json.RawMessage{}
	for format, said := range map[string][]string{
		"openai":     {"changed 2 names"},
		"anthropic":  {"changed 2 names", `odd__brackets is left out: this API takes no parameter called "filter[a]"`},
		"google":     {"changed 2 names"},
		"mcp":        nil,
		"jsonschema": nil,
	} {
		out, notes := export(format)
		for _, part := range said {
			assert.Contains(t, notes, part, "%s", format)
		}
		assert.That(t, said != nil || notes == "", "%s: %s", format, notes)
		all[format] = json.RawMessage(out)
	}
	check := command(t, dir, filepath.Join(tools(t, "recipes/venv"), "bin/python3"), "check.py")
	check.Stdin = bytes.NewReader(must.Get(json.Marshal(all))(t))
	verdict, err := check.CombinedOutput()
	assert.That(t, err == nil && string(verdict) == "all fit\n", "%v\n%s", err, verdict)
	out, notes := export("openai", "--map", "--strict", "greet", "odd__"+strings.Repeat("x", 81),
		"odd__"+strings.Repeat("x", 80), "greet", "write_file")
	var mapped struct {
		Tools []struct {
			Function struct {
				Name   string
				Strict bool
			}
		}
		Names map[string]string
	}
	must.OK(t, json.Unmarshal([]byte(out), &mapped))
	must.That(t, len(mapped.Tools) == 4 && len(mapped.Names) == 4 && notes == "", "%s%s", out, notes)
	for i, want := range []string{
		"greet", "odd__" + strings.Repeat("x", 81), "odd__" + strings.Repeat("x", 80),
		"write_file",
	} {
		f := mapped.Tools[i].Function
		assert.That(t, mapped.Names[f.Name] == want && len(f.Name) <= 64 && f.Strict == (i == 0), "%d: %+v of %s", i, f,
			want)
	}
	for want, args := range map[string][]string{
		`did you mean "write_file"`: {"mcp", "writefile"}, "must be one of": {"json"}, "--strict is for --format " +
			"openai": {"mcp", "--strict"},
	} {
		out, err := command(t, dir, "./a2e", append([]string{"tools", "export", "--format"},
			args...)...).CombinedOutput()
		assert.That(t, exitCode(err) == 2 && strings.Contains(string(out), want), "%v: %v\n%s", args, err, out)
	}
}
