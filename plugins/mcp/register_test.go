package mcp

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// anyCommand lets the agent register any command, such as this test binary.
func anyCommand(o *Options, _ *host.Env) { o.Register = RegisterAny }

func TestRegisterAndUnregister(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	s.plugin.firstWait = time.Nanosecond // the answer must wait for the tools nevertheless
	m := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(child(t, "full", "server_id", "late", "name",
		"Late", "transport", "stdio", "auto_reconnect", true))+`}`, nil)
	if m.Get("/ok") != "true" || m.Get("/error") != "" || m.Get("/server/status") != "ready" ||
		m.Get("/server/tools_count") == "0" ||
		m.Get("/server/server_name") != "fake" || m.Get("/server/name") != "Late" ||
		m.Get("/server/instructions") != "be kind" || m.Get("/server/origin") != "agent" {
		t.Fatalf("%s", m.Line)
	}
	s.tool("late__echo", `{"text":"x"}`)
	again := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(child(t, "full", "server_id", "late"))+`}`,
		nil)
	assert.That(t, again.Get("/ok") == "false" && strings.Contains(again.Get("/error"), "already"), "%s", again.Line)
	s.ask(protocol.TypeMCPServerUnregisterReq, `{"server_id":"late"}`, nil).Has(t, "/ok", "true", "/server_id", "late")
	assert.That(t, s.row("late") == nil && !slices.Contains(s.toolNames(), "late__echo"), "the server is still there")
	s.Refused(protocol.TypeMCPServerUnregisterReq, `{"server_id":"late"}`, protocol.CodeMCPServerNotFound)
	s.Refused(protocol.TypeToolCallReq, callFields("late__echo", `{"text":"x"}`, ""), protocol.CodeUnknownTool)
}

// TestRegisterInOrder: requests behind a registration find the server, even if the agent does not wait
// for its answer.
func TestRegisterInOrder(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	for range 5 {
		register := s.Go(protocol.TypeMCPServerRegisterReq,
			`{"config":`+quoted(child(t, "full", "name", "Late one"))+`}`)
		call := s.Go(protocol.TypeToolCallReq, callFields("Late-one__echo", `{"text":"x"}`, ""))
		list := s.Go(protocol.TypeMCPServerListReq, `{}`)
		prompts := s.Go(protocol.TypeMCPPromptListReq, `{"server_id":"Late-one"}`)
		s.Answer(register).Has(t, "/ok", "true")
		s.Answer(call).Has(t, "/data/success", "true")
		s.Answer(list).Has(t, "/servers/0/status", "ready")
		assert.That(t, s.Answer(prompts).Get("/prompts/0/name") != "", "no prompts")
		away := s.Go(protocol.TypeMCPServerUnregisterReq, `{"server_id":"Late-one"}`)
		gone := s.Go(protocol.TypeToolCallReq, callFields("Late-one__echo", `{"text":"x"}`, ""))
		s.Answer(away).Has(t, "/ok", "true")
		assert.Equal(t, s.Answer(gone).Code, protocol.CodeUnknownTool, "the tool of a server that is gone")
	}
}

// TestUnregisterEndsCalls: to unregister a server does not wait for its calls, but ends them.
func TestUnregisterEndsCalls(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(child(t, "full", "server_id", "late"))+`}`, nil).Has(t,
		"/ok", "true")
	call := s.Go(protocol.TypeToolCallReq, callFields("late__wait", `{}`, `,"timeout":600`))
	hosttest.Eventually(t, "the call runs", func() bool {
		_,
			err := os.Stat(filepath.Join(s.dir, "waiting"))
		return err == nil
	})
	s.ask(protocol.TypeMCPServerUnregisterReq, `{"server_id":"late"}`, nil).Has(t, "/ok", "true")
	assert.Equal(t, s.Answer(call).Code, protocol.CodeMCPTransportError, "the call that was under way")
}

// TestServersOfTheConfigStay: an agent cannot unregister a server of the config.
func TestServersOfTheConfigStay(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full"), "off": child(t, "full", "disabled", true)}, anyCommand)
	for _, id := range []string{"srv", "off"} {
		m := s.Refused(protocol.TypeMCPServerUnregisterReq, `{"server_id":"`+id+`"}`, protocol.CodeToolDenied, id,
			"config")
		assert.That(t, m.Get("/retryable") == "false" && m.Get("/detail/server_id") == id, "%s", m.Line)
	}
	s.tool("srv__echo", `{"text":"x"}`)
}

