package mcp_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/auth"
	front "a2e/host/dialect/mcp"
	"a2e/protocol"
)

// onlyMCP is a host that speaks nothing else.
func onlyMCP(l *lab) host.Options {
	return host.Options{Plugins: []host.Plugin{l}, Only: true, Limits: host.Limits{LineBytes: 1 << 20}}
}

// TestLines: each line gets the answer that JSON-RPC wants, or none.
func TestLines(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	for i, c := range []struct {
		line string
		id   string // of the answer, as JSON; "" = there is none
		code int    // 0 = a result
	}{
		{request(`7`, "ping", ""), `7`, 0},
		{request(`"\u0061 b"`, "ping", "{}"), `"\u0061 b"`, 0},
		{request(`123456789012345678901234567890`, "ping", ""), `123456789012345678901234567890`, 0},
		{request(`-1.50e+2`, "tools/list", ""), `-1.50e+2`, 0},
		{request(`18446744073709551615`, "tools/list", "null"), `18446744073709551615`, 0},
		{callTool(`"call"`, "echo", `{}`), `"call"`, 0},
		{`  {"jsonrpc":"2.0" , "id" : 8 , "method":"ping"}` + "\r", `8`, 0},
		{request(`9`, "no/such", ""), `9`, -32601},
		{request(`10`, "server/discover", ""), `10`, -32601},
		{request(`11`, "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`), `11`, -32601},
		{request(`12`, "resources/subscribe", `{"uri":"file:///x"}`), `12`, -32601},
		{request(`13`, "notifications/initialized", ""), `13`, -32601},
		{request(`14`, "initialize", hello), `14`, -32600}, // a second one
		{request(`15`, "tools/call", ""), `15`, -32600},
		{request(`16`, "tools/call", `[1]`), `16`, -32602},
		{request(`17`, "tools/call", `{"name":5}`), `17`, -32602},
		{request(`18`, "tools/call", `{"name":"no such tool"}`), `18`, -32602},
		{callTool(`19`, "echo", `[]`), `19`, -32602},
		{callTool(`20`, "echo", `null`), `20`, 0},
		{request(`21`, "tools/list", `{"cursor":"!"}`), `21`, -32602},
		{request(`22`, "resources/list", `{"cursor":"!"}`), `22`, -32602},
		{request(`23`, "prompts/get", `{"name":"none"}`), `23`, -32602},
		{request(`24`, "resources/read", `{"uri":"file:///none"}`), `24`, -32002},
		{request(`25`, "resources/read", `{"uri":"gopher://none"}`), `25`, -32002},
		{request(`26`, "resources/read", `{"uri":"memory://semantic/%7B%7D"}`), `26`, -32002}, // no plugin has a memory
		{request(`27`, "logging/setLevel", `{"level":"loud"}`), `27`, -32602},
		{`{"id":28,"method":"ping"}`, `28`, -32600},
		{`{"jsonrpc":"1.0","id":29,"method":"ping"}`, `29`, -32600},
		{`{"jsonrpc":2.0,"id":30,"method":"ping"}`, `30`, -32600},
		{`{"jsonrpc":"2.0","id":31,"method":5}`, `31`, -32600},
		{`{"jsonrpc":"2.0","id":32,"method":""}`, `32`, -32600},
		{`{"jsonrpc":"2.0","id":33}`, `33`, -32600},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `null`, -32600},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, `null`, -32600},
		{`{"jsonrpc":"2.0"}`, `null`, -32600},
		{`{}`, `null`, -32600},
		{`[` + request(`34`, "ping", "") + `]`, `null`, -32600},
		{`5`, `null`, -32600},
		{`{"jsonrpc":"2.0","id":35,"method":"ping"`, `null`, -32700},
		{`{"jsonrpc":"2.0","id":36,"id":37,"method":"ping"}`, `null`, -32600},
		{"\xff", `null`, -32700},
		{`{"type":"ping","id":"38"}`, `"38"`, -32600}, // there is no A2E here
		{request(`39`, "ping", `{"x":"`+strings.Repeat("x", 2<<20)+`"}`), `null`, -32600},
		{request(`40`, "ping", strings.Repeat("[", 2000)+strings.Repeat("]", 2000)), `null`, -32700},
		{request("", "no/such", ""), "", 0},
		{request("", "tools/call", `5`), "", 0},
		{request("", "ping", ""), "", 0},
		{request("", "notifications/cancelled", `{"requestId":"none"}`), "", 0},
		{request("", "notifications/cancelled", `{"requestId":{}}`), "", 0},
		{request("", "notifications/cancelled", ""), "", 0},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, "", 0}, // nobody asked
		{`{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"x"}}`, "", 0},
		{`{"jsonrpc":"2.0","id":null,"error":{}}`, "", 0},
		{"", "", 0},
	} {
		before := len(p.said())
		p.send(c.line)
		probe := fmt.Sprintf(`"probe %d"`, i) // answered at once, and in order with all that is
		p.call(probe, "ping", "")
		if c.id != "" {
			p.until(fmt.Sprintf("the answer to %.100s", c.line), func() bool { return len(p.said()) == before+2 })
		}
		after := p.said()[before:]
		switch {
		case c.id == "" && len(after) != 1:
			t.Errorf("%.100s was answered: %s", c.line, after)
		case c.id != "":
			got := after[0]
			if string(got.ID) == probe {
				got = after[1]
			}
			if string(got.ID) != c.id || got.code() != c.code || (got.Result == nil) != (c.code != 0) || !strings.HasPrefix(got.text, `{"jsonrpc":"2.0","id":`) {
				t.Errorf("%.100s: %s", c.line, got)
			}
			if len(got.text) > 20000 {
				t.Errorf("%.100s: the answer has %d bytes", c.line, len(got.text))
			}
		}
	}
}

