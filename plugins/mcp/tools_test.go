package mcp

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

func TestArgumentsAreChecked(t *testing.T) {
	s := one(t)
	for name, c := range map[string]struct{ args, path string }{
		"missing":    {`{}`, "/arguments/text"},
		"wrong type": {`{"text":3}`, "/arguments/text"},
	} {
		t.Run(name, func(t *testing.T) {
			m := s.Refused(protocol.TypeToolCallReq, callFields("srv__echo", c.args, ""), protocol.CodeSchemaViolation)
			if m.Problem() != c.path {
				t.Errorf("%s is blamed on %s: %s", c.args, m.Problem(), m.Get("/message"))
			}
		})
	}
	for _, args := range []string{`{"anything":[1]}`, `{"text":"a","undeclared":1.0}`} {
		assert.Equal(t, s.tool("srv__wide", args), args, "wide")
	}
	const undeclared = `{"text":"a","undeclared":1}`
	assert.Equal(t, s.tool("srv__echo", undeclared), undeclared, "what the schema does not declare")
}

func TestFailureOfATool(t *testing.T) {
	s := one(t)
	m := s.ask(protocol.TypeToolCallReq, callFields("srv__fail", `{}`, ""), nil)
	assert.That(t, m.Get("/data/success") == "false" && m.Get("/data/error") == "it broke" &&
		m.Get("/data/error_code") == "tool_error",
		"%s", m.Line)
	s.Refused(protocol.TypeToolCallReq, callFields("srv__none", `{}`, ""), protocol.CodeUnknownTool)
}

// TestProgressExtendsTheTimeout: each report of progress starts the timeout of a call again.
func TestProgressExtendsTheTimeout(t *testing.T) {
	inTime(t, func(timeout int) hosttest.Message {
		s := newStage(t, map[string]any{"srv": child(t, "full", "timeout", timeout)}, nil)
		s.toolNames()
		id := s.Go(protocol.TypeToolCallReq, callFields("srv__steps", `{"n":1000000,"pause_ms":20}`, ""))
		s.Refused(protocol.TypeToolCallReq, callFields("srv__wait", `{}`, ""), protocol.CodeTimeout,
			"srv") // began later, and has timed out
		must.OK(t, os.WriteFile(filepath.Join(s.dir, "enough"), nil, 0o600))
		return s.Answer(id)
	}).Has(t, "/data/data/content/0/text", "done")
}

func TestToolsThatDoNotFit(t *testing.T) {
	s := newStage(t, map[string]any{
		"srv": child(t, "full", "allow", []any{"e*", "crash", "bad name"}, "deny", []any{"crash", "ehco", "no_such_*"}),
		"raw": child(t, "raw"),
	}, nil)
	names := s.toolNames()
	assert.That(t, !slices.Contains(names, "srv__crash") && !slices.Contains(names, "srv__wide") &&
		slices.Contains(names, "srv__echo"),
		"tools: %v", names)
	s.Refused(protocol.TypeToolCallReq, callFields("srv__crash", `{}`, ""), protocol.CodeToolDenied,
		"denied in the config")
	s.Refused(protocol.TypeToolCallReq, callFields("srv__wide", `{}`, ""), protocol.CodeToolDenied,
		"not among the tools")
	withheld := func(id string) string { return quoted(s.row(id)["withheld"]) }
	assert.That(t, slices.Contains(names, "srv__bad_name"), "no alias: %v", names)
	assert.That(t, !strings.Contains(withheld("srv"), "bad name"), "withheld: %s", withheld("srv"))
	assert.Equal(t, s.tool("srv__bad_name", `{}`), "{}", "the tool with an alias")
	got := withheld("raw")
	assert.That(t, strings.Contains(got, "another tool of the server") && strings.Contains(got, "262144"),
		"withheld: %s", got)
	if got := s.tool("raw__loop", `{"a":1}`); got != "called" { // the server checks arguments whose schema refers to itself
		t.Errorf("loop gave %q", got)
	}
	for _, want := range []string{
		`deny: \"ehco\" matches no tool of the MCP server; did you mean \"echo\"?`,
		`deny: \"no_such_*\" matches no tool of the MCP server"`,
	} {
		assert.Contains(t, s.log.String(), want, "the log does not say …:\n%s", s.log)
	}
	assert.Contains(t, s.log.String(), "another tool of the server", "the log says nothing of what is withheld")
}