// TestRegisterRefuses: a registration that is not allowed fails with the reason, and leaves nothing
// behind.
func TestRegisterRefuses(t *testing.T) {
	secret := "hunter2"
	t.Setenv("SECRET_OF_THE_HOST", secret)
	s := newStage(t, nil, func(o *Options, _ *host.Env) { o.AllowedCommands = []string{"sh", "cat"} })
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for name, c := range map[string]struct{ config, want string }{
		"a command that is not allowed": {`{"server_id":"x","command":"python3"}`, "not on the allow list"},
		"a path":                        {`{"server_id":"x","cmd":["/bin/sh","-c","true"]}`, "bare program name"},
		"the network":                   {`{"server_id":"x","command":"sh","network":true}`, "network"},
		"further paths":                 {`{"server_id":"x","command":"sh","read":["/"]}`, "paths"},
		"a folder outside":              {`{"server_id":"x","command":"sh","cwd":"../"}`, "workspace"},
		"code by the environment":       {`{"server_id":"x","command":"sh","env":{"LD_PRELOAD":"x.so"}}`, "LD_PRELOAD"},
		"this machine":                  {`{"server_id":"x","url":"` + web.URL + `"}`, "public"},
		"what is not a server": {
			`{"server_id":"x","command":"cat","args":["/etc/hostname"]}`,
			"could not be connected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+c.config+`}`, nil)
			if m.Get("/ok") != "false" || !strings.Contains(m.Get("/error"), c.want) ||
				m.Get("/server/error") != m.Get("/error") ||
				m.Get("/server/server_id") != "x" || m.Get("/server/name") != "x" ||
				m.Get("/server/status") != "error" || m.Get("/server/transport") == "" ||
				m.Get("/server/tools") != "[]" {
				t.Errorf("%s", m.Line)
			}
		})
	}
	for name, c := range map[string]struct{ config, path string }{
		"a variable":   {`{"server_id":"x","command":"sh","args":["${SECRET_OF_THE_HOST}"]}`, "/config"},
		"a bad id":     {`{"server_id":"a b","command":"sh"}`, "/config/server_id"},
		"two ways":     {`{"server_id":"x","command":"sh","url":"http://example.org"}`, "/config/url"},
		"no way":       {`{"server_id":"x"}`, "/config/command"},
		"unknown":      {`{"server_id":"x","comand":"sh"}`, "/config/comand"},
		"milliseconds": {`{"server_id":"x","command":"sh","timeout":60000}`, "/config/timeout"},
		"a web socket": {`{"server_id":"x","transport":"ws","url":"http://example.org"}`, "/config/transport"},
		"a bad glob":   {`{"server_id":"x","command":"sh","allow":["[a"]}`, "/config/allow"},
	} {
		t.Run(name, func(t *testing.T) {
			m := s.Refused(protocol.TypeMCPServerRegisterReq, `{"config":`+c.config+`}`, protocol.CodeSchemaViolation)
			assert.That(t, m.Problem() == c.path && !strings.Contains(string(m.Line), secret), "%s", m.Line)
		})
	}
	row := s.row("x")
	assert.That(t, row == nil, "something was kept: %v", row)
	off := newStage(t, nil, func(o *Options, _ *host.Env) { o.Register = RegisterOff })
	m := off.ask(protocol.TypeMCPServerRegisterReq, `{"config":{"command":"sh"}}`, nil)
	assert.That(t, m.Get("/ok") == "false" && strings.Contains(m.Get("/error"), "register: off") &&
		m.Get("/server/status") == "error", "%s", m.Line)
}

// TestServerOverHTTP: a server over HTTP has the same features as a server on pipes.
func TestServerOverHTTP(t *testing.T) {
	for _, kind := range []string{"http", "sse"} {
		t.Run(kind, func(t *testing.T) {
			fake := newFake("full")
			var handler http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return fake },
				nil)
			if kind == "sse" {
				handler = sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return fake }, nil)
			}
			keys := make(chan string, 100)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case keys <- r.Header.Get("X-Key"):
				default:
				}
				handler.ServeHTTP(w, r)
			}))
			t.Cleanup(web.Close)
			s := newStage(t, map[string]any{"web": map[string]any{
				"url": web.URL, "type": kind,
				"headers": map[string]any{"X-Key": "hunter2"},
			}}, nil)
			t.Cleanup(s.Close) // before the web server, which waits for its connections
			s.tool("web__echo", `{"text":"x"}`)
			assert.Equal(t, <-keys, "hunter2", "the header")
			id := s.Go(protocol.TypeToolCallReq, callFields("web__model", `{}`, ""))
			s.reply(protocol.TypeMCPSampleResp, s.asks(protocol.TypeMCPSampleReq, 1),
				`{"content":{"type":"text","text":"hello"},"model":"m"}`)
			assert.Equal(t, s.Answer(id).Get("/data/data/content/0/text"), "m: hello", "the server")
			row := s.row("web")
			assert.That(t, row["transport"] == kind && !strings.Contains(fmt.Sprint(row), "hunter2") &&
				!strings.Contains(s.log.String(), "hunter2"), "row: %v", row)
		})
	}
}

