package mcp_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
	"a2e/protocol"
)

// onlyMCP returns options for a host that speaks only MCP.
func onlyMCP(l *lab) host.Options {
	return host.Options{Plugins: []host.Plugin{l}, Only: true, Limits: host.Limits{LineBytes: 1 << 20}}
}

// atOnce sets how many requests of a host run at once.
func atOnce(n int, opts host.Options) host.Options {
	opts.MaxParallel = n
	return opts
}

// TestLines: each line gets the answer that JSON-RPC requires, or none.
func TestLines(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	for i, c := range []struct {
		line string
		id   string // id of the answer, as JSON; "" = no answer
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
		{request(`14`, "initialize", hello), `14`, -32600}, // a second initialize
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
		// No plugin has a memory.
		{request(`26`, "resources/read", `{"uri":"memory://semantic/%7B%7D"}`), `26`, -32002},
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
		{`{"jsonrpc":"2.0","id":35,"method":"ping"`, `35`, -32700},
		{`{"jsonrpc":"2.0","method":"ping"`, `null`, -32700},
		{callTool(`41`, "echo", `{"text":"\ud800"}`), `41`, -32700},
		{`{"method":"tools/call","params":{"name":"echo","x":"\ud800"},"jsonrpc":"2.0","id":42}`, `42`, -32700},
		{`{"method":"m","params":{"x":{"a":1,"a":2}},"jsonrpc":"2.0","id":"4\u0033"}`, `"4\u0033"`, -32600},
		{
			`{"method":"tools/call","params":{"name":"` + "\xff" + `"},"jsonrpc":"2.0","id":-1.50e+2}`, `-1.50e+2`,
			-32700,
		},
		{`{"method":"tools/call","params":{"x":01},"jsonrpc":"2.0","id":44}`, `44`, -32700},
		{`{"method":"tools/call","params":{"a":1,"a":1},"jsonrpc":"2.0","id":45,"id":45}`, `null`, -32600},
		{`{"method":"tools/call","params":{"a":1,"a":1},"jsonrpc":"2.0","id":{"a":1}}`, `null`, -32600},
		{`{"jsonrpc":"2.0","id":46,"result":{"a":1,"a":1}}`, `null`, -32600}, // an answer: 46 is not a request
		{request(`47`, "ping", "") + request(`48`, "ping", ""), `null`, -32700},
		{`{"jsonrpc":"2.0","id":36,"id":37,"method":"ping"}`, `null`, -32600},
		{"\xff", `null`, -32700},
		{`{"type":"ping","id":"38"}`, `"38"`, -32600}, // this host does not speak A2E
		{request(`39`, "ping", `{"x":"`+strings.Repeat("x", 2<<20)+`"}`), `39`, -32600},
		{request(`40`, "ping", strings.Repeat("[", 2000)+strings.Repeat("]", 2000)), `40`, -32700},
		{request("", "no/such", ""), "", 0},
		{request("", "tools/call", `5`), "", 0},
		{request("", "ping", ""), "", 0},
		{request("", "notifications/cancelled", `{"requestId":"none"}`), "", 0},
		{request("", "notifications/cancelled", `{"requestId":{}}`), "", 0},
		{request("", "notifications/cancelled", ""), "", 0},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, "", 0}, // an answer without a question
		{`{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"x"}}`, "", 0},
		{`{"jsonrpc":"2.0","id":null,"error":{}}`, "", 0},
		{"", "", 0},
	} {
		before := len(p.said())
		p.send(c.line)
		probe := fmt.Sprintf(`"probe %d"`, i) // it is answered at once, or after the answer to c.line
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
			assert.That(t, string(got.ID) == c.id && got.code() == c.code && (got.Result == nil) == (c.code != 0) &&
				strings.HasPrefix(got.text, `{"jsonrpc":"2.0","id":`), "%.100s: %s", c.line, got)
			assert.That(t, len(got.text) <= 20000, "%.100s: the answer has %d bytes", c.line, len(got.text))
		}
	}
}

