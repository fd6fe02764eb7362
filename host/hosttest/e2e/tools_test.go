package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// argumentTools is an executable plugin whose tool returns its arguments.
const argumentTools = `import json, sys
kinds = ["string", "integer", "number", "boolean", "array", "object", "any"]
tools = [{"name": "back", "description": "d", "input_parameters": [{"name": k, "type": k, "description": "d"} for k in kinds]}]
for line in sys.stdin:
    m = json.loads(line)
    reply = {"a2e": "1.0", "req_id": m["id"], "type": m["type"].replace("/req", "/resp")}
    if m["type"] == "shutdown":
        break
    elif m["type"] == "handshake/req":
        reply.update(ok=True, session_id="1", max_parallel=1, reason="", accepted_caps=[{"capability": "tools", "enabled": True, "metadata": {}}])
    elif m["type"] == "tool/list/req":
        reply["tools"] = tools
    elif m["type"] == "ping":
        reply.update(type="pong", uptime_seconds=1)
    elif m["type"] == "tool/call/req" and m["tool_name"] == "back":
        reply.update(created_at=1, data={"success": True, "tool_name": "back", "data": m["arguments"], "summary": None, "duration_ms": 0, "events": []})
    else:
        reply.update(type="error", code="unknown_tool", message="no")
    print(json.dumps(reply), flush=True)
`

// TestArguments: the words of a command line get the types that the tool's parameters have.
func TestArguments(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "tools.py"), []byte(argumentTools), 0o600))
	writeConfig(t, dir, "state_dir: state\nplugins:\n  - {name: tools, type: tools}\n  - {name: back, type: exec, "+
		"metadata: {command: [python3, tools.py], capabilities: [tools]}}\n")
	for _, c := range []struct {
		words []string
		code  int
		want  string // part of stdout without spaces, or of stderr
	}{
		{
			[]string{"string=123", "integer=5", "number=1.5e3", "boolean=true", "array=[1]", `object={"a":null}`, "any=7"},
			0,
			`{"string":"123","integer":5,"number":1500.0,"boolean":true,"array":[1],"object":{"a":null},"any":7}`,
		},
		{[]string{`string={"a":1}`, "any=text"}, 0, `{"string":"{\"a\":1}","any":"text"}`},
		{[]string{`string:="x"`, "any:=[true]"}, 0, `{"string":"x","any":[true]}`},
		{[]string{"array=a b", "array=3", "array:=3"}, 0, `{"array":["ab","3",3]}`},
		{[]string{"integer=five"}, 2, `integer takes a whole number, and "five" is not one`},
		{[]string{"integer=1.5"}, 1, "--args integer: must be of type integer"},
		{[]string{"boolean=yes"}, 2, "boolean takes true or false"},
		{[]string{"array=ls -la"}, 2, `array takes a list, and "ls -la" is one text; write array='["ls","-la"]', or array=ls array=-la`},
		{[]string{"object=[1]"}, 2, "object takes an object"},
		{[]string{"any:=five"}, 2, "what follows := must be JSON"},
		{[]string{"any=1", "any=2"}, 2, "any is given twice"},
		{[]string{"any"}, 2, "write key=value"},
		{[]string{"any=1", "--args", "{}"}, 2, "not both"},
		{[]string{"--timeout=0"}, 2, "--timeout=0 is out of range"},
	} {
		out := run(t, dir, nil, append([]string{"tools", "call", "back"}, c.words...)...)
		said := out.stderr
		if c.code == 0 {
			said = strings.Join(strings.Fields(out.stdout), "")
		}
		assert.That(t, out.code == c.code && strings.Contains(said, c.want),
			"%q: exit status %d, want %d and %s:\n%s%s", c.words, out.code, c.code, c.want, out.stdout, out.stderr)
	}
}

// TestWrongWords: a name that does not exist and a number out of range are errors that say what would be right.
func TestWrongWords(t *testing.T) {
	t.Parallel()
	dir := memories(t)
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"tools list --kind bulitin", `did you mean "builtin"?`, 2},
		{"tools list --tag filse", `did you mean "file"?`, 2},
		{"tools call echo text:=5", "--args text: must be of type string", 1},
		{"tools call read_file path=x limit=five", "limit takes a whole number", 2},
		{"tools call read_file pth=x", `there is no argument "pth"; did you mean "path"?`, 2},
		{"tools call write_file path=x", "write_file also needs:\n  content=STRING  ", 2},
		{"mcp call read_file", "read_file needs:\n  path=STRING  File to read", 2},
		{"tools call ecoh text=x", `did you mean "echo"?`, 1},
		{"skills list --tag x", `there is no tag "x"`, 2},
		{"skills show x", `there is no skill "x"`, 1},
		{"plan board x", "there are: none", 1},
		{"learn stats x", "there are: none", 1},
		{"mcp tools x", `there is no MCP server "x"`, 1},
		{"mcp approve x", `there is no MCP server "x"`, 1},
		{"state export --part memry", `did you mean "memory"?`, 2},
		{"memory list --agent w2", `did you mean "w1"?`, 1},
		{"memory forget --agent w2 --tag x", `did you mean "w1"?`, 1},
		{"memory list --limit=0", "1 or more", 2},
		{"memory search x --min-score=-1", "0 or more", 2},
		{"mcp approve x --wait=0", "above 0", 2},
		{"mcp list --wait=nan", "out of range", 2},
		{"chain run x --timeout=-1", "1 or more", 2},
		{"skills run x --timeout=0", "1 or more", 2},
		{"worker --max-tasks=0 -- cat", "1 or more", 2},
		{"dispatch x --workers=0 -- cat", "1 or more", 2},
		{"replay x --timeout=0", "above 0", 2},
		{"check x --audit y", "not both", 2},
		{"check --key-file x", "--key-file is for --audit", 2},
		{"trust x --list", "give no file", 2},
	} {
		if out := run(t, dir, nil, strings.Fields(c.args)...); out.code != c.code ||
			!strings.Contains(out.stderr, c.says) || out.stdout != "" {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s%s", c.args, out.code, c.code, c.says, out.stdout,
				out.stderr)
		}
	}
}

