package mcp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// anyCommand lets the agent start this test binary.
func anyCommand(o *Options, _ *Env) { o.Register = RegisterAny }

func TestRegisterAndUnregister(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	s.plugin.firstWait = time.Nanosecond // the answer waits for the tools all the same
	m := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(child(t, "full", "server_id", "late", "name", "Late", "transport", "stdio", "auto_reconnect", true))+`}`, nil)
	if m.Get("/ok") != "true" || m.Get("/error") != "" || m.Get("/server/status") != "ready" || m.Get("/server/tools_count") == "0" ||
		m.Get("/server/server_name") != "fake" || m.Get("/server/name") != "Late" || m.Get("/server/instructions") != "be kind" || m.Get("/server/origin") != "agent" {
		t.Fatalf("%s", m.Line)
	}
	s.tool("late__echo", `{"text":"x"}`)
	again := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(child(t, "full", "server_id", "late"))+`}`, nil)
	if again.Get("/ok") != "false" || !strings.Contains(again.Get("/error"), "already") {
		t.Errorf("%s", again.Line)
	}
	if m := s.ask(protocol.TypeMCPServerUnregisterReq, `{"server_id":"late"}`, nil); m.Get("/ok") != "true" || m.Get("/server_id") != "late" {
		t.Errorf("%s", m.Line)
	}
	if s.row("late") != nil || slices.Contains(s.toolNames(), "late__echo") {
		t.Error("the server is still there")
	}
	s.refused(protocol.TypeMCPServerUnregisterReq, `{"server_id":"late"}`, protocol.CodeMCPServerNotFound)
	s.refused(protocol.TypeToolCallReq, callFields("late__echo", `{"text":"x"}`, ""), protocol.CodeUnknownTool)
}

// A server of the config is its owner's: an agent cannot take it away, nor its name.
func TestServersOfTheConfigStay(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full"), "off": child(t, "full", "disabled", true)}, anyCommand)
	for _, id := range []string{"srv", "off"} {
		m := s.refused(protocol.TypeMCPServerUnregisterReq, `{"server_id":"`+id+`"}`, protocol.CodeToolDenied, id, "config")
		if m.Get("/retryable") != "false" || m.Get("/detail/server_id") != id {
			t.Errorf("%s", m.Line)
		}
	}
	s.tool("srv__echo", `{"text":"x"}`)
}

// What the agent may not register is refused, with the reason, and nothing of it is kept.
func TestRegisterRefuses(t *testing.T) {
	secret := "hunter2"
	t.Setenv("SECRET_OF_THE_HOST", secret)
	s := newStage(t, nil, func(o *Options, _ *Env) { o.AllowedCommands = []string{"sh", "cat"} })
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
		"what is no server":             {`{"server_id":"x","command":"cat","args":["/etc/hostname"]}`, "could not be connected"},
	} {
		t.Run(name, func(t *testing.T) {
			m := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+c.config+`}`, nil)
			if m.Get("/ok") != "false" || !strings.Contains(m.Get("/error"), c.want) || m.Get("/server/error") != m.Get("/error") ||
				m.Get("/server/server_id") != "x" || m.Get("/server/name") != "x" || m.Get("/server/status") != "error" || m.Get("/server/transport") == "" || m.Get("/server/tools") != "[]" {
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
			m := s.refused(protocol.TypeMCPServerRegisterReq, `{"config":`+c.config+`}`, protocol.CodeSchemaViolation)
			if m.Problem() != c.path || strings.Contains(string(m.Line), secret) {
				t.Errorf("%s", m.Line)
			}
		})
	}
	if row := s.row("x"); row != nil {
		t.Errorf("something was kept: %v", row)
	}
	off := newStage(t, nil, func(o *Options, _ *Env) { o.Register = RegisterOff })
	if m := off.ask(protocol.TypeMCPServerRegisterReq, `{"config":{"command":"sh"}}`, nil); m.Get("/ok") != "false" || !strings.Contains(m.Get("/error"), "register: off") || m.Get("/server/status") != "error" {
		t.Errorf("%s", m.Line)
	}
}

