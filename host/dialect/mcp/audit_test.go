package mcp_test

import (
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest"
)

// TestAudit: each request leaves an entry, and so does a line that cannot be read.
func TestAudit(t *testing.T) {
	var a hosttest.Trail
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{newLab()}, Only: true, Audit: &a}).open()
	call := callTool(`"call"`, "echo", `{"text":"x"}`)
	p.send(call)
	done := p.answer(`"call"`)
	p.call("1", "ping", "")
	p.call("2", "no/such", "")
	p.call("3", "tools/call", `{"name":"none"}`)
	p.send(`{"broken`)
	p.answer("null")
	var got []string
	for _, e := range a.Entries() {
		got = append(got, fmt.Sprintf("%s %s %t %s", e.ReqID, e.Type, e.Success, e.ErrorCode))
		if e.ReqID == "call" && (e.InputBytes != len(call) || e.OutputBytes != len(done.text)) {
			t.Errorf("%d bytes in and %d out: %+v", len(call), len(done.text), e)
		}
	}
	want := []string{"open initialize true ", "call tools/call true ", "1 ping true ", "2 no/such false -32601", "3 tools/call false -32602", "  false -32700"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