// TestInitialize: initialize returns the facts about the server, and only a ping is answered before it.
func TestInitialize(t *testing.T) {
	p := serve(t, front.Options{Version: "1.2.3", Instructions: "be kind"}, onlyMCP(newLab()))
	check(t, p.call(`1`, "tools/list", ""), -32600, "initialize first")
	check(t, p.call(`2`, "ping", ""), 0)
	for i, params := range []string{
		``, `{}`, `{"protocolVersion":5}`,
		`{"protocolVersion":"2025-11-25","clientInfo":5}`,
	} {
		check(t, p.call(fmt.Sprint(10+i), "initialize", params), -32602)
	}
	l := p.call(`3`, "initialize", `{"protocolVersion":"2025-06-18"}`)
	for _, part := range []string{
		`"protocolVersion":"2025-06-18"`, `"name":"a2e"`, `"version":"1.2.3"`, `"instructions":"be kind"`,
		`"logging":{}`, `"resources":{}`,
		`"tools":{"listChanged":true}`, `"prompts":{"listChanged":true}`,
	} {
		assert.Contains(t, l.text, part, "no … in %s", l)
	}
	for version, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2026-07-28": "2025-11-25",
		"x": "2025-11-25",
	} {
		p := serve(t, front.Options{}, onlyMCP(newLab()))
		check(t, p.call(`1`, "initialize", `{"protocolVersion":"`+version+`","capabilities":{}}`), anyCode,
			`"protocolVersion":"`+want+`"`)
	}
}

// TestSession: the session has the name of the client, and ends once.
func TestSession(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l)).open()
	p.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	assert.Equal(t, fmt.Sprint(l.ended), "[tester]", "the sessions that ended: %v", l.ended)
}

// TestSharedPipe: A2E and MCP work on the same pipe. JSON-RPC before initialize does not count as MCP.
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
			p.send(`{"broken`, request(fmt.Sprint(1000+i), "ping", ""), `{"broken`,
				fmt.Sprintf(`{"type":"ping","id":"p%d"}`, i))
		}
	}
	for i := range 50 {
		check(t, p.answer(fmt.Sprint(i)), anyCode, fmt.Sprintf(`"structuredContent":{"mcp":%d}`, i))
		got := p.wait("an answer of A2E", func(l line) bool { return l.ReqID == fmt.Sprint("a", i) })
		assert.Contains(t, got.text, fmt.Sprintf(`{"a2e":%d}`, i), "A2E: %s", got)
	}
	p.wait("the last pong", func(l line) bool { return l.ReqID == "p40" })
	broken := map[bool]int{}
	for _, l := range p.said() {
		if strings.Contains(l.text, "parse_error") || l.code() == -32700 {
			broken[l.Type == ""]++
		}
	}
	assert.That(t, broken[true] == 5 && broken[false] == 5,
		"broken lines were answered %d times in JSON-RPC and %d times in A2E", broken[true], broken[false])
}

// TestToken: on a shared pipe, initialize must have the host's token.
func TestToken(t *testing.T) {
	tokens := auth.Tokens{auth.New("hunter2", "")}
	p := serve(t, front.Options{Tokens: tokens}, host.Options{Plugins: []host.Plugin{newLab()}, Tokens: tokens})
	for i, meta := range []string{
		``, `,"_meta":{}`, `,"_meta":{"a2e/auth_token":"hunter"}`,
		`,"_meta":{"a2e/auth_token":"hunter2 "}`,
	} {
		l := p.call(fmt.Sprint(i), "initialize", strings.TrimSuffix(hello, "}")+meta+"}")
		assert.That(t, l.code() == -32001 && strings.Contains(l.text, "unauthorized") &&
			!strings.Contains(l.text, "hunter"),
			"%s: %s", meta, l)
	}
	check(t, p.call(`10`, "tools/list", ""), -32600)
	check(t, p.call(`11`, "initialize", strings.TrimSuffix(hello, "}")+`,"_meta":{"a2e/auth_token":"hunter2"}}`), 0)
	check(t, p.call(`12`, "tools/list", ""), 0)
	for _, l := range p.said() {
		assert.That(t, !strings.Contains(l.text, "hunter2"), "the token is in %s", l)
	}
}

