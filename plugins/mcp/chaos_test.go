package mcp

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// hostile is an MCP server within the test, without the SDK: it answers each method with the result
// that the test sets, and sends the lines of the test.
type hostile struct {
	*httptest.Server
	results map[string]string // by method; missing = "{}", "" = no answer at all
	lines   chan string       // sent unchanged
	got     chan string       // messages of the host that are not requests
	hung    chan string       // methods that are not answered
}

func newHostile(t testing.TB, results map[string]string) *hostile {
	t.Helper()
	h := &hostile{results: results, lines: make(chan string), got: make(chan string, 100), hung: make(chan string)}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Server.Close)
	return h
}

// ServeHTTP implements http.Handler.
func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		h.stream(w, r)
		return
	case http.MethodDelete:
		return
	}
	body, _ := io.ReadAll(r.Body)
	id, method := rawHead(jsontext.Value(body))
	if id == "" || method == "" {
		select {
		case h.got <- string(body):
		default: // no test reads so many messages
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result, known := h.results[method]
	if known && result == "" {
		select {
		case h.hung <- method:
		case <-r.Context().Done():
		}
		<-r.Context().Done()
		return
	}
	result = cmp.Or(result, "{}")
	if method == "initialize" {
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"hostile","version":"1"}}`
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func (h *hostile) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case line := <-h.lines:
			fmt.Fprintf(w, "data: %s\n\n", line)
			_ = flush.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// open starts a host with h as its server `srv`.
func (h *hostile) open(t testing.TB) *stage {
	t.Helper()
	return newStage(t, map[string]any{"srv": map[string]any{"url": h.URL, "type": "http"}}, nil)
}

// answer waits for the answer to a request of the server.
func (h *hostile) answer(t testing.TB, id string) string {
	t.Helper()
	for end := time.After(hosttest.Patience); ; {
		select {
		case line := <-h.got:
			if got, method := rawHead(jsontext.Value(line)); got == strconv.Quote(id) && method == "" {
				return line
			}
		case <-end:
			t.Fatal("no answer to " + id)
		}
	}
}

func TestListsWithNulls(t *testing.T) {
	h := newHostile(t, map[string]string{
		"tools/list":               `{"tools":[null,{"name":"do","inputSchema":{"type":"object"}}]}`,
		"prompts/list":             `{"prompts":[null,{"name":"p","arguments":[null]}]}`,
		"resources/list":           `{"resources":[null,{"uri":"x://1","name":"r"}]}`,
		"resources/templates/list": `{"resourceTemplates":[null,{"uriTemplate":"y://{id}","name":"t"}]}`,
	})
	s := h.open(t)
	resources, prompts := s.ask(protocol.TypeMCPResourceListReq, `{}`, nil), s.ask(protocol.TypeMCPPromptListReq, `{}`,
		nil)
	if resources.Get("/resources/0/uri") != "x://1" || resources.Get("/resources/1/uri_template") != "y://{id}" ||
		prompts.Get("/prompts/0/name") != "p" {
		t.Errorf("%s\n%s", resources.Line, prompts.Line)
	}
	assert.Slice(t, s.toolNames(), []string{"srv__do"})
}

// TestMessagesWithoutParams: messages without params, and results that are not objects, do not end the
// host.
func TestMessagesWithoutParams(t *testing.T) {
	h := newHostile(t, map[string]string{
		"tools/list": `{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}`,
		"tools/call": `["no object"]`,
	})
	s := h.open(t)
	s.Refused(protocol.TypeToolCallReq, callFields("srv__do", "{}", ""), protocol.CodeMCPProtocolError,
		"not a JSON object")
	for _, params := range []string{"", `,"params":null`} {
		for _, method := range []string{
			"resources/updated", "elicitation/complete", "message", "progress",
			"tools/list_changed", "cancelled", "unknown",
		} {
			h.lines <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/%s"%s}`, method, params)
		}
		for _, method := range []string{"elicitation/create", "sampling/createMessage", "unknown"} {
			id := method + params
			h.lines <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q%s}`, id, method, params)
			assert.Contains(t, h.answer(t, id), `"error":{`)
		}
	}
	h.lines <- `{"jsonrpc":"2.0","id":"last","method":"ping"}` // its answer means that all notifications were handled, as they are handled in order
	h.answer(t, "last")
}

func TestElicitationSchemasWithoutEnd(t *testing.T) {
	h := newHostile(t, nil)
	s := h.open(t)
	s.toolNames()
	for i, schema := range []string{
		`{"type":"object","$ref":"#"}`,
		`{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","$dynamicRef":"#"}`,
	} {
		id := strconv.Itoa(i)
		h.lines <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{"message":"?","requestedSchema":%s}}`, id, schema)
		assert.Contains(t, h.answer(t, id), "flat object", "%s", schema)
	}
}

// TestServerStartedAnew: a server that was started anew does not know the old session. The host repeats
// the call in a new session, and reads the lists of the server again.
func TestServerStartedAnew(t *testing.T) {
	newServer := func(tool string) *hostile {
		return newHostile(t, map[string]string{
			"tools/list": `{"tools":[{"name":"do"},{"name":"` + tool + `"}]}`,
			"tools/call": `{"content":[{"type":"text","text":"` + tool + `"}]}`,
		})
	}
	servers := []*hostile{newServer("old"), newServer("new")}
	var started atomic.Int64
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := started.Load()
		session := "session-" + strconv.FormatInt(now, 10)
		switch r.Header.Get("Mcp-Session-Id") {
		case "":
			w.Header().Set("Mcp-Session-Id", session)
		case session:
		default:
			w.WriteHeader(http.StatusNotFound)
			return
		}
		servers[now].ServeHTTP(w, r)
	}))
	t.Cleanup(at.Close)
	s := newStage(t, map[string]any{"srv": map[string]any{"url": at.URL, "type": "http"}}, nil)
	assert.Slice(t, s.toolNames(), []string{"srv__do", "srv__old"})
	started.Store(1)
	assert.Equal(t, s.tool("srv__do", "{}"), "new")
	hosttest.Eventually(t, "the new tools", func() bool { return slices.Contains(s.toolNames(), "srv__new") })
	assert.Equal(t, s.row("srv")["restarts"], any(1.0))
}
