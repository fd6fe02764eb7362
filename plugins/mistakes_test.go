package plugins_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins"
)

// TestConfigMistakes: each of these mistakes is reported with its line and column, and with what would be right. want
// begins right after the name of the file.
func TestConfigMistakes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{
			"plugins:\n  tools:\n    deny: [http_gett]\n",
			`3:12: plugins.tools.deny[0]: "http_gett" matches no built-in tool and none of commands`,
		},
		{"plugins:\n\tproc:\n\t\tmax_procs: 3\n", "2:1: not valid YAML: the line is indented with a tab; YAML takes " +
			"spaces only"},
		{"plugins:\n  proc:\n\t  max_procs: 3\n", "3:1: not valid YAML: the line is indented with a tab; YAML takes " +
			"spaces only"},
		{"mcpServers:\n  docs:\n    url: example.com/mcp\n", "3:10: mcpServers.docs.url: its url should begin with " +
			"https:// or http://, such as https://example.org/mcp"},
		{"mcpServers:\n  docs:\n    url: localhost:8080/mcp\n", "3:10: mcpServers.docs.url: its url should begin " +
			"with https:// or http://, such as https://example.org/mcp"},
		{
			"plugins:\n  - name: p\n    type: proc\n    max_procs: 3\n    metadata: {}\n",
			`4:5: unknown key "max_procs" in plugins[0]: known are name, type, metadata`,
		},
		{"plugins:\n  tools:\n    timeout: 10 seconds\n", "3:14: plugins.tools.timeout must be a number of seconds, " +
			"or a duration such as 1m30s, not a string"},
		{"children:\n  memory_bytes: 1G\n", "2:17: children.memory_bytes must be a number of bytes, or a size such " +
			"as 10MB or 16MiB, not a string"},
		{"max_parallel: 4x\n", "1:15: max_parallel must be a whole number, not a string"},
		{"mcpServers:\n  a:\n    command: \"npx -y foo\"\n", "3:14: mcpServers.a.command: it has spaces; write the " +
			"program as command and the rest as args, such as command: npx, args"},
		{"mcpServers:\n  a:\n    command: npx\n    args: \"-y foo\"\n", "4:11: mcpServers.a.args: must be a list of " +
			"strings, not a string"},
		{"mcpServers:\n  a:\n    command: npx\n    url: https://x.example/mcp\n", "4:10: mcpServers.a.url: it has a " +
			"command and a url; give one of them"},
		{"mcpServers:\n  a:\n    args: [x]\n", "3:5: mcpServers.a.command: it has neither a command nor a url"},
		{"plugins:\n  multi_agent:\n    workers:\n      - {name: w, command: [echo]}\n      - {name: w, command: " +
			"[cat]}\n", `5:16: plugins.multi_agent.workers[1].name: two workers have the name "w"; each needs its own`},
		{
			"mcpServers:\n  a: {command: cat}\n  a: {command: echo}\n",
			`3:3: the key "a" appears twice, first in line 2: keep one`,
		},
		{
			"plugins:\n  - {name: x, type: proc}\n  - {name: x, type: env}\n",
			`3:12: the plugin name "x" appears twice, first in line 2: names must be unique`,
		},
		{"plugins:\n  tools:\n    commands:\n      - {name: a, description: x, command: [echo]}\n      - {name: a, " +
			"description: x, command: [cat]}\n", `5:9: plugins.tools.commands[1]: tool "a": another tool has this name already`},
		{
			"plugins:\n  tools:\n    commands:\n      - {name: read_file, description: x, command: [echo]}\n",
			`4:9: plugins.tools.commands[0]: tool "read_file": another tool has this name already`,
		},
		{"auth_token: ${A2E_TOKEN}\n", "1:13: auth_token: the variable A2E_TOKEN is not set or empty: set it, or " +
			"write ${A2E_TOKEN:-default}"},
		{"auth_token: $A2E_TOKEN\n", "1:13: auth_token: a variable is written ${A2E_TOKEN}; put $A2E_TOKEN in " +
			"quotes if it is meant as it stands"},
		{"max_parallel: many\n", "1:15: max_parallel must be a whole number, not a string"},
		{"sandbox: none\n", "1:10: sandbox must be one of required, best_effort, off"},
		{"max_parallel: 3\nmax_parallel: 4\n", `2:1: the key "max_parallel" appears twice, first in line 1: keep one`},
		{"{\n  // four\n  \"max_parallel\": 4\n}", "2:3: unknown key (not shown: it does not look like a name) in " +
			"the file: a comment begins with #"},
		{
			"\x00m\x00a\x00x\x00_\x00p\x00a\x00r\x00a\x00l\x00l\x00e\x00l\x00:\x00 \x004\x00\x0a",
			"not valid YAML: there are control characters in it; save it as UTF-8",
		},
		{"host_id: caf\xe9\x0a", "not valid YAML: it is not UTF-8; save it as UTF-8"},
		{"workspace: \"C:\\Users\\me\"\n", `1:17: not valid YAML: in double quotes a backslash begins an escape such as \n; put a Windows path in single quotes`},
		{"max_parallel: -1\n", "1:15: max_parallel must be between 1 and 1024"},
		{"max_parallel: 100000\n", "1:15: max_parallel must be between 1 and 1024"},
		{"max_parallel: 4.0\n", "1:15: max_parallel must be a whole number, not a fraction"},
		{"plugins:\n  terminal: {}\n", `2:3: plugins.terminal: unknown plugin type "terminal"`},
		{"plugins:\n  proc:\n    deny: [rm]\n", `3:5: unknown key "deny" in plugins.proc: known are allowed_commands, exec, timeout, max_procs, max_output_bytes, env_allow`},
		{"plugins:\n  proc:\n    - max_procs: 3\n", "3:5: plugins.proc must be a mapping of options, or true or " +
			"false, not a list"},
		{"- plugins\n", "1:1: the file must be a mapping, such as max_parallel: 4 (a space follows the colon), not " +
			"a list"},
		{"plugins: [tools, proc]\n", "1:11: plugins[0] must be a mapping, such as {name: tools, type: tools}, not a " +
			"string"},
		{
			"plugins:\n  env:\n    environment: mazee\n",
			`3:5: unknown key "environment" in plugins.env: known are env, max_episodes, max_steps, idle_timeout, max_experiences`,
		},
		{"max_paralel: 3\n", `1:1: unknown key "max_paralel" in the file: did you mean "max_parallel"?`},
		{"plugins:\n  proc:\n  max_procs: 3\n", `3:3: plugins.max_procs: unknown plugin type "max_procs"`},
		{"max_parallel:4\n", "1:1: the file must be a mapping, such as max_parallel: 4 (a space follows the colon), " +
			"not a string"},
		{"host_id: \"abc\n", "2:1: not valid YAML: a quote is opened and never closed"},
		{"plugins: {proc: {max_procs: 3}\n", "2:1: not valid YAML: did not find expected ',' or '}'"},
		{"workspace: *here\n", "1:12: not valid YAML: an alias (*name) without its anchor (&name); put a string " +
			"that begins with * in quotes"},
		{"plugins:\n  proc: \"false\"\n", "2:9: plugins.proc must be a mapping of options, or true or false, " +
			"without quotes"},
		{"workspace: ./nowhere\n", "1:12: workspace ./nowhere cannot be used: no such file or directory"},
		{
			"mcpServers:\n  - name: a\n    command: cat\n",
			`2:5: mcpServers[0].server_id: the id "" of an MCP server should be 1 to 64 letters, digits, _ and -; "server-1" would do`,
		},
		{"mcp_servers:\n  a: {command: cat}\n", `1:1: unknown key "mcp_servers" in the file: did you mean "mcpServers"?`},
		{
			"mcpServers:\n  a: {type: stdioo, command: cat}\n",
			`2:13: mcpServers.a.type: must be stdio, http or sse, not "stdioo"`,
		},
		{"mcpServers:\n  a: {command: cat, timeout: ten}\n", "2:30: mcpServers.a.timeout: must be a number of " +
			"seconds, more than 0 and at most 3600, or a duration such as 1m30s"},
		{"mcpServers:\n  a: {command: cat, env: [A=1]}\n", "2:26: mcpServers.a.env: must be a mapping of names to " +
			"strings, not a list"},
		{
			"mcpServers:\n  \"a b/c\": {command: cat}\n",
			`2:12: mcpServers.….server_id: the id "a b/c" of an MCP server should be 1 to 64 letters, digits, _ and -; "a-b-c" would do`,
		},
		{
			"plugins:\n  skill:\n    paths: [./skillz]\n",
			`3:5: unknown key "paths" in plugins.skill: known are skills_path, workspace_skills, user_skills, llm, allow_llm_override`,
		},
		{
			"plugins:\n  tools:\n    programs: [nosuchprog]\n",
			`3:5: unknown key "programs" in plugins.tools: known are commands, http_allow_private, allowed_commands, exec, allowed_tools, deny`,
		},
		{"log_level: debug\n", `1:1: unknown key "log_level" in the file: known are host_id, auth_token, auth, workspace, state_dir, state, max_parallel, events`},
		{"plugins:\n  mine: {type: exec}\n", `2:9: plugin "mine": command is missing; name the program that speaks A2E, such as [python3, tools.py]`},
		{"plugins:\n  mine: {type: exec, command: \"python3 x.py\"}\n", "2:31: plugins.mine.command must be a list, " +
			"such as [program, argument], not a string"},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {name: w, command: \"python3 x.py\"}\n",
			"4:28: plugins.multi_agent.workers[0].command must be a list, such as [program, argument], not a string",
		},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {command: [cat]}\n",
			`4:9: plugins.multi_agent.workers[0] needs the key "name"`,
		},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {name: w, command: [cat], mode: fleat}\n",
			`4:41: plugins.multi_agent.workers[0].mode must be one of oneshot, fleet, llm, queue, a2a: did you mean "fleet"?`,
		},
		{"store:\n  kind: postgress\n", `2:3: unknown key "kind" in store: known are synchronous`},
		{"auth:\n  token: x\n", "2:3: auth must be a list, such as [a, b], not a mapping"},
		{
			"plugins:\n  learning:\n    strategy: ucb\n",
			`3:15: plugins.learning.strategy must be one of thompson, ucb1, epsilon_greedy, softmax, ppo, custom: did you mean "ucb1"?`,
		},
		{
			"plugins:\n  memory:\n    max_entries: -5\n",
			`3:5: unknown key "max_entries" in plugins.memory: did you mean "max_entry_bytes"?`,
		},
		{
			"plugins:\n  memory:\n    embedding: {url: api.openai.com, model: x}\n",
			`3:5: unknown key "embedding" in plugins.memory: did you mean "embeddings"?`,
		},
		{"max_parallel: 3\n---\nmax_parallel: 4\n", "the file holds more than one document (---): keep one"},
		{
			"plugins:\n  chains:\n    dirs: [./nowhere]\n",
			`3:5: unknown key "dirs" in plugins.chains: known are max_parallel, max_nodes, max_items, max_depth, max_state_bytes`,
		},
		{"<<<<<<< HEAD\nmax_parallel: 3\n=======\nmax_parallel: 4\n>>>>>>> x\n", "2:13: not valid YAML: a merge " +
			"conflict of git is not resolved here"},
		{"plugins:\n  toolkits:\n    http: {base_url: api.example.com}\n", "3:11: plugins.toolkits.http: this URL " +
			"cannot be used: it should begin with https:// or http://"},
		{
			"plugins:\n  toolkits:\n    openapi: {spec: api.json, base_url: api.example.com}\n",
			"3:14: plugins.toolkits.openapi: this URL cannot be used: it should begin with https:// or http://",
		},
		{"plugins:\n  toolkits:\n    filesystem: {root_dir: ./nowhere}\n", "3:17: plugins.toolkits.filesystem: " +
			"root_dir names a folder that is not there"},
		{"plugins:\n  toolkits:\n    sql: {dsn: \"mysql://x/y\"}\n", "3:10: plugins.toolkits.sql: dsn is neither an " +
			"SQLite file (data/app.db"},
		{
			"plugins:\n  skill:\n    llm: {url: api.openai.com/v1, model: x}\n",
			`3:10: plugin "skill": llm: url must be an address such as https://api.example.org/v1`,
		},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {name: w, llm: {url: \"localhost:11434\", model: x}}\n",
			`4:9: plugins.multi_agent.workers[0]: worker "w": llm: url must be an address such as https://api.example.org/v1`,
		},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {name: w, command: [cat], llm: {url: " +
				"\"http://127.0.0.1:1\", model: x}}\n",
			`4:9: plugins.multi_agent.workers[0]: worker "w" has a command and an llm; it should have one of them`,
		},
		{
			"plugins:\n  memory:\n    embeddings: {url: api.openai.com, model: x}\n",
			`3:17: plugin "memory": embeddings: embeddings: url must be an address such as https://api.example.org/v1`,
		},
		{
			"plugins:\n  memory:\n    embeddings: {url: \"http://127.0.0.1:1/v1\"}\n",
			`3:17: plugin "memory": embeddings: model is missing: the name of the model at the url`,
		},
		{
			"plugins:\n  proc:\n    allowed_commands: [/bin/bash]\n",
			`3:23: plugins.proc.allowed_commands: allowed command "/bin/bash" is not a bare program name such as "git"`,
		},
		{"plugins:\n  proc:\n    allowed_commands: bash\n", "3:23: plugins.proc.allowed_commands must be a list, " +
			"such as [a, b], not a string"},
		{
			"plugins:\n  proc:\n    allowed_commands: [bash]\n    exec: strict\n",
			`3:23: plugins.proc.allowed_commands: "bash" starts any program or runs any code, which exec: strict does not allow`,
		},
		{"plugins:\n  env:\n    env: mazee\n", "3:10: plugins.env.env must be one of counter, gridworld, workspace, exec"},
		{
			"plugins:\n  env:\n    gridworld: {width: -1}\n",
			"3:24: plugins.env.gridworld.width must be between 0 and 64",
		},
		{
			"plugins:\n  env:\n    env: exec\n    exec: {command: \"python3 gym.py\"}\n",
			"4:21: plugins.env.exec.command must be a list, such as [program, argument], not a string",
		},
		{
			"plugins:\n  tools:\n    commands:\n      - {name: a, description: x, command: [nosuchprog]}\n",
			`4:9: plugins.tools.commands[0]: tool "a": command: program "nosuchprog" is in none of /usr/local/sbin, /usr/local/bin`,
		},
		{
			"plugins:\n  tools:\n    commands:\n      - {name: a, description: x, command: [echo, \"{who}\"]}\n",
			`4:9: plugins.tools.commands[0]: tool "a": command: {who} is not a declared parameter; declare it under parameters`,
		},
		{"plugins:\n  tools:\n    commands:\n      - {name: a, description: x, command: [echo, \"{who}\"], " +
			"parameters: [{name: who, type: int}]}\n", "4:92: plugins.tools.commands[0].parameters[0].type must be " +
			"one of string, integer, number, boolean"},
		{"plugins:\n  tools:\n    commands:\n      hello: {command: [echo]}\n", "4:7: plugins.tools.commands must " +
			"be a list, such as [a, b], not a mapping"},
		{
			"plugins:\n  chains:\n    chains_path: ../outside\n",
			`3:18: plugin "chains": chains_path: "../outside" leaves the workspace; it is a folder in it, such as chains`,
		},
		{
			"plugins:\n  learning:\n    strategy: custom\n",
			`3:15: plugin "learning": strategy: custom needs a custom_command`,
		},
		{"mcpServers:\n  a: {comand: npx}\n", "2:6: mcpServers.a.command: it has neither a command nor a url"},
		{
			"mcpServers:\n  a: {command: cat, deny: ['[']}\n",
			`2:27: mcpServers.a.deny: "[" is not a valid pattern; write names or globs such as "get_*"`,
		},
		{
			"plugins:\n  mcp:\n    servers:\n      - {server_id: a, command: cat}\n      - {server_id: a, command: cat}\n",
			`3:5: plugin "mcp": the server "a" appears twice; give each its own id`,
		},
		{"audit: {key: short}\n", "1:14: audit.key must have 16 characters or more"},
		{
			"plugins:\n  mine: {type: exec, command: [python3], capabilities: [toolz]}\n",
			`2:56: plugin "mine": capabilities: there is no "toolz"`,
		},
		{"plugins:\n  proc: {max_procs: unlimited}\n", "2:21: plugins.proc.max_procs must be a whole number, not a " +
			"string"},
		{"plugins:\n  proc: {", "3:1: not valid YAML: did not find expected node content"},
		{
			"plugins:\n  toolkits:\n    http: {base_url: 'https://a.example', headers: [A]}\n",
			"3:52: plugins.toolkits.http.headers must be a mapping, such as {key: value}, not a list",
		},
		{
			"plugins:\n  skill:\n    llm: {url: 'http://127.0.0.1:1', model: x, thinking: hard}\n",
			"3:58: plugins.skill.llm.thinking must be one of off, minimal, low, medium, high, xhigh",
		},
		{"limits: {max_line_bytes: 4TB}\n", "1:26: limits.max_line_bytes must be between 1024 and 1073741824"},
		{"children:\n  read: [./nowhere]\n", "2:10: children.read[0]: ./nowhere cannot be read: no such file or " +
			"directory"},
		{
			"plugins:\n  multi_agent:\n    workers:\n      - {name: w, command: [cat], retries: 1000}\n",
			"4:44: plugins.multi_agent.workers[0].retries must be between 0 and 100",
		},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "a2e.yaml")
		must.OK(t, os.WriteFile(file, []byte(c.text), 0o600))
		cfg, _, err := config.Load(config.Source{
			Path: file, Dir: dir, UserConfigDir: dir,
			Getenv: func(string) string { return "" }, Available: plugins.Types(),
		})
		if err == nil {
			cfg.StateDir = filepath.Join(dir, "state")
			_, err = plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()})
		}
		must.Fails(t, err, "", "%q was accepted", c.text)
		said := strings.TrimPrefix(err.Error(), file+":")
		assert.That(t, strings.HasPrefix(strings.TrimSpace(said), c.want), "%q:\ngot  %s\nwant %s", c.text, said,
			c.want)
	}
}
