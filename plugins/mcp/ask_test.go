package mcp

import (
	"strings"
	"testing"

	"a2e/protocol"
)

func TestSamplingAsksTheAgent(t *testing.T) {
	s := one(t)
	n := 0
	for _, c := range []struct{ name, answer, want string }{
		{"answer", `{"role":"assistant","content":{"type":"text","text":"hello"},"model":"m1","stop_reason":"endTurn"}`, "m1: hello"},
		{"refusal", `{"error":"not today"}`, "error: "},
		{"no content", `{"content":{"type":"nonsense"}}`, "error: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := s.Go(protocol.TypeToolCallReq, callFields("srv__model", `{}`, ""))
			n++
			asked := s.asks(protocol.TypeMCPSampleReq, n)
			if asked.Get("/server_id") != "srv" || asked.Get("/mcp_request_id") == "" || asked.Get("/messages/0/content/text") != "hi" ||
				asked.Get("/system_prompt") != "you are a test" || asked.Get("/max_tokens") != "7" || asked.Get("/temperature") != "0.5" {
				t.Errorf("asked: %s", asked.Line)
			}
			s.reply(protocol.TypeMCPSampleResp, asked, c.answer)
			if got := s.Answer(id).Get("/data/data/content/0/text"); !strings.HasPrefix(got, c.want) {
				t.Errorf("the server got %q, want %q", got, c.want)
			}
		})
	}
}

func TestElicitationAsksTheUser(t *testing.T) {
	s := one(t)
	n := 0
	for _, c := range []struct{ name, answer, want string }{
		{"accept", `{"action":"accept","content":{"name":"Ada"}}`, "accept Ada"},
		{"decline", `{"action":"decline"}`, "decline <nil>"},
		{"what is no action", `{"action":"maybe"}`, "cancel <nil>"},
		{"what does not fit the schema", `{"action":"accept","content":{"name":3}}`, "error: "},
		{"nothing", `{"action":"accept"}`, "error: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := s.Go(protocol.TypeToolCallReq, callFields("srv__user", `{}`, ""))
			n++
			asked := s.asks(protocol.TypeMCPElicitReq, n)
			if asked.Get("/mode") != "form" || asked.Get("/message") != "your name?" || asked.Get("/requested_schema/required/0") != "name" {
				t.Errorf("asked: %s", asked.Line)
			}
			s.reply(protocol.TypeMCPElicitResp, asked, c.answer)
			if got := s.Answer(id).Get("/data/data/content/0/text"); !strings.HasPrefix(got, c.want) {
				t.Errorf("the server got %q, want %q", got, c.want)
			}
		})
	}
	t.Run("an error", func(t *testing.T) {
		id := s.Go(protocol.TypeToolCallReq, callFields("srv__user", `{}`, ""))
		asked := s.asks(protocol.TypeMCPElicitReq, n+1)
		s.reply(protocol.TypeError, asked, `{"code":"runtime_error","message":"no user"}`)
		if got := s.Answer(id).Get("/data/data/content/0/text"); got != "decline <nil>" {
			t.Errorf("the server got %q", got)
		}
	})
}

// What the config does not let a server ask is refused without the agent.
func TestAskingCanBeSwitchedOff(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "sampling", false, "elicitation", false, "roots", false)}, nil)
	for _, tool := range []string{"srv__model", "srv__user"} {
		if got := s.tool(tool, `{}`); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%s gave %q", tool, got)
		}
	}
	if got := s.tool("srv__roots", `{}`); got != "" && !strings.HasPrefix(got, "error: ") {
		t.Errorf("roots: %q", got)
	}
	for _, m := range s.Messages() {
		if m.IsRequest() {
			t.Errorf("the agent was asked: %s", m.Line)
		}
	}
}

// While the agent thinks the call is not taken for one without an answer.
func TestAskingExtendsTheTimeout(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "timeout", 2), "other": child(t, "full", "timeout", 2)}, nil)
	s.toolNames()
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__model", `{}`, ""))
	asked := s.asks(protocol.TypeMCPSampleReq, 1)
	s.refused(protocol.TypeToolCallReq, callFields("other__wait", `{}`, ""), protocol.CodeTimeout) // it began later
	s.reply(protocol.TypeMCPSampleResp, asked, `{"content":{"type":"text","text":"late"},"model":"m"}`)
	if got := s.Answer(id).Get("/data/data/content/0/text"); got != "m: late" {
		t.Errorf("the server got %q", got)
	}
}
