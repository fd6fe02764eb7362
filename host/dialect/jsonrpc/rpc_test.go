package jsonrpc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
)

// TestSpecification: the examples of the JSON-RPC 2.0 specification get the answers that it shows, but for methods
// that the host does not have. A batch is refused as a whole, with one error.
func TestSpecification(t *testing.T) {
	p := open(t, front.Options{}, newKit())
	p.send(request(`"first"`, "system.ping", "")) // broken lines after it count as JSON-RPC
	p.answer(`"first"`)
	const parse, invalid, batch = `null -32700 parse_error `, `null -32600 invalid_request `,
		`null -32600 batch_not_supported `
	for i, c := range []struct{ line, want string }{
		{`{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}`, `1 -32601 method_not_found subtract`},
		{`{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}`, `2 -32601 method_not_found subtract`},
		{
			`{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}`,
			`3 -32601 method_not_found subtract`,
		},
		{
			`{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}`,
			`4 -32601 method_not_found subtract`,
		},
		{`{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}`, ``},
		{`{"jsonrpc": "2.0", "method": "foobar"}`, ``},
		{`{"jsonrpc": "2.0", "method": "foobar", "id": "1"}`, `"1" -32601 method_not_found foobar`},
		{`{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]`, parse},
		{`{"jsonrpc": "2.0", "method": 1, "params": "bar"}`, invalid},
		{`[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},{"jsonrpc": "2.0", "method"`, parse},
		{`[]`, batch},
		{`[1]`, batch},
		{`[1,2,3]`, batch},
		{`[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},{"jsonrpc": "2.0", "method": "get_data", "id": "9"}]`, batch},
	} {
		before, end := len(p.all()), fmt.Sprintf(`"end %d"`, i)
		p.send(c.line, request(end, "auth.status", "")) // auth.status is answered in order; a ping could overtake
		p.answer(end)
		var got []string
		for _, l := range p.all()[before:] {
			if !strings.Contains(l, end) {
				got = append(got, fmt.Sprintf("%s %s %s %s", raw(t, l, "/id"), get(t, l, "/error/code"),
					get(t, l, "/error/data/reason"), get(t, l, "/error/data/method")))
			}
		}
		assert.Equal(t, strings.Join(got, "\n"), c.want, "%s\nis answered %v", c.line, got)
	}
}

// TestFirstLine: a batch of any size, and a broken first line that looks like JSON-RPC, are answered in JSON-RPC.
// Other broken first lines are answered in A2E, and later broken lines in the protocol of the line before.
func TestFirstLine(t *testing.T) {
	const a2e = `{"type":"ping","id":"a"}`
	ping, many := request("1", "system.ping", ""),
		strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"nope"},`, 1000), ",")
	for _, c := range []struct{ before, line, want string }{
		{"", `[` + ping + `,5,[` + ping + `]]`, "batch_not_supported"},
		{a2e, `[` + ping + `]`, "batch_not_supported"},
		{a2e, `[` + many + `]`, "batch_not_supported"},
		{"", `[` + many + many + `]`, "invalid_request"}, // too long
		{"", strings.Replace(ping[:len(ping)-1], `"id":1`, `"id":[]`, 1), "parse_error"},
		{"", `{"method":"system.ping,"jsonrpc":"2.0","id":1}`, "parse_error"},
		{"", `{"jsonrpc":"2.0","id":1,"id":1}`, "invalid_request"},
		{"", `[` + ping, "parse_error"},
		{ping, `{"type"`, "parse_error"},
		{ping, `{"type":"ping"`, ""},
		{a2e, ping[1:], ""},
		{"", `{"type":"ping","id":"jsonrpc"`, ""},
		{"", `{"type":"ping","id":"x","of":"jsonrpc","x"`, ""},
		{"", "5", ""},
		{"", "[5]", ""},
	} {
		p := open(t, front.Options{}, newKit())
		if c.before != "" {
			p.send(c.before)
			p.find("answer", 0, func(string) bool { return true })
		}
		n := len(p.all())
		p.send(c.line, request(`"last"`, "system.ping", ""))
		p.answer(`"last"`)
		got := p.all()[n]
		isRPC := strings.HasPrefix(got, `{"jsonrpc":"2.0","id":null,`)
		assert.That(t, isRPC == (c.want != "") && get(t, got, "/error/data/reason") == c.want, "%.80s, after %q: %s",
			c.line, c.before, got)
		p.close()
	}
}