// TestAliases: the aliases depend on the set of names, not on their order.
func TestAliases(t *testing.T) {
	long := strings.Repeat("n", 70)
	for name, c := range map[string]struct{ names, want []string }{
		"fitting":          {[]string{"a", "b-c_1"}, []string{"a", "b-c_1"}},
		"a dot":            {[]string{"a.b", "c"}, []string{"a_b", "c"}},
		"other characters": {[]string{"ä/x y"}, []string{"__x_y"}},
		"a name is there":  {[]string{"a.b", "a_b"}, []string{"a_b_2e7336dc", "a_b"}},
		"two of one":       {[]string{"a.b", "a/b"}, []string{"a_b_2e7336dc", "a_b_c14cddc0"}},
		"taken with hash":  {[]string{"a.b", "a_b", "a_b_2e7336dc"}, []string{"a_b_2e7336dc8", "a_b", "a_b_2e7336dc"}},
		"longest":          {[]string{long[:60]}, []string{long[:60]}},
		"too long":         {[]string{long}, []string{long[:51] + "_85069ddf"}},
		"twice":            {[]string{"a.b", "a.b"}, []string{"a_b", "a_b"}},
		"none":             {[]string{""}, []string{""}},
	} {
		for range 2 {
			got := aliases(c.names, 60)
			for i, own := range c.names {
				assert.Equal(t, got[own], c.want[i], "%s: %q of %q", name, own, c.names)
			}
			slices.Reverse(c.names)
			slices.Reverse(c.want)
		}
	}
	got := aliases([]string{"a.b", "c"}, 0)
	assert.That(t, len(got) == 0, "aliases without room: %v", got)
}

// TestNamesThatCollide: if tools of two servers get the same name, it belongs to the first server, and
// the other tool is withheld.
func TestNamesThatCollide(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	for _, cfg := range []map[string]any{
		withEnv(child(t, "full", "server_id", "a"), secondVar, "_x"),
		withEnv(child(t, "full", "server_id", "a_"), secondVar, "x"),
	} {
		s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(cfg)+`}`, nil)
	}
	s.tool("a___x", `{}`)
	names := s.toolNames()
	assert.Equal(t, len(slices.DeleteFunc(names, func(n string) bool { return n != "a___x" })), 1,
		"the name is listed … times")
	got := quoted(s.row("a_")["withheld"])
	assert.That(t, strings.Contains(got, `"x"`) && strings.Contains(got, "of the server a has"), "withheld: %s", got)
	row := s.row("a")
	assert.That(t, !strings.Contains(quoted(row["withheld"]), "_x") && strings.Contains(quoted(row["tools"]), "a___x"),
		"row: %v", row)
	assert.Contains(t, s.log.String(), "of the server a has", "the log says nothing of it")
	s.ask(protocol.TypeMCPServerUnregisterReq, `{"server_id":"a"}`, nil) // then the name is free
	s.tool("a___x", `{}`)
}

func TestListChangesArePushed(t *testing.T) {
	s := one(t)
	s.pushed("notifications/tools/list_changed") // sent when the server's first tools are there
	s.tool("srv__grow", `{}`)
	seen := 0
	s.Wait("a second push", func(m hosttest.Message) bool {
		if m.Type == protocol.TypeMCPServerPush {
			seen++
		}
		return seen == 2
	})
	assert.That(t, slices.Contains(s.toolNames(), "srv__grown"), "the new tool is not there when its push is")
	s.tool("srv__grown", `{}`)
}

