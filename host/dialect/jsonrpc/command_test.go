package jsonrpc_test

import (
	"fmt"
	"strings"
	"testing"

	front "a2e/host/dialect/jsonrpc"
)

// TestCommand: how a command is read, what is told of it, and how it ends.
func TestCommand(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	run := func(raw string) string {
		return p.call("command.execute", fmt.Sprintf(`{"session_id":%q,"raw_command":%q}`, s, raw))
	}
	for _, c := range [][2]string{
		{`/echo`, `{}`},
		{`  /echo {"a": [1]}`, `{"a":[1]}`},
		{`/echo s=5 n=5 q="5" b=true t=a'b c'd e= j={"x":"y z"} l=[1,2]`, `{"s":"5","n":5,"q":"5","b":true,"t":"ab cd","e":"","j":{"x":"y z"},"l":[1,2]}`},
		{"/echo w=\"two\nlines\tof \\\\ \\\"text\\\"\"", `{"w":"two\nlines\tof \\ \"text\""}`},
		{`/echo big=123456789012345678901234567890 u="\u00e9\"" w='"'`, `{"big":123456789012345678901234567890,"u":"é\"","w":"\""}`},
	} {
		if got := run(c[0]); get(t, got, "/result/result/data") != c[1] || get(t, got, "/result/success") != "true" {
			t.Errorf("%s\n%s\nshould be %s", c[0], got, c[1])
		}
	}
	if got := p.call("session.get", `{"session_id":"`+s+`"}`); get(t, got, "/result/title") != "" {
		t.Errorf("a command is no title: %s", got)
	}
	if got := run("/echo w=\"a\\\nb\""); get(t, got, "/error/data/field") != "raw_command" { // JSON has no such escape
		t.Error(got)
	}
	before := len(p.all())
	run("/echo x=1")
	if got := p.event("session.stream.chunk", s, 0); get(t, got, "/params/payload/text") != "hello\n" { // as the lines of workers
		t.Error(got)
	}
	var order []string
	for _, l := range p.all()[before:] {
		order = append(order, strings.TrimPrefix(get(t, l, "/params/type"), "session."))
	}
	if got := strings.Join(order, " "); got != "status message.appended tool.call.started stream.chunk tool.call.completed tool.results message.appended status " {
		t.Errorf("order: %s", got)
	}
	if got := run("/ecko"); get(t, got, "/error/data/code") != "unknown_tool" || !strings.Contains(get(t, got, "/error/message"), `"echo"`) || get(t, got, "/error/code") != "-32602" {
		t.Error(got)
	}
	if got := run("/fail"); get(t, got, "/result/success") != "false" || get(t, got, "/result/result/error") != "it broke" {
		t.Error(got)
	}
	if got := run("/panic"); get(t, got, "/error/code") != "-32603" || get(t, got, "/error/data/code") != "runtime_error" {
		t.Error(got)
	}
	p.send(request("1", "command.execute", `{"session_id":"`+s+`","raw_command":"/block"}`))
	<-k.begun
	p.call("session.interrupt", `{"session_id":"`+s+`"}`)
	if got := p.answer("1"); get(t, got, "/error/data/code") != "cancelled" {
		t.Error(got)
	}
}