// TestWire: lines that are not valid requests get the right error.
func TestWire(t *testing.T) {
	p := open(t, front.Options{}, newKit())
	p.send(request("0", "system.ping", "")) // broken lines after it count as JSON-RPC
	for _, c := range []struct{ line, id, code, reason string }{
		{`{"jsonrpc":"2.0","method":"session.get","params":[1],"id":4}`, `4`, "-32602", "invalid_params"},
		{`{"jsonrpc":"1.0","method":"system.ping","id":5}`, `5`, "-32600", "invalid_request"},
		{`{"jsonrpc":2.0,"method":"system.ping","id":6}`, `6`, "-32600", "invalid_request"},
		{`{"jsonrpc":"2.0","method":"session.get","params":"bar","id":7}`, `7`, "-32602", "invalid_params"},
		{`{"jsonrpc":"2.0","id":8}`, `8`, "-32600", "invalid_request"},
		{`{"jsonrpc":"2.0","method":"tools.list","params":{"x":"\ud800"},"id":9}`, `9`, "-32700", "parse_error"},
		{`{"jsonrpc":"2.0","method":"m","params":{"x":"` + "\xff" + `"},"id":"ten"}`, `"ten"`, "-32700", "parse_error"},
		{`{"jsonrpc":"2.0","method":"m","params":{"x":{"a":1,"a":1}},"id":11}`, `11`, "-32600", "invalid_request"},
		{`{"jsonrpc":"2.0","id":12,"method":"tools.list"`, `12`, "-32700", "parse_error"},
		{`{"jsonrpc":"2.0","id":13,"pad":"` + strings.Repeat("x", 1<<16) + `"}`, `13`, "-32600", "invalid_request"},
	} {
		p.send(c.line)
		got := p.answer(c.id)
		assert.That(t, get(t, got, "/error/code") == c.code && get(t, got, "/error/data/reason") == c.reason &&
			get(t, got, "/error/message") != "", "%s\n%s", c.line, got)
	}
	for i, c := range []struct{ line, code string }{
		{`{"jsonrpc":"2.0","method":"system.ping","id":{"a":1}}`, "-32600"},
		{`{"jsonrpc":"2.0","method":"system.ping","id":true}`, "-32600"},
		{`{"jsonrpc":"2.0","method":"system.ping","id":1,"id":2}`, "-32600"},
		{`{"jsonrpc":"2.0","method":"system.ping","pad":"` + strings.Repeat("x", 1<<16) + `"}`, "-32600"},
	} {
		p.send(c.line)
		got := p.find(c.line, i, func(l string) bool { return strings.HasPrefix(l, `{"jsonrpc":"2.0","id":null,`) })
		check(t, got, "/error/code", c.code)
	}
}

