package mcp

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestAskingCanBeSwitchedOff: the host refuses the requests of a server that its config forbids,
// without asking the agent.
func TestAskingCanBeSwitchedOff(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "sampling", false, "elicitation", false, "roots", false)},
		nil)
	for _, tool := range []string{"srv__model", "srv__user"} {
		got := s.tool(tool, `{}`)
		assert.That(t, strings.HasPrefix(got, "error: "), "%s gave %q", tool, got)
	}
	got := s.tool("srv__roots", `{}`)
	assert.That(t, got == "" || strings.HasPrefix(got, "error: "), "roots: %q", got)
	for _, m := range s.Messages() {
		assert.That(t, !m.IsRequest(), "the agent was asked: %s", m.Line)
	}
}

// TestAskingExtendsTheTimeout: a call does not time out while its server waits for the agent.
func TestAskingExtendsTheTimeout(t *testing.T) {
	inTime(t, func(timeout int) hosttest.Message {
		s := newStage(t, map[string]any{
			"srv":   child(t, "full", "timeout", timeout),
			"other": child(t, "full", "timeout", timeout),
		}, nil)
		s.toolNames()
		id := s.Go(protocol.TypeToolCallReq, callFields("srv__model", `{}`, ""))
		asked := s.Wait("its question, or its end",
			func(m hosttest.Message) bool { return m.Type == protocol.TypeMCPSampleReq || m.ReqID == id })
		if asked.Type == protocol.TypeError {
			return asked
		}
		s.Refused(protocol.TypeToolCallReq, callFields("other__wait", `{}`, ""), protocol.CodeTimeout) // began later, and has timed out
		s.reply(protocol.TypeMCPSampleResp, asked, `{"content":{"type":"text","text":"late"},"model":"m"}`)
		return s.Answer(id)
	}).Has(t, "/data/data/content/0/text", "m: late")
}

// inTime calls do with longer and longer timeouts until the answer is not a timeout: on a busy machine
// a server may be silent for longer than a short timeout.
func inTime(t *testing.T, do func(timeout int) hosttest.Message) (m hosttest.Message) {
	t.Helper()
	for timeout := 2; timeout <= 16; timeout *= 2 {
		if m = do(timeout); m.Code != protocol.CodeTimeout {
			break
		}
	}
	return m
}

// TestServersAreToldWhatTheClientCan: servers start at once, and get the capabilities of an MCP client
// in front when the client has sent them: never more than their config allows, and none if the client
// does not send them in time.
func TestServersAreToldWhatTheClientCan(t *testing.T) {
	can := jsontext.Value(`{"sampling":{},"elicitation":{"form":{}}}`)
	exe := must.Get(os.Executable())(t)
	for name, c := range map[string]struct {
		says   jsontext.Value
		wait   time.Duration
		option string // option of the server to set
		want   string // the capabilities that the server gets; "" = the host ends before
	}{
		"what it says":          {can, time.Hour, "elicitation", `{"sampling":{},"elicitation":{"form":{}}}`},
		"what the config lets":  {can, time.Hour, "sampling", `{"elicitation":{"form":{}}}`},
		"it says nothing":       {nil, time.Millisecond, "", `{}`},
		"the host ends earlier": {nil, time.Hour, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			env, log := newEnv(t)
			says := make(chan struct{})
			env.MCPClient = func(ctx context.Context) jsontext.Value {
				select {
				case <-says:
					return c.says
				case <-ctx.Done():
					return nil
				}
			}
			cfg := map[string]any{
				"command": "sh", "args": []any{"-c", `: > began; tee ` + wireFile + ` | "$0"`, exe}, "read": []any{exe},
				"env": map[string]any{roleVar: "full", "GORACE": "atexit_sleep_ms=0"},
			}
			if c.option != "" {
				cfg[c.option] = c.option != "sampling"
			}
			opts := DefaultOptions()
			opts.Servers = map[string]any{"srv": cfg}
			plugin := must.Get(New("mcp", opts, env))(t)
			plugin.firstWait, plugin.clientWait = hosttest.Patience, c.wait
			s := &stage{t: t, plugin: plugin, log: log, dir: env.Workspace, Pair: hosttest.New(t,
				host.Options{Plugins: []host.Plugin{plugin}})}
			hosttest.Eventually(t, "the server starts", func() bool {
				_,
					err := os.Stat(filepath.Join(s.dir, "began"))
				return err == nil
			})
			if c.says != nil {
				wire, _ := os.ReadFile(filepath.Join(s.dir, wireFile))
				assert.That(t, len(wire) == 0, "before the client said anything the server was sent %s", wire)
				close(says)
			}
			if c.want == "" {
				return
			}
			s.Handshake(protocol.CapMCP, protocol.CapTools)
			s.tool("srv__echo", `{"text":"x"}`)
			wire, _ := os.ReadFile(filepath.Join(s.dir, wireFile))
			var hello struct {
				Params struct{ Capabilities jsontext.Value }
			}
			first, _, _ := strings.Cut(string(wire), "\n")
			err := json.Unmarshal([]byte(first), &hello, json.MatchCaseInsensitiveNames(true))
			assert.That(t, err == nil && string(hello.Params.Capabilities) == c.want, "the server was told %s, want %s",
				first, c.want)
		})
	}
}