// TestTrialsAreNotCounted: calls that a person tries at the shell are not recorded for learning, except with
// --record.
func TestTrialsAreNotCounted(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	write := func(name, text string) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("chain.yaml", "nodes: [{id: a, kind: tool, name: echo, input_map: {text: input.text}}]\n")
	write(".a2e/skills/greet/SKILL.md", "---\nname: greet\ndescription: Says hello.\n---\nSay hello.\n")
	trials := [][]string{
		{"tools", "call", "echo", "text=1"},
		{"mcp", "call", "echo", "text=1"},
		{"chain", "run", "chain.yaml", `text:="x"`},
		{"skills", "run", "greet"},
	}
	for _, args := range trials {
		run(t, dir, nil, args...).want(t, 0, "")
	}
	if out := run(t, dir, nil, "learn", "stats", "--json"); strings.Contains(out.stdout, "component") {
		t.Errorf("counted: %s", out.stdout)
	}
	for _, args := range trials {
		run(t, dir, nil, append(args, "--record")...).want(t, 0, "")
	}
	out := run(t, dir, nil, "learn", "stats").want(t, 0, "").stdout
	for _, has := range []string{"echo", "greet", "chain"} {
		assert.Contains(t, out, has, "… was not counted")
	}
}

// TestListOfPluginsSaysWhatIsOff: a list of plugins switches off the plugins that it does not name, and commands say
// so. A mapping leaves them on.
func TestListOfPluginsSaysWhatIsOff(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	const off = "off, as the list under plugins does not name them: skill, toolkits, proc, env, memory, "
	writeFile(t, dir, "list.yaml", "plugins: [{name: tools, type: tools}]\n")
	writeFile(t, dir, "mapping.yaml", "plugins: {tools: {read_only: true}, env: false}\n")
	for args, code := range map[string]int{
		"tools list": 0, "tools call echo text=x": 0, "memory list": 3,
		"mcp list": 3, "skills check": 3,
	} {
		out := run(t, dir, nil, append([]string{"-c", "list.yaml"}, strings.Fields(args)...)...).want(t, code,
			"note: "+off)
		assert.That(t, strings.Count(out.stderr, "note: ") == 1 && !strings.Contains(out.stdout, "note"),
			"%s: %q, %q", args, out.stdout, out.stderr)
	}
	out := run(t, dir, nil, "-c", "list.yaml", "check").want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, "\n"+off), "check: %s", out.stdout)
	out = run(t, dir, nil, "-c", "list.yaml", "doctor", "--json")
	assert.That(t, strings.Contains(out.stdout, `"text": "off, as the list `), "doctor: %s", out.stdout)
	for _, args := range []string{"tools list", "memory list", "check"} {
		out := run(t, dir, nil, append([]string{"-c", "mapping.yaml"}, strings.Fields(args)...)...).want(t, 0, "")
		assert.That(t, !strings.Contains(out.stderr+out.stdout, "off, as"), "%s: %q", args, out.stderr)
	}
	if out := run(t, dir, nil, "-c", "mapping.yaml", "check"); strings.Contains(out.stdout, "plugin env:") ||
		!strings.Contains(out.stdout, "plugin memory:") {
		t.Errorf("check of a mapping: %s", out.stdout)
	}
}

// Tools that allowed_tools does not name are neither listed nor called, by a host, a command and a worker alike.
func TestAllowedTools(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "plugins: {tools: {allowed_tools: [echo, \"{list,read,glob}*\"], deny: [glob]}}\n")
	listed := run(t, dir, nil, "tools", "list").want(t, 0, "")
	listed.has(t, "echo", "read_file", "list_dir")
	assert.That(t, !strings.Contains(listed.stdout, "write_file") && !strings.Contains(listed.stdout, "glob "), "%s",
		listed.stdout)
	run(t, dir, nil, "tools", "call", "echo", "text=hi").want(t, 0, "").has(t, "hi")
	run(t, dir, nil, "tools", "call", "write_file", "path=x", "content=y").want(t, 1, "is not among allowed_tools "+
		"in the config")
	calls := greeting + "\n" + call("2", "write_file", `{"path":"x","content":"y"}`) + "\n" +
		call("3", "list_dir", `{"path":"."}`) + "\n"
	out := run(t, dir, []byte(calls), "serve").want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, "is not among allowed_tools") &&
		strings.Contains(out.stdout, `"a2e.yaml"`), "%s", out.stdout)
}