// TestManyServersThatHang: a host with many servers, most of which hang, answers its handshake at once,
// and serves the tools of the other servers.
func TestManyServersThatHang(t *testing.T) {
	servers := map[string]any{
		"good": child(t, "full"), "gone": child(t, "gone"),
		"off": child(t, "full", "disabled", true),
	}
	for i := range 6 {
		servers[fmt.Sprintf("hang%d", i)] = child(t, "hang")
	}
	s := newStage(t, servers, nil)
	s.tool("good__echo", `{"text":"x"}`)
	if m := s.ask(protocol.TypeMCPResourceReadReq, `{"uri":"test://1"}`, nil); m.Get("/server_id") != "good" {
		hosttest.Eventually(t, "its resources are known", func() bool {
			return s.Call(protocol.TypeMCPResourceReadReq, `{"uri":"test://1"}`).Get("/server_id") == "good"
		})
	}
	row := s.row("hang0")
	assert.That(t, row["status"] == "connecting", "row: %v", row)
	row = s.row("off")
	assert.That(t, row["state"] == "disabled", "row: %v", row)
	s.Refused(protocol.TypeToolCallReq, callFields("gone__echo", `{}`, ""), protocol.CodeMCPServerUnavailable, "gone",
		"no config")
	s.Refused(protocol.TypeToolCallReq, callFields("off__echo", `{}`, ""), protocol.CodeMCPServerUnavailable,
		"disabled")
	m := s.ask(protocol.TypeMCPServerListReq, `{"status_filter":"disabled"}`, nil)
	assert.That(t, m.Get("/servers/0/server_id") == "off" && m.Get("/servers/1") == "", "%s", m.Line)
}

// TestServerThatFloods: a server that floods the host loses its own messages, and does not delay other
// servers.
func TestServerThatFloods(t *testing.T) {
	s := newStage(t, map[string]any{"loud": child(t, "flood"), "srv": child(t, "full")}, nil)
	for range 5 {
		s.tool("srv__echo", `{"text":"x"}`)
	}
	s.tool("loud__echo", `{"text":"x"}`)
	s.pushed(methodLog)
}

// TestPusherIsBounded: the messages that wait for the agent are bounded. The oldest log messages are
// dropped first, and a message says so.
func TestPusherIsBounded(t *testing.T) {
	p := newPusher(&server{})
	p.add("notifications/tools/list_changed", "", nil)
	p.add("notifications/tools/list_changed", "", nil)
	for i := range 3 * maxPushes {
		p.add(methodLog, "", map[string]any{"data": i})
	}
	p.add(methodUpdated, "test://1", map[string]any{"uri": "test://1"})
	p.add(methodUpdated, "test://1", map[string]any{"uri": "test://1"})
	var got []notice
	for n, ok := p.take(); ok; n, ok = p.take() {
		got = append(got, n)
	}
	if len(got) != maxPushes+1 || !strings.Contains(string(got[0].params), "dropped") ||
		got[1].method != "notifications/tools/list_changed" ||
		got[2].method != methodLog || string(got[2].params) != fmt.Sprintf(`{"data":%d}`, 3*maxPushes-maxPushes+2) ||
		got[len(got)-1].method != methodUpdated {
		t.Errorf("%d notices, the first %+v, %+v, %+v, the last %+v", len(got), got[0], got[1], got[2], got[len(got)-1])
	}
	for range 10 {
		p.add(methodLog, "", map[string]any{"data": strings.Repeat("x", maxPushBytes/2)})
	}
	assert.That(t, p.bytes <= maxPushBytes && p.droppedEver() != 0, "%d bytes wait", p.bytes)
}