// everythingRoots answers the server, which asks for the roots after its handshake.
func everythingRoots(t *testing.T, r *real) {
	r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq),
		`{"roots":[{"uri":"file:///srv/one","name":"one"},{"uri":"file:///srv/two"}]}`)
	r.pushed(methodLog, "2 root(s) received")
	text := r.result("get-roots-list", `{}`).Get("/data/data/content/0/text")
	assert.That(t, strings.Contains(text, "(2 total)") && strings.Contains(text, "1. one\n   URI: file:///srv/one") &&
		strings.Contains(text, "file:///srv/two"), "the roots: %s", text)
}

// everythingSubscriptions subscribes to one resource. The first update must be of this resource, with
// the id of the request.
func everythingSubscriptions(t *testing.T, r *real) {
	const uri = "demo://resource/dynamic/text/9"
	id := r.Go(protocol.TypeMCPResourceSubscribeReq, `{"uri":`+quoted(uri)+`}`)
	holds(t, r.Answer(id), map[string]string{"/ok": "true"})
	r.result("toggle-subscriber-updates", `{}`)
	push := r.pushed(methodUpdated)
	holds(t, push, map[string]string{"/server_id": "all", "/params/uri": uri, "/req_id": id})
	r.result("toggle-subscriber-updates", `{}`)
}

// everythingLogging turns the simulated messages of the server on and off: the server sends one at
// once, of any level. Messages below the level `info` must not arrive.
func everythingLogging(t *testing.T, r *real) {
	r.pushed(methodLog, "Received Subscribe Resource request") // of the subtest before
	heard := false
	for i := 0; i < 100 && !heard || i%2 == 1; i++ { // at the end the messages are off again
		r.result("toggle-simulated-logging", `{}`)
		for _, m := range r.Messages() {
			if m.Type != protocol.TypeMCPServerPush || m.Get("/method") != methodLog {
				continue
			}
			heard = heard || strings.Contains(m.Get("/params/data"), "-level message") ||
				strings.Contains(m.Get("/params/data"), "level-message")
			must.That(t, m.Get("/params/level") != "debug", "a message below the level: %s", m.Line)
		}
	}
	assert.That(t, heard, "no message came")
}

func everythingSampling(t *testing.T, r *real) {
	id := r.call("trigger-sampling-request", `{"prompt":"say it","maxTokens":12}`, "")
	q := r.question(protocol.TypeMCPSampleReq)
	holds(t, q, map[string]string{
		"/server_id": "all", "/messages/0/role": "user",
		"/messages/0/content/text": "Resource trigger-sampling-request context: say it",
		"/system_prompt":           "You are a helpful test server.", "/max_tokens": "12", "/temperature": "0.7",
	})
	r.reply(protocol.TypeMCPSampleResp, q, `{"role":"assistant","content":{"type":"text","text":"I said it"},"model":"m-1","stop_reason":"endTurn"}`)
	text := r.succeeded(id).Get("/data/data/content/0/text")
	for _, word := range []string{`"I said it"`, `"model": "m-1"`, `"stopReason": "endTurn"`} {
		assert.Contains(t, text, word, "the server got no")
	}
	id = r.call("trigger-sampling-request", `{"prompt":"no"}`, "")
	r.reply(protocol.TypeMCPSampleResp, r.question(protocol.TypeMCPSampleReq), `{"error":"no budget"}`)
	m := r.Answer(id)
	assert.That(t, m.Get("/data/success") == "false" && strings.Contains(m.Get("/data/error"), "no budget"),
		"a refusal: %s", m.Line)
}

