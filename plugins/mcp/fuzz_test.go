package mcp

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// sound returns valid results of a server, each after its method.
func sound() [][2]string {
	return [][2]string{
		{"tools/list", `{"tools":[{"name":"do","title":"Do","inputSchema":{"type":"object","properties":{"x":{"type":["string","null"]}}},"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`},
		{"tools/call", `{"content":[{"type":"text","text":"x"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"resource_link","uri":"file:///a","name":"a"}],"structuredContent":{"a":1},"isError":false}`},
		{"resources/list", `{"resources":[{"uri":"file:///a","name":"a","size":3}],"nextCursor":""}`},
		{"resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"file:///{a}","name":"t"}]}`},
		{"resources/read", `{"contents":[{"uri":"file:///a","text":"t"},{"uri":"file:///b","blob":"aGk="}]}`},
		{"prompts/list", `{"prompts":[{"name":"p","arguments":[{"name":"a","required":true}]}]}`},
		{"prompts/get", `{"description":"d","messages":[{"role":"user","content":{"type":"text","text":"x"}}]}`},
		{"initialize", `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"prompts":{},"logging":{},"completions":{}},"serverInfo":{"name":"x","version":"1"},"instructions":"i"}`},
	}
}

// puppet is an MCP server over HTTP that sends given bytes.
type puppet struct {
	method string // is answered with result
	result []byte
	before []byte // sent before each answer but that to initialize, as a stream of events
}

func (p *puppet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
	}
	switch err := json.Unmarshal(body, &m); {
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case err != nil || m.ID == nil || m.Method == "":
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := []byte(`{}`)
	for _, s := range sound() {
		if s[0] == m.Method {
			result = []byte(s[1])
		}
	}
	if m.Method == p.method {
		result = p.result
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	if len(p.before) == 0 || m.Method == "initialize" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "%s\n\ndata: %s\n\n", bytes.ReplaceAll(p.before, []byte("\n\n"), []byte("\n")),
		bytes.ReplaceAll([]byte(answer), []byte("\n"), []byte("\ndata: ")))
}

// FuzzServer: whatever an MCP server sends, each request of the agent is answered once, by its response
// or an error, and the host continues to work.
func FuzzServer(f *testing.F) {
	for i, s := range sound() {
		f.Add(uint8(i), []byte(s[1]), []byte(nil))
	}
	for _, s := range []string{
		`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.5,"total":1,"message":"m"}}`,
		`data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`,
		`data: {"jsonrpc":"2.0","id":3,"result":{}}`,
		`data: {"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"x"}}],"maxTokens":5}}`,
		`data: {"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string"}}}}}`,
		`data: {"jsonrpc":"2.0","id":"q","method":"roots/list"}`,
		`data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, "event: x\nid: 1\nretry: " +
			"0\ndata: no",
		`data: {"jsonrpc":"2.0","method":"notifications/resources/updated"}`,
		`data: {"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no","data":{}}}`,
	} {
		f.Add(uint8(1), []byte(sound()[1][1]), []byte(s))
	}
	var now atomic.Pointer[puppet]
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now.Load().ServeHTTP(w, r)
	}))
	f.Cleanup(at.Close)
	f.Fuzz(func(t *testing.T, method uint8, result, before []byte) {
		all := sound()
		good := string(result) == all[int(method)%len(all)][1] && len(before) == 0
		now.Store(&puppet{all[int(method)%len(all)][0], result, before})
		s := newStage(t, map[string]any{"srv": map[string]any{"url": at.URL, "timeout": 30, "start_timeout": 30}}, nil)
		for _, req := range []struct {
			typ    protocol.Type
			fields string
		}{
			{protocol.TypeToolListReq, `{}`},
			{protocol.TypeToolCallReq, callFields("srv__do", `{"x":"y"}`, "")},
			{protocol.TypeMCPResourceListReq, `{}`},
			{protocol.TypeMCPResourceReadReq, `{"server_id":"srv","uri":"file:///a"}`},
			{protocol.TypeMCPPromptListReq, `{}`},
			{protocol.TypeMCPPromptGetReq, `{"server_id":"srv","prompt_name":"p","name":"p","arguments":{"a":"b"}}`},
			{protocol.TypeMCPServerListReq, `{}`},
		} {
			id := s.Go(req.typ, req.fields)
			if !good { // the answer may be lost in the bytes before it
				defer time.AfterFunc(time.Second/2,
					func() { s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id)) }).Stop()
			}
			m := s.Answer(id)
			info, _ := protocol.Lookup(req.typ)
			must.That(t, !good || m.Type == info.Response, "%s was refused: %s", req.typ, m.Line)
			must.That(t, m.Type == info.Response || m.Type == protocol.TypeError && m.Code != protocol.CodeRuntimeError,
				"%s was answered by %s", req.typ, m.Line)
		}
		hosttest.CheckLine(t, s.Call(protocol.TypePing, "").Line)
	})
}
