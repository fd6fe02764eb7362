package mcp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// peersDir is the folder for which `make tools` installs programs of other projects. It also has the scripts that use
// them.
const peersDir = "../../../testdata/peers"

// peer returns the absolute path of a file in peersDir, and fails if the file does not exist.
func peer(t *testing.T, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{peersDir}, parts...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	must.OK(t, err)
	return path
}

// workDir returns a new workspace, which is the home folder too. It has these skills by name and a user's config with
// these servers, which a client does not have to name.
func workDir(t *testing.T, servers string, skills map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"note.md": "# note\n",
		".config/a2e/config.yaml": "plugins:\n  - {name: tools, type: tools}\n  - {name: memory, type: memory}\n" +
			"  - {name: skills, type: skill, metadata: {skills_path: skills}}\n  - {name: mcp, type: mcp, metadata: " +
			"{servers: " + servers + "}}\n",
	}
	for name, text := range skills {
		files[filepath.Join("skills", name, "SKILL.md")] = "---\nname: " + name + "\ndescription: Says something.\n" +
			text
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// program returns a command that runs a program in a workspace.
func program(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=")
	return cmd
}

// TestReferenceClients: clients that use MCP's own SDKs find in `a2e mcp serve` what their scripts expect.
func TestReferenceClients(t *testing.T) {
	binary := hosttest.Program(t, "a2e")
	everything := everythingServer(t)
	greet := map[string]string{"greet": "arguments: [who]\n---\nSay hello to $who, in one line.\n"}
	for _, c := range []struct{ name, program, script, last string }{
		{"TypeScript", "node", "client.mjs", "asked"}, {
			"Python", peer(t, "venv", "bin", "python3"), "client.py",
			"pinned",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer(t, "node_modules", "@modelcontextprotocol", "sdk")
			cmd := program(t, workDir(t, everything, greet), c.program, peer(t, c.script), binary)
			out, err := cmd.CombinedOutput()
			assert.That(t, err == nil && strings.HasSuffix(strings.TrimSpace(string(out)), c.last), "%v: %s", err, out)
		})
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run("what can be asked in "+version, func(t *testing.T) {
			t.Parallel()
			mirrored(t, workDir(t, everything, nil), binary, version)
		})
	}
	t.Run("conformance", func(t *testing.T) { conformance(t, binary) })
}

// everythingServer returns the config of the server "all", which is server-everything.
func everythingServer(t *testing.T) string {
	t.Helper()
	index := peer(t, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
	return fmt.Sprintf("{all: {command: node, args: [%q], read: [%q]}}", index, peer(t, "node_modules"))
}

// mirrored checks that a client is offered those tools of a server that ask the client for something, only if it can
// be asked for that.
func mirrored(t *testing.T, dir, binary, version string) {
	opts := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	tools := askingTools(t, connectTo(t, dir, binary, version, opts))
	assert.That(t, len(tools) == 0, "a client that cannot be asked is offered %v", tools)
	opts.CreateMessageHandler = func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
		return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "it is heard"}},
			nil
	}
	opts.Capabilities.Elicitation = &mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}}
	session := connectTo(t, dir, binary, version, opts)
	if tools := askingTools(t, session); !slices.Equal(tools, []string{
		"trigger-elicitation-request",
		"trigger-sampling-request", "trigger-url-elicitation",
	}) {
		t.Errorf("a client with sampling and URLs is offered %v", tools)
	}
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{
		Name:      "all__trigger-sampling-request",
		Arguments: map[string]any{"prompt": "hi"},
	})
	said, _ := json.Marshal(res)
	assert.That(t, err == nil && !res.IsError && strings.Contains(string(said), "it is heard"), "sampling: %v %s", err,
		said)
}

// connectTo starts a host and connects a client to it.
func connectTo(t *testing.T, dir, binary, version string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	session := must.Get(mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, opts).
		Connect(t.Context(), &mcp.CommandTransport{Command: program(t, dir, binary, "mcp", "serve")},
			&mcp.ClientSessionOptions{ProtocolVersion: version}))(t)
	t.Cleanup(func() { _ = session.Close() })
	assert.Equal(t, session.InitializeResult().ProtocolVersion, version, "the version")
	return session
}