func everythingElicitation(t *testing.T, r *real) {
	for _, c := range []struct{ name, answer, want string }{
		{
			"accepted", `{"action":"accept","content":{"name":"Ada","integer":7,"untitledMultipleSelectEnum":["Piano"]}}`,
			"- Name: Ada",
		},
		{"declined", `{"action":"decline"}`, "User declined"},
		{"cancelled", `{"action":"cancel"}`, "User cancelled"},
		{"by an error", ``, "User declined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := r.call("trigger-elicitation-request", `{}`, "")
			q := r.question(protocol.TypeMCPElicitReq)
			holds(t, q, map[string]string{
				"/mode": "form", "/message": "Please provide inputs for the following fields:",
				"/requested_schema/required":                                        `["name"]`,
				"/requested_schema/properties/titledSingleSelectEnum/oneOf/0/title": "Superman",
				"/requested_schema/properties/integer/default":                      "42",
				"/requested_schema/properties/legacyTitledEnum/enumNames/0":         "Cats",
			})
			if c.answer == "" { // an agent that does not know the request
				r.reply(protocol.TypeError, q, `{"code":"unknown_type","message":"what is that?","retryable":false}`)
			} else {
				r.reply(protocol.TypeMCPElicitResp, q, c.answer)
			}
			assert.Contains(t, string(r.succeeded(id).Line), c.want, "the server")
		})
	}
}

// everythingUnanswered: if the agent does not answer before the end of the call, this counts as
// declined, and the server continues to work.
func everythingUnanswered(t *testing.T, r *real) {
	id := r.call("trigger-elicitation-request", `{}`, `,"timeout":4`) // a busy machine may take a while to ask
	r.question(protocol.TypeMCPElicitReq)
	r.Answer(id).Has(t, "/code", string(protocol.CodeTimeout))
	r.sent(`"action":"decline"`)
	r.result("echo", `{"message":"on"}`)
}

// everythingURLElicitation sends the user to a page, by a request and by an error.
func everythingURLElicitation(t *testing.T, r *real) {
	id := r.call("trigger-url-elicitation", `{"url":"https://example.com/pay","elicitationId":"e-1"}`, "")
	q := r.question(protocol.TypeMCPElicitReq)
	holds(t, q, map[string]string{"/mode": "url", "/url": "https://example.com/pay", "/message": "Please open the " +
		"link to complete this action."})
	r.reply(protocol.TypeMCPElicitResp, q, `{"action":"accept"}`)
	assert.Contains(t, string(r.succeeded(id).Line), "User completed the URL elicitation flow", "the server")
	const byError = `{"url":"https://example.com/pay","elicitationId":"e-2","errorPath":true}`
	refusal := r.Refused(protocol.TypeToolCallReq, callFields("all__trigger-url-elicitation", byError, ""),
		protocol.CodeMCPProtocolError)
	holds(t, refusal, map[string]string{
		"/detail/code":                    "-32042",
		"/detail/data/elicitations/0/url": "https://modelcontextprotocol.io",
	})
	id = r.call("trigger-url-elicitation", byError, "") // the page was opened, as far as the server knows
	q = r.question(protocol.TypeMCPElicitReq)
	holds(t, q, map[string]string{"/url": "https://example.com/pay"})
	r.reply(protocol.TypeMCPElicitResp, q, `{"action":"cancel"}`)
	assert.Contains(t, string(r.succeeded(id).Line), "User cancelled the URL elicitation", "the server")
}

