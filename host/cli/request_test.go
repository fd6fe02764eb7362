package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// a2e call sends any request: fields are read as the schema of the type wants them, the answer is printed
// whole, and a refusal is a failure.
func TestCall(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	for _, c := range []struct {
		line   string
		code   int
		stdout string // part of it
		stderr string
	}{
		{"ping", 0, `"type": "pong"`, ""},
		{"planning/plan/create name=5 columns=a columns=b --json", 0, `"columns":["a","b"]`, ""},
		{"planning/plan/list/req", 0, `"name": "5"`, ""},
		{`tool/call tool_name=echo arguments={"text":"hi"}`, 0, `"text": "hi"`, ""},
		{`tool/call --args {"tool_name":"echo","arguments":{"text":"hi"}} --json`, 0, `"data":{"text":"hi"}`, ""},
		{"planning/task/add plan_id=x title=y", 1, `"success": false`, `there is no plan "x"; planning/plan/list names those`},
		{"env/close episode_id=x", 1, "", `unknown_episode: unknown episode "x"; env/reset/req starts one`},
		{"env/close", 2, "", "env/close/req needs:\n  episode_id=STRING "},
		{"tool/call tool_name=echo arguments=x", 2, "", `arguments takes an object, and "x" is not one`},
		{"tool/list qury=x", 2, "", `there is no field "qury"; did you mean "query"?`},
		{"tool/lst", 2, "", `there is no request "tool/lst"; did you mean "tool/list"`},
		{"shutdown", 2, "", `there is no request "shutdown"`},
		{"tool/list --args [", 2, "", "--args: "},
	} {
		out := run(t, dir, nil, append([]string{"call"}, strings.Fields(c.line)...)...).want(t, c.code, c.stderr)
		assert.That(t, strings.Contains(out.stdout, c.stdout) && (c.stdout == "") == (out.stdout == ""), "a2e call %s prints %s", c.line, out.stdout)
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	run(t, dir, nil, "call", "planning/plan/list").want(t, 3, "no plugin of the config provides planning")
}

// The host of a command that asks for one answer logs where a flag says so, and else not: the command itself says
// what concerns its answer.
func TestLogOfACommand(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	writeConfig(t, dir, stateConfig+"mcpServers:\n  gone: {command: no-such-program-a2e}\n")
	call := []string{"call", "tool/list"} // which waits until the server was tried
	const says = "no-such-program-a2e"
	quiet := run(t, dir, nil, call...).want(t, 0, "")
	assert.That(t, !strings.Contains(quiet.stderr, says), "without a flag: %s", quiet.stderr)
	run(t, dir, nil, append(call, "--log-level", "warn")...).want(t, 0, says)
	out := run(t, dir, nil, append(call, "--log-file", "log.txt")...).want(t, 0, "")
	log := string(must.Get(os.ReadFile(filepath.Join(dir, "log.txt")))(t))
	logged := !strings.Contains(out.stderr, says) && strings.Contains(log, says)
	assert.That(t, logged, "the log: %s, stderr: %s", log, out.stderr)
	out = run(t, dir, nil, append(call, "--log-level", "error")...).want(t, 0, "")
	assert.That(t, !strings.Contains(out.stderr, says), "at the level error: %s", out.stderr)
}

// version --json is for programs: the module, the protocol, Go and the machine.
func TestVersionAsJSON(t *testing.T) {
	t.Parallel()
	var v map[string]string
	must.OK(t, json.Unmarshal([]byte(run(t, workDir(t), nil, "version", "--json").want(t, 0, "").stdout), &v))
	assert.That(t, len(v) == 5 && v["version"] != "" && v["protocol"] == protocol.Version && v["os"] == runtime.GOOS && v["arch"] == runtime.GOARCH, "%v", v)
}
