package e2e_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestCall: `a2e call` sends any request. It reads the fields by the schema of the type, prints the whole answer, and
// fails if the request is refused.
func TestCall(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	for _, c := range []struct {
		line   string
		code   int
		stdout string // part of stdout
		stderr string
	}{
		{"ping", 0, `"type": "pong"`, ""},
		{"planning/plan/create name=5 columns=a columns=b --json", 0, `"columns":["a","b"]`, ""},
		{"planning/plan/list/req", 0, `"name": "5"`, ""},
		{`tool/call tool_name=echo arguments={"text":"hi"}`, 0, `"text": "hi"`, ""},
		{`tool/call --args {"tool_name":"echo","arguments":{"text":"hi"}} --json`, 0, `"data":{"text":"hi"}`, ""},
		{
			"planning/task/add plan_id=x title=y", 1, `"success": false`,
			`there is no plan "x"; planning/plan/list names those`,
		},
		{"env/close episode_id=x", 1, "", `unknown_episode: unknown episode "x"; env/reset/req starts one`},
		{"env/close", 2, "", "env/close/req needs:\n  episode_id=STRING "},
		{"tool/call tool_name=echo arguments=x", 2, "", `arguments takes an object, and "x" is not one`},
		{"tool/list qury=x", 2, "", `there is no field "qury"; did you mean "query"?`},
		{"tool/lst", 2, "", `there is no request "tool/lst"; did you mean "tool/list"`},
		{"shutdown", 2, "", `there is no request "shutdown"`},
		{"tool/list --args [", 2, "", "--args: "},
	} {
		out := run(t, dir, nil, append([]string{"call"}, strings.Fields(c.line)...)...).want(t, c.code, c.stderr)
		assert.That(t, strings.Contains(out.stdout, c.stdout) && (c.stdout == "") == (out.stdout == ""),
			"a2e call %s prints %s", c.line, out.stdout)
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	run(t, dir, nil, "call", "planning/plan/list").want(t, 3, "no plugin of the config provides planning")
}

// TestLogOfACommand: the host of a command that needs one answer logs only if a flag says so. The command itself says
// what concerns its answer, such as that a list is not complete.
func TestLogOfACommand(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	writeConfig(t, dir, stateConfig+"mcpServers:\n  gone: {command: no-such-program-a2e}\n")
	const lacks = "the MCP server gone is not connected, so its tools and resources are missing"
	const logged = `{"level":"warn"`
	call := func(fields string, code int, says string, flags ...string) outcome {
		args := append([]string{"call"}, strings.Fields(fields)...)
		return run(t, dir, nil, append(args, flags...)...).want(t, code, says)
	}
	for _, list := range []string{"tool/list", "mcp/resource/list", "mcp/prompt/list server_id=gone"} {
		out := call(list, 1, lacks)
		quiet := out.stdout != "" && !strings.Contains(out.stderr, logged)
		assert.That(t, quiet, "%s: %s%s", list, out.stdout, out.stderr)
	}
	for _, other := range []string{"tool/list filter_kind=builtin", "planning/plan/list"} {
		assert.Equal(t, call(other, 0, "").stderr, "", other)
	}
	call("tool/list", 1, logged, "--log-level", "warn")
	out := call("tool/list", 1, lacks, "--log-level", "error")
	assert.That(t, !strings.Contains(out.stderr, logged), "at the level error: %s", out.stderr)
	out = call("tool/list", 1, lacks, "--log-file", "log.txt")
	assert.That(t, !strings.Contains(out.stderr, logged), "with a file: %s", out.stderr)
	assert.Contains(t, textOf(t, dir, "log.txt"), logged)
}

// TestVersionAsJSON: version --json has the versions of a2e, the protocol and Go, and the machine.
func TestVersionAsJSON(t *testing.T) {
	t.Parallel()
	var v map[string]string
	must.OK(t, json.Unmarshal([]byte(run(t, workDir(t), nil, "version", "--json").want(t, 0, "").stdout), &v))
	assert.That(t, len(v) == 5 && v["version"] != "" && v["protocol"] == protocol.Version && v["os"] == runtime.GOOS &&
		v["arch"] == runtime.GOARCH, "%v", v)
}