// TestInitialize: what it says of the server, and what comes before it.
func TestInitialize(t *testing.T) {
	p := serve(t, front.Options{Version: "1.2.3", Instructions: "be kind"}, onlyMCP(newLab()))
	if l := p.call(`1`, "tools/list", ""); l.code() != -32600 || !strings.Contains(l.text, "initialize first") {
		t.Errorf("before initialize: %s", l)
	}
	if l := p.call(`2`, "ping", ""); l.code() != 0 {
		t.Errorf("a ping: %s", l)
	}
	for i, params := range []string{``, `{}`, `{"protocolVersion":5}`, `{"protocolVersion":"2025-11-25","clientInfo":5}`} {
		if l := p.call(fmt.Sprint(10+i), "initialize", params); l.code() != -32602 {
			t.Errorf("initialize %s: %s", params, l)
		}
	}
	l := p.call(`3`, "initialize", `{"protocolVersion":"2025-06-18"}`)
	for _, part := range []string{
		`"protocolVersion":"2025-06-18"`, `"name":"a2e"`, `"version":"1.2.3"`, `"instructions":"be kind"`, `"logging":{}`, `"resources":{}`,
		`"tools":{"listChanged":true}`, `"prompts":{"listChanged":true}`,
	} {
		if !strings.Contains(l.text, part) {
			t.Errorf("no %s in %s", part, l)
		}
	}
	for version, want := range map[string]string{"2024-11-05": "2024-11-05", "2026-07-28": "2025-11-25", "x": "2025-11-25"} {
		p := serve(t, front.Options{}, onlyMCP(newLab()))
		if l := p.call(`1`, "initialize", `{"protocolVersion":"`+version+`","capabilities":{}}`); !strings.Contains(l.text, `"protocolVersion":"`+want+`"`) {
			t.Errorf("%s: %s", version, l)
		}
	}
}

// TestSession: the session is the client's, and ends once.
func TestSession(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l)).open()
	p.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if fmt.Sprint(l.ended) != "[tester]" {
		t.Errorf("the sessions that ended: %v", l.ended)
	}
}

