package mcp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestResources(t *testing.T) {
	s := newStage(t, map[string]any{"a": child(t, "full"), "b": child(t, "full", "resource_allow_list", []any{"test://2", "item://**"})}, nil)
	var list struct {
		Resources []map[string]any `json:"resources"`
		Next      string           `json:"next_cursor"`
	}
	s.ask(protocol.TypeMCPResourceListReq, `{}`, &list)
	var got []string
	for _, r := range list.Resources {
		got = append(got, r["server_id"].(string)+" "+r["uri"].(string))
	}
	want := []string{"a test://0", "a test://1", "a test://2", "a test://blob", "a ", "b test://2", "b "}
	if !slices.Equal(got, want) || list.Next != "" {
		t.Errorf("resources: %q, next %q", got, list.Next)
	}
	if r := list.Resources[0]; r["mime_type"] != "text/plain" || r["name"] != "r0" || r["description"] != "number" {
		t.Errorf("entry: %v", r)
	}
	if r := list.Resources[4]; r["uri_template"] != "item://{id}" {
		t.Errorf("template: %v", r)
	}
	for _, c := range []struct{ fields, server, text string }{
		{`{"uri":"test://1"}`, "a", "content of test://1"},
		{`{"uri":"item://7"}`, "a", "content of item://7"},
		{`{"uri":"item://7","server_id":"b"}`, "b", "content of item://7"},
	} {
		m := s.ask(protocol.TypeMCPResourceReadReq, c.fields, nil)
		if m.Get("/server_id") != c.server || m.Get("/contents/0/text") != c.text || m.Get("/contents/0/type") != "text" {
			t.Errorf("%s: %s", c.fields, m.Line)
		}
	}
	if m := s.ask(protocol.TypeMCPResourceReadReq, `{"uri":"test://blob"}`, nil); m.Get("/contents/0/blob") != "AAE=" || m.Get("/contents/0/type") != "blob" {
		t.Errorf("blob: %s", m.Line)
	}
	s.refused(protocol.TypeMCPResourceReadReq, `{"uri":"no://1"}`, protocol.CodeMCPResourceNotFound, "no://1", "server_id")
	s.refused(protocol.TypeMCPResourceReadReq, `{"uri":"test://1","server_id":"b"}`, protocol.CodeMCPResourceNotFound, "config")
	s.refused(protocol.TypeMCPResourceReadReq, `{"uri":"nothing://1","server_id":"a"}`, protocol.CodeMCPResourceNotFound)
	m := s.refused(protocol.TypeMCPResourceReadReq, `{"uri":"test://1","server_id":"c"}`, protocol.CodeMCPServerNotFound, "there are: a, b")
	if m.Get("/detail/known") != `["a","b"]` {
		t.Errorf("%s", m.Line)
	}
}

func TestPrompts(t *testing.T) {
	s := one(t)
	m := s.ask(protocol.TypeMCPPromptListReq, `{}`, nil)
	if m.Get("/prompts/0/name") != "greet" || m.Get("/prompts/0/arguments/0/name") != "who" || m.Get("/prompts/0/arguments/0/required") != "true" {
		t.Errorf("%s", m.Line)
	}
	m = s.ask(protocol.TypeMCPPromptGetReq, `{"name":"greet","arguments":{"who":"you"}}`, nil)
	if m.Get("/messages/0/content/text") != "hello you" || m.Get("/messages/0/role") != "user" || m.Get("/server_id") != "srv" || m.Get("/description") != "hello" {
		t.Errorf("%s", m.Line)
	}
	s.refused(protocol.TypeMCPPromptGetReq, `{"name":"none"}`, protocol.CodeMCPPromptNotFound, "there are: greet")
	s.refused(protocol.TypeMCPPromptGetReq, `{"name":"none","server_id":"srv"}`, protocol.CodeMCPPromptNotFound)
	if m := s.refused(protocol.TypeMCPPromptGetReq, `{"name":"greet","arguments":{"who":[1]}}`, protocol.CodeSchemaViolation); m.Problem() != "/arguments/who" {
		t.Errorf("%s", m.Line)
	}
}