// askingTools returns the tools of server-everything that ask the client, when the server has all its tools.
func askingTools(t *testing.T, session *mcp.ClientSession) (asking []string) {
	t.Helper()
	hosttest.Eventually(t, "the server has its tools", func() bool {
		asking = nil
		complete := false
		for tool, err := range session.Tools(t.Context(), nil) {
			must.OK(t, err)
			name, _ := strings.CutPrefix(tool.Name, "all__")
			if complete = complete || name == "simulate-research-query"; strings.HasPrefix(name, "trigger-") &&
				!strings.HasSuffix(name, "-operation") || name == "get-roots-list" {
				asking = append(asking, name)
			}
		}
		return complete
	})
	slices.Sort(asking)
	return asking
}

// conformance runs the server scenarios of @modelcontextprotocol/conformance over HTTP, with the server that they
// need behind the host. At least 32 scenarios must pass and none may fail.
func conformance(t *testing.T, binary string) {
	dir := workDir(t, `{fixture: {url: "http://127.0.0.1:${FIXTURE_PORT}/fixture"}}`, nil)
	peer(t, "node_modules", "@modelcontextprotocol", "conformance")
	port := startBridge(t, dir, binary)
	out, err := program(t, dir, "node", peer(t, "conformance.mjs"), "server", "--url", "http://127.0.0.1:"+port+"/mcp",
		"--suite", "all").CombinedOutput()
	_, summary, ok := strings.Cut(string(out), "=== SUMMARY ===")
	if err != nil || !ok {
		t.Errorf("%v: %s%s", err, summary, out[max(0, len(out)-3000):])
	}
	passed := strings.Count(summary, "✓")
	assert.That(t, passed >= 32, "only %d scenarios passed:%s", passed, summary)
}

