package jsonrpc_test

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/audit"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest"
)

// TestAudit: each request leaves an entry, as those of A2E do, and so does a notification:
// it may run a tool.
func TestAudit(t *testing.T) {
	a := &hosttest.Trail{}
	p := openHost(t, host.Options{
		Plugins: []host.Plugin{newKit()}, Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop(), Store: state(t, t.TempDir())})}, Audit: a,
	})
	s := p.session("")
	p.send(onSession(`"run"`, "command.execute", s, `,"raw_command":"/echo"`))
	done := p.answer(`"run"`)
	p.send(onSession("12345678901234567890", "command.execute", s, `,"raw_command":"/nope"`))
	p.answer("12345678901234567890")
	p.send(onSession("", "command.execute", s, `,"raw_command":"/echo"`))
	hosttest.Eventually(t, "the entry of the notification", func() bool { return len(a.Entries()) == 4 }) // nothing else tells of its end
	p.call("no.method", "")
	p.send(`{"jsonrpc":"2.0","id":7,"method":7}`)
	p.answer("7")
	p.send(`{"jsonrpc`)
	p.answer("null")
	p.close()
	call, entries := get(t, done, "/result/tool_call_id"), a.Entries()
	for i, want := range []audit.Entry{
		{Type: "session.create", Success: true},
		{Type: "command.execute", ReqID: "run", SessionID: s, CorrelationID: call, Capability: "tools", Success: true, OutputBytes: len(done)},
		{Type: "command.execute", ReqID: "12345678901234567890", SessionID: s, Capability: "tools", ErrorCode: "unknown_tool"},
		{Type: "command.execute", SessionID: s, Capability: "tools", Success: true},
		{Type: "no.method", ErrorCode: "method_not_found"},
		{ReqID: "7", ErrorCode: "invalid_request"},
		{ErrorCode: "parse_error"},
	} {
		if i >= len(entries) {
			t.Fatalf("%d entries; the next should be %+v", len(entries), want)
		}
		got := entries[i]
		if got.Type != want.Type || got.SessionID != want.SessionID || got.Capability != want.Capability || got.Success != want.Success || got.ErrorCode != want.ErrorCode {
			t.Errorf("entry %d: %+v\nshould be %+v", i, got, want)
		}
		if !strings.HasPrefix(got.ReqID, want.ReqID) || want.CorrelationID != "" && got.CorrelationID != call || want.OutputBytes != 0 && got.OutputBytes != want.OutputBytes {
			t.Errorf("entry %d: %+v\nshould be %+v", i, got, want)
		}
		if got.Type != "" && got.InputBytes == 0 || got.Capability != "" && got.CorrelationID == "" {
			t.Errorf("entry %d lacks something: %+v", i, got)
		}
	}
	if len(entries) != 7 {
		t.Errorf("%d entries: %+v", len(entries), entries)
	}
}
