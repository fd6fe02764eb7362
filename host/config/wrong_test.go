package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const secret = "hunter2"

// wrongFiles returns wrong files by name, each with the full text of its error. FILE in it stands for the path.
func wrongFiles() map[string]struct{ content, want string } {
	types := "tools, env, proc, mcp, exec, skill, toolkits, memory, learning, chains, multi_agent, planning"
	const hasType = "; options are indented below their plugin, and a plugin of another name gives its type among " +
		"its options"
	const pluginForms = "a mapping such as {proc: {max_procs: 3}, env: false}, or a list of {name: …, type: …}"
	variableHint := "a variable is written ${NAME} or ${NAME:-default}, without one inside the other; $${ stands for ${"
	return map[string]struct{ content, want string }{
		"misspelt key": {
			"host_id: x\nmax_paralel: 3",
			`FILE:2:1: unknown key "max_paralel" in the file: did you mean "max_parallel"?`,
		},
		"other case and dash": {
			"Auth-Token: hunter2",
			`FILE:1:1: unknown key "Auth-Token" in the file: did you mean "auth_token"?`,
		},
		"nested misspelt key": {
			"audit:\n  session_id_sorce: uuid",
			`FILE:2:3: unknown key "session_id_sorce" in audit: did you mean "session_id_source"?`,
		},
		"key like nothing": {
			"fleet: {colour: red}",
			`FILE:1:9: unknown key "colour" in fleet: known are agent_id, model, model_tier, context_window, announce, max_tasks, isolation, require_clean, reply_url, answer_within, reply_token`,
		},
		"token as a key": {
			"auth token = hunter2: x",
			`FILE:1:1: unknown key (not shown: it does not look like a name) in the file: known are host_id, auth_token, auth, workspace, state_dir, state, max_parallel, events, limits, audit, checkpoints, store, http, fleet, groups, sandbox, children, plugins, mcpServers`,
		},
		"token run together": {
			"limits: {" + strings.Repeat("k", 41) + ": 1}",
			`FILE:1:10: unknown key (not shown: it does not look like a name) in limits: known are max_line_bytes, max_queue, max_queue_bytes, max_output_bytes`,
		},
		"key twice": {
			"host_id: a\nworkspace: .\nhost_id: b",
			`FILE:3:1: the key "host_id" appears twice, first in line 1: keep one`,
		},
		"nested key twice": {
			"audit: {path: a, path: b}",
			`FILE:1:18: the key "path" appears twice, first in line 1: keep one`,
		},
		"key twice, ignored one": {
			"server: {}\nserver: {}",
			`FILE:2:1: the key "server" appears twice, first in line 1: keep one`,
		},
		"text for a number": {
			"max_parallel: four",
			`FILE:1:15: max_parallel must be a whole number, not a string`,
		},
		"number in quotes": {
			`max_parallel: "4"`,
			`FILE:1:15: max_parallel must be a whole number, without quotes`,
		},
		"fraction": {
			"max_parallel: 1.5",
			`FILE:1:15: max_parallel must be a whole number, not a fraction`,
		},
		"number too low":  {"max_parallel: 0", `FILE:1:15: max_parallel must be between 1 and 1024`},
		"number too high": {"max_parallel: 1025", `FILE:1:15: max_parallel must be between 1 and 1024`},
		"number beyond 64 bits": {
			"max_parallel: 99999999999999999999",
			`FILE:1:15: max_parallel: the number is too large`,
		},
		"no lower bound kept": {"fleet: {context_window: -1}", `FILE:1:25: fleet.context_window must be at least 0`},
		"limit too small": {"limits: {max_line_bytes: 10, max_queue: 0}", "FILE:1:26: limits.max_line_bytes " +
			"must be between 1024 and 1073741824\nFILE:1:41: limits.max_queue must be between 1 and 16777216"},
		"list for a text":   {"host_id: [a]", `FILE:1:10: host_id must be a string, not a list`},
		"number for a text": {"host_id: 0123", `FILE:1:10: host_id must be a string in quotes, not a number`},
		"boolean for a text": {
			"workspace: true",
			`FILE:1:12: workspace must be a string in quotes, not true or false`,
		},
		"number for a token": {
			"auth_token: 12345",
			`FILE:1:13: auth_token must be a string in quotes, not a number`,
		},
		"list for a token":      {"auth_token: [hunter2]", `FILE:1:13: auth_token must be a string, not a list`},
		"agent without a token": {"auth: [{agent_id: a}]", `FILE:1:8: auth[0] needs the key "token"`},
		"token without an agent": {
			"auth: [{token: hunter2, agent_id: ''}]",
			`FILE:1:8: auth[0].agent_id must be a name of 1 to 1024 bytes`,
		},
		"empty token": {"auth: [{token: '', agent_id: a}]", `FILE:1:16: auth[0].token must not be empty`},
		"one token, two agents": {"auth: [{token: hunter2, agent_id: a}, {token: x, agent_id: a}, {token: hunter2, " +
			"agent_id: b}]", `FILE:1:64: auth[2].token is the same as that of auth[0]; each agent needs its own`},
		"token of all and one": {
			"auth_token: hunter2\nauth: [{token: hunter2, agent_id: a}]",
			`FILE:2:8: auth[0].token is the same as that of auth_token; each agent needs its own`,
		},
		"group of nothing": {
			"groups:\n  find: []",
			`FILE:2:9: groups.find has 0 tools; it should have between 1 and 256`,
		},
		"group that is a phrase": {
			"groups: {find it: [a]}",
			`FILE:1:19: groups: "find it" is not a valid group name; write 1 to 128 bytes without spaces`,
		},
		"tool in two groups": {
			"groups: {x: [a, b], y: [a]}",
			`FILE:1:24: groups.y: the tool "a" is in groups.x already; a tool is in one group at most`,
		},
		"tool named as a group": {
			"groups: {x: [y], y: [a]}",
			`FILE:1:13: groups.x: "y" is the name of a group; a group has tools only, whose names are others`,
		},
		"number in a group": {
			"groups: {x: [1]}",
			`FILE:1:14: groups.x[0] must be a string in quotes, not a number`,
		},
		"group not to be seen": {
			"groups: {\"x\\u202e\": [a]}",
			`FILE:1:21: groups: "x\u202e" is not a valid group name; write 1 to 128 bytes without spaces`,
		},
		"text for a group": {
			"groups: {x: a}",
			`FILE:1:13: groups.x must be a list, such as [a, b], not a string`,
		},
		"text for a boolean": {
			"audit: {enabled: maybe}",
			`FILE:1:18: audit.enabled must be true or false, not a string`,
		},
		"number for a boolean": {
			"audit: {enabled: 1}",
			`FILE:1:18: audit.enabled must be true or false, not a number`,
		},
		"text for a mapping": {
			"limits: hunter2",
			`FILE:1:9: limits must be a mapping, such as {key: value}, not a string`,
		},
		"number for a switch": {
			"checkpoints: 5",
			`FILE:1:14: checkpoints must be true, false or a mapping, such as {key: value}, not a number`,
		},
		"too few checkpoints": {
			"checkpoints: {max_count: 1}",
			`FILE:1:26: checkpoints.max_count must be between 2 and 100000`,
		},
		"boolean for a section": {"audit: off", `FILE:1:8: audit must be a mapping, such as {key: value}, not a string`},
		"text for plugins":      {"plugins: hunter2", `FILE:1:10: plugins must be ` + pluginForms + `, not a string`},
		"misspelt type": {
			"plugins:\n  memroy: {}",
			`FILE:2:3: plugins.memroy: unknown plugin type "memroy": did you mean "memory"? known are ` + types +
				hasType,
		},
		"token as a type": {
			"plugins: {hunter2 x: true}",
			`FILE:1:11: plugins.…: unknown plugin type (not shown: it does not look like a name): known are ` + types +
				hasType,
		},
		"misspelt type inside": {
			"plugins: {a: {type: exce}}",
			`FILE:1:21: plugins.a.type: unknown plugin type "exce": did you mean "exec"? known are ` + types,
		},
		"type under another": {
			"plugins: {env: {type: proc}}",
			`FILE:1:23: plugins.env.type: env is a type itself; a plugin of type proc needs another name`,
		},
		"type under two names": {
			"plugins:\n  procs: {}\n  proc: {}",
			`FILE:3:3: the plugin name "proc" appears twice, first in line 2: names must be unique`,
		},
		"number for options": {
			"plugins: {proc: 3}",
			`FILE:1:17: plugins.proc must be a mapping of options, or true or false, not a number`,
		},
		"list for options": {
			"plugins: {proc: [3]}",
			`FILE:1:17: plugins.proc must be a mapping of options, or true or false, not a list`,
		},
		"metadata in a mapping": {
			"plugins: {proc: {metadata: {max_procs: 3}}}",
			`FILE:1:11: plugins.proc.metadata: in a mapping of plugins the options go directly under the name`,
		},
		"priority in a mapping": {
			"plugins: {proc: {priority: high}}",
			`FILE:1:28: plugins.proc.priority must be a whole number, not a string`,
		},
		"servers in two places": {
			"mcpServers: {a: {command: x}}\nplugins: {mcp: {mcpServers: {}}}",
			`FILE:1:13: mcpServers stands here and in the options of the plugin "mcp": keep one`,
		},
		"file is a list": {"- hunter2", `FILE:1:1: the file must be a mapping, such as max_parallel: 4 (a space follows the colon), not a list`},
		"file is a text": {
			"auth_token hunter2",
			`FILE:1:1: the file must be a mapping, such as max_parallel: 4 (a space follows the colon), not a string`,
		},
		"no such event name": {"events: all", `FILE:1:9: events must be one of invoke, namespaced`},
		"no such sandbox":    {"sandbox: hunter2", `FILE:1:10: sandbox must be one of required, best_effort, off`},
		"sandbox is a bool":  {"sandbox: true", `FILE:1:10: sandbox must be a string in quotes, not true or false`},
		"children is a list": {
			"children: [a]",
			`FILE:1:11: children must be a mapping, such as {key: value}, not a list`,
		},
		"misspelt child bound": {
			"children:\n  memory_byte: 5",
			`FILE:2:3: unknown key "memory_byte" in children: did you mean "memory_bytes"?`,
		},
		"child bound below -1": {"children: {processes: -2}", `FILE:1:23: children.processes must be at least -1`},
		"child bound as a text": {
			"children: {cpu_seconds: soon}",
			`FILE:1:25: children.cpu_seconds must be a number of seconds, or a duration such as 1m30s, not a string`,
		},
		"too little to start": {
			"children: {memory_bytes: 512, open_files: 3}",
			"FILE:1:26: children.memory_bytes must be 67108864 or more, 0 for the default, or -1 for no " +
				"bound\nFILE:1:43: children.open_files must be 16 or more, 0 for the default, or -1 for no bound",
		},
		"children read nothing": {
			"children:\n  read:\n    - .\n    - gone/x\n    - \"\"",
			"FILE:4:7: children.read[1]: gone/x cannot be read: no such file or directory\nFILE:5:7: " +
				"children.read[2] must not be empty",
		},
		"read from a token": {
			"children: {read: [\"/${TOKEN}\"]}",
			`FILE:1:19: children.read[0]: /${TOKEN} cannot be read: no such file or directory`,
		},
		"read is a text": {
			"children: {read: /usr}",
			`FILE:1:18: children.read must be a list, such as [a, b], not a string`,
		},
		"session id source": {
			"audit: {session_id_source: env}",
			`FILE:1:28: audit.session_id_source must be one of uuid, host_id`,
		},
		"empty audit path": {`audit: {path: ""}`, `FILE:1:15: audit.path must not be empty`},
		"empty host id":    {`host_id: ""`, `FILE:1:10: host_id must be a name of 1 to 256 bytes in one line`},
		"no workspace": {
			"workspace: gone",
			`FILE:1:12: workspace gone cannot be used: no such file or directory`,
		},
		"workspace from a token": {
			"workspace: ${TOKEN}/x",
			`FILE:1:12: workspace ${TOKEN}/x cannot be used: no such file or directory`,
		},
		"workspace is a file": {"workspace: c.yaml", `FILE:1:12: workspace c.yaml must be a folder`},
		"state_dir is a file": {
			"state_dir: c.yaml",
			`FILE:1:12: state_dir must be a folder; there is a file of that name`,
		},
		"missing variable": {
			"host_id: ${NOT_SET}",
			`FILE:1:10: host_id: the variable NOT_SET is not set or empty: set it, or write ${NOT_SET:-default}`,
		},
		"missing token variable": {
			"auth_token: x-${NOT_SET}",
			`FILE:1:13: auth_token: the variable NOT_SET is not set or empty: set it, or write ${NOT_SET:-default}`,
		},
		"variable without end":   {"auth_token: hunter2${", `FILE:1:13: auth_token: ` + variableHint},
		"variable in a variable": {"host_id: ${A:-${B}}", `FILE:1:10: host_id: ` + variableHint},
		"shell default":          {"host_id: ${A-b}", `FILE:1:10: host_id: ` + variableHint},
		"variable of wrong type": {
			"max_parallel: ${TOKEN}",
			`FILE:1:15: max_parallel must be a whole number, not what the variable holds`,
		},
		"variable out of range": {"max_parallel: ${BIG}", `FILE:1:15: max_parallel must be between 1 and 1024`},
		"variable for a list": {"plugins: ${TOKEN}", `FILE:1:10: plugins must be ` + pluginForms +
			`, not what the variable holds`},
		"variable not in keys": {"${TOKEN}: 1", `FILE:1:1: unknown key (not shown: it does not look like a name) in the file: known are host_id, auth_token, auth, workspace, state_dir, state, max_parallel, events, limits, audit, checkpoints, store, http, fleet, groups, sandbox, children, plugins, mcpServers`},
		"token of the server": {
			"server: {auth_token: x}",
			`FILE:1:22: server.auth_token protects nothing here; write auth_token at the top of the file`,
		},
		"global limits": {
			"global_limits: {max_workers: 2, max_rate: 3}",
			`FILE:1:33: global_limits.max_rate bounds nothing here; see limits and max_parallel`,
		},
		"bad global limit": {
			"global_limits: {max_workers: 0}",
			`FILE:1:30: max_parallel must be between 1 and 1024`,
		},
		"root of tools": {
			"plugins: [{name: a, type: tools, metadata: {ROOT: docs}}]",
			`FILE:1:51: plugins[0].metadata.ROOT bounds nothing here, as tools work in the workspace; write that folder as workspace at the top of the file`,
		},
		"plugin without a name": {"plugins:\n  - type: tools", `FILE:2:5: plugins[0] needs the key "name"`},
		"plugin without a type": {"plugins: [{name: a}]", `FILE:1:11: plugins[0] needs the key "type"`},
		"plugin with empty name": {
			`plugins: [{name: "", type: tools}]`,
			`FILE:1:18: plugins[0].name must not be empty`,
		},
		"plugin with null type": {`plugins: [{name: a, type: }]`, `FILE:1:27: plugins[0].type must not be empty`},
		"plugin is a text": {
			"plugins: [tools]",
			`FILE:1:11: plugins[0] must be a mapping, such as {name: tools, type: tools}, not a string`,
		},
		"plugin is nothing": {
			"plugins:\n  -\n",
			`FILE:2:4: plugins[0] must be a mapping, such as {name: tools, type: tools}, not nothing`,
		},
		"two plugins of a name": {
			"plugins:\n  - {name: a, type: env}\n  - {name: a, type: tools}",
			`FILE:3:12: the plugin name "a" appears twice, first in line 2: names must be unique`,
		},
		"misspelt plugin type": {
			"plugins: [{name: a, type: memroy}]",
			`FILE:1:27: plugins[0].type: unknown plugin type "memroy": did you mean "memory"? known are ` + types,
		},
		"unknown plugin type": {
			"plugins: [{name: a, type: database}]",
			`FILE:1:27: plugins[0].type: unknown plugin type "database": known are ` + types,
		},
		"plugin key at the top": {
			"plugins: [{name: a, type: env, enabled: true}]",
			`FILE:1:32: unknown key "enabled" in plugins[0]: known are name, type, metadata; the options of a plugin in a list belong under metadata`,
		},
		"metadata is a list": {
			"plugins: [{name: a, type: env, metadata: [x]}]",
			`FILE:1:42: plugins[0].metadata must be a mapping, such as {key: value}, not a list`,
		},
		"plugin priority": {
			"plugins: [{name: a, type: env, metadata: {priority: high}}]",
			`FILE:1:53: plugins[0].metadata.priority must be a whole number, not a string`,
		},
		"option under two names": {
			"plugins: [{name: a, type: proc, metadata: {MAX_PROCS: 1, max_procs: 2}}]",
			`FILE:1:44: plugins[0].metadata has both MAX_PROCS and max_procs, which are the same option: keep one`,
		},
		"tab": {
			"audit:\n\tpath: x",
			`FILE:2:1: not valid YAML: the line is indented with a tab; YAML takes spaces only`,
		},
		"open bracket": {"plugins: [", `FILE:2:1: not valid YAML: did not find expected node content`},
		"token like an alias": {
			"auth_token: *hunter2",
			`FILE:1:13: not valid YAML: an alias (*name) without its anchor (&name); put a string that begins with * in quotes`,
		},
		"token with a colon": {
			"auth_token: hunter2: x",
			`FILE:1:20: not valid YAML: a colon and a space in the middle of a string; put the string in quotes`,
		},
		"two documents": {
			"host_id: a\n---\nhost_id: b",
			`FILE: the file holds more than one document (---): keep one`,
		},
		"own tag":           {"host_id: !secret hunter2", `FILE:1:10: own tags (!name) have no meaning here`},
		"own tag on a list": {"plugins: !all []", `FILE:1:10: own tags (!name) have no meaning here`},
		"key is a list":     {"[a, b]: c", `FILE:1:1: a key must be a string`},
		"key is nothing":    {"~: c", `FILE:1:1: a key must be a string`},
		"merge of a text":   {"audit:\n  <<: hunter2", `FILE:2:7: << takes a mapping, or a list of mappings`},
		"alias in itself": {
			"mcpServers: &a {config: {x: *a}}",
			`FILE:1:29: an alias stands within its own anchor`,
		},
		"NUL": {
			"host_id: \x00",
			`FILE: not valid YAML: there are control characters in it; save it as UTF-8`,
		},
		"several at once": {
			"max_parallel: 0\nevnts: x\nhost_id: ${NOT_SET}\nplugins: [{name: a, type: nope}]\nworkspace: gone",
			"FILE:1:15: max_parallel must be between 1 and 1024\n" +
				`FILE:2:1: unknown key "evnts" in the file: did you mean "events"?` + "\n" +
				"FILE:3:10: host_id: the variable NOT_SET is not set or empty: set it, or write ${NOT_SET:-default}\n" +
				`FILE:4:27: plugins[0].type: unknown plugin type "nope": known are ` + types + "\n" +
				"FILE:5:12: workspace gone cannot be used: no such file or directory",
		},
	}
}

func TestWrongFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	src := Source{
		Path: file, Dir: dir, Getenv: env("TOKEN", secret, "BIG", "5000"),
		Available: []string{"tools", "env", "proc", "mcp", typeExec},
	}
	write(t, file, "host_id: good\nauth_token: ${TOKEN}\nplugins: [{name: a, type: tools}]")
	_, _, err := Load(src)
	must.That(t, err == nil, "a good file: %v", err)
	for name, c := range wrongFiles() {
		t.Run(name, func(t *testing.T) {
			write(t, file, c.content)
			got, _, err := Load(src)
			must.Fails(t, err, "", "%q was accepted: %+v", c.content, got)
			diff := cmp.Diff(c.want, strings.ReplaceAll(err.Error(), file, "FILE"))
			assert.Equal(t, diff, "", "%q", c.content)
			assert.That(t, !strings.Contains(err.Error(), secret), "the text shows a secret")
		})
	}
}

// TestBoundedFiles: files made to use a lot of time or memory end in a short error, soon.
func TestBoundedFiles(t *testing.T) {
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
	}
	cases := map[string]struct{ content, want string }{
		"billion laughs":  {laughs, "aliases stand for more than 10000 values"},
		"deep flow":       {"mcpServers: " + strings.Repeat("[", 5000), "exceeded max depth of 64"},
		"deep block":      {strings.Repeat("- ", 5000) + "x", "exceeded max depth of 64"},
		"deep by aliases": {deepAliases(), "more than 64 levels deep"},
		"too large":       {"host_id: " + strings.Repeat("x", 1<<20), "the file is larger than 1048576 bytes"},
		"many problems":   {manyKeys(), "… and 950 more"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, _, err := Load(Source{Path: write(t, filepath.Join(dir, "c.yaml"), c.content), Dir: dir})
			assert.That(t, err != nil && strings.Contains(err.Error(), c.want) && len(err.Error()) <= 20_000,
				"got %.300v, want %s", err, c.want)
		})
	}
}