func TestContract(t *testing.T) {
	newOne := func(t testing.TB) host.Plugin {
		env, _ := newEnv(t)
		opts := DefaultOptions()
		opts.Servers = map[string]any{"srv": child(t, "full"), "off": child(t, "full", "disabled", true)}
		p := must.Get(New("mcp", opts, env))(t)
		p.firstWait = hosttest.Patience
		return p
	}
	hosttest.Contract(t, newOne, []hosttest.Sample{
		{Type: protocol.TypeMCPServerListReq, Fields: `{"status_filter":"ready"}`},
		{Type: protocol.TypeMCPServerRegisterReq, Fields: `{"config":{"server_id":"x","command":"no-such-program"}}`},
		{
			Name: "wrong config", Type: protocol.TypeMCPServerRegisterReq,
			Fields: `{"config":{"server_id":"x","command":"sh","args":3}}`, Code: protocol.CodeSchemaViolation,
		},
		{
			Type: protocol.TypeMCPServerUnregisterReq, Fields: `{"server_id":"none"}`,
			Code: protocol.CodeMCPServerNotFound,
		},
		{Type: protocol.TypeMCPResourceListReq, Fields: `{"server_id":"srv"}`},
		{
			Name: "bad cursor", Type: protocol.TypeMCPResourceListReq, Fields: `{"cursor":"x"}`,
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeMCPResourceReadReq, Fields: `{"uri":"test://1","server_id":"srv"}`},
		{
			Name: "disabled", Type: protocol.TypeMCPResourceReadReq, Fields: `{"uri":"test://1","server_id":"off"}`,
			Code: protocol.CodeMCPServerUnavailable,
		},
		{Type: protocol.TypeMCPResourceSubscribeReq, Fields: `{"uri":"test://1","server_id":"srv"}`},
		{Type: protocol.TypeMCPPromptListReq, Fields: `{}`},
		{Type: protocol.TypeMCPPromptGetReq, Fields: `{"name":"greet","arguments":{"who":"you"},"server_id":"srv"}`},
		{
			Name: "no prompt", Type: protocol.TypeMCPPromptGetReq, Fields: `{"name":"none"}`,
			Code: protocol.CodeMCPPromptNotFound,
		},
		{Type: protocol.TypeToolListReq, Fields: `{}`},
		{Type: protocol.TypeToolCallReq, Fields: callFields("srv__echo", `{"text":"x"}`, "")},
	})
}

// TestChecker: arguments are checked against a schema as far as the host understands it; the server
// decides about the rest.
func TestChecker(t *testing.T) {
	const draft2019 = "https://json-schema.org/draft/2019-09/schema"
	for name, c := range map[string]struct{ schema, args, path string }{
		"fits":             {`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x"}`, ""},
		"wrong type below": {`{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}}`, `{"a":{"b":1}}`, "/arguments/a/b"},
		"a pattern": {
			`{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}`,
			`{"a":"1"}`, "/arguments/a",
		},
		"undeclared":          {`{"type":"object","properties":{}}`, `{"a":"1"}`, ""},
		"others forbidden":    {`{"properties":{},"additionalProperties":false}`, `{"a":"1"}`, "/arguments/a"},
		"no schema":           {``, `{"a":"1"}`, ""},
		"a type that is none": {`{"properties":{"a":{"type":"any"},"b":{"type":"date"}}}`, `{"a":1,"b":"x"}`, ""},
		"beside it":           {`{"properties":{"a":{"type":"x"},"b":{"const":1}}}`, `{"b":2}`, "/arguments/b"},
		"a wrong keyword":     {`{"properties":{"a":{"minLength":"3"}},"required":null}`, `{"a":"x"}`, ""},
		"a foreign pattern":   {`{"type":"object","properties":{"a":{"pattern":"(?i)x"}}}`, `{"a":"y"}`, ""},
		"draft-04":            {inDialect("http://json-schema.org/draft-04/schema"), `{"a":"1"}`, "/arguments/a"},
		"draft-04 that fits":  {inDialect("http://json-schema.org/draft-04/schema#"), `{"a":1}`, ""},
		"draft-06":            {inDialect("http://json-schema.org/draft-06/schema#"), `{"a":"1"}`, "/arguments/a"},
		"draft-07":            {inDialect("http://json-schema.org/draft-07/schema"), `{"a":"1"}`, "/arguments/a"},
		"2019-09":             {inDialect(draft2019), `{"a":"1"}`, "/arguments/a"},
		"2019-09 that fits":   {inDialect(draft2019 + "#"), `{"a":1}`, ""},
		"OpenAPI 3.1":         {inDialect("https://spec.openapis.org/oas/3.1/dialect/base"), `{"a":1}`, ""},
		"an unknown dialect":  {inDialect("https://example.org/own"), `{"a":"1"}`, ""},
		"draft-03":            {inDialect("http://json-schema.org/draft-03/schema#"), `{"a":"1"}`, ""},
		"others allowed":      {`{"type":"object","properties":{},"additionalProperties":true}`, `{"a":"1"}`, ""},
		"nothing declared":    {`{"type":"object"}`, `{"a":"1"}`, ""},
		"refers to itself":    {`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`, `{"a":1}`, ""},
		"a default that is not text": {
			`{"type":"object","properties":{"a":{"type":"string","default":3}}}`,
			`{"a":"x"}`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			args, err := protocol.ParseObject([]byte(c.args))
			must.OK(t, err)
			input, _, err := schema.NormaliseInput(jsontext.Value(c.schema))
			must.OK(t, err)
			err = checker(jsontext.Value(c.schema), input)(args)
			path := ""
			if wrong, ok := err.(*protocol.Error); ok {
				path = wrong.Detail["errors"].([]protocol.FieldError)[0].Path
			}
			assert.Equal(t, path, c.path, "%s against %.200s: %v, want it blamed on", c.args, c.schema, err)
		})
	}
}