// TestRegistrationsTellNothingOfFiles: an error does not tell an agent whether a file exists that its
// server cannot see.
func TestRegistrationsTellNothingOfFiles(t *testing.T) {
	s := newStage(t, nil, func(o *Options, _ *host.Env) { o.AllowedCommands = []string{"sh"} })
	there := filepath.Join(t.TempDir(), "there")
	must.OK(t, os.WriteFile(there, nil, 0o600))
	said := map[string]string{}
	for _, path := range []string{there, there + "-not"} {
		m := s.ask(protocol.TypeMCPServerRegisterReq,
			`{"config":`+quoted(map[string]any{"command": "sh", "args": []string{"-c", "exit 3", path}})+`}`, nil)
		said[path] = strings.ReplaceAll(m.Get("/error"), path, "")
		assert.Contains(t, said[path], "exit status 3", "%s", m.Line)
	}
	assert.Equal(t, said[there], said[there+"-not"], "%q", said)
}

// TestCancelledRegistrationIsNotKept: a registration that is cancelled while the host reads the
// server's lists leaves nothing behind.
func TestCancelledRegistrationIsNotKept(t *testing.T) {
	h := newHostile(t, map[string]string{"tools/list": ""})
	s := newStage(t, nil, func(o *Options, _ *host.Env) { o.HTTPAllowPrivate = true })
	id := s.Go(protocol.TypeMCPServerRegisterReq, fmt.Sprintf(`{"config":{"server_id":"srv","url":%q,"type":"http"}}`,
		h.URL))
	<-h.hung
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	m := s.Answer(id)
	must.Equal(t, m.Code, protocol.CodeCancelled, "%s", m.Line)
	hosttest.Eventually(t, "the server is gone", func() bool { return s.row("srv") == nil })
}

// TestParseServers: ParseServers reads each form of config that MCP clients write.
func TestParseServers(t *testing.T) {
	const entry = `{"command":"npx","args":["-y","@x/y"],"env":{"A":"${env:B}","PORT":8080}}`
	for name, text := range map[string]string{
		"mcp.json":              `{"mcpServers":{"x":` + entry + `}}`,
		"VS Code":               "\xef\xbb\xbf" + ` {"inputs":[],"servers":{"x":` + entry + `}}`,
		"settings":              `{"mcp":{"servers":{"x":` + entry + `}}}`,
		"bare":                  `{"x":` + entry + `}`,
		"list of A2E":           `{"servers":[{"server_id":"x","name":"X","transport":"stdio","cmd":["npx","-y","@x/y"],"env":{"A":"${B}","PORT":"8080"},"auto_reconnect":true}]}`,
		"other clients' notes":  `{"mcpServers":{"x":{"command":"npx","args":["-y","@x/y"],"env":{"A":"${B}","PORT":"8080"},"autoApprove":["a"],"alwaysAllow":[],"description":"d"}}}`,
		"command with its args": `{"mcpServers":{"x":{"args":["@x/y"],"command":["npx","-y"],"env":{"A":"${B}","PORT":"8080"}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			all := must.Get(ParseServers([]byte(text)))(t)
			o := all["x"]
			assert.That(t, len(all) == 1 && o.Command == "npx" && slices.Equal(o.Args, []string{"-y", "@x/y"}) &&
				o.Env["A"] == "${B}" && o.Env["PORT"] == "8080", "read: %+v", all)
		})
	}
	all := must.Get(ParseServers([]byte(`{"mcpServers":{"w":{"type":"streamable-http","url":"https://example.org/mcp","headers":{"Authorization":"Bearer hunter2"},"timeout":1.5,"disabled":true,"sampling":false}}}`)))(t)
	w := all["w"]
	if w.Transport != link.HTTP || w.Headers["Authorization"] != "Bearer hunter2" ||
		w.CallTimeout != 1500*time.Millisecond || !w.Disabled || allowed(w.Sampling) || !allowed(w.Roots) {
		t.Errorf("read: %+v", w)
	}
	shown := fmt.Sprintf("%v %+v %#v", w, w, w)
	assert.That(t, !strings.Contains(shown, "hunter2"), "a secret is shown: %s", shown)
}

// TestParseServersErrors: an error names the server and the field, and shows no value, as values may be
// secret.
func TestParseServersErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":       {`{`, "not a JSON object"},
		"no servers":    {`{"theme":"dark"}`, "no servers in it"},
		"not a mapping": {`{"mcpServers":3}`, "mapping of ids"},
		"wrong type": {
			`{"mcpServers":{"x":{"command":"hunter2","args":7}}}`,
			`x.args: must be a list of strings, not a number`,
		},
		"wrong element": {`{"mcpServers":{"x":{"command":"hunter2","args":[[]]}}}`, `x.args.0: must be a string`},
		"unknown field": {`{"mcpServers":{"x":{"command":"hunter2","argz":[]}}}`, `x.argz: unknown option`},
		"no mapping":    {`{"mcpServers":{"x":"hunter2"}}`, `x: should be a mapping`},
		"both ways": {
			`{"mcpServers":{"x":{"command":"hunter2","url":"http://example.org"}}}`,
			`x.url: it has a command and a url`,
		},
		"no way":    {`{"mcpServers":{"x":{"args":["hunter2"]}}}`, `x.command: it has neither`},
		"bad url":   {`{"mcpServers":{"x":{"url":"ftp://hunter2/"}}}`, `x.url: its url should begin with https:`},
		"bad id":    {`{"mcpServers":{"my server":{"command":"hunter2"}}}`, `"my-server" would do`},
		"parted id": {`{"mcpServers":{"a__b":{"command":"hunter2"}}}`, `"a_b" would do`},
		"asked for": {
			`{"mcpServers":{"x":{"command":"c","env":{"K":"${input:hunter2}"}}}}`,
			`x.env: has a variable ${input:…}`,
		},
		"milliseconds": {
			`{"mcpServers":{"x":{"command":"c","timeout":60000}}}`,
			`x.timeout: must be a number of seconds`,
		},
		"in a list": {`{"servers":[{"command":"c"}]}`, `0.server_id`},
		"another id": {
			`{"mcpServers":{"x":{"server_id":"y","command":"c"}}}`,
			`x.server_id: is "y", but the key of the entry is "x"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseServers([]byte(c.text))
			assert.That(t, err != nil && strings.Contains(err.Error(), c.want) &&
				!strings.Contains(err.Error(), "hunter2"),
				"error %v, want %q in it", err, c.want)
		})
	}
}

