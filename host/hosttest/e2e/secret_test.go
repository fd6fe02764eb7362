package e2e_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// canaries are the secrets of the config below, by their place in it. All begin with "cnry", which the tests look
// for.
var canaries = map[string]string{
	"TOKEN": "cnry-1-token", "ARG": "cnry-2-arg", "PARAM": "cnry_3_param", "TEXT": "cnry-4-text",
	"MCPARG": "cnry-5-arg", "MCPENV": "cnry-6-env",
	"EXECARG": "cnry-7-arg", "EXECENV": `cnry-8-"env<\`, "WORKARG": "cnry-9-arg", "WORKENV": "cnry-10-env",
	"HEADER": "cnry-11-header",
	"KEY":    "cnry-12-key", "URLKEY": "cnry-13-url", "LLM": "cnry-14-llm", "PEM": "cnry-15-first\ncnry-15-second",
	"ENVENV": "cnry-16-env",
	"PIECE":  "cnry-17-piece", "LONG": "cnry-18-long", "SERVER": "cnry-19-server", "TAG": "cnry-20-tag",
	"SPLIT": "cnry-21-split",
}

// canaryConfig has the secrets in all places where a config takes a text for a child or a server.
const canaryConfig = `
auth_token: ${TOKEN}
state_dir: %[1]q
workspace: ws
sandbox: best_effort
audit: {}
plugins:
  - name: tools
    type: tools
    metadata:
      allowed_commands: [sh, python3]
      commands:
        - {name: say, description: "about ${TEXT}", command: [sh, -c, 'echo out "$@"; echo err "$@" >&2', sh, "${ARG}", "{a_${PARAM}}"], parameters: [{name: "a_${PARAM}", type: string, required: true, description: "${TEXT}"}], tags: ["${TAG}"]}
        - {name: fail, command: [sh, -c, 'echo "$1"; exit 3', sh, "--pem=${PEM}"]}
        - {name: flood, command: [python3, -c, "import sys; [print(sys.argv[1]) for i in range(200000)]", "${LONG}"]}
        - {name: split, command: [python3, -c, "import sys, time\nfor c in sys.argv[1]: sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.002)", "${SPLIT}"]}
  - {name: kits, type: toolkits, metadata: {http: {base_url: "%[2]s/${PIECE}", headers: {X-Thing: "${HEADER}"}}, allow_private: true}}
  - {name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: [server.py, "${MCPARG}"], env: {LABEL: "${MCPENV}"}}, gone: {command: python3, args: [-c, "import sys; sys.exit(sys.argv[1])", "${SERVER}"]}, far: {url: "%[2]s/mcp?sig=${URLKEY}"}}}}
  - {name: words, type: exec, metadata: {command: [python3, plugin.py, "${EXECARG}"], env: {LABEL: "${EXECENV}"}}}
  - {name: agents, type: multi_agent, metadata: {workers: [{name: w, command: [sh, -c, 'cat; echo "$1 $LABEL"; echo "$1 $LABEL" >&2; exit 1', sh, "${WORKARG}"], env: {LABEL: "${WORKENV}"}}]}}
  - {name: memory, type: memory, metadata: {embeddings: {url: "%[2]s/v1", model: m, api_key: "${KEY}"}}}
  - {name: skills, type: skill, metadata: {llm: {url: "%[2]s/v1", model: m, api_key: "${LLM}"}}}
  - {name: maze, type: env, metadata: {env: exec, exec: {command: [sh, -c, 'echo "$LABEL"; echo "$LABEL" >&2; exit 2'], env: {LABEL: "${ENVENV}"}}}}
  - {name: learn, type: learning}
  - {name: chains, type: chains}
