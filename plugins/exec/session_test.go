package exec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestSessions: the child has a session for the agent, and a new one for each session of the agent.
func TestSessions(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{})
	s := open(t, p)
	for i, agent := range []string{"ann", "ann", "bob"} {
		m := s.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["tools"]}`, agent))
		m.Has(t, "/ok", "true")
		who := s.tool("who", `{}`)
		who.Has(t, "/data/data/agent", agent)
		// the first is the plugin's own handshake, then one for each session
		who.Has(t, "/data/data/hellos", fmt.Sprint(i+2))
		s.tool("who", `{}`).Has(t, "/data/data/hellos", who.Get("/data/data/hellos"))
	}
}

// TestSessionThatDoesNotEnd: a child that does not answer the handshake of a new session is started
// again.
func TestSessionThatDoesNotEnd(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "mute-second", Options{})
	s := open(t, p)
	s.Handshake(protocol.CapTools).Has(t, "/ok", "true")
	p.opts.StartTimeout = 50 * time.Millisecond // only from here on: the agent_id of the session is not that of the plugin's own handshake
	s.refused(s.tool("who", `{}`), protocol.CodeRuntimeError, "did not answer handshake/req within 50ms")
	hosttest.Eventually(t, "the end of the first child",
		func() bool { return strings.Contains(f.log.String(), "did not answer handshake/req") })
}

// TestAsk: a question of the child is passed to the agent, and the answer to the child.
func TestAsk(t *testing.T) {
	f := newField(t)
	for _, tc := range []struct{ tool, asks, answer string }{
		{"ask", "mcp/sample/req", "mcp/sample/resp"},
		{"elicit", "mcp/elicit/req", "mcp/elicit/resp"},
		{"custom-ask", "weather/permit/req", "weather/permit/resp"},
	} {
		t.Run(tc.tool, func(t *testing.T) {
			s := open(t, f.plugin("x", "", Options{}))
			s.Handshake(protocol.CapTools)
			for i, answer := range []string{tc.answer, "error"} {
				call := s.Go(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{}}`, tc.tool))
				var asked hosttest.Message
				hosttest.Eventually(t, "the question", func() bool {
					n := 0
					for _, m := range s.Messages() {
						if string(m.Type) == tc.asks {
							asked = m
							n++
						}
					}
					return n == i+1
				})
				asked.Has(t, "/big", "12345678901234567890")
				assert.That(t, len(asked.ID) == 32 && asked.ReqID == "", "%s", asked)
				s.Send(fmt.Sprintf(`{"type":%q,"id":"mine","req_id":%q,"content":{"text":"yes"},"code":"tool_denied","message":"no","n":1.50}`, answer, asked.ID))
				m := s.Answer(call)
				m.Has(t, "/data/data/said/req_id", fmt.Sprintf("ask %d \"é\"", i+1), "/data/data/said/type", answer)
				if answer == "error" {
					m.Has(t, "/data/data/said/code", "tool_denied")
				} else {
					m.Has(t, "/data/data/said/n", "1.50")
				}
			}
		})
	}
}

// TestCustomTypes: a message type of the child's own works completely: the answer, events, messages
// after the answer, and pushes.
func TestCustomTypes(t *testing.T) {
	rows := `caps=[{"capability":"tools","metadata":{"custom_types":["weather/ask/req","weather/watch/req"]}}]`
	f := newField(t)
	p := f.plugin("x", rows, Options{})
	s := open(t, p, f.plugin("y", `caps=[{"capability":"memory"}]`, Options{}))
	s.refused(s.Call("weather/ask/req", `{}`), protocol.CodeUnauthorized, "handshake first")
	s.Handshake(protocol.CapMemory)
	s.refused(s.Call("weather/ask/req", `{}`), protocol.CodeCapabilityMissing, "name it in agent_caps")
	s.Handshake(protocol.CapTools)
	id := s.Go("weather/ask/req", `{"text":"hi","times":3,"streaming":true}`)
	m := s.Answer(id)
	assert.That(t, strings.HasSuffix(string(m.Line), `"answer":{"text":"hi","big":12345678901234567890}}`) &&
		m.Type == "weather/ask/resp",
		"%s", m)
	events := eventsOf(s.Messages(), id)
	must.Equal(t, len(events), 6, "events %v", events)
	for i, e := range events {
		e.Has(t, "/seq", fmt.Sprint(i))
		if i%2 == 1 {
			e.Has(t, "/cloud", fmt.Sprint(i/2))
		}
	}
	id = s.Go("weather/watch/req", `{"times":2}`)
	s.Answer(id).Has(t, "/ok", "true")
	for i := range 2 {
		s.Wait("a message after the answer", func(m hosttest.Message) bool {
			return m.ReqID == id && m.Type == "weather/cloud/event" && m.Get("/cloud") == fmt.Sprint(i)
		})
	}
	s.Wait("the news", func(m hosttest.Message) bool {
		return m.Type == "weather/news/push" && m.ReqID == "" && m.Get("/news") == "sunny"
	})
	s.refused(s.Call("weather/none/req", `{}`), protocol.CodeInvalidMessage, `unknown type "weather/none/req"`)
}