// inDialect returns a schema that names its dialect.
func inDialect(name string) string {
	return `{"$schema":"` + name + `","type":"object","properties":{"a":{"type":"integer"}}}`
}

func TestResources(t *testing.T) {
	s := newStage(t, map[string]any{"a": child(t, "full"), "b": child(t, "full", "resource_allow_list",
		[]any{"test://2", "item://**"})}, nil)
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
	assert.That(t, slices.Equal(got, want) && list.Next == "", "resources: %q, next %q", got, list.Next)
	r := list.Resources[0]
	assert.That(t, r["mime_type"] == "text/plain" && r["name"] == "r0" && r["description"] == "number", "entry: %v", r)
	r = list.Resources[4]
	assert.That(t, r["uri_template"] == "item://{id}", "template: %v", r)
	for _, c := range []struct{ fields, server, text string }{
		{`{"uri":"test://1"}`, "a", "content of test://1"},
		{`{"uri":"item://7"}`, "a", "content of item://7"},
		{`{"uri":"item://7","server_id":"b"}`, "b", "content of item://7"},
	} {
		m := s.ask(protocol.TypeMCPResourceReadReq, c.fields, nil)
		assert.That(t, m.Get("/server_id") == c.server && m.Get("/contents/0/text") == c.text &&
			m.Get("/contents/0/type") == "text",
			"%s: %s", c.fields, m.Line)
	}
	s.ask(protocol.TypeMCPResourceReadReq, `{"uri":"test://blob"}`, nil).Has(t, "/contents/0/blob", "AAE=",
		"/contents/0/type", "blob")
	s.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"no://1"}`, protocol.CodeMCPResourceNotFound, "no://1",
		"server_id")
	s.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"test://1","server_id":"b"}`, protocol.CodeMCPResourceNotFound,
		"config")
	s.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"nothing://1","server_id":"a"}`,
		protocol.CodeMCPResourceNotFound)
	m := s.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"test://1","server_id":"c"}`,
		protocol.CodeMCPServerNotFound, "there are: a, b")
	assert.Equal(t, m.Get("/detail/known"), `["a","b"]`, "%s", m.Line)
}

// counter is a plugin that counts calls.
type counter struct {
	hosttest.Overrides
	mu    sync.Mutex
	calls []string // guarded by mu
}

func (c *counter) CountCall(r host.CallOutcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprint(r.Kind, " ", r.Component, " ", r.Success))
}

func TestPrompts(t *testing.T) {
	count := &counter{}
	s := newStage(t, map[string]any{"srv": child(t, "full")}, nil, count)
	m := s.ask(protocol.TypeMCPPromptListReq, `{}`, nil)
	assert.That(t, m.Get("/prompts/0/name") == "greet" && m.Get("/prompts/0/arguments/0/name") == "who" &&
		m.Get("/prompts/0/arguments/0/required") == "true", "%s", m.Line)
	m = s.ask(protocol.TypeMCPPromptGetReq, `{"name":"greet","arguments":{"who":"you"}}`, nil)
	assert.That(t, m.Get("/messages/0/content/text") == "hello you" && m.Get("/messages/0/role") == "user" &&
		m.Get("/server_id") == "srv" && m.Get("/description") == "hello", "%s", m.Line)
	s.Refused(protocol.TypeMCPPromptGetReq, `{"name":"none"}`, protocol.CodeMCPPromptNotFound, "there are: greet")
	s.Refused(protocol.TypeMCPPromptGetReq, `{"name":"none","server_id":"srv"}`, protocol.CodeMCPPromptNotFound)
	if m := s.Refused(protocol.TypeMCPPromptGetReq, `{"name":"greet","arguments":{"who":[1]}}`,
		protocol.CodeSchemaViolation); m.Problem() != "/arguments/who" {
		t.Errorf("%s", m.Line)
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	assert.Equal(t, strings.Join(count.calls, "; "), "prompt srv__greet true")
}

// TestSubscriptions: a subscription belongs to a session: its updates have the req_id of its request,
// and the server gets an unsubscribe request when the session ends.
func TestSubscriptions(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeMCPResourceSubscribeReq, `{"uri":"test://1"}`)
	if m := s.Answer(id); m.Get("/ok") != "true" {
		t.Fatalf("%s", m.Line)
	}
	s.tool("srv__update", `{"uri":"test://1"}`)
	m := s.pushed("notifications/resources/updated")
	assert.That(t, m.ReqID == id && m.Get("/params/uri") == "test://1" && m.Get("/server_id") == "srv", "%s", m.Line)
	s.Handshake(protocol.CapMCP, protocol.CapTools)
	hosttest.Eventually(t, "the server hears of the end", func() bool {
		uri, _ := os.ReadFile(filepath.Join(s.dir, "unsubscribed"))
		return string(uri) == "test://1"
	})
}

