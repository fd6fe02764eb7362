package mcp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestArgumentsAreChecked(t *testing.T) {
	s := one(t)
	for name, c := range map[string]struct{ args, path string }{
		"missing":    {`{}`, "/arguments/text"},
		"wrong type": {`{"text":3}`, "/arguments/text"},
		"unknown":    {`{"text":"a","txet":"b"}`, "/arguments/txet"},
	} {
		t.Run(name, func(t *testing.T) {
			m := s.refused(protocol.TypeToolCallReq, callFields("srv__echo", c.args, ""), protocol.CodeSchemaViolation)
			if m.Problem() != c.path {
				t.Errorf("%s is blamed on %s: %s", c.args, m.Problem(), m.Get("/message"))
			}
		})
	}
	if got := s.tool("srv__wide", `{"anything":[1]}`); got != `{"anything":[1]}` {
		t.Errorf("wide gave %s", got)
	}
}

func TestFailureOfATool(t *testing.T) {
	s := one(t)
	m := s.ask(protocol.TypeToolCallReq, callFields("srv__fail", `{}`, ""), nil)
	if m.Get("/data/success") != "false" || m.Get("/data/error") != "it broke" || m.Get("/data/error_code") != "tool_error" {
		t.Errorf("%s", m.Line)
	}
	s.refused(protocol.TypeToolCallReq, callFields("srv__none", `{}`, ""), protocol.CodeUnknownTool)
}

// A server that shows that it is at work has its time again each time.
func TestProgressExtendsTheTimeout(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "timeout", 2)}, nil)
	s.toolNames()
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__steps", `{"n":1000000,"pause_ms":20}`, ""))
	s.refused(protocol.TypeToolCallReq, callFields("srv__wait", `{}`, ""), protocol.CodeTimeout, "srv") // it began later
	if early := s.Answers(id); len(early) != 0 {
		t.Fatalf("the call that shows progress has ended: %s", early[0].Line)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if m := s.Answer(id); m.Get("/data/data/content/0/text") != "done" {
		t.Errorf("%s", m.Line)
	}
}

func TestToolsThatDoNotFit(t *testing.T) {
	s := newStage(t, map[string]any{
		"srv": child(t, "full", "allow", []any{"e*", "crash", "bad name"}, "deny", []any{"crash", "ehco", "no_such_*"}),
		"raw": child(t, "raw"),
	}, nil)
	names := s.toolNames()
	if slices.Contains(names, "srv__crash") || slices.Contains(names, "srv__wide") || !slices.Contains(names, "srv__echo") {
		t.Errorf("tools: %v", names)
	}
	s.refused(protocol.TypeToolCallReq, callFields("srv__crash", `{}`, ""), protocol.CodeToolDenied, "denied in the config")
	s.refused(protocol.TypeToolCallReq, callFields("srv__wide", `{}`, ""), protocol.CodeToolDenied, "not among the tools")
	withheld := func(id string) string { return quoted(s.row(id)["withheld"]) }
	if got := withheld("srv"); !strings.Contains(got, "bad name") {
		t.Errorf("withheld: %s", got)
	}
	if got := withheld("raw"); !strings.Contains(got, "another tool of the server") || !strings.Contains(got, "262144") {
		t.Errorf("withheld: %s", got)
	}
	if got := s.tool("raw__loop", `{"a":1}`); got != "called" { // a schema without an end is the server's to check
		t.Errorf("loop gave %q", got)
	}
	for _, want := range []string{`deny: \"ehco\" matches no tool of the MCP server; did you mean \"echo\"?`, `deny: \"no_such_*\" matches no tool of the MCP server"`} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, s.log)
		}
	}
	if !strings.Contains(s.log.String(), "bad name") {
		t.Error("the log says nothing of what is withheld")
	}
}