// TestSharedPipe: A2E and MCP on one pipe; JSON-RPC before initialize is not MCP.
func TestSharedPipe(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{l}})
	p.send(request(`1`, "tools/list", ""))
	p.wait("an answer of A2E", func(l line) bool { return l.Type == "error" })
	p.send(`{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["tools"]}`)
	p.wait("a session", func(l line) bool { return l.Type == "handshake/resp" })
	p.open()
	for i := range 50 {
		p.send(
			callTool(fmt.Sprint(i), "echo", fmt.Sprintf(`{"mcp":%d}`, i)),
			fmt.Sprintf(`{"type":"tool/call/req","id":"a%d","tool_name":"echo","arguments":{"a2e":%d}}`, i, i),
		)
		if i%10 == 0 {
			p.send(`{"broken`, request(fmt.Sprint(1000+i), "ping", ""), `{"broken`, fmt.Sprintf(`{"type":"ping","id":"p%d"}`, i))
		}
	}
	for i := range 50 {
		if got := p.answer(fmt.Sprint(i)); !strings.Contains(got.text, fmt.Sprintf(`"structuredContent":{"mcp":%d}`, i)) {
			t.Errorf("MCP: %s", got)
		}
		got := p.wait("an answer of A2E", func(l line) bool { return l.ReqID == fmt.Sprint("a", i) })
		if !strings.Contains(got.text, fmt.Sprintf(`{"a2e":%d}`, i)) {
			t.Errorf("A2E: %s", got)
		}
	}
	p.wait("the last pong", func(l line) bool { return l.ReqID == "p40" })
	broken := map[bool]int{}
	for _, l := range p.said() {
		if strings.Contains(l.text, "parse_error") || l.code() == -32700 {
			broken[l.Type == ""]++
		}
	}
	if broken[true] != 5 || broken[false] != 5 {
		t.Errorf("broken lines were answered %d times in JSON-RPC and %d times in A2E", broken[true], broken[false])
	}
}

// TestToken: on a shared pipe initialize has to bring the host's token.
func TestToken(t *testing.T) {
	tokens := auth.Tokens{auth.New("hunter2", "")}
	p := serve(t, front.Options{Tokens: tokens}, host.Options{Plugins: []host.Plugin{newLab()}, Tokens: tokens})
	for i, meta := range []string{``, `,"_meta":{}`, `,"_meta":{"a2e/auth_token":"hunter"}`, `,"_meta":{"a2e/auth_token":"hunter2 "}`} {
		l := p.call(fmt.Sprint(i), "initialize", strings.TrimSuffix(hello, "}")+meta+"}")
		if l.code() != -32001 || !strings.Contains(l.text, "unauthorized") || strings.Contains(l.text, "hunter") {
			t.Errorf("%s: %s", meta, l)
		}
	}
	if l := p.call(`10`, "tools/list", ""); l.code() != -32600 {
		t.Errorf("without a session: %s", l)
	}
	if l := p.call(`11`, "initialize", strings.TrimSuffix(hello, "}")+`,"_meta":{"a2e/auth_token":"hunter2"}}`); l.Error != nil {
		t.Errorf("with the token: %s", l)
	}
	if l := p.call(`12`, "tools/list", ""); l.Error != nil {
		t.Errorf("with a session: %s", l)
	}
	for _, l := range p.said() {
		if strings.Contains(l.text, "hunter2") {
			t.Errorf("the token is in %s", l)
		}
	}
}