// TestMessagesAfterTheAnswer: the output of a process follows the answer to its spawn, and nothing
// follows its end.
func TestMessagesAfterTheAnswer(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", `caps=[{"capability":"proc"}]`, Options{})
	s := open(t, p)
	s.Handshake(protocol.CapProc)
	id := s.Go(protocol.TypeProcSpawnReq, `{"cmd":["x"]}`)
	s.Answer(id).Has(t, "/proc_id", "p1")
	s.Wait("the last event", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/code") == "0" })
	hosttest.Eventually(t, "the message after the end",
		func() bool { return strings.Count(f.log.String(), "dropped a message of the child") == 1 })
	events := eventsOf(s.Messages(), id)
	assert.That(t, len(events) == 3 && events[0].Get("/data/text") == "early", "%v", events)
	s.refused(s.Call(protocol.TypeProcKillReq, `{"proc_id":"other"}`), protocol.CodeUnknownProc, "other")
}

// TestEndedSessionsDoNotJoin: a late request of an ended session does not join it again. No request
// would leave it then, and the next session would find its data.
func TestEndedSessionsDoNotJoin(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{})
	s := newStage(t, p)
	s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		sess := &host.Session{AgentID: "late"}
		err := p.current().join(ctx, sess)
		must.That(t, err != nil && !p.current().session.uses(sess), "it joined")
	}
}

// TestHostChecksAndSearches: the host checks the arguments of a child's tools against their
// declarations, and searches the child's lists, as children need not do so. Skills may have the
// defaults of the public SDK.
func TestHostChecksAndSearches(t *testing.T) {
	s := newStage(t, newField(t).plugin("x", `typed tools=say,who,hidden caps=[{"capability":"tools"},{"capability":"skill"}]`, Options{}))
	s.Handshake(protocol.CapTools, protocol.CapSkill)
	hosttest.Eventually(t, "the child's list", func() bool {
		return strings.Contains(string(s.Call(protocol.TypeToolListReq, `{}`).Line), `"say"`)
	})
	for args, path := range map[string]string{
		`{"txt":"x"}`: "/arguments/txt", `{"text":5}`: "/arguments/text",
		`{"text":"x","n":1.5}`: "/arguments/n", `{}`: "/arguments/text",
	} {
		m := s.tool("say", args)
		assert.That(t, m.Code == protocol.CodeSchemaViolation && m.Problem() == path, "%s: %s", args, m)
	}
	s.tool("say", `{"text":"x","n":2.0,"how":[]}`).Has(t, "/data/data/text", "x")
	s.tool("who", `{"it":"declares nothing"}`).Has(t, "/data/success", "true")
	for query, want := range map[string]string{
		`{"query":"speaking"}`: "say", `{"query":"speaking","include_deferred":true}`: "hidden say",
		`{"query":"zebra"}`:         "",
		`{"filter_tags":["VOICE"]}`: "say", `{}`: "say who", `{"include_deferred":true}`: "hidden say who",
	} {
		var resp protocol.ToolListResponse
		s.Call(protocol.TypeToolListReq, query).Decode(t, &resp)
		var names []string
		for _, def := range resp.Tools {
			names = append(names, def.Name)
		}
		slices.Sort(names)
		assert.Equal(t, strings.Join(names, " "), want, "%s", query)
	}
	s.Call(protocol.TypeSkillDiscoverReq, `{}`).Has(t, "/skills/0/arguments", "[]")
}

// serving makes the tested capability the main one of a plugin, as the plugin's own Info has it among
// the others.
type serving struct {
	host.Plugin
	capability protocol.Capability
}

func (s serving) Info() host.PluginInfo {
	info := s.Plugin.Info()
	info.Capability, info.Also = s.capability, nil
	return info
}

func (s serving) Unwrap() host.Plugin { return s.Plugin }