// TestIDs: ids come back byte for byte, and notifications are not answered.
func TestIDs(t *testing.T) {
	p := open(t, front.Options{})
	for i, id := range []string{
		`1`, `-7`, `0`, `-0`, `123456789012345678901234567890`, `-9223372036854775809`, `9007199254740993`, `1.50`,
		`0.1e-7`, `1e3`, `1E+400`,
		`"x"`, `""`, `"\u00e9\n"`, `"é"`, `"\ud83d\ude00"`, `"a\/b\\\"\t"`, `"\u0000"`, `"<&>"`, `"1"`, `" 1 "`,
		`"null"`, `"` + strings.Repeat("long", 5000) + `"`, `null`,
	} {
		p.send(request(id, "system.ping", "{}"))
		check(t, p.answer(id), "/result/ok", "true")
		if i%2 == 0 { // spaces around an id are not part of it
			p.send(`{"id" : ` + id + ` ,"method":"nope","jsonrpc":"2.0"}`)
			p.find("error with the id "+id, 0, func(l string) bool {
				return strings.HasPrefix(l, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32601,`)
			})
		}
	}
	before := len(p.all())
	p.send(
		request("", "system.ping", ""), request("", "nope", "[1]"), request("", "nope", "1"),
		request("", "session.get", "{}"), request("", "system.ping", "[1]"),
		`{"jsonrpc":"2.0","result":19,"id":5}`, `{"jsonrpc":"2.0","error":{"code":1,"message":"no"},"id":null}`,
		`{"jsonrpc":"2.0","method":"event","params":{}}`,
		request(`"last"`, "system.ping", ""))
	p.answer(`"last"`)
	if n := len(p.all()); n != before+1 {
		t.Errorf("notifications were answered: %v", p.all()[before:])
	}
}

func TestHandshake(t *testing.T) {
	p := open(t, front.Options{})
	got := p.call("rpc.handshake", `{"client_name":"c","client_version":"1","protocol_version":"9","strict":false}`)
	want := `"result":{"capabilities":{"command_execute":true,"events":true,"image_inputs":["path","data_url"],"multi_session":true},"methods":["auth.set.exa_key","auth.status",`
	check(t, got, "~", want, "~", `"protocol_version":"1.0.0","server_name":"a2e"}`)
	methods := strings.Split(strings.Trim(get(t, got, "/result/methods"), "[]"), ",")
	assert.That(t, len(methods) == 26 && slices.IsSorted(methods), "methods: %v", methods)
	for _, m := range methods { // the host serves each method
		if m == `"system.shutdown"` {
			continue
		}
		got := p.call(strings.Trim(m, `"`), "{}")
		assert.That(t, get(t, got, "/error/code") != "-32601", "%v", got)
	}
	for _, version := range []string{`9`, `1.0`, `\"2\" \\`, `é`} {
		got = p.call("rpc.handshake", `{"protocol_version":"`+version+`","strict":true}`)
		if !strings.HasSuffix(got, `"error":{"code":-32602,"message":"unsupported protocol_version: `+version+`","data":{"reason":"unsupported_protocol_version","supported":"1.0.0"}}}`) {
			t.Error(got)
		}
	}
	for _, fine := range []string{
		`{"protocol_version":"1.0.0","strict":true}`, `{"strict":true}`, `{}`, ``, `[]`,
		`null`, `{"protocol_version":null,"strict":null,"more":1}`,
	} {
		check(t, p.call("rpc.handshake", fine), "/result/server_name", "a2e")
	}
}

func TestToken(t *testing.T) {
	p := open(t, front.Options{Tokens: auth.Tokens{auth.New("secret", "")}}, newKit())
	check(t, p.call("system.ping", ""), "/result/ok", "true")
	for _, c := range [][2]string{
		{"session.create", ""},
		{"nope", ""},
		{"auth.status", ""},
		{"system.shutdown", ""},
		{"rpc.handshake", ""},
		{"rpc.handshake", `{"auth_token":"wrong"}`},
	} {
		if got := p.call(c[0], c[1]); get(t, got, "/error/code") != "-32001" ||
			get(t, got, "/error/data/reason") != "unauthorized" || strings.Contains(got, "secret") {
			t.Error(got)
		}
	}
	// Lines take effect in order.
	p.send(request("1", "rpc.handshake", `{"auth_token":"secret"}`), request("2", "auth.status", ""))
	check(t, p.answer("2"), "/result/authenticated", "true", "/result/required", "true")
	got := p.call("state.get", "") + p.answer("2")
	assert.That(t, !strings.Contains(got, "secret"), "%v", got)
}

// tardy is a plugin that learns only after its start which requests it serves.
type tardy struct {
	*kit
	asked, ready chan struct{}
	once         sync.Once
}

func (p *tardy) Ready(ctx context.Context) {
	p.once.Do(func() { close(p.asked) })
	select {
	case <-p.ready:
	case <-ctx.Done():
	}
}

// TestTardyPlugins: requests that need the plugins wait until these are ready, as a handshake of A2E does. Other
// requests do not wait.
func TestTardyPlugins(t *testing.T) {
	k := &tardy{kit: newKit(), asked: make(chan struct{}), ready: make(chan struct{})}
	p := bounded(t, 1, host.Limits{}, k)
	p.send(request("1", "tools.list", ""), `{"a2e":"1.0","type":"handshake/req","id":"h","agent_caps":["tools"]}`)
	select {
	case <-k.asked:
	case <-time.After(patience):
		t.Fatal("nobody asked whether the plugin is ready")
	}
	p.session("")
	p.send(request("2", "state.get", ""))
	p.call("rpc.handshake", "")
	if p.count(`"id":1,`)+p.count(`"id":2,`) != 0 {
		t.Errorf("answered too early: %v", p.all())
	}
	assert.Equal(t, p.count("handshake/resp"), 0, "… handshakes are answered")
	close(k.ready)
	check(t, p.answer("1"), "/result/tools/0/name", "echo")
	p.answer("2")
}

func TestShutdown(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	p.send(request("1", "command.execute", `{"session_id":"`+s+`","raw_command":"/block"}`))
	<-k.begun
	p.send(request("2", "system.shutdown", `{"timeout":0}`))
	p.wait()
	if get(t, p.answer("2"), "/result/accepted") != "true" || get(t, p.answer("1"),
		"/error/data/reason") != "timeout" || p.count(`"id":1,`) != 1 {
		t.Error(p.all())
	}
	assert.Equal(t, <-k.ended, "rpc", "ended")
}

// TestAudit: each request leaves an entry in the audit trail, as in A2E, and so does a notification, because it may
// run a tool.
func TestAudit(t *testing.T) {
	a := &hosttest.Trail{}
	p := openHost(t, host.Options{
		Plugins: []host.Plugin{newKit()}, Dialects: []host.Dialect{front.New(front.Options{
			Log:   zerolog.Nop(),
			Store: state(t, t.TempDir()),
		})}, Events: a.Of(event.Request),
	})
	s := p.session("")
	p.send(onSession(`"run"`, "command.execute", s, `,"raw_command":"/echo"`))
	done := p.answer(`"run"`)
	p.send(onSession("12345678901234567890", "command.execute", s, `,"raw_command":"/deny"`))
	p.answer("12345678901234567890")
	p.send(onSession("", "command.execute", s, `,"raw_command":"/echo"`))
	hosttest.Eventually(t, "the entry of the notification",
		func() bool { return len(a.Entries()) == 4 }) // a notification has no answer to wait for
	p.call("no.method", "")
	p.send(`{"jsonrpc":"2.0","id":7,"method":7}`)
	p.answer("7")
	p.send(`{"jsonrpc`)
	p.answer("null")
	p.close()
	call, entries := get(t, done, "/result/output/tool_call_id"), a.Entries()
	for i, want := range []event.Event{
		{Type: "session.create"},
		{
			Type: "command.execute", ReqID: "run", SessionID: s, CorrelationID: call, Capability: "tools",
			OutputBytes: len(done),
		},
		{
			Type: "command.execute", ReqID: "12345678901234567890", SessionID: s, Capability: "tools",
			ErrorCode: "tool_denied",
		},
		{Type: "command.execute", SessionID: s, Capability: "tools"},
		{Type: "no.method", ErrorCode: "method_not_found"},
		{ReqID: "7", ErrorCode: "invalid_request"},
		{ErrorCode: "parse_error"},
	} {
		must.That(t, i < len(entries), "%d entries; the next should be %+v", len(entries), want)
		got := entries[i]
		if got.Type != want.Type || got.SessionID != want.SessionID || got.Capability != want.Capability ||
			got.ErrorCode != want.ErrorCode {
			t.Errorf("entry %d: %+v\nshould be %+v", i, got, want)
		}
		if !strings.HasPrefix(got.ReqID, want.ReqID) || want.CorrelationID != "" && got.CorrelationID != call ||
			want.OutputBytes != 0 && got.OutputBytes != want.OutputBytes {
			t.Errorf("entry %d: %+v\nshould be %+v", i, got, want)
		}
		assert.That(t, (got.Type == "" || got.InputBytes != 0) && (got.Capability == "" || got.CorrelationID != ""),
			"entry %d lacks something: %+v", i, got)
	}
	assert.Equal(t, len(entries), 7, "… entries: %+v", entries)
}
