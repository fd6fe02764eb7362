package cli_test

import (
	"strings"
	"testing"
)

// A list of plugins switches off what it does not name; who runs a command hears of it. A
// mapping leaves it on.
func TestListOfPluginsSaysWhatIsOff(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	const off = "off, as the list under plugins does not name them: skill, toolkits, proc, env, memory, "
	writeFile(t, dir, "list.yaml", "plugins: [{name: tools, type: tools}]\n")
	writeFile(t, dir, "mapping.yaml", "plugins: {tools: {read_only: true}, env: false}\n")
	for args, code := range map[string]int{"tools list": 0, "tools call echo text=x": 0, "memory list": 3, "mcp list": 3, "skills check": 3} {
		out := run(t, dir, nil, append([]string{"-c", "list.yaml"}, strings.Fields(args)...)...).want(t, code, "note: "+off)
		if strings.Count(out.stderr, "note: ") != 1 || strings.Contains(out.stdout, "note") {
			t.Errorf("%s: %q, %q", args, out.stdout, out.stderr)
		}
	}
	if out := run(t, dir, nil, "-c", "list.yaml", "check").want(t, 0, ""); !strings.Contains(out.stdout, "\n"+off) {
		t.Errorf("check: %s", out.stdout)
	}
	if out := run(t, dir, nil, "-c", "list.yaml", "doctor", "--json"); !strings.Contains(out.stdout, `"off": [`) {
		t.Errorf("doctor: %s", out.stdout)
	}
	for _, args := range []string{"tools list", "memory list", "check"} {
		out := run(t, dir, nil, append([]string{"-c", "mapping.yaml"}, strings.Fields(args)...)...).want(t, 0, "")
		if strings.Contains(out.stderr+out.stdout, "off, as") {
			t.Errorf("%s: %q", args, out.stderr)
		}
	}
	if out := run(t, dir, nil, "-c", "mapping.yaml", "check"); strings.Contains(out.stdout, "plugin env:") || !strings.Contains(out.stdout, "plugin memory:") {
		t.Errorf("check of a mapping: %s", out.stdout)
	}
}

// A name that is that of no tool is an error where the tools are known before the start.
func TestNamesThatMatchNothing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for config, says := range map[string]string{
		"plugins:\n  tools:\n    deny: [echo, http_gett]\n":                                             `c.yaml:3:18: plugins.tools.deny[1]: "http_gett" matches no built-in tool and none of commands: did you mean "http_get"?`,
		"plugins: [{name: t, type: tools, metadata: {deny: [\"wrte_*\"]}}]":                             `c.yaml:1:52: plugins[0].metadata.deny[0]: "wrte_*" matches no`,
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
	// an untrusted file stops nothing, and what it denies beyond the typing error counts
	writeFile(t, dir, "a2e.yaml", "plugins: {tools: {deny: [http_gett, echo]}}\n")
	out := run(t, dir, nil, "tools", "list").want(t, 0, "left out: plugins.tools.deny")
	if strings.Contains(out.stdout, "echo") || !strings.Contains(out.stdout, "http_get") {
		t.Error(out.stdout)
	}
	out = run(t, dir, []byte(`{"type":"handshake/req","id":"1","agent_caps":["toolz"]}`+"\n"), "serve")
	if !strings.Contains(out.stdout, `"reason":"no_caps"`) || !strings.Contains(out.stderr, "toolz") || !strings.Contains(out.stderr, `"available":["skill","tools",`) {
		t.Errorf("%s\n%s", out.stdout, out.stderr)
	}
}
