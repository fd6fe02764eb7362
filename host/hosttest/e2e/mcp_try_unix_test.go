//go:build unix

package e2e_test

import (
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
)

// TestMCPAddTries: `mcp add` tries the server, and prints what the server offers, or in one line why it does not
// work.
func TestMCPAddTries(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for name, text := range map[string]string{
		"good.sh": shMCP, "noisy.sh": "echo Starting on stdio\nexit 0\n",
		"key.sh":   "printf 'booting\\nError: A2E_TEST_KEY is required\\nUsage: key [options]\\n' >&2\nexit 1\n",
		"trace.py": "def f():\n    import no_such_module_a2e\nf()\n",
		"odd.sh": `TOOLS='{"name":"add","inputSchema":{"type":"object"}},{"name":"","inputSchema":{"type":"object"}}'` +
			shMCP,
	} {
		writeFile(t, dir, name, text)
	}
	add := func(args string) outcome {
		t.Helper()
		return run(t, dir, nil, append([]string{"mcp", "add"}, strings.Fields(args)...)...)
	}
	out := add("good -- sh good.sh").want(t, 0, "the file is new, and trusted as it is")
	assert.Equal(t, out.stdout,
		"good works: tiny server 1.2\n  1 tool: add\n  1 resource: the doc\n  2 prompts: greet, part\n")
	run(t, dir, nil, "mcp", "list").want(t, 0, "").has(t, "good  ")
	add("odd -- sh odd.sh").want(t, 0, "").has(t, "  1 tool: add\n", `  withheld: "" has `)
	for _, c := range []struct{ args, says string }{
		{"gone -- no-such-program-a2e", `there is no program "no-such-program-a2e"`},
		{"file -- python3 gone.py", "gone.py, which it runs, does not exist"},
		{"noisy -- sh noisy.sh", `exit status 0; its stdout has a line that is not an MCP message: "Starting on stdio"`},
		{"key -- sh key.sh", "exit status 1; its stderr says: Error: A2E_TEST_KEY is required\n"},
		{"trace -- python3 trace.py", "its stderr says: ModuleNotFoundError: No module named 'no_such_module_a2e'\n"},
		{"mute --timeout 0.3 -- sleep 60", "it did not answer within 300ms"},
		{"web --url http://127.0.0.1:1/mcp", "connection refused"},
	} {
		name, _, _ := strings.Cut(c.args, " ")
		out := add(c.args).want(t, 0, "added: "+name).want(t, 0, c.says).
			want(t, 0, "warning: "+name+" does not work yet: ")
		assert.Equal(t, out.stdout, "")
		assert.Equal(t, strings.Count(out.stderr, "\n"), 3, "lines of %s", out.stderr)
	}
	out = add("later --no-try -- sh noisy.sh").want(t, 0, "added: later")
	assert.That(t, !strings.Contains(out.stderr, "warning"), "%s", out.stderr)
	add("unset --env A2E_TEST_UNSET -- sh good.sh").want(t, 0, "the variable A2E_TEST_UNSET is not set").
		want(t, 0, "until then the server is left out")

	writeFile(t, dir, ".mcp.json", "{}\n") // a file of somebody else
	add("good -- sh good.sh").want(t, 0, "next: a2e trust").has(t, "good works: tiny server 1.2\n")
}
