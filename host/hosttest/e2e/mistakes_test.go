package e2e_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// faults are members that clients write, but that are not valid JSON for others.
var faults = map[string]string{
	"lone surrogate": `"text":"\ud800"`, "bytes that are not UTF-8": "\"text\":\"\xff\"",
	"duplicate key":     `"text":"a","text":"b"`,
	"control character": "\"text\":\"\x01\"", "deep": `"text":` + strings.Repeat("[", 1500) + strings.Repeat("]", 1500),
}

// dialectLines are messages of each dialect as clients write them: the id follows FAULT, the part that may have a
// fault.
var dialectLines = map[string]struct {
	args             []string
	hello, line, has string
}{
	"A2E": {
		[]string{"serve"},
		`{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["tools"]}`,
		`{"type":"tool/call/req","tool_name":"echo","arguments":{FAULT},"id":"the id"}`, `"req_id":"the id"`,
	},
	"JSON-RPC": {
		[]string{"serve"},
		`{"jsonrpc":"2.0","method":"system.ping","id":1}`,
		`{"jsonrpc":"2.0","method":"session.send","params":{FAULT},"id":"the id"}`, `"id":"the id"`,
	},
	"MCP": {
		[]string{"mcp", "serve"},
		fmt.Sprintf(mcpHello, "tester", ""),
		`{"method":"tools/call","params":{"name":"echo","arguments":{FAULT}},"jsonrpc":"2.0","id":12345678901234}`,
		`"id":12345678901234`,
	},
	"fleet": {
		[]string{"serve"},
		`{"type":"TASK_STEER","protocol_version":"2.0","task_id":"none","text":"x"}`,
		`{"brief":"x","task":{FAULT,"task_id":"the id"},"protocol_version":"2.0","type":"TASK_DISPATCH"}`,
		`"task_id":"the id"`,
	},
}

// TestIDOfFaults: in every dialect a message with a fault is answered with its id, and the messages after it are
// served. A byte order mark at the start of the input is not a fault.
func TestIDOfFaults(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for dialect, c := range dialectLines {
		for fault, text := range faults {
			line := strings.Replace(c.line, "FAULT", text, 1)
			got := run(t, dir, []byte("\ufeff"+c.hello+"\n"+line+"\n"+c.hello+"\n"), c.args...).want(t, 0, "")
			assert.Equal(t, strings.Count(got.stdout, c.has), 1, "%s, %s: … answers have the id: %.1000s", dialect,
				fault, got.stdout)
			assert.Equal(t, strings.Count(got.stdout, "\n"), 3, "%s, %s: … answers: %.1000s", dialect, fault,
				got.stdout)
			assert.That(t, !strings.Contains(got.stdout, "at byte 0"), "%s: the byte order mark is a fault: %s",
				dialect, got.stdout)
			for answer := range strings.Lines(got.stdout) {
				assert.That(t, jsontext.Value(answer).IsValid(), "%s, %s: no JSON: %s", dialect, fault, answer)
			}
		}
	}
}

// mcpSession opens a session of MCP over HTTP.
func (w *web) mcpSession(version string) {
	w.t.Helper()
	hello := strings.Replace(fmt.Sprintf(mcpHello, "tester", ""), "2025-11-25", version, 1)
	req := must.Get(http.NewRequestWithContext(w.t.Context(), "POST", w.url+"/mcp/",
		strings.NewReader("\ufeff"+hello)))(w.t)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	resp := must.Get(w.client.Do(req))(w.t)
	must.Get(io.Copy(io.Discard, resp.Body))(w.t) // the session begins with the answer
	resp.Body.Close()
	id := resp.Header.Get("Mcp-Session-Id")
	must.That(w.t, resp.StatusCode == 200 && id != "", "initialize: %s", resp.Status)
	w.headers.Set("Mcp-Session-Id", id)
}