`

// canaryMCP is an MCP server that repeats its argument and its environment variable in all that it says.
const canaryMCP = `
import json, os, sys
told = sys.argv[1] + " " + os.environ["LABEL"]
print("junk", told, flush=True); print("words", told, file=sys.stderr, flush=True)
def reply(id, **more): print(json.dumps({"jsonrpc": "2.0", "id": id, **more}), flush=True)
for line in sys.stdin:
    m = json.loads(line); method, id = m.get("method"), m.get("id")
    if method == "initialize":
        reply(id, result={"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": told, "version": told}, "instructions": told})
    elif method == "tools/list":
        reply(id, result={"tools": [{"name": "tell", "description": told, "inputSchema": {"type": "object", "properties": {told: {"type": "string"}}}}, {"name": "fail", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call" and m["params"]["name"] == "fail":
        reply(id, error={"code": -32000, "message": told, "data": {"told": told}})
    elif method == "tools/call":
        reply(id, result={"content": [{"type": "text", "text": told}], "structuredContent": {"told": [told]}})
    elif id is not None:
        reply(id, result={})
`

// canaryPlugin is a plugin program that does the same.
const canaryPlugin = `
import json, os, sys
told = sys.argv[1] + " " + os.environ["LABEL"]
print("junk", told, flush=True); print("words", told, file=sys.stderr, flush=True)
def send(kind, m, **body): print(json.dumps({"a2e": "1.0", "type": kind, "req_id": m["id"], **body}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "handshake/req":
        send("handshake/resp", m, ok=True, session_id="1", accepted_caps=[{"capability": "tools", "enabled": True, "metadata": {"told": told}}], max_parallel=1, reason="")
    elif m["type"] == "ping":
        send("pong", m, uptime_seconds=1)
    elif m["type"] == "tool/list/req":
        send("tool/list/resp", m, tools=[{"name": "tell_me", "description": told, "streaming": True}, {"name": "tell_error", "description": ""}])
    elif m["type"] == "tool/call/req" and m["tool_name"] == "tell_me":
        send("invoke/event", m, kind="progress", data={"pct": 1, "message": told}, seq=0)
        send("tool/call/resp", m, data={"success": True, "tool_name": "tell_me", "data": {told: told}, "summary": told, "duration_ms": 0, "events": []}, created_at=1)
    elif m["type"] == "tool/call/req":
        send("error", m, code="tool_error", message=told, detail={"told": told})
`

// newCanaryDir makes a folder with that config and a state_dir outside. The server of the config sends back what it
// gets.
func newCanaryDir(t *testing.T) (dir, state string) {
	t.Helper()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %v", r.Method, r.URL, r.Header)
	}))
	t.Cleanup(echo.Close)
	dir, state = workDir(t), filepath.Join(t.TempDir(), "state")
	// The names of the variables mark their values as secrets.
	named := regexp.MustCompile(`\$\{(\w+)}`).ReplaceAllString(canaryConfig, "$${${1}_SECRET}")
	writeFile(t, dir, "c.yaml", fmt.Sprintf(named, state, echo.URL))
	ws := filepath.Join(dir, "ws") // the host's own files are outside of it, so that programs start on any machine
	must.OK(t, os.Mkdir(ws, 0o700))
	writeFile(t, ws, "server.py", canaryMCP)
	writeFile(t, ws, "plugin.py", canaryPlugin)
	return dir, state
}

// TestWallSecrets: secrets that the config takes from variables, and those that it passes to children, are shown
// nowhere, whatever the children and servers do with them. The test asks every place that would show them.
func TestWallSecrets(t *testing.T) {
	dir, state := newCanaryDir(t)
	for name := range canaries {
		t.Setenv(name+"_SECRET", canaries[name])
	}
	call := func(tool, args string) string {
		return `{"type":"tool/call/req","id":"ID","tool_name":"` + tool + `","arguments":` + args + `,"streaming":true}`
	}
	requests := []struct {
		name, line string
		told       bool // the answer has [redacted] in place of a secret
	}{
		{"list of tools", `{"type":"tool/list/req","id":"ID","query":"","include_deferred":true}`, true},
		{"search for one", `{"type":"tool/list/req","id":"ID","query":"cnry"}`, false},
		{"argument of a command", call("say", `{"a_cnry_3_param":"x"}`), true},
		{"missing parameter", call("say", `{}`), true},
		{"unknown parameter", call("say", `{"a_para":"x"}`), true},
		{"failing command", call("fail", `{}`), true},
		{"flood into a file", call("flood", `{}`), true},
		{"in pieces", call("split", `{}`), true},
		{"URL of a toolkit", call("api_get", `{"path":"x"}`), true},
		{"servers", `{"type":"mcp/server/list/req","id":"ID"}`, true},
		{"tool of a server", call("tiny__tell", `{}`), true},
		{"error of a server", call("tiny__fail", `{}`), true},
		{"server that is gone", `{"type":"mcp/tool/call/req","id":"ID","server_id":"gone","tool_name":"x","arguments":{}}`, false},
		{
			"server far away", `{"type":"mcp/tool/call/req","id":"ID","server_id":"far","tool_name":"x","arguments":{}}`,
			false,
		},
		{"tool of a plugin", call("tell_me", `{}`), true},
		{"error of a plugin", call("tell_error", `{}`), true},
		{"chain of them", `{"type":"chain/req","id":"ID","nodes":[{"node_id":"a","kind":"tool","name":"tell_me",` +
			`"input_map":{}}],"initial_input":{},"streaming":true}`, true},
		{"embedding server", `{"type":"memory/store/req","id":"ID","entries":[{"key":{"a":1},"content":"hello","tier":"semantic"}]}`, false},
		{"search by it", `{"type":"memory/retrieve/req","id":"ID","query":"hello"}`, false},
		{"program as an environment", `{"type":"env/reset/req","id":"ID","env_name":"maze"}`, true},
		{"records", `{"type":"learn/component/list/req","id":"ID"}`, false},
		{"task of a worker", `{"type":"TASK_DISPATCH","protocol_version":"2.0","auth_token":"cnry-1-token","task":{"task_id":"t"},"brief":"work"}`, true},
		{"session", `{"jsonrpc":"2.0","id":1,"method":"rpc.handshake","params":{"auth_token":"cnry-1-token"}}`, false},
		{"tools of a session", `{"jsonrpc":"2.0","id":2,"method":"tools.list","params":{}}`, true},
		{"wrong token", `{"type":"handshake/req","id":"ID","agent_id":"x","agent_caps":["tools"],"auth_token":"cnry-1-toke"}`, false},
	}
	h := start(t, dir, "-c", "c.yaml", "--log-level", "trace", "serve")
	h.send(`{"type":"handshake/req","id":"h","agent_id":"x","agent_caps":["tools","toolkits","mcp","memory","skill","env","learning","chains","multi_agent"],"auth_token":"cnry-1-token"}`)
	var all []byte
	for i, r := range requests {
		id := fmt.Sprintf("r%d", i)
		h.send(strings.ReplaceAll(r.line, `"id":"ID"`, `"id":"`+id+`"`))
		t.Run(r.name, func(t *testing.T) {
			line, seen := h.answerTo(id, r.line)
			all = append(all, seen...)
			if at := bytes.Index(seen, []byte("cnry")); at >= 0 {
				t.Errorf("shown: %.300s", seen[at:])
			}
			assert.That(t, !r.told || strings.Contains(line+string(seen), "[redacted]"),
				"nothing was hidden, so this is not an attempt: %.600s", seen)
		})
	}
	h.stdin.Close()
	h.exit()
	places := map[string]string{"stderr": h.stderr.String()}
	for _, args := range [][]string{
		{"tools", "list"},
		{"tools", "call", "say"},
		{"check"},
		{"doctor"},
		{"mcp", "list", "--wait", "0.5"},
		{"mcp", "list", "--json", "--wait", "0.5"},
		{"mcp", "tools", "tiny"},
		{"mcp", "call", "tiny__fail"},
		{"state", "export"},
		{"learn", "stats", "--json"},
	} {
		out := run(t, dir, nil, append([]string{"-c", "c.yaml", "--log-level", "trace"}, args...)...)
		places[strings.Join(args, " ")] = out.stdout + out.stderr
	}
	for _, name := range files(t, state) {
		text := must.Get(os.ReadFile(filepath.Join(state, name)))(t)
		places["the file "+name] = string(text)
	}
	assert.That(t, len(places) >= 13, "only these places were looked at: %d", len(places))
	for name, text := range places {
		t.Run(name, func(t *testing.T) {
			if at := strings.Index(text, "cnry"); at >= 0 {
				t.Errorf("shown: %.300q", text[max(0, at-100):])
			}
		})
	}
}

// answerTo reads lines until the answer to a request of any dialect, and returns the answer and all lines.
func (l *live) answerTo(id, request string) (answer string, seen []byte) {
	l.t.Helper()
	want := []string{`"req_id":"` + id + `"`}
	switch {
	case strings.Contains(request, "TASK_DISPATCH"):
		want = []string{`"TASK_RESULT"`}
	case strings.Contains(request, `"jsonrpc"`):
		_, after, _ := strings.Cut(request, `"id":`)
		number, _, _ := strings.Cut(after, ",")
		want = []string{`"id":` + number, `"jsonrpc"`}
	}
	for {
		line, err := l.stdout.ReadBytes('\n')
		if err != nil {
			l.t.Fatalf("no answer to %s: %v; stderr: %s", request, err, l.stderr.String())
		}
		seen = append(seen, line...)
		text := string(line)
		found := !strings.Contains(text, "/event\"")
		for _, w := range want {
			found = found && strings.Contains(text, w)
		}
		if found {
			return text, seen
		}
	}
}

// settings are environment variables of a server whose values a file may show; secrets are those that it must not
// show.
var (
	settings = map[string]string{
		"AWS_REGION": "us-east-1", "TZ": "Europe/Berlin", "MODEL": "gpt-5-mini-2026", "MAX_TOKENS": "40960",
		"BASE_URL": "https://api.example.com/v1", "TOKEN_URL": "https://id.example.com/token",
		"HOME_DIR": "/srv/not/there-7", "USERNAME": "ada.lovelace.1815", "PLAIN": "s3cret-like",
		"REGION": "Zk7Q2mXv9Rt4Lp8Wc3Yb", "ACCOUNT_NAME": "9f86d081884c7d659a2feaa0c55ad015",
	}
	secrets = map[string]string{
		"GITHUB_TOKEN": "hush-1-token", "clientSecret": "hush-2-secret", "DB_PASSWORD": "hush", "pass": "hush-8",
		"AUTH": "hush-5-auth", "MY_CREDENTIAL": "hush-6-credential", "OTHER": "hushQ2mXv9Rt4Lp8Wc3Yb7Z",
		"STRIPE_KEY": "hush-4-key",
	}
)

// TestFilesWithSettingsAndSecrets: an agent reads ordinary settings as they are, and cannot destroy a secret by
// writing back what it has read.
func TestFilesWithSettingsAndSecrets(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	config, plain, env := "mcpServers:\n  files:\n    command: ./nothing\n    env:\n", "", ""
	for name, value := range settings {
		config += fmt.Sprintf("      %s: %q\n", name, value)
		plain += name + "=" + value + "\n"
	}
	for name, value := range secrets {
		config += fmt.Sprintf("      %s: %q\n", name, value)
		env += name + "=" + value + "\n"
	}
	writeConfig(t, dir, config)
	writeFile(t, dir, "plain.env", plain)
	writeFile(t, dir, "mixed.env", plain+env)
	writeFile(t, dir, "mask.txt", "the mask is [redacted]\n")
	h := start(t, dir, "serve")
	h.send(`{"type":"handshake/req","id":"h","agent_caps":["tools","chains"]}`)
	n := 0
	tool := func(name string, args map[string]any) map[string]any {
		n++
		id := fmt.Sprint("t", n)
		h.send(call(id, name, string(must.Get(json.Marshal(args))(t))))
		return h.answer(id)
	}
	content := func(file string) string {
		data, _ := tool("read_file", map[string]any{"path": file})["data"].(map[string]any)
		inner, _ := data["data"].(map[string]any)
		return fmt.Sprint(inner["content"])
	}
	assert.Equal(t, content("plain.env"), plain, "a file of settings")
	read := content("mixed.env")
	assert.That(t, strings.HasPrefix(read, plain) && !strings.Contains(read, "hush"), "a file with secrets: %s", read)
	assert.Equal(t, strings.Count(read, "[redacted]"), len(secrets), "masks")

	inFile := func(name string) string { return string(must.Get(os.ReadFile(filepath.Join(dir, name)))(t)) }
	before := inFile("mixed.env")
	for _, refused := range [][]string{
		{"write_file", "would destroy", "content", strings.Replace(read, "us-east-1", "eu-west-1", 1)},
		{"edit_file", "so it cannot match", "old", "GITHUB_TOKEN=[redacted]", "new", "X=1"},
		{"edit_file", "new has [redacted]", "old", "us-east-1", "new", "us-east-1\nY=[redacted]"},
	} {
		args := map[string]any{"path": "mixed.env"}
		for i := 2; i < len(refused); i += 2 {
			args[refused[i]] = refused[i+1]
		}
		answer := tool(refused[0], args)
		assert.That(t, answer["code"] == "tool_denied", "%s: %v", refused[1], answer)
		assert.Contains(t, fmt.Sprint(answer["message"]), refused[1])
		assert.Contains(t, fmt.Sprint(answer["message"]), "nothing was written")
		assert.Equal(t, inFile("mixed.env"), before, "the file is changed")
	}
	// The same holds for a tool that a chain calls.
	h.send(`{"type":"chain/req","id":"c","streaming":false,"nodes":[{"node_id":"a","kind":"tool","name":"write_file",` +
		`"input_map":{"path":"input.p","content":"input.c"}}],"initial_input":{"p":"mixed.env","c":"A=[redacted]"}}`)
	assert.Contains(t, fmt.Sprint(h.answer("c")), "would destroy")
	assert.Equal(t, inFile("mixed.env"), before, "the file is changed")

	for _, done := range [][2]string{
		{"plain.env", plain + "A=[redacted]\n"},
		{"new.txt", "[redacted]"},
		{"mask.txt", "the mask was [redacted]\n"},
		{"mixed.env", "nothing of it\n"},
	} {
		answer := tool("write_file", map[string]any{"path": done[0], "content": done[1]})
		assert.That(t, answer["type"] == "tool/call/resp", "%s: %v", done[0], answer)
		assert.Equal(t, inFile(done[0]), done[1])
	}
	answer := tool("edit_file", map[string]any{"path": "mask.txt", "old": "[redacted]", "new": "\"[redacted]\""})
	assert.That(t, answer["type"] == "tool/call/resp", "an edit of a text with the mask: %v", answer)
}

// TestSecretsInPieces: a secret that a program prints in pieces, with pauses between them, is in no event: on a pipe
// or a terminal, on stderr, or among bytes that are not UTF-8. All other output is sent.
func TestSecretsInPieces(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	const secret = "hush-hush-in-pieces"
	writeConfig(t, dir, "auth_token: "+secret+"\n")
	writeFile(t, dir, "say.py", `
import os, random, sys, time
seed, fd, more = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
random.seed(seed)
text = b"begin " + b"hush-hush-in-" + b"pieces" + b" and " + more + b"hush-hush-in-pieces" * 2 + b" hush"
while text:
    n = random.randint(1, len(text)) if seed else 9
    os.write(fd, text[:n])
    text = text[n:]
    time.sleep(random.choice([0, 0, 0.07]))
`)
	h := start(t, dir, "serve")
	h.send(`{"type":"handshake/req","id":"h","agent_caps":["proc","tools"],"auth_token":"` + secret + `"}`)
	h.answer("h")
	const runs = 8
	for i := range runs {
		h.send(fmt.Sprintf(`{"type":"proc/spawn/req","id":"p%d","cmd":["python3","say.py","%[1]d","%d","%s"],`+
			`"metadata":{"pty":%v}}`, i, 1+i%2, []string{"", "ff"}[i/2%2], i%3 == 0))
	}
	said, ended := map[any]string{}, 0
	for ended < runs {
		m := h.next()
		data, _ := m["data"].(map[string]any)
		switch {
		case m["type"] == "proc/spawn/resp":
			must.That(t, m["ok"] == true, "not started: %v", m)
		case m["type"] != "proc/read/event":
		case data["code"] != nil:
			ended++
		case data["base64"] != nil:
			said[m["req_id"]] += string(must.Get(base64.StdEncoding.DecodeString(data["base64"].(string)))(t))
		default:
			said[m["req_id"]] += data["text"].(string)
		}
	}
	for i := range runs {
		more := []string{"", "\xff"}[i/2%2]
		assert.Equal(t, said[fmt.Sprint("p", i)], "begin [redacted] and "+more+"[redacted][redacted] hush", "run %d", i)
	}
	h.send(`{"type":"tool/call/req","id":"t","tool_name":"run_command","streaming":true,` +
		`"arguments":{"command":["python3","say.py","1","1","0a"]}}`)
	line, seen := h.answerTo("t", "")
	assert.Contains(t, line, `begin [redacted] and \n[redacted][redacted] hush`)
	assert.That(t, !strings.Contains(string(seen), "pieces"), "a secret is in %s", seen)
}