// A subscription belongs to a session: news of it have the req_id of its request, and the
// server hears when the session ends.
func TestSubscriptions(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeMCPResourceSubscribeReq, `{"uri":"test://1"}`)
	if m := s.Answer(id); m.Get("/ok") != "true" {
		t.Fatalf("%s", m.Line)
	}
	s.tool("srv__update", `{"uri":"test://1"}`)
	m := s.pushed("notifications/resources/updated")
	if m.ReqID != id || m.Get("/params/uri") != "test://1" || m.Get("/server_id") != "srv" {
		t.Errorf("%s", m.Line)
	}
	s.Handshake(protocol.CapMCP, protocol.CapTools)
	hosttest.Eventually(t, "the server hears of the end", func() bool {
		uri, _ := os.ReadFile(filepath.Join(s.dir, "unsubscribed"))
		return string(uri) == "test://1"
	})
}

// A subscription outlives the connection that it was made on.
func TestSubscriptionIsRenewed(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeMCPResourceSubscribeReq, `{"uri":"test://1"}`)
	s.Answer(id)
	s.Call(protocol.TypeToolCallReq, callFields("srv__crash", `{}`, ""))
	hosttest.Eventually(t, "news come after the restart", func() bool {
		s.Call(protocol.TypeToolCallReq, callFields("srv__update", `{"uri":"test://1"}`, ""))
		return slices.ContainsFunc(s.Messages(), func(m hosttest.Message) bool {
			return m.Type == protocol.TypeMCPServerPush && m.ReqID == id
		})
	})
}

// Pages over servers hold still when a server goes away, and do not take each other's
// cursors.
func TestPages(t *testing.T) {
	have := make(map[string][]entry)
	fill := func(id string, from, to int) {
		have[id] = nil
		for i := range to {
			have[id] = append(have[id], entry{strings.Repeat("x", i%7) + strings.Repeat("y", i/10) + string(rune('0'+i%10)), map[string]any{"id": id, "n": i}})
		}
		have[id] = have[id][from:]
	}
	with := func(ids ...string) *Plugin {
		p := &Plugin{name: "mcp", servers: make(map[string]*server)}
		for _, id := range ids {
			known := newLatch()
			known.set()
			p.servers[id] = &server{opts: ServerOptions{ID: id}, origin: byConfig, allKnown: known}
		}
		return p
	}
	page := func(p *Plugin, cursor string) ([]map[string]any, string) {
		rows, next, err := p.page(t.Context(), cursor, "resources", "", func(s *server) []entry { return have[s.opts.ID] })
		if err != nil {
			t.Fatal(err)
		}
		return rows, next
	}
	fill("b", 0, 20)
	fill("c", 0, 500)
	for name, c := range map[string]struct {
		there []string
		from  int // the first entry of a that is left
		want  string
	}{
		"nothing changed": {[]string{"a", "b", "c"}, 0, `{"id":"a","n":500}`},
		"it has moved":    {[]string{"a", "b", "c"}, 100, `{"id":"a","n":500}`},
		"it is gone":      {[]string{"b", "c"}, 0, `{"id":"b","n":0}`},
	} {
		fill("a", 0, 700)
		rows, next := page(with("a", "b", "c"), "")
		if len(rows) != pageEntries || next == "" {
			t.Fatalf("%d rows, next %q", len(rows), next)
		}
		fill("a", c.from, 700)
		if rows, _ := page(with(c.there...), next); len(rows) != pageEntries || quoted(rows[0]) != c.want {
			t.Errorf("%s: %d rows, the first %v", name, len(rows), rows[0])
		}
	}
	fill("a", 0, 700)
	all, seen, p := map[string]bool{}, 0, with("a", "b", "c")
	for rows, next := page(p, ""); ; rows, next = page(p, next) {
		for _, r := range rows {
			all[quoted(r)] = true
			seen++
		}
		if next == "" {
			break
		}
	}
	if len(all) != 1220 || seen != 1220 {
		t.Errorf("%d rows, %d of them different, of 1220", seen, len(all))
	}
	for _, c := range []cursor{{Plugin: "mcp", List: "prompts", Server: "a"}, {Plugin: "mcp", List: "resources", Filter: "b", Server: "a"}, {}} {
		if _, _, err := p.page(t.Context(), c.String(), "resources", "", nil); err == nil {
			t.Errorf("%+v: the cursor is taken", c)
		}
	}
	other := (&cursor{Plugin: "other", List: "resources", Server: "a"}).String()
	if rows, _ := page(p, joinCursors(other, "")); len(rows) != 0 {
		t.Errorf("a cursor of another plugin alone: %d rows", len(rows))
	}
	if rows, _ := page(p, joinCursors(other, (&cursor{Plugin: "mcp", List: "resources", Server: "c"}).String())); len(rows) == 0 {
		t.Error("cursors of two: no rows")
	}
}