// TestNamesThatMatchNothing: a name in the config that matches no tool is an error where the tools are known before
// the start.
func TestNamesThatMatchNothing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for config, says := range map[string]string{
		"plugins:\n  tools:\n    deny: [echo, http_gett]\n":                                             `c.yaml:3:18: plugins.tools.deny[1]: "http_gett" matches no built-in tool and none of commands: did you mean "http_get"?`,
		"plugins: [{name: t, type: tools, metadata: {deny: [\"wrte_*\"]}}]":                             `c.yaml:1:52: plugins[0].metadata.deny[0]: "wrte_*" matches no`,
		"plugins: {tools: {allowed_tools: [echo, shell]}}":                                              `c.yaml:1:41: plugins.tools.allowed_tools[1]: "shell" matches no`,
		"plugins: {tools: {allowed_tools: [echo, \"read_*\"]}}":                                         "",
		"plugins: {env: {env: workspace, workspace: {tasks: ., allowed_tools: [read_fil]}}}":            `plugins.env.workspace.allowed_tools[0]: "read_fil" matches no`,
		"plugins: {env: {env: workspace, workspace: {tasks: ., deny: [read_fil]}}}":                     `plugins.env.workspace.deny[0]: "read_fil" matches no`,
		"plugins: {tools: {deny: [mine, \"{read,write}_*\"], commands: [{name: mine, command: [ls]}]}}": "",
	} {
		writeFile(t, dir, "c.yaml", config)
		code := 3
		if says == "" {
			code = 0
		}
		run(t, dir, nil, "-c", "c.yaml", "check").want(t, code, says)
	}
	// an untrusted file stops nothing, and has no effect
	writeFile(t, dir, "a2e.yaml", "plugins: {tools: {deny: [http_gett, echo]}}\n")
	out := run(t, dir, nil, "tools", "list").want(t, 0, "it asks for plugins.tools: `a2e trust`")
	assert.That(t, strings.Contains(out.stdout, "echo") && strings.Contains(out.stdout, "http_get"), "%v", out.stdout)
	out = run(t, dir, []byte(`{"type":"handshake/req","id":"1","agent_caps":["toolz"]}`+"\n"), "serve")
	if !strings.Contains(out.stdout, `"reason":"no_caps"`) || !strings.Contains(out.stderr, "toolz") ||
		!strings.Contains(out.stderr, `"available":["skill","tools",`) {
		t.Errorf("%s\n%s", out.stdout, out.stderr)
	}
	for _, want := range []string{`"unknown_caps":["toolz"]`, `"available_caps":["skill","tools",`} {
		assert.Contains(t, out.stdout, want, "the answer itself")
	}
	out = run(t, dir, []byte(`{"type":"handshake/req","id":"1","agent_caps":["toolz","tools","env_push"]}`+"\n"),
		"serve")
	assert.Contains(t, out.stdout, `"metadata":{"unknown_caps":["toolz"]}`, "beside one that is there")
	out = run(t, dir, []byte(`{"type":"handshake/req","id":"1","agent_caps":["tools","streaming"]}`+"\n"), "serve")
	assert.That(t, !strings.Contains(out.stdout, "unknown_caps"), "all were understood: %s", out.stdout)
}

// TestEveryCommandTellsOfAWrongOption: every command reports a wrong option of a plugin and ends. Once most of them
// waited forever for a host that had not started.
func TestEveryCommandTellsOfAWrongOption(t *testing.T) {
	dir := workDir(t)
	writeFile(t, dir, "c.yaml", "plugins:\n  - {name: tools, type: tools, metadata: {max_ouput: 1}}\n  - {name: "+
		"memory, type: memory, metadata: {semantic_limit: x}}\n  - {name: agents, type: multi_agent, metadata: "+
		"{workers: [{name: w, command: [cat]}]}}\n")
	writeFile(t, dir, "chain.yaml", "nodes: [{id: a, kind: tool, name: echo, input_map: {text: input.x}}]\n")
	writeFile(t, dir, "tasks.ndjson", strings.Repeat(`{"brief":"do"}`+"\n", 3))
	for _, args := range []string{
		"serve", "check", "tools list", "tools call echo text=x", "mcp list", "mcp tools x", "mcp call x", "mcp serve",
		"memory search x", "memory list", "memory forget --tag x",
		"plan board", "chain run chain.yaml", "skills run x", "worker", "dispatch tasks.ndjson",
		"dispatch tasks.ndjson -- cat",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			out := run(t, dir, nil, append([]string{"-c", "c.yaml"}, strings.Fields(args)...)...)
			assert.That(t, out.code == 3 && out.stdout == "" && strings.Count(out.stderr, "max_ouput") == 1,
				"exit status %d:\n%s%s", out.code, out.stdout, out.stderr)
		})
	}
}