// TestContract: the plugin keeps the contract with a host as its child.
func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		f := newField(t)
		must.OK(t, os.WriteFile(filepath.Join(f.dir, "a.txt"), []byte("one\ntwo\n"), 0o600))
		p := f.plugin("inner", "host", Options{Capabilities: []protocol.Capability{protocol.CapTools}})
		t.Cleanup(func() { p.Close(t.Context()) }) // closes plugins that are in no host
		return serving{p, protocol.CapTools}
	}, []hosttest.Sample{
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"builtin","filter_tags":["file"],"query":"read","include_deferred":true}`},
		{Type: protocol.TypeToolCallReq, Fields: `{"session_id":"","tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c","streaming":false,"timeout":30}`},
		{
			Name: "read", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"read_file","arguments":{"path":"a.txt"},"streaming":true}`,
		},
		{
			Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"ehco","arguments":{}}`,
			Code: protocol.CodeUnknownTool,
		},
		{
			Name: "missing argument", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"echo","arguments":{}}`,
			Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "not there", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"read_file","arguments":{"path":"b.txt"}}`, Code: protocol.CodeToolError,
		},
	})
}

// TestWallNullsOfChildren: a null of a child where the protocol allows none is not sent to the agent:
// the host mends the message, or refuses the answer with the plugin's name.
func TestWallNullsOfChildren(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("nullish", "", Options{}))
	t.Run("data", func(t *testing.T) {
		m := s.tool("null-data", `{}`)
		says := m.Get("/message")
		assert.That(t, m.Code == protocol.CodeRuntimeError && strings.Contains(says, `plugin "nullish"`) &&
			strings.Contains(says, "/data"), "%s", m)
	})
	t.Run("fields", func(t *testing.T) {
		m := s.tool("null-fields", `{}`)
		text := string(m.Line)
		assert.That(t, m.Get("/data/success") == "true" && strings.Contains(text, `"data":{"mine":null}`) &&
			strings.Contains(text, `"events":[]`) && strings.Contains(text, `"own":null`), "%s", m)
	})
	t.Run("list", func(t *testing.T) {
		m := newStage(t, f.plugin("nullish", "null-list", Options{})).Call(protocol.TypeToolListReq, `{}`)
		assert.That(t, strings.Contains(string(m.Line), `"tools":[]`), "%s", m)
	})
	t.Run("event", func(t *testing.T) {
		id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"null-event","arguments":{},"streaming":true}`)
		s.Answer(id).Has(t, "/data/success", "true")
		for _, e := range eventsOf(s.Messages(), id) {
			assert.That(t, !strings.Contains(string(e.Line), "null"), "%s", e)
		}
	})
}

// TestWallSilentList: a child that does not send its list delays the lists of other plugins only once.
// Its tools appear as soon as it sends the list.
func TestWallSilentList(t *testing.T) {
	f := newField(t)
	sleepy := f.plugin("sleepy", "list-when=awake", Options{Timeout: 300 * time.Millisecond})
	s := newStage(t, sleepy, builtin(t))
	list := func() string { return string(s.Call(protocol.TypeToolListReq, `{}`).Line) }
	for range 20 {
		text := list()
		must.That(t, strings.Contains(text, `"echo"`) && !strings.Contains(text, `"say"`), "the list: %s", text)
	}
	f.write("awake")
	hosttest.Eventually(t, "its tools", sleepy.hasListed)
	if times := s.tool("asked", `{}`).Get("/data/data/times"); times != "1" &&
		times != "2" { // the plugin itself may ask once at its start
		t.Errorf("it was asked %s times", times)
	}
	hosttest.Eventually(t, "its tools to be back", func() bool { return strings.Contains(list(), `"say"`) })
}

// TestEnvironmentIsNotShown: no error and no log shows secrets of the child's environment, even if the
// child prints them.
func TestEnvironmentIsNotShown(t *testing.T) {
	f := newField(t)
	script := `read -r line
echo "junk with $API_KEY"
printf '%0190d%s\n' 0 "$API_KEY"
printf '%04090d%s%08000d\n' 0 "$API_KEY" 0 >&2
echo "I have $API_KEY, and
$TWO_LINES_KEY" >&2
exit 3`
	p := f.plugin("x", "", Options{
		Capabilities: []protocol.Capability{protocol.CapTools}, Command: []string{"sh", "-c", script},
		Env: map[string]string{"API_KEY": "sesame-open", "TWO_LINES_KEY": "mellon-1\nmellon-2", "N": "1"},
	})
	s := newStage(t, p)
	m := s.tool("any", `{}`)
	s.refused(m, protocol.CodeRuntimeError, "I have [redacted], and\n[redacted]")
	for where, text := range map[string]string{"the answer": m.String(), "the log": f.log.String()} {
		for _, part := range []string{"ses", "mellon"} {
			assert.That(t, !strings.Contains(text, part), "%s has %q: %s", where, part, text)
		}
	}
	assert.Contains(t, f.log.String(), "junk with [redacted]", "the log: %s", f.log)
}