// TestResults: each kind of tool result is translated to MCP's form.
func TestResults(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	text := func(s string) string { return `{"type":"text","text":` + string(protocol.AppendString(nil, s)) + `}` }
	for tool, want := range map[string]string{
		"rich": `{"content":[` + text(`{"n":9007199254740993}`) + `],"structuredContent":{"n":9007199254740993}}`,
		"odd":  `{"content":[` + text(`[1,2]`) + `]}`,
		"text": `{"content":[` + text(`just text`) + `]}`,
		"null": `{"content":[]}`,
		"file": `{"content":[` + text("line 1\nline 2") + `,` + text(`{"lines":2}`) +
			`],"structuredContent":{"content":"line 1\nline 2","lines":2}}`,
		"mcp":     `{"content":[{"type":"text","text":""},{"type":"image","data":"AAAA","mimeType":"image/png","x-own":[1]}],"structuredContent":{"a":1}}`,
		"mcpfail": `{"content":[` + text("it broke") + `],"isError":true}`,
		"mcpcut": `{"content":[` + text("the start") + `,` + text("cut: the rest is elsewhere") +
			`],"isError":true}`,
		"notmcp": `{"content":[` + text(`{"content":[{"type":"video"}]}`) +
			`],"structuredContent":{"content":[{"type":"video"}]}}`,
		"summary": `{"content":[` + text(`{"a":[1]}`) + `,` + text("only the first") +
			`],"structuredContent":{"a":[1]}}`,
		"cut": `{"content":[` + text(`{"n":null}`) + `],"structuredContent":{"n":null}}`,
		"failed": `{"content":[` + text("no such file") + `,` + text("exit status 3") +
			`],"structuredContent":{"stderr":"no such file"},"isError":true}`,
		"denied":    `{"content":[` + text("not allowed") + `],"isError":true}`,
		"violation": `{"content":[` + text("/arguments/x: is required") + `],"isError":true}`,
		"late":      `{"content":[` + text("took too long") + `],"isError":true}`,
		"down":      `{"content":[` + text("the server is down") + `],"isError":true}`,
	} {
		l := p.call(`"`+tool+`"`, "tools/call", `{"name":"`+tool+`"}`)
		assert.Equal(t, string(l.Result), want, "%s:\n%s", tool, l)
	}
	for tool, want := range map[string]string{
		"busy":      `"error":{"code":-32000,"message":"too much","data":{"code":"overloaded","detail":{"n":5},"retryable":true}}`,
		"badDetail": `"error":{"code":-32000,"message":"too much","data":{"code":"overloaded","retryable":true}}`,
		"panic":     `"code":-32603,"message":"the plugin panicked`,
		"goexit":    `"code":-32603,"message":"the plugin broke off`,
		"none":      `"error":{"code":-32602,"message":"unknown tool \"none\"; there are: echo"`,
	} {
		l := p.call(`"`+tool+`"`, "tools/call", `{"name":"`+tool+`"}`)
		assert.That(t, strings.Contains(l.text, want) && !strings.Contains(l.text, "secret"),
			"%s:\n%s\nshould have\n%s", tool, l, want)
	}
}

// TestBatch: in the one version of MCP that has batches, a batch is answered in one line. Cancelled requests and
// notifications have no answer in it.
func TestBatch(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l))
	p.call(`"i"`, "initialize", strings.Replace(hello, "2025-11-25", "2025-03-26", 1))
	p.send(` [` + strings.Join([]string{
		request(`1`, "ping", ""), request("", "notifications/initialized", ""), callTool(`2`, "block", `{}`),
		callTool(`3`, "echo", `{}`), `5`,
		request(`4`, "no/such", ""), request(`5`, "initialize", hello), `{"jsonrpc":"2.0","id":6}`,
		callTool(`7`, "echo", `{"text":"\ud800]"}`),
		`{"method":"ping","params":{"a":[1],"a":2},"jsonrpc":"2.0","id":8}`,
	}, ",") + `]`)
	<-l.begun
	p.call(`"between"`, "ping", "")
	p.send(request("", "notifications/cancelled", `{"requestId":2}`), `[]`, `[`+request("", "notifications/initialized",
		"")+`]`)
	var answers []line
	batch := p.wait("the answers", func(l line) bool { return strings.HasPrefix(l.text, "[") })
	must.OK(t, json.Unmarshal([]byte(batch.text), &answers))
	codes := map[string]int{}
	for _, a := range answers {
		codes[string(a.ID)] = a.code()
	}
	want := map[string]int{
		"1": 0, "3": 0, "null": -32600, "4": -32601, "5": -32600, "6": -32600, "7": -32700, "8": -32600,
	}
	assert.That(t, maps.Equal(codes, want), "%s: %v, should be %v", batch, codes, want)
	if p.end(); len(p.answers("null")) != 1 || !strings.Contains(fmt.Sprint(p.answers("null")),
		"at least one of them") {
		t.Errorf("an empty batch is one error: %s", p.said())
	}
}