// TestResults: what tools give, as MCP says it.
func TestResults(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	text := func(s string) string { return `{"type":"text","text":` + string(protocol.AppendString(nil, s)) + `}` }
	for tool, want := range map[string]string{
		"rich":      `{"content":[` + text(`{"n":9007199254740993}`) + `],"structuredContent":{"n":9007199254740993}}`,
		"odd":       `{"content":[` + text(`[1,2]`) + `]}`,
		"text":      `{"content":[` + text(`just text`) + `]}`,
		"null":      `{"content":[]}`,
		"file":      `{"content":[` + text("line 1\nline 2") + `,` + text(`{"lines":2}`) + `],"structuredContent":{"content":"line 1\nline 2","lines":2}}`,
		"mcp":       `{"content":[{"type":"text","text":""},{"type":"image","data":"AAAA","mimeType":"image/png","x-own":[1]}],"structuredContent":{"a":1}}`,
		"mcpfail":   `{"content":[` + text("it broke") + `],"isError":true}`,
		"mcpcut":    `{"content":[` + text("the start") + `,` + text("cut: the rest is elsewhere") + `],"isError":true}`,
		"notmcp":    `{"content":[` + text(`{"content":[{"type":"video"}]}`) + `],"structuredContent":{"content":[{"type":"video"}]}}`,
		"summary":   `{"content":[` + text(`{"a":[1]}`) + `,` + text("only the first") + `],"structuredContent":{"a":[1]}}`,
		"cut":       `{"content":[` + text(`{"n":null}`) + `],"structuredContent":{"n":null}}`,
		"failed":    `{"content":[` + text("no such file") + `,` + text("exit status 3") + `],"structuredContent":{"stderr":"no such file"},"isError":true}`,
		"denied":    `{"content":[` + text("not allowed") + `],"isError":true}`,
		"violation": `{"content":[` + text("/arguments/x: is required") + `],"isError":true}`,
		"late":      `{"content":[` + text("took too long") + `],"isError":true}`,
		"down":      `{"content":[` + text("the server is down") + `],"isError":true}`,
	} {
		if l := p.call(`"`+tool+`"`, "tools/call", `{"name":"`+tool+`"}`); string(l.Result) != want {
			t.Errorf("%s:\n%s\nshould be\n%s", tool, l, want)
		}
	}
	for tool, want := range map[string]string{
		"busy":      `"error":{"code":-32000,"message":"too much","data":{"code":"overloaded","detail":{"n":5},"retryable":true}}`,
		"badDetail": `"error":{"code":-32000,"message":"too much","data":{"code":"overloaded","retryable":true}}`,
		"panic":     `"code":-32603,"message":"the plugin panicked`,
		"goexit":    `"code":-32603,"message":"the plugin broke off`,
		"none":      `"error":{"code":-32602,"message":"unknown tool \"none\"; there are: echo"`,
	} {
		if l := p.call(`"`+tool+`"`, "tools/call", `{"name":"`+tool+`"}`); !strings.Contains(l.text, want) || strings.Contains(l.text, "secret") {
			t.Errorf("%s:\n%s\nshould have\n%s", tool, l, want)
		}
	}
}

// TestBatch: in the one version that has batches, a line of several messages is answered by
// one line; what is cancelled or a notification is not in it.
func TestBatch(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l))
	p.call(`"i"`, "initialize", strings.Replace(hello, "2025-11-25", "2025-03-26", 1))
	p.send(` [` + strings.Join([]string{
		request(`1`, "ping", ""), request("", "notifications/initialized", ""), callTool(`2`, "block", `{}`), callTool(`3`, "echo", `{}`), `5`,
		request(`4`, "no/such", ""), request(`5`, "initialize", hello), `{"jsonrpc":"2.0","id":6}`,
	}, ",") + `]`)
	<-l.begun
	p.call(`"between"`, "ping", "")
	p.send(request("", "notifications/cancelled", `{"requestId":2}`), `[]`, `[`+request("", "notifications/initialized", "")+`]`)
	var answers []line
	batch := p.wait("the answers", func(l line) bool { return strings.HasPrefix(l.text, "[") })
	if err := json.Unmarshal([]byte(batch.text), &answers); err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{}
	for _, a := range answers {
		codes[string(a.ID)] = a.code()
	}
	want := map[string]int{"1": 0, "3": 0, "null": -32600, "4": -32601, "5": -32600, "6": -32600}
	if !maps.Equal(codes, want) {
		t.Errorf("%s: %v, should be %v", batch, codes, want)
	}
	if p.end(); len(p.answers("null")) != 1 || !strings.Contains(fmt.Sprint(p.answers("null")), "at least one of them") {
		t.Errorf("an empty batch is one error: %s", p.said())
	}
}