// TestOptions: the config has the servers under `servers` or `mcpServers`, as a mapping or a list.
func TestOptions(t *testing.T) {
	decode := func(text string) (Options, error) {
		opts := DefaultOptions()
		parsed, err := config.ParseOptions("a2e.yaml", []byte(text),
			func(name string) string { return "value of " + name })
		if err == nil {
			err = parsed.Decode(&opts)
		}
		return opts, err
	}
	opts, err := decode("servers:\n  - {server_id: a, transport: stdio, cmd: [python, -m, tools]}\nmcpServers:\n  " +
		"b: {url: http://example.org, headers: {K: \"${SECRET}\"}}\npin: true\n")
	must.OK(t, err)
	all, err := opts.servers()
	assert.That(t, err == nil && len(all) == 2 && all[0].ID == "a" && all[0].Command == "python" &&
		all[1].Headers["K"] == "value of SECRET" && opts.Pin, "servers %+v, %v", all, err)
	for _, c := range []struct{ text, want string }{
		{"servers: {a: {command: x}}\nmcpServers: {a: {command: y}}", `"a" appears twice`},
		{"servers: {a: {}}", `a.command`},
	} {
		opts := must.Get(decode(c.text))(t)
		_, err := New("mcp", opts, host.Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), c.want) && strings.Contains(err.Error(),
			`plugin "mcp"`), "%s: %v", c.text, err)
	}
	if _, err := decode("register: sometimes"); err == nil {
		t.Error("register takes any word")
	}
	many := map[string]any{}
	for i := range maxServers + 1 {
		many[fmt.Sprintf("s%d", i)] = map[string]any{"command": "x"}
	}
	if _, err := New("mcp", Options{Servers: many}, host.Env{}); err == nil || !strings.Contains(err.Error(),
		"at most") {
		t.Errorf("too many servers: %v", err)
	}
	assert.Equal(t, len(slices.Collect(maps.Keys(many))), maxServers+1, "the options were changed")
}

// TestListsWaitOnce: a server that never starts delays the first list, but no later one.
func TestListsWaitOnce(t *testing.T) {
	s := newStage(t, map[string]any{"dead": child(t, "hang"), "srv": child(t, "full")}, nil)
	dead := s.plugin.servers["dead"]
	assert.That(t, !dead.isKnown(kindTools), "nobody waits for a server that has just been started")
	dead.patience.Reset(time.Millisecond)
	for range 2 {
		names := s.toolNames()
		assert.That(t, len(names) > 0 && dead.isKnown(kindAll), "the list waits again: %v", names)
		s.ask(protocol.TypeMCPPromptListReq, `{}`, nil)
		s.ask(protocol.TypeMCPResourceListReq, `{}`, nil)
	}
}