// TestSubscriptionIsRenewed: a subscription outlives its connection to the server.
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

// TestPages: the pages over several servers stay correct when entries or a server disappear, and a
// cursor is only valid for its own list.
func TestPages(t *testing.T) {
	have := make(map[string][]listRow)
	fill := func(id string, from, to int) {
		have[id] = nil
		for i := range to {
			have[id] = append(have[id], listRow{strings.Repeat("x", i%7) + strings.Repeat("y", i/10) +
				string(rune('0'+i%10)), map[string]any{"id": id, "n": i}})
		}
		have[id] = have[id][from:]
	}
	with := func(ids ...string) *Plugin {
		p := &Plugin{name: "mcp", servers: make(map[string]*server)}
		for _, id := range ids {
			known := newLatch()
			known.set()
			p.servers[id] = &server{opts: ServerOptions{Config: link.Config{ID: id}}, origin: byConfig, allKnown: known}
		}
		return p
	}
	page := func(p *Plugin, cursor string) ([]map[string]any, string) {
		rows, next, err := p.page(t.Context(), cursor, "resources", "",
			func(s *server) []listRow { return have[s.opts.ID] })
		must.OK(t, err)
		return rows, next
	}
	fill("b", 0, 20)
	fill("c", 0, 500)
	for name, c := range map[string]struct {
		there []string
		from  int // the first entry of a that still exists
		want  string
	}{
		"nothing changed": {[]string{"a", "b", "c"}, 0, `{"id":"a","n":500}`},
		"it has moved":    {[]string{"a", "b", "c"}, 100, `{"id":"a","n":500}`},
		"it is gone":      {[]string{"b", "c"}, 0, `{"id":"b","n":0}`},
	} {
		fill("a", 0, 700)
		rows, next := page(with("a", "b", "c"), "")
		must.That(t, len(rows) == pageEntries && next != "", "%d rows, next %q", len(rows), next)
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
	assert.That(t, len(all) == 1220 && seen == 1220, "%d rows, %d of them different, of 1220", seen, len(all))
	for _, c := range []cursor{{Plugin: "mcp", List: "prompts", Server: "a"}, {
		Plugin: "mcp", List: "resources",
		Filter: "b", Server: "a",
	}, {}} {
		_, _, err := p.page(t.Context(), c.String(), "resources", "", nil)
		assert.That(t, err != nil, "%+v: the cursor is taken", c)
	}
	other := (&cursor{Plugin: "other", List: "resources", Server: "a"}).String()
	rows, _ := page(p, joinCursors(other, ""))
	assert.Equal(t, len(rows), 0, "a cursor of another plugin alone: … rows")
	rows, _ = page(p, joinCursors(other, (&cursor{Plugin: "mcp", List: "resources", Server: "c"}).String()))
	assert.That(t, len(rows) != 0, "cursors of two: no rows")
}

// TestDearTemplates: templates that are expensive to match with a URI are left out, so that a server
// cannot slow the host down with many of them.
func TestDearTemplates(t *testing.T) {
	var vars strings.Builder
	for i := range maxTemplate / 4 {
		fmt.Fprintf(&vars, "{a%d}", i%10)
	}
	var all []jsontext.Value
	add := func(template string) { all = append(all, jsontext.Value(`{"uriTemplate":`+quoted(template)+`}`)) }
	add("item://{id}")
	add("{broken")
	add(strings.Repeat("x", maxTemplate+1))
	for range 2 * maxTemplates / maxTemplate {
		add(vars.String())
	}
	add("late://{id}")
	s := &server{}
	s.takeResources(nil, all)
	for uri, want := range map[string]bool{
		"item://7": true,
		"item://" + strings.Repeat("7", maxTemplated): false,
		"late://7": true, // there is still room for a short template
		strings.Repeat("a", maxTemplated/16) + "!": false,
	} {
		listed, templated := s.offers(uri)
		assert.That(t, !listed && templated == want, "%.20s: %t", uri, templated)
	}
}