// TestMCPOverHTTPFaults: a faulty message is answered with its id and the reason, also after a byte order mark.
func TestMCPOverHTTPFaults(t *testing.T) {
	w := serveWeb(t, "limits: {max_line_bytes: 4096}\n")
	w.mcpSession("2025-11-25")
	line := dialectLines["MCP"].line
	for fault, text := range faults {
		status, got := w.mcp("\ufeff" + strings.Replace(line, "FAULT", text, 1))
		const head = `{"jsonrpc":"2.0","id":12345678901234,"error":{"code":-32`
		assert.That(t, status == 200 && strings.HasPrefix(got, head), "%s: %d %s", fault, status, got)
	}
	for _, c := range []struct {
		body, id string
		status   int
		code     int
		says     string
	}{
		{`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, `null`, 400, -32600, "appears twice"},
		{
			`{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, `null`, 400, -32700,
			"after the end",
		},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"`, `1`, 200, -32700, "should be here"},
		{``, `null`, 400, -32700, "not valid JSON"},
		{`5`, `null`, 400, -32600, "JSON object"},
		{`[]`, `null`, 400, -32600, "at least one message"},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, `3`, 200, -32600, "must be"},
		{`{"jsonrpc":"2.0","id":4,"method":5}`, `4`, 200, -32600, "must be a string"},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `null`, 400, -32600, "must be a string or a number"},
		{`{"jsonrpc":"2.0","id":5,"method":"no/such"}`, `5`, 200, -32601, "unknown method"},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":[1]}`, `6`, 200, -32602, "needs params"},
		{`{"jsonrpc":"2.0","id":7,"error":5}`, `null`, 400, -32600, "an answer needs"},
		{`{"jsonrpc":"2.0","id":8,"method":"` + strings.Repeat("x", 5000) + `"}`, `8`, 413, -32600, "4096 bytes"},
	} {
		status, got := w.mcp(c.body)
		head := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,`, c.id, c.code)
		assert.That(t, status == c.status && strings.HasPrefix(got, head) && strings.Contains(got, c.says),
			"%.80s: %d %s", c.body, status, got)
	}
	for _, method := range []string{"notifications/none", "notifications/cancelled"} {
		status, got := w.mcp(`{"jsonrpc":"2.0","method":"` + method + `"}`)
		assert.That(t, status == 202 && got == "", "%s: %d %s", method, status, got)
	}
	for version, want := range map[string]int{
		"1999-01-01": 400, "latest": 400, "2025-11-25": 200, "2025-06-18": 200,
		"": 200,
	} {
		w.headers.Set("MCP-Protocol-Version", version)
		status, got := w.mcp(`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		assert.That(t, status == want && strings.Contains(got, `"id":9`) && strings.Contains(got,
			"not served here") == (want == 400),
			"%s: %d %s", version, status, got)
	}
}

// TestMCPOverHTTPFaultyBatch: each message of a batch has its own answer, even if others are faulty.
func TestMCPOverHTTPFaultyBatch(t *testing.T) {
	w := serveWeb(t, "")
	w.mcpSession("2025-03-26")
	line := dialectLines["MCP"].line
	for range 2 { // no fault of the first batch is left for the second
		status, got := w.mcp(`[` + strings.Replace(line, "FAULT", faults["lone surrogate"], 1) +
			`,{"jsonrpc":"2.0","id":"2","method":"ping"},{"jsonrpc":"2.0","method":"notifications/none"},` +
			`{"jsonrpc":"2.0","id":3,"method":"no/such"}]`)
		codes := map[string]int{}
		for data := range strings.Lines(got) {
			if data, ok := strings.CutPrefix(data, "data: "); ok {
				var answer struct {
					ID    jsontext.Value `json:"id"`
					Error struct {
						Code int `json:"code"`
					} `json:"error"`
				}
				must.OK(t, json.Unmarshal([]byte(data), &answer))
				codes[string(answer.ID)] = answer.Error.Code
			}
		}
		assert.That(t, status == 200 && fmt.Sprint(codes) == `map["2":0 12345678901234:-32700 3:-32601]`,
			"%d %v: %s", status, codes, got)
	}
	status, got := w.mcp(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	assert.That(t, status == 200 && strings.Contains(got, `"result":{}`), "the id of a fault serves no more: %d %s",
		status, got)
	status, got = w.mcp(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"\ud800","method":"ping"}]`)
	assert.That(t, status == 400 && strings.Contains(got, `"id":null`) && strings.Contains(got,
		"message 2 of the batch"),
		"%d %s", status, got)
	w.headers.Set("MCP-Protocol-Version", "2025-06-18")
	status, got = w.mcp(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`)
	assert.That(t, status == 400 && strings.Contains(got, "2025-03-26"), "a batch of a later version: %d %s", status,
		got)
}

// TestHTTPFaults: over HTTP a faulty message of A2E is answered with its id on the stream.
func TestHTTPFaults(t *testing.T) {
	w := serveWeb(t, "")
	w.session()
	w.send("\ufeff" + webHello)
	for _, fault := range []string{"lone surrogate", "bytes that are not UTF-8", "duplicate key"} {
		w.send("\ufeff" + strings.NewReplacer("FAULT", faults[fault], "the id",
			fault).Replace(dialectLines["A2E"].line))
	}
	var got []string
	w.read(-1, func(e event) bool {
		got = append(got, fmt.Sprint(e.data["req_id"], " ", e.data["code"]))
		return len(got) < 4
	})
	want := []string{
		"h <nil>", "lone surrogate parse_error", "bytes that are not UTF-8 parse_error",
		"duplicate key invalid_message",
	}
	assert.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "answers")
	status, text := w.do("POST", "/send/", `{"type":"ping","id":"p"}`)
	assert.That(t, status == 200 && text == `{"ok":true}`, "POST /send/: %d %s", status, text)
}