// Two servers may give one name; then it is the first one's, and the other tool is withheld.
func TestNamesThatCollide(t *testing.T) {
	s := newStage(t, nil, anyCommand)
	for _, cfg := range []map[string]any{withEnv(child(t, "full", "server_id", "a"), secondVar, "_x"), withEnv(child(t, "full", "server_id", "a_"), secondVar, "x")} {
		s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(cfg)+`}`, nil)
	}
	s.tool("a___x", `{}`)
	names := s.toolNames()
	if n := len(slices.DeleteFunc(names, func(n string) bool { return n != "a___x" })); n != 1 {
		t.Errorf("the name is listed %d times", n)
	}
	if got := quoted(s.row("a_")["withheld"]); !strings.Contains(got, `"x"`) || !strings.Contains(got, "of the server a has") {
		t.Errorf("withheld: %s", got)
	}
	if row := s.row("a"); strings.Contains(quoted(row["withheld"]), "_x") || !strings.Contains(quoted(row["tools"]), "a___x") {
		t.Errorf("row: %v", row)
	}
	if !strings.Contains(s.log.String(), "of the server a has") {
		t.Error("the log says nothing of it")
	}
	s.ask(protocol.TypeMCPServerUnregisterReq, `{"server_id":"a"}`, nil) // then the name is free
	s.tool("a___x", `{}`)
}

func TestListChangesArePushed(t *testing.T) {
	s := one(t)
	s.pushed("notifications/tools/list_changed") // those of the server are there
	s.tool("srv__grow", `{}`)
	seen := 0
	s.Wait("a second push", func(m hosttest.Message) bool {
		if m.Type == protocol.TypeMCPServerPush {
			seen++
		}
		return seen == 2
	})
	if !slices.Contains(s.toolNames(), "srv__grown") {
		t.Error("the new tool is not there when its push is")
	}
	s.tool("srv__grown", `{}`)
}

func TestContract(t *testing.T) {
	newOne := func(t testing.TB) host.Plugin {
		env, _ := newEnv(t)
		opts := DefaultOptions()
		opts.Servers = map[string]any{"srv": child(t, "full"), "off": child(t, "full", "disabled", true)}
		p, err := New("mcp", opts, env)
		if err != nil {
			t.Fatal(err)
		}
		p.firstWait = hosttest.Patience
		return p
	}
	hosttest.Contract(t, newOne, []hosttest.Sample{
		{Type: protocol.TypeMCPServerListReq, Fields: `{"status_filter":"ready"}`},
		{Type: protocol.TypeMCPServerRegisterReq, Fields: `{"config":{"server_id":"x","command":"no-such-program"}}`},
		{Name: "wrong config", Type: protocol.TypeMCPServerRegisterReq, Fields: `{"config":{"server_id":"x","command":"sh","args":3}}`, Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeMCPServerUnregisterReq, Fields: `{"server_id":"none"}`, Code: protocol.CodeMCPServerNotFound},
		{Type: protocol.TypeMCPResourceListReq, Fields: `{"server_id":"srv"}`},
		{Name: "bad cursor", Type: protocol.TypeMCPResourceListReq, Fields: `{"cursor":"x"}`, Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeMCPResourceReadReq, Fields: `{"uri":"test://1","server_id":"srv"}`},
		{Name: "disabled", Type: protocol.TypeMCPResourceReadReq, Fields: `{"uri":"test://1","server_id":"off"}`, Code: protocol.CodeMCPServerUnavailable},
		{Type: protocol.TypeMCPResourceSubscribeReq, Fields: `{"uri":"test://1","server_id":"srv"}`},
		{Type: protocol.TypeMCPPromptListReq, Fields: `{}`},
		{Type: protocol.TypeMCPPromptGetReq, Fields: `{"name":"greet","arguments":{"who":"you"},"server_id":"srv"}`},
		{Name: "no prompt", Type: protocol.TypeMCPPromptGetReq, Fields: `{"name":"none"}`, Code: protocol.CodeMCPPromptNotFound},
		{Type: protocol.TypeToolListReq, Fields: `{}`},
		{Type: protocol.TypeToolCallReq, Fields: callFields("srv__echo", `{"text":"x"}`, "")},
	})
}