// A server over HTTP has the same as one on pipes.
func TestServerOverHTTP(t *testing.T) {
	for _, kind := range []string{"http", "sse"} {
		t.Run(kind, func(t *testing.T) {
			fake := newFake("full")
			var handler http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return fake }, nil)
			if kind == "sse" {
				handler = sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return fake }, nil)
			}
			var keys = make(chan string, 100)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case keys <- r.Header.Get("X-Key"):
				default:
				}
				handler.ServeHTTP(w, r)
			}))
			t.Cleanup(web.Close)
			s := newStage(t, map[string]any{"web": map[string]any{"url": web.URL, "type": kind, "headers": map[string]any{"X-Key": "hunter2"}}}, nil)
			t.Cleanup(s.Close) // before the web server, which waits for its connections
			s.tool("web__echo", `{"text":"x"}`)
			if key := <-keys; key != "hunter2" {
				t.Errorf("the header is %q", key)
			}
			id := s.Go(protocol.TypeToolCallReq, callFields("web__model", `{}`, ""))
			s.reply(protocol.TypeMCPSampleResp, s.asks(protocol.TypeMCPSampleReq, 1), `{"content":{"type":"text","text":"hello"},"model":"m"}`)
			if got := s.Answer(id).Get("/data/data/content/0/text"); got != "m: hello" {
				t.Errorf("the server got %q", got)
			}
			if row := s.row("web"); row["transport"] != kind || strings.Contains(fmt.Sprint(row), "hunter2") || strings.Contains(s.log.String(), "hunter2") {
				t.Errorf("row: %v", row)
			}
		})
	}
}

// A host with many servers, most of which hang, answers its handshake at once, and what
// the others have.
func TestManyServersThatHang(t *testing.T) {
	servers := map[string]any{"good": child(t, "full"), "gone": child(t, "gone"), "off": child(t, "full", "disabled", true)}
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
	if row := s.row("hang0"); row["status"] != "connecting" {
		t.Errorf("row: %v", row)
	}
	if row := s.row("off"); row["state"] != "disabled" {
		t.Errorf("row: %v", row)
	}
	s.refused(protocol.TypeToolCallReq, callFields("gone__echo", `{}`, ""), protocol.CodeMCPServerUnavailable, "gone", "no config")
	s.refused(protocol.TypeToolCallReq, callFields("off__echo", `{}`, ""), protocol.CodeMCPServerUnavailable, "disabled")
	m := s.ask(protocol.TypeMCPServerListReq, `{"status_filter":"disabled"}`, nil)
	if m.Get("/servers/0/server_id") != "off" || m.Get("/servers/1") != "" {
		t.Errorf("%s", m.Line)
	}
}

// A server that floods loses messages of its own, and holds nobody up.
func TestServerThatFloods(t *testing.T) {
	s := newStage(t, map[string]any{"loud": child(t, "flood"), "srv": child(t, "full")}, nil)
	for range 5 {
		s.tool("srv__echo", `{"text":"x"}`)
	}
	s.tool("loud__echo", `{"text":"x"}`)
	s.pushed(methodLog)
}

// What waits for the agent is bounded, the oldest log messages go first, and it is said.
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
	if len(got) != maxPushes+1 || !strings.Contains(string(got[0].params), "dropped") || got[1].method != "notifications/tools/list_changed" ||
		got[2].method != methodLog || string(got[2].params) != fmt.Sprintf(`{"data":%d}`, 3*maxPushes-maxPushes+2) || got[len(got)-1].method != methodUpdated {
		t.Errorf("%d notices, the first %+v, %+v, %+v, the last %+v", len(got), got[0], got[1], got[2], got[len(got)-1])
	}
	for range 10 {
		p.add(methodLog, "", map[string]any{"data": strings.Repeat("x", maxPushBytes/2)})
	}
	if p.bytes > maxPushBytes || p.droppedEver() == 0 {
		t.Errorf("%d bytes wait", p.bytes)
	}
}