func everythingProgress(t *testing.T, r *real) {
	id := r.call("trigger-long-running-operation", `{"duration":0.1,"steps":4}`, `,"streaming":true`)
	m := r.succeeded(id)
	holds(t, m, map[string]string{"/data/data/content/0/text": "Long running operation completed. Duration: 0.1 " +
		"seconds, Steps: 4."})
	var told []string
	for _, m := range r.Messages() {
		if m.ReqID == id && m.Get("/kind") == "progress" {
			told = append(told, m.Get("/data/pct"))
		}
	}
	if got := strings.Join(told, " "); got != "25 50 75 100" && got != "25 50 75" { // the last one may come too late
		t.Errorf("progress: %v", told)
	}
}

// everythingCancellation cancels a call that would take an hour. The server still answers calls.
func everythingCancellation(t *testing.T, r *real) {
	id := r.call("trigger-long-running-operation", `{"duration":3600,"steps":360000}`, `,"streaming":true`)
	r.Event(id) // it is under way
	r.Go(protocol.TypeCancel, `{"req_id":`+quoted(id)+`}`)
	r.Answer(id).Has(t, "/code", string(protocol.CodeCancelled))
	r.sent(`"notifications/cancelled"`)
	holds(t, r.result("echo", `{"message":"still"}`), map[string]string{"/data/data/content/0/text": "Echo: still"})
}

// TestRootsOfALaterAgent: a server that asked for its roots when there was no agent is told of changed
// roots when an agent calls it, and once more for the next agent.
func TestRootsOfALaterAgent(t *testing.T) {
	env, log := newEnv(t)
	opts := DefaultOptions()
	cfg := npmServer(t, "server-everything") // asks once, by itself, 350 ms after it was connected
	opts.Servers = map[string]any{"all": cfg}
	plugin := must.Get(New("mcp", opts, env))(t)
	plugin.firstWait, plugin.rootsWait = hosttest.Patience, hosttest.Patience
	s := &stage{t: t, plugin: plugin, log: log, dir: env.Workspace, Pair: hosttest.New(t,
		host.Options{Plugins: []host.Plugin{plugin}})}
	r := &real{stage: s, asked: map[protocol.Type]int{}, wire: s.dir + "/" + wireFile}
	r.sent(`"roots"`, "file://"+s.dir) // the server got the workspace as its root
	for range 2 {
		s.Handshake(protocol.CapMCP, protocol.CapTools)
		r.result("echo", `{"message":"x"}`)
		r.sent("notifications/roots/list_changed")
		r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq),
			`{"roots":[{"uri":"file:///later"}]}`)
	}
	r.sent("file:///later")
}

// TestRootsThatComeLate: if an agent sends its roots too late, the server is told that they have
// changed, and asks again.
func TestRootsThatComeLate(t *testing.T) {
	s := one(t)
	s.plugin.rootsWait = time.Millisecond
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__roots", `{}`, ""))
	asked := s.asks(protocol.TypeMCPRootListReq, 1)
	s.Answer(id) // answered with the workspace as the root
	s.plugin.rootsWait = hosttest.Patience
	s.reply(protocol.TypeMCPRootListResp, asked, `{"roots":[{"uri":"file:///late"}]}`)
	again := s.asks(protocol.TypeMCPRootListReq, 2) // the server was told that they have changed
	s.reply(protocol.TypeMCPRootListResp, again, `{"roots":[{"uri":"file:///now"}]}`)
	assert.Equal(t, s.tool("srv__kept", `{}`), "file:///now", "the server's roots")
}

// TestRootsOutliveACall: a question for the roots belongs to the session, so the end of a call does not
// end it.
func TestRootsOutliveACall(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__aside", `{}`, ""))
	asked := s.asks(protocol.TypeMCPRootListReq, 1)
	s.tool("srv__release", `{}`)
	s.Answer(id)
	s.reply(protocol.TypeMCPRootListResp, asked, `{"roots":[{"uri":"file:///a"}]}`)
	assert.Equal(t, s.tool("srv__kept", `{}`), "file:///a", "roots")
}
