package cli_test

import (
	"strings"
	"testing"
)

// A wrong option of a plugin once had every command but check and serve wait for ever for
// a host that had not begun.
func TestEveryCommandTellsOfAWrongOption(t *testing.T) {
	dir := workDir(t)
	writeFile(t, dir, "c.yaml", "plugins:\n  - {name: tools, type: tools, metadata: {max_ouput: 1}}\n  - {name: memory, type: memory, metadata: {semantic_limit: x}}\n  - {name: agents, type: multi_agent, metadata: {workers: [{name: w, command: [cat]}]}}\n")
	writeFile(t, dir, "chain.yaml", "nodes: [{id: a, kind: tool, name: echo, input_map: {text: input.x}}]\n")
	writeFile(t, dir, "tasks.ndjson", strings.Repeat(`{"brief":"do"}`+"\n", 3))
	for _, args := range []string{
		"serve", "check", "tools list", "tools call echo text=x", "mcp list", "mcp tools x", "mcp call x", "mcp serve", "memory search x", "memory list", "memory forget --tag x",
		"plan board", "chain run chain.yaml", "skills run x", "worker", "dispatch tasks.ndjson", "dispatch tasks.ndjson -- cat",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			out := run(t, dir, nil, append([]string{"-c", "c.yaml"}, strings.Fields(args)...)...)
			if out.code != 3 || out.stdout != "" || strings.Count(out.stderr, "max_ouput") != 1 {
				t.Errorf("exit status %d:\n%s%s", out.code, out.stdout, out.stderr)
			}
		})
	}
}