// startBridge starts the bridge and returns its port.
func startBridge(t *testing.T, dir, binary string) string {
	t.Helper()
	bridge := program(t, dir, "node", peer(t, "bridge.mjs"), binary)
	bridge.Cancel = func() error { return bridge.Process.Signal(syscall.SIGTERM) } // the host ends with the bridge
	out := must.Get(bridge.StdoutPipe())(t)
	errs := &strings.Builder{}
	bridge.Stderr = errs
	must.OK(t, bridge.Start())
	t.Cleanup(func() {
		_ = bridge.Wait() // the context of the test has ended the bridge
		if t.Failed() {
			t.Logf("the bridge said: %s", errs)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	port, ok := strings.CutPrefix(strings.TrimSpace(line), "port ")
	must.That(t, ok, "the bridge says %q %v: run make tools", line, err)
	return port
}

// TestLogging: a client gets log messages only after it has set a level, and only of that level or higher.
func TestLogging(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	notes := func(from int) (all []string) {
		for _, l := range p.said()[from:] {
			if l.Method != "" {
				all = append(all, strings.TrimPrefix(l.Method, "notifications/")+string(l.Params))
			}
		}
		return all
	}
	p.call(`1`, "tools/call", `{"name":"progress"}`)
	all := notes(0)
	assert.That(t, all == nil, "heard without having asked: %q", all)
	log := func(level, logger, data string) string {
		return fmt.Sprintf(`message{"level":%q,"logger":%q,"data":%q}`, level, logger, data)
	}
	at := func(pct, message string) string {
		return `progress{"progressToken":"p","progress":` + pct + `,"total":100,"message":"` + message + `"}`
	}
	for i, c := range []struct {
		level string
		want  []string
	}{
		{"warning", []string{
			at("0", "at 0"), at("10", "at 10"), at("33.5", "at 33.5"), at("100", "at 250"),
			log("warning", "progress/stderr", "careful"),
		}},
		{"info", []string{
			at("0", "at 0"), at("10", "at 10"), log("info", "progress", "at 5"), log("info", "progress", "at 10"),
			at("33.5", "at 33.5"), at("100", "at 250"),
			log("warning", "progress/stderr", "careful"), log("info", "progress", "bad \ufffd UTF-8"),
			log("info", "progress", "busy"),
		}},
	} {
		l := p.call(fmt.Sprint(100+i), "logging/setLevel", `{"level":"`+c.level+`"}`)
		assert.Equal(t, string(l.Result), "{}", "%s: %s", c.level, l)
		from := len(p.said())
		p.call(fmt.Sprint(200+i), "tools/call", `{"name":"progress","_meta":{"progressToken":"p"}}`)
		got := notes(from)
		assert.That(t, slices.Equal(got, c.want), "%s: heard\n%s\nshould be\n%s", c.level, strings.Join(got, "\n"),
			strings.Join(c.want, "\n"))
	}
}

// TestLogsOfServers: log messages of an MCP server behind the host reach the client under the name of that server, if
// the client asked for their level. Other notifications of the server do not.
func TestLogsOfServers(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	call := 0
	push := func(args string) (heard string) {
		from := len(p.said())
		call++
		p.call(fmt.Sprint(call), "tools/call", `{"name":"push","arguments":`+args+`}`)
		for _, l := range p.said()[from:] {
			if l.Method != "" {
				heard += l.Method + string(l.Params)
			}
		}
		return heard
	}
	const careful = `{"method":"notifications/message","level":"warning","data":{"n":[9007199254740993]}}`
	assert.Equal(t, push(careful), "", "heard without having asked")
	p.call(`"level"`, "logging/setLevel", `{"level":"notice"}`)
	for args, want := range map[string]string{
		careful: `notifications/message{"level":"warning","logger":"srv","data":{"n":[9007199254740993]}}`,
		`{"method":"notifications/message","level":"notice","logger":"db","data":"x"}`: `notifications/message{"level":"notice","logger":"srv/db","data":"x"}`,
		`{"method":"notifications/message","level":"notice","data":1e400,"_meta":{"a":1.0},"x":-0}`: "" +
			`notifications/message{"level":"notice","logger":"srv","data":1e400,"_meta":{"a":1.0},"x":-0}`,
		`{"method":"notifications/message","level":"alert","logger":5}`: "" +
			`notifications/message{"level":"alert","logger":"srv","data":null}`,
		`{"method":"notifications/message","level":"info","data":"x"}`:               "",
		`{"method":"notifications/message","data":"x"}`:                              "",
		`{"method":"notifications/resources/updated","level":"alert","uri":"a://b"}`: "",
	} {
		assert.Equal(t, push(args), want, "%s: heard", args)
	}
}

// asking opens a session of a client with these capabilities and calls a tool that asks the agent. It returns the
// question, or the answer to the call.
func asking(t *testing.T, offers string, typ protocol.Type, body string) (p *pipe, question line) {
	t.Helper()
	p = serve(t, front.Options{}, onlyMCP(newLab()))
	p.call(`"i"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":`+offers+`}`)
	p.send(callTool(`"call"`, "ask", fmt.Sprintf(`{"type":%q,"body":%s}`, typ, body)))
	return p, p.wait("the question, or the answer to the call",
		func(l line) bool { return l.Method != "" || string(l.ID) == `"call"` })
}

// TestAsking: the questions of plugins to the agent become requests for the client's sampling, roots and elicitation,
// with the same content.
func TestAsking(t *testing.T) {
	all := `{"sampling":{},"roots":{},"elicitation":{"form":{}}}`
	block := `{"type":"text","text":"hi","x-own":[9007199254740993]}`
	sample := `{"server_id":"s","mcp_request_id":"7","messages":[{"role":"user","content":` + block +
		`}],"system_prompt":"be brief","max_tokens":5,"temperature":0.5,` +
		`"stop_sequences":["."],"model_preferences":{"hints":[{"name":"h"}]},"metadata":{"m":1}}`
	sampled := `{"messages":[{"role":"user","content":` + block + `}],"systemPrompt":"be brief","maxTokens":5,` +
		`"temperature":0.5,"stopSequences":["."],"modelPreferences":{"hints":[{"name":"h"}]},"metadata":{"m":1},` +
		`"includeContext":"none"}`
	form := `{"server_id":"s","mode":"form","message":"who?","requested_schema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`
	asked := `{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`
	ofDialect := func(text, name string) string {
		return strings.Replace(text, `{"type":"object"`, `{"$schema":"`+name+`","type":"object"`, 1)
	}
	older := ofDialect(form, "http://json-schema.org/draft-04/schema")
	asOlder := ofDialect(asked, "http://json-schema.org/draft-07/schema#")
	unknown := ofDialect(form, "https://example.org/own")
	for _, c := range []struct {
		typ            protocol.Type
		body           string
		method, params string // the request that the client gets
		answer         string // members of the client's answer
		want           string // part of the answer that the plugin gets
	}{
		{
			protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled,
			`"result":{"role":"assistant","model":"m","stopReason":"endTurn","content":` + block + `}`,
			`{"server_id":"s","mcp_request_id":"7","role":"assistant","content":` + block +
				`,"model":"m","stop_reason":"endTurn","error":""}`,
		},
		{
			protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled,
			`"result":{"role":"assistant","model":"m","content":[` + block + `,{}]}`, `"content":` + block,
		},
		{
			protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled,
			`"result":{"role":"assistant","model":"m","content":[]}`, `"content":{}`,
		},
		{
			protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"result":{"role":5}`,
			"did not answer as it should",
		},
		{
			protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled,
			`"error":{"code":-1,"message":"the user said no"}`, "mcp_sampling_refused: the MCP client refused: the " +
				"user said no",
		},
		{
			protocol.TypeMCPRootListReq, `{"server_id":"s"}`, "roots/list", `{}`,
			`"result":{"roots":[{"uri":"file:///x","name":"x"}]}`, `"roots":[{"uri":"file:///x","name":"x"}]`,
		},
		{protocol.TypeMCPRootListReq, `{}`, "roots/list", `{}`, `"result":{}`, `"roots":[]`},
		{
			protocol.TypeMCPElicitReq, form, "elicitation/create", asked,
			`"result":{"action":"accept","content":{"name":"me"}}`, `"action":"accept","content":{"name":"me"}`,
		},
		{
			protocol.TypeMCPElicitReq, older, "elicitation/create", asOlder,
			`"result":{"action":"accept","content":{"name":"me"}}`, `"action":"accept","content":{"name":"me"}`,
		},
		{
			protocol.TypeMCPElicitReq, older, "elicitation/create", asOlder,
			`"result":{"action":"accept","content":{"name":5}}`, "does not match",
		},
		{
			protocol.TypeMCPElicitReq, unknown, "elicitation/create", asked,
			`"result":{"action":"accept","content":{"name":5}}`, `"content":{"name":5}`,
		},
		{
			protocol.TypeMCPElicitReq, form, "elicitation/create", asked, `"result":{"action":"decline"}`,
			`"action":"decline","content":{}`,
		},
		{
			protocol.TypeMCPElicitReq, form, "elicitation/create", asked,
			`"result":{"action":"accept","content":{"name":5}}`, "does not match",
		},
	} {
		p, question := asking(t, all, c.typ, c.body)
		if question.Method != c.method || string(question.Params) != c.params {
			t.Errorf("asked\n%s\nshould be %s\n%s", question, c.method, c.params)
			continue
		}
		p.send(`{"jsonrpc":"2.0","id":` + string(question.ID) + `,` + c.answer + `}`)
		if got := p.answer(`"call"`); !strings.Contains(strings.ReplaceAll(got.text, `\"`, `"`), c.want) {
			t.Errorf("%s\nwas told to the plugin as\n%s\nshould have\n%s", c.answer, got, c.want)
		}
	}
	for _, c := range []struct {
		offers     string
		typ        protocol.Type
		body, want string
	}{
		{`{}`, protocol.TypeMCPSampleReq, `{}`, "offers no sampling"},
		{`{"sampling":null}`, protocol.TypeMCPSampleReq, `{}`, "offers no sampling"},
		{`{}`, protocol.TypeMCPRootListReq, `{}`, "offers no roots"},
		{`{}`, protocol.TypeMCPElicitReq, `{}`, "offers no elicitation"},
		{`{"elicitation":{"url":{}}}`, protocol.TypeMCPElicitReq, form, "offers no elicitation by form"},
		{
			all, protocol.TypeMCPElicitReq, `{"mode":"url","message":"?","url":"https://x"}`,
			"offers no elicitation by url",
		},
		// a schema against which no answer can be checked
		{all, protocol.TypeMCPElicitReq, `{"mode":"form","message":"?","requested_schema":{"type":"object","$ref":"#"}}`, "refers to itself"},
		{all, protocol.TypePing, `{}`, "cannot be asked"},
	} {
		_, got := asking(t, c.offers, c.typ, c.body)
		assert.That(t, strings.Contains(got.text, c.want), "%s of a client that offers %s: %s", c.typ, c.offers, got)
	}
}

// TestAskingEnds: if a call is cancelled, the host also cancels the question that the call has asked the client.
func TestAskingEnds(t *testing.T) {
	p, question := asking(t, `{"roots":{}}`, protocol.TypeMCPRootListReq, `{}`)
	p.send(request("", "notifications/cancelled", `{"requestId":"call"}`))
	p.wait("the client is told", func(l line) bool {
		return l.Method == "notifications/cancelled" && string(l.Params) == `{"requestId":`+string(question.ID)+`}`
	})
	if p.end(); len(p.answers(`"call"`)) != 0 {
		t.Errorf("it was answered: %s", p.said())
	}
}