func deepAliases() string {
	var b strings.Builder
	b.WriteString("a0: &a0 {x: y}\n")
	for i := 1; i < 70; i++ {
		fmt.Fprintf(&b, "a%d: &a%d {x: *a%d}\n", i, i, i-1)
	}
	return b.String()
}

func manyKeys() string {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

type innerOptions struct {
	Name string   `yaml:"name" required:"true"`
	Args []string `yaml:"args"`
}

type base struct {
	Deny []string `yaml:"deny"`
}

type testOptions struct {
	base     `yaml:",inline"`
	Timeout  time.Duration     `yaml:"timeout"`
	Ratio    float64           `yaml:"ratio" min:"0" max:"1"`
	Small    int8              `yaml:"small" min:"0"`
	Mode     string            `yaml:"mode" enum:"fast,slow"`
	Token    Secret            `yaml:"token"`
	Env      map[string]string `yaml:"env"`
	Commands []innerOptions    `yaml:"commands"`
	Params   map[string]any    `yaml:"params"`
	Pin      *bool             `yaml:"pin"`
	Extra    any               `yaml:"extra"`
	Plain    int
	Hidden   int `yaml:"-"`
}

func options(t *testing.T, text string, pairs ...string) Options {
	t.Helper()
	return must.Get(ParseOptions("o.yaml", []byte(text), env(pairs...)))(t)
}

func TestOptionsDecode(t *testing.T) {
	yes := true
	got := testOptions{Mode: "slow", Ratio: 0.5, Hidden: 3, Env: map[string]string{"OLD": "1"}}
	o := options(t, `
timeout: 1m30s
small: 127
mode: ${MODE:-fast}
token: ${TOKEN}
ratio:
deny: [a, "${TOKEN}"]
env: {PATH: /bin, 7: seven}
commands: [{name: x, args: [a, b]}, {name: y}]
params: {type: object, n: 18446744073709551615, f: 1e3, big: 99999999999999999999, e: "${MODE:-}", p: "${NUM}", d: 2024-01-02}
pin: on
extra:
  number: ${NUM}
  text: "${NUM}"
  more: ${NUM}x
plain: -0x10
`, "TOKEN", secret, "NUM", "5")
	must.OK(t, o.Decode(&got))
	want := testOptions{
		base: base{Deny: []string{"a", secret}}, Timeout: 90 * time.Second, Ratio: 0.5, Small: 127, Mode: "fast",
		Env: map[string]string{"PATH": "/bin", "7": "seven"}, Commands: []innerOptions{
			{"x", []string{"a", "b"}},
			{"y", nil},
		},
		Params: map[string]any{
			"type": "object", "n": uint64(18446744073709551615), "f": 1e3, "big": 1e20, "e": "",
			"p": "5", "d": "2024-01-02",
		},
		Extra: map[string]any{"number": int64(5), "text": "5", "more": "5x"},
		Pin:   &yes, Plain: -16, Hidden: 3,
	}
	assert.Equal(t, got.Token.Reveal(), secret, "token")
	got.Token = Secret{}
	assert.Diff(t, want, got, cmp.AllowUnexported(Secret{}, testOptions{}))

	unchanged := want
	err := (Options{}).Decode(&unchanged)
	assert.That(t, err == nil && cmp.Diff(want, unchanged, cmp.AllowUnexported(Secret{}, testOptions{})) == "",
		"no options: %v, %v", unchanged, err)
	for _, dst := range []any{nil, testOptions{}, new(int), (*testOptions)(nil)} {
		assert.Fails(t, o.Decode(dst), "", "decoded into %T", dst)
	}
}

func TestWrongOptions(t *testing.T) {
	cases := map[string]string{
		"tiemout: 3":              `o.yaml:1:1: unknown key "tiemout" in metadata: did you mean "timeout"?`,
		"hidden: 3":               `o.yaml:1:1: unknown key "hidden" in metadata: known are deny, timeout, ratio, small, mode, token, env, commands, params, pin, extra, plain`,
		"timeout: soon":           `o.yaml:1:10: metadata.timeout must be a number of seconds, or a duration such as 1m30s, not a string`,
		"timeout: 1e300":          `o.yaml:1:10: metadata.timeout: the number is too large`,
		"ratio: .inf":             `o.yaml:1:8: metadata.ratio must be a finite number`,
		"ratio: 1.01":             `o.yaml:1:8: metadata.ratio must be between 0 and 1`,
		"small: 256":              `o.yaml:1:8: metadata.small: the number is too large`,
		"small: -1":               `o.yaml:1:8: metadata.small must be at least 0`,
		"mode: medium":            `o.yaml:1:7: metadata.mode must be one of fast, slow`,
		"deny: a":                 `o.yaml:1:7: metadata.deny must be a list, such as [a, b], not a string`,
		"deny: [a, ~]":            `o.yaml:1:11: metadata.deny[1] must be a string, not nothing`,
		"env: {A: 1}":             `o.yaml:1:10: metadata.env.A must be a string in quotes, not a number`,
		"env: {'a hunter2': [b]}": `o.yaml:1:20: metadata.env.… must be a string, not a list`,
		"commands: [{args: []}]":  `o.yaml:1:12: metadata.commands[0] needs the key "name"`,
		`params: {a: ["${NO}"]}`:  `o.yaml:1:14: metadata.params.a[0]: the variable NO is not set or empty: set it, or write ${NO:-default}`,
		"token: {a: hunter2}":     `o.yaml:1:8: metadata.token must be a string, not a mapping`,
	}
	for text, want := range cases {
		var into testOptions
		err := options(t, text).Decode(&into)
		if problems, ok := errors.AsType[*Error](err); !ok || len(problems.Problems) != 1 {
			t.Errorf("%q: %v", text, err)
		} else if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	o := options(t, "a: 1\nb: 2")
	for key, want := range map[string]string{"b": "o.yaml:2:4: metadata.b: too 7", "c": "o.yaml:1:1: metadata.c: " +
		"too 7"} {
		assert.Equal(t, o.Locate(At(errors.New("too 7"), key)).Error(), want)
	}
	assert.Contains(t, (Options{}).Locate(At(errors.New("x"), "k")).Error(), "k: x")
	_, err := ParseOptions("o.yaml", []byte("- a"), nil)
	assert.That(t, err != nil, "a list was taken for options")
}

// TestPrintedConfigShowsNoOptions: the text of a plugin's options is not visible when a Config is printed, because it
// may contain secrets.
func TestPrintedConfigShowsNoOptions(t *testing.T) {
	o := options(t, "token: "+secret)
	c := Config{Plugins: []Plugin{{Name: "a", Options: o}}}
	for _, format := range []string{"%v", "%+v", "%#v"} {
		text := fmt.Sprintf(format, &c)
		assert.That(t, !strings.Contains(text, secret), "%s: %s", format, text)
	}
}

func FuzzConfig(f *testing.F) {
	for _, c := range wrongFiles() {
		f.Add([]byte(c.content))
	}
	names, err := filepath.Glob(filepath.Join(configs, "*.yaml"))
	must.That(f, err == nil && len(names) != 0, "no seeds %v", err)
	for _, name := range names {
		data := must.Get(os.ReadFile(name))(f)
		f.Add(data)
	}
	// No input contains this value by chance, so if an output shows it, a variable has leaked.
	const value = "\u16a0secret\u16a0value\u16a0"
	src := Source{Dir: f.TempDir(), Getenv: func(string) string { return value }, Available: allTypes()}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, warnings, err := read(src, &file{name: "fuzz.yaml", data: data})
		must.That(t, (c == nil) != (err == nil), "config %v, error %v", c, err)
		shown := strings.Join(texts(warnings), "\n")
		if err != nil {
			var problems *Error
			must.That(t, errors.As(err, &problems), "error without a place: %v", err)
			shown += err.Error()
		} else {
			must.That(t, c.MaxParallel >= 1 && c.MaxParallel <= 1024 && c.Limits.MaxQueue >= 1 && c.Audit.Path != "",
				"not valid: %+v", c)
			for _, p := range c.Plugins {
				var o testOptions
				if err := p.Options.Decode(&o); err != nil {
					shown += err.Error()
				}
			}
		}
		must.That(t, !strings.Contains(shown, value) || strings.Contains(string(data), value),
			"a variable's value is shown: %s", shown)
		again, _, err2 := read(src, &file{name: "fuzz.yaml", data: data})
		must.That(t, (again == nil) == (c == nil) && fmt.Sprint(err) == fmt.Sprint(err2), "not the same twice: %v, %v",
			err, err2)
	})
}
