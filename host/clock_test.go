package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/audit"
	"a2e/host/observe/event"
	"a2e/protocol"
)

// TestClockBefore1970: a host whose clock was never set, or is before 1970, writes valid lines and an audit trail
// that can be verified.
func TestClockBefore1970(t *testing.T) {
	for text, want := range map[string]string{
		"1969-12-31T23:59:59.5Z":      `"ts":-0.500000,`,
		"1969-12-31T23:59:58.999999Z": `"ts":-1.000001,`,
		"1901-12-13T20:45:52Z":        `"ts":-2147483648.000000,`,
		"0001-01-01T00:00:00Z":        `"ts":-62135596800.000000,`,
		"1970-01-01T00:00:00Z":        `"ts":0.000000,`,
		"1970-01-01T00:00:00.25Z":     `"ts":0.250000,`,
		"2262-04-12T00:00:00Z":        `"ts":9223372800.000000,`,
	} {
		t.Run(text, func(t *testing.T) {
			at := must.Get(time.Parse(time.RFC3339, text))(t)
			file := filepath.Join(t.TempDir(), "audit.jsonl")
			trail := must.Get(audit.Open(audit.Options{Path: file, Now: func() time.Time { return at }}))(t)
			p := hosttest.New(t, host.Options{
				Plugins: []host.Plugin{newLab()}, Now: func() time.Time { return at },
				Events: event.New(nil).With(trail, event.Request),
			})
			p.Handshake(protocol.CapTools)
			got := p.Call(protocol.TypeToolCallReq, tool("echo", `{}`))
			assert.That(t, strings.Contains(string(got.Line), want) && jsontext.Value(got.Line).IsValid(),
				"no %s in %s", want, got.Line)
			p.Close()
			must.OK(t, trail.Close())
			if report, err := audit.Verify(file, audit.Key{}); err != nil || !report.OK() {
				t.Errorf("the trail does not hold: %v %+v", err, report)
			}
			lines, err := os.ReadFile(file)
			assert.That(t, err == nil && strings.Count(string(lines), "\n") == 2, "%v: %s", err, lines)
			for line := range strings.Lines(string(lines)) {
				assert.That(t, jsontext.Value(line).IsValid(), "no JSON: %s", line)
			}
		})
	}
}

// TestIDOfFaultyLine: the error for a faulty line has the line's id, wherever the id stands, unless the id itself is
// faulty. The error for a line with two ids, or with two messages, has no id: the host cannot know for which one its
// sender waits.
func TestIDOfFaultyLine(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{`{"type":"ping","id":"a","id":"b"}`, ""},
		{`{"type":"ping","id":"a","id":"a"}`, ""},
		{`{"id":"a","type":"ping","\u0069d":"b"}`, ""},
		{`{"i\u0064":"a","id":null,"type":"ping"}`, ""},
		{`{"id":"a","type":"ping","type":"ping"}`, "a"},
		{`{"id":"a","type":"tool/call/req","arguments":{"id":1,"id":2}}`, "a"},
		{`{"id":"a","type":"tool/call/req","arguments":{"x":[{"id":1,"id":2}]}}`, "a"},
		{`{"id":"a","type":"tool/call/req","arguments":{"id":1},"arguments":{}}`, "a"},
		{`{"type":"tool/call/req","arguments":{"id":1,"id":2},"id":"a"}`, "a"},
		{`{"type":"tool/call/req","arguments":{"x":"\ud800","id":"b"},"id":"a"}`, "a"},
		{`{"type":"tool/call/req","arguments":{"}":"]\"\\","x":"` + "\xff" + `"}, "id" : "a" }`, "a"},
		{`{"type":"tool/call/req","arguments":{"x":"` + "\t" + `"},"\u0069d":"a"}`, "a"},
		{`{"type":"tool/call/req","arguments":{"x":01,"y":NaN,"z":"\a"},"id":"a"}`, "a"},
		{
			`{"type":"tool/call/req","arguments":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `,"id":"a"}`,
			"a",
		},
		{`{"type":"tool/call/req","tool_name":"\udfff","id":"a"}`, "a"},
		{`{"type":"tool/call/req","\ud800":1,"id":"a"}`, "a"},
		{`{"type":"tool/call/req","id":"a"}}`, "a"},
		{`{"type":"tool/call/req","id":"a","arguments":{"x":`, "a"},
		{`{"type":"ping","id":"a"}{"type":"ping","id":"b"}`, ""},
		{`{"type":"ping","x":"\ud800","id":"\ud800"}`, ""},
		{`{"type":"ping","x":"\ud800","id":"a`, ""},
		{`{"type":"ping","x":"no end,"id":"a"}`, ""},
		{`{"id":"a","k1":0,"k2":0,"k3":0,"k4":0,"k5":0,"k6":0,"k7":0,"k8":0,"k9":0,` + manyKeys(100) + `"id":"b"}`, ""},
	} {
		p := hosttest.New(t, host.Options{Plugins: []host.Plugin{newLab()}})
		p.SendRaw(c.line + "\n")
		got := p.Recv()
		assert.That(t, got.Type == protocol.TypeError && got.ReqID == c.want, "%.60s was answered %s", c.line, got.Line)
		p.Close()
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"m%d":0,`, i)
	}
	return b.String()
}
