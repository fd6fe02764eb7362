package exec

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// The child's session is that of the agent, and a new one begins with each.
func TestSessions(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{})
	s := open(t, p)
	for i, agent := range []string{"ann", "ann", "bob"} {
		m := s.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["tools"]}`, agent))
		s.must(m, "/ok", "true")
		who := s.tool("who", `{}`)
		s.must(who, "/data/data/agent", agent)
		s.must(who, "/data/data/hellos", fmt.Sprint([]int{2, 3, 5}[i])) // its own, and one for each new agent and each end
		s.must(s.tool("who", `{}`), "/data/data/hellos", who.Get("/data/data/hellos"))
	}
}

// A child that does not take the new session is started anew.
func TestSessionThatDoesNotEnd(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "mute-second", Options{})
	s := open(t, p)
	s.must(s.Handshake(protocol.CapTools), "/ok", "true")
	p.opts.StartTimeout = 50 * time.Millisecond // from here on; the agent is another one than the plugin was
	s.refused(s.tool("who", `{}`), protocol.CodeRuntimeError, "did not answer handshake/req within 50ms")
	hosttest.Eventually(t, "the end of the first child", func() bool { return strings.Contains(f.log.String(), "did not answer handshake/req") })
}

// What the child asks reaches the agent, and the answer the child.
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
				s.must(asked, "/big", "12345678901234567890")
				if len(asked.ID) != 32 || asked.ReqID != "" {
					t.Errorf("%s", asked)
				}
				s.Send(fmt.Sprintf(`{"type":%q,"id":"mine","req_id":%q,"content":{"text":"yes"},"code":"tool_denied","message":"no","n":1.50}`, answer, asked.ID))
				m := s.Answer(call)
				s.must(m, "/data/data/said/req_id", fmt.Sprintf("ask %d \"é\"", i+1))
				s.must(m, "/data/data/said/type", answer)
				if answer == "error" {
					s.must(m, "/data/data/said/code", "tool_denied")
				} else {
					s.must(m, "/data/data/said/n", "1.50")
				}
			}
		})
	}
}

// A message type of the child's own, from end to end: answer, events, messages after the
// answer, and news.
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
	if !strings.HasSuffix(string(m.Line), `"answer":{"text":"hi","big":12345678901234567890}}`) || m.Type != "weather/ask/resp" {
		t.Errorf("%s", m)
	}
	events := eventsOf(s.Messages(), id)
	if len(events) != 6 {
		t.Fatalf("events %v", events)
	}
	for i, e := range events {
		s.must(e, "/seq", fmt.Sprint(i))
		if i%2 == 1 {
			s.must(e, "/cloud", fmt.Sprint(i/2))
		}
	}
	id = s.Go("weather/watch/req", `{"times":2}`)
	s.must(s.Answer(id), "/ok", "true")
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

// The output of a process follows the answer, and ends with its end.
func TestMessagesAfterTheAnswer(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", `caps=[{"capability":"proc"}]`, Options{})
	s := open(t, p)
	s.Handshake(protocol.CapProc)
	id := s.Go(protocol.TypeProcSpawnReq, `{"cmd":["x"]}`)
	s.must(s.Answer(id), "/proc_id", "p1")
	s.Wait("the last event", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/code") == "0" })
	hosttest.Eventually(t, "the message after the end", func() bool { return strings.Count(f.log.String(), "dropped a message of the child") == 1 })
	if events := eventsOf(s.Messages(), id); len(events) != 3 || events[0].Get("/data/text") != "early" {
		t.Errorf("%v", events)
	}
	s.refused(s.Call(protocol.TypeProcKillReq, `{"proc_id":"other"}`), protocol.CodeUnknownProc, "other")
}

// A session that has ended does not come back by a request that was late: nobody would
// leave for it, and the next one would find what it left behind.
func TestEndedSessionsDoNotJoin(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{})
	s := newStage(t, p)
	s.must(s.tool("say", `{"text":"x"}`), "/data/data/text", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		sess := &host.Session{AgentID: "late"}
		if err := p.current().join(ctx, sess); err == nil || p.current().session.uses(sess) {
			t.Fatal("it joined")
		}
	}
}

// The host holds the arguments of a child's tools against what they declare, and searches its
// lists, as children may do neither. Its skills may have the defaults of the public SDK.
func TestHostChecksAndSearches(t *testing.T) {
	s := newStage(t, newField(t).plugin("x", `typed tools=say,who,hidden caps=[{"capability":"tools"},{"capability":"skill"}]`, Options{}))
	s.Handshake(protocol.CapTools, protocol.CapSkill)
	for args, path := range map[string]string{`{"txt":"x"}`: "/arguments/txt", `{"text":5}`: "/arguments/text", `{"text":"x","n":1.5}`: "/arguments/n", `{}`: "/arguments/text"} {
		if m := s.tool("say", args); m.Code != protocol.CodeSchemaViolation || m.Problem() != path {
			t.Errorf("%s: %s", args, m)
		}
	}
	s.must(s.tool("say", `{"text":"x","n":2.0,"how":[]}`), "/data/data/text", "x")
	s.must(s.tool("who", `{"it":"declares nothing"}`), "/data/success", "true")
	for query, want := range map[string]string{
		`{"query":"speaking"}`: "say", `{"query":"speaking","include_deferred":true}`: "hidden say", `{"query":"zebra"}`: "",
		`{"filter_tags":["VOICE"]}`: "say", `{}`: "say who", `{"include_deferred":true}`: "hidden say who",
	} {
		var resp protocol.ToolListResponse
		s.Call(protocol.TypeToolListReq, query).Decode(t, &resp)
		var names []string
		for _, def := range resp.Tools {
			names = append(names, def.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, should be %q", query, got, want)
		}
	}
	s.must(s.Call(protocol.TypeSkillDiscoverReq, `{}`), "/skills/0/arguments", "[]")
}