// TestAudit: each request leaves an entry in the audit trail, and so does a line that cannot be parsed.
func TestAudit(t *testing.T) {
	var a hosttest.Trail
	p := serve(t, front.Options{}, host.Options{
		Plugins: []host.Plugin{newLab()}, Only: true,
		Events: a.Of(event.Request),
	}).open()
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
		got = append(got, fmt.Sprintf("%s %s %s", e.ReqID, e.Type, e.Outcome()))
		assert.That(t, e.ReqID != "call" || e.InputBytes == len(call) && e.OutputBytes == len(done.text),
			"%d bytes in and %d out: %+v", len(call), len(done.text), e)
	}
	want := []string{
		"open initialize ok", "call tools/call ok", "1 ping ok", "2 no/such -32601", "3 tools/call -32602",
		"  -32700",
	}
	assert.Equal(t, strings.Join(got, "|"), strings.Join(want, "|"), "got  %q\nwant %q", got, want)
}

// twins is a plugin with two MCP servers that have the same resources and prompts.
type twins struct{}

func (twins) Info() host.PluginInfo {
	return host.PluginInfo{Name: "twins", Capability: protocol.CapMCP}
}
func (twins) Close(context.Context) error { return nil }

func (twins) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeMCPResourceListReq, func(_ context.Context, req *protocol.MCPResourceListRequest,
			_ host.Emitter,
		) (*protocol.MCPResourceListResponse, error) {
			id, next := "a", "second page"
			if req.Cursor != "" {
				id, next = "b", ""
			}
			row := func(key, uri string) map[string]any {
				return map[string]any{"server_id": id, "name": "n", "uri": "", key: uri}
			}
			return &protocol.MCPResourceListResponse{NextCursor: next, Resources: []map[string]any{
				row("uri", "x://1"), row("uri", "x://1"), row("uri", "file:///note"), row("uri_template", "x://{id}"),
			}}, nil
		}),
		host.Handle(protocol.TypeMCPResourceReadReq, func(_ context.Context, req *protocol.MCPResourceReadRequest,
			_ host.Emitter,
		) (*protocol.MCPResourceReadResponse, error) {
			return &protocol.MCPResourceReadResponse{Contents: []map[string]any{
				{"uri": req.URI, "type": "text", "text": "of " + req.ServerID},
				{"uri": "x://part", "type": "blob", "blob": "AAE="},
			}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptListReq, func(context.Context, *protocol.MCPPromptListRequest,
			host.Emitter,
		) (*protocol.MCPPromptListResponse, error) {
			return &protocol.MCPPromptListResponse{Prompts: []map[string]any{
				{"server_id": "a", "name": "p"},
				{"server_id": "b", "name": "p"},
			}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptGetReq, func(_ context.Context, req *protocol.MCPPromptGetRequest,
			_ host.Emitter,
		) (*protocol.MCPPromptGetResponse, error) {
			return &protocol.MCPPromptGetResponse{Messages: []map[string]any{{
				"role":    "user",
				"content": map[string]any{"type": "text", "text": req.ServerID + "/" + req.Name},
			}}}, nil
		}),
	}
}

// TestTwins: if two servers have something with the same name, each name gets the name of its server as a prefix.
func TestTwins(t *testing.T) {
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{twins{}}, Only: true}).open()
	for i, c := range []struct{ method, params, want string }{
		{"resources/list", `{}`, `[{"name":"n","uri":"mcp://a/file:///note"},{"name":"n","uri":"mcp://b/file:///note"},{"name":"n","uri":"mcp://b/x://1"},{"name":"n","uri":"x://1"}]`},
		{"resources/templates/list", `{}`, `{"name":"n","uriTemplate":"mcp://b/x://{id}"}`},
		{"resources/templates/list", `{}`, `{"name":"n","uriTemplate":"x://{id}"}`},
		{
			"resources/read", `{"uri":"mcp://b/file:///note"}`,
			`[{"uri":"mcp://b/file:///note","text":"of b"},{"uri":"x://part","blob":"AAE="}]`,
		},
		{"resources/read", `{"uri":"x://1"}`, `"text":"of "`},
		{"prompts/list", `{}`, `[{"name":"a__p"},{"name":"b__p"}]`},
		{"prompts/get", `{"name":"b__p"}`, `{"text":"b/p","type":"text"}`},
		{"prompts/get", `{"name":"p"}`, "unknown prompt"},
		{"resources/list", `{"cursor":"dG9vbHM6eA"}`, "-32602"}, // a cursor of the list of tools
		{"tools/list", `{"cursor":"eA"}`, "-32602"},
		{"prompts/list", `{"cursor":"eA=="}`, "-32602"},
		{"resources/templates/list", `{"cursor":"eA"}`, "-32602"},
	} {
		got := p.call(fmt.Sprint(i), c.method, c.params)
		assert.Contains(t, got.text, c.want, "%s %s: %s\nshould have", c.method, c.params, got)
	}
}