// goWords matches words of Go and its libraries that no protocol here has.
var goWords = regexp.MustCompile(
	`\bGo (struct|value|string|type|map|slice|int|float|bool)|struct field|unmarshal|jsontext|` +
		`interface \{|\bmap\[|\bu?int64\b|\bfloat64\b|\bjson: |\bmcp\.[A-Z]|\bprotocol\.[A-Z]|%!`)

// wrongParams returns requests whose params, or one member of them, have values of several types.
func wrongParams(methods, members string, usual map[string]any) (lines []string) {
	for _, method := range strings.Fields(methods) {
		for _, value := range []any{5, "x", []any{1}, true, map[string]any{"name": 5, "type": []any{}, "uri": 1}, nil} {
			params := []any{value}
			for _, member := range strings.Fields(members) {
				with := maps.Clone(usual)
				with[member] = value
				params = append(params, with)
			}
			for _, p := range params {
				raw, _ := json.Marshal(map[string]any{
					"jsonrpc": "2.0", "id": len(lines), "method": method,
					"params": p,
				})
				lines = append(lines, string(raw))
			}
		}
	}
	return lines
}

// wrongFields returns requests of A2E, one field of which has values of several types.
func wrongFields(t *testing.T, dir string) (lines []string) {
	t.Helper()
	var types []struct {
		Type   string         `json:"type"`
		Schema jsontext.Value `json:"schema"`
	}
	raw := run(t, dir, nil, "schema", "protocol").want(t, 0, "").stdout
	must.OK(t, json.Unmarshal([]byte(raw), &types))
	for _, row := range types {
		var schema struct {
			Properties map[string]jsontext.Value `json:"properties"`
		}
		must.OK(t, json.Unmarshal(row.Schema, &schema))
		for name := range schema.Properties {
			for _, value := range []string{`5`, `"x"`, `[1]`, `true`, `{"a":1}`} {
				if row.Type != "shutdown" && name != "type" {
					lines = append(lines, fmt.Sprintf(`{"type":%q,%q:%s}`, row.Type, name, value))
				}
			}
		}
	}
	return lines
}

// TestErrorsNameNoGoTypes: an error names what is wrong in the words of the protocol, not in those of Go.
func TestErrorsNameNoGoTypes(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	a2e := append([]string{`{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":[]}`}, wrongFields(t, dir)...)
	must.That(t, len(a2e) > 1000, "%d requests of A2E", len(a2e))
	mcp := append([]string{fmt.Sprintf(mcpHello, "tester", "")}, wrongParams(
		"tools/call prompts/get resources/read resources/subscribe resources/unsubscribe completion/complete "+
			"logging/setLevel "+
			"tools/list prompts/list resources/list resources/templates/list tasks/get tasks/result "+
			"tasks/list tasks/cancel ping initialize",
		"name arguments uri level ref argument context cursor _meta taskId task requestState inputResponses",
		map[string]any{
			"name": "echo", "uri": "x://x", "level": "info", "taskId": "x",
			"arguments": map[string]any{},
		})...)
	rpc := wrongParams("rpc.handshake session.create session.get session.send session.steer command.execute "+
		"history.list history.get model.list model.select debug.set auth.set.openrouter_key models.routing.providers",
		"session_id text images raw_command model_id client_name protocol_version strict auth_token super_debug "+
			"api_key limit",
		map[string]any{"session_id": "x", "text": "x", "raw_command": "/help"})
	for name, c := range map[string]struct {
		args  []string
		lines []string
	}{"A2E": {[]string{"serve"}, a2e}, "MCP": {[]string{"mcp", "serve"}, mcp}, "JSON-RPC": {[]string{"serve"}, rpc}} {
		got := run(t, dir, []byte(strings.Join(c.lines, "\n")+"\n"), c.args...).want(t, 0, "").stdout
		answers := strings.Count(got, "\n")
		assert.That(t, answers >= len(c.lines)/2, "%s: %d requests have %d answers", name, len(c.lines), answers)
		for answer := range strings.Lines(got) {
			if !strings.Contains(answer, `"tools":[`) { // descriptions of tools mention Go files
				assert.That(t, !goWords.MatchString(answer), "%s: %q: %.600s", name, goWords.FindString(answer), answer)
			}
		}
	}
	for _, c := range [][2]string{
		{`"tools/call","params":{"name":5}`, `"name\" should be a string`},
		{`"tools/call","params":{"name":"echo","_meta":[]}`, `"_meta\" should be an object`},
		{`"tools/call","params":{"name":"echo","requestState":5}`, `"requestState\" should be a string`},
		{`"tasks/get","params":{"taskId":5}`, "/params/taskId: is a JSON number; should be string"},
	} {
		lines := fmt.Sprintf(mcpHello, "tester", "") + "\n" + `{"jsonrpc":"2.0","id":1,"method":` + c[0] + "}\n"
		run(t, dir, []byte(lines), "mcp", "serve").want(t, 0, "").has(t, c[1])
	}
}
