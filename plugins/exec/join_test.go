package exec

import (
	"context"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/protocol"
)

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
