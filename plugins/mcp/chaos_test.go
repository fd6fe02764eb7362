package mcp

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// chaosVar says how a server of the role `chaos` misbehaves.
const chaosVar = "MCP_TEST_CHAOS"

// behaviours are the ways: `crash` ends now and then, `hang` leaves calls without an
// answer, `flood` logs without measure, `junk` writes what is no message, `twice` sends each
// answer two times, `late` answers in another order, and some too late, `change` has other
// tools all the time, `mute` does not answer its handshake.
func behaviours() []string {
	return []string{"good", "crash", "hang", "flood", "junk", "twice", "late", "change", "mute", "good"}
}

// playChaos is a server without the SDK.
func playChaos(in io.Reader, out io.Writer) int {
	c := &chaos{way: os.Getenv(chaosVar), out: bufio.NewWriter(out)}
	dec := jsontext.NewDecoder(in)
	for {
		line, err := dec.ReadValue()
		if err != nil {
			return 0
		}
		id, method := rawHead(line)
		switch {
		case c.way == "mute" || id == "":
		case method == "initialize":
			c.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"chaos","version":"1"}}}`, id)
		case method == "tools/list":
			extra := ""
			if c.calls/10%2 == 1 {
				extra = `,{"name":"extra","inputSchema":{"type":"object"}}`
			}
			c.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}%s]}}`, id, extra)
		case method == "tools/call":
			if c.calls++; !c.call(id) {
				return 3
			}
		default:
			c.say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		}
	}
}

type chaos struct {
	way   string
	calls int

	mu  sync.Mutex
	out *bufio.Writer
}

func (c *chaos) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, format+"\n", args...)
	_ = c.out.Flush()
}

// call answers one call, or does what the server does in place of that; false = it ends.
func (c *chaos) call(id string) bool {
	answer := func() {
		c.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}`, id)
	}
	switch c.way {
	case "crash":
		if c.calls%100 == 0 {
			return false
		}
	case "hang":
		if c.calls%50 == 0 {
			return true
		}
	case "flood":
		for range 10 {
			c.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":%q}}`, strings.Repeat("x", 500))
		}
	case "junk":
		c.say("not a message {")
		c.say(`{"jsonrpc":"2.0","id":"nobody","result":{}}`)
	case "twice":
		answer()
	case "late":
		wait := time.Duration(c.calls%7) * time.Millisecond
		if c.calls%100 == 0 {
			wait = time.Second
		}
		time.AfterFunc(wait, answer)
		return true
	case "change":
		if c.calls%10 == 0 {
			c.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
	}
	answer()
	return true
}

// Ten servers that misbehave in all ways, and thousands of calls: each is answered once,
// and the good servers are not held up by the others. No server has a way of more than a
// hundred calls.
func TestChaos(t *testing.T) {
	const servers, batch = 10, 500
	calls := hosttest.Soak(t, "A2E_SOAK_MCP_BATCHES", 3) * batch
	env, log := newEnv(t)
	opts := DefaultOptions()
	all := map[string]any{}
	id := func(i int) string { return fmt.Sprintf("s%d_%s", i, behaviours()[i%len(behaviours())]) }
	for i := range servers {
		way, timeout := behaviours()[i%len(behaviours())], hosttest.Patience.Seconds()
		if way == "hang" || way == "late" {
			timeout = 0.4 // no other server is ever late
		}
		all[id(i)] = withEnv(child(t, "chaos", "timeout", timeout), chaosVar, way)
	}
	opts.Servers = all
	plugin := must.Get(New("mcp", opts, env))(t)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}, MaxParallel: 64})
	p.Handshake(protocol.CapMCP, protocol.CapTools)
	hosttest.Eventually(t, "all have tools but those that are mute", func() bool {
		for _, s := range plugin.all() {
			s.mu.Lock()
			none := len(s.tools) == 0
			s.mu.Unlock()
			if none && !strings.HasSuffix(s.opts.ID, "mute") {
				return false
			}
		}
		return true
	})
	results := map[string]map[string]int{} // by server
	for i := range servers {
		results[id(i)] = map[string]int{}
	}
	for from := 0; from < calls; from += batch {
		flying := map[string]string{} // the server by the id of the request
		var lines []string
		for i := range batch {
			req, server := p.NewID(), id((from+i)%servers)
			flying[req] = server
			lines = append(lines, hosttest.Request(protocol.TypeToolCallReq, req, callFields(server+"__do", `{}`, `,"timeout":120`)))
		}
		p.Send(lines...)
		p.Wait("all answers", func(m hosttest.Message) bool { // the Pair itself sees to it that none comes twice
			if server := flying[m.ReqID]; server != "" && !m.IsEvent() {
				delete(flying, m.ReqID)
				results[server][string(m.Code)+m.Get("/data/data/content/0/text")]++
			}
			return len(flying) == 0
		})
	}
	for i := range servers {
		checkChaos(t, id(i), behaviours()[i%len(behaviours())], results[id(i)], calls/servers)
	}
	if t.Failed() {
		t.Logf("log: %.5000s", log)
	}
	p.Call(protocol.TypeMCPServerListReq, `{}`)
}

// checkChaos looks at what became of the calls of one server.
func checkChaos(t *testing.T, id, way string, got map[string]int, calls int) {
	t.Helper()
	known := map[string]map[string]bool{
		"good": {"done": true}, "flood": {"done": true}, "junk": {"done": true}, "twice": {"done": true}, "change": {"done": true},
		"crash": {"done": true, "mcp_transport_error": true, "mcp_server_unavailable": true},
		"hang":  {"done": true, "timeout": true},
		"late":  {"done": true, "timeout": true},
		"mute":  {"mcp_server_unavailable": true},
	}[way]
	sum := 0
	for what, n := range got {
		sum += n
		assert.That(t, known[what], "%s: %d calls were answered %q", id, n, what)
	}
	assert.Equal(t, sum, calls, "%s: … calls", id)
	if known["done"] && got["done"] == 0 {
		t.Errorf("%s never served: %v", id, maps.Clone(got))
	}
}

// hostile is an MCP server without the SDK, within the test: it answers each method with
// what the test says, and sends what the test gives it.
type hostile struct {
	*httptest.Server
	results map[string]string // by method; "{}" where there is none, "" is no answer at all
	lines   chan string       // sent as they are
	got     chan string       // what came that is no request
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
		default: // nobody waits for so much
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

// open makes a host whose server `srv` this one is.
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
	resources, prompts := s.ask(protocol.TypeMCPResourceListReq, `{}`, nil), s.ask(protocol.TypeMCPPromptListReq, `{}`, nil)
	if resources.Get("/resources/0/uri") != "x://1" || resources.Get("/resources/1/uri_template") != "y://{id}" || prompts.Get("/prompts/0/name") != "p" {
		t.Errorf("%s\n%s", resources.Line, prompts.Line)
	}
	assert.Slice(t, s.toolNames(), []string{"srv__do"})
}

// A server whose messages have no params, or a result that nothing can be made of, does
// not end the host.
func TestMessagesWithoutParams(t *testing.T) {
	h := newHostile(t, map[string]string{
		"tools/list": `{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}`,
		"tools/call": `{"inputRequests":{"a":null}}`,
	})
	s := h.open(t)
	s.Refused(protocol.TypeToolCallReq, callFields("srv__do", "{}", ""), protocol.CodeMCPProtocolError, "cannot be read")
	for _, params := range []string{"", `,"params":null`} {
		for _, method := range []string{"resources/updated", "elicitation/complete", "message", "progress", "tools/list_changed", "cancelled", "unknown"} {
			h.lines <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/%s"%s}`, method, params)
		}
		for _, method := range []string{"elicitation/create", "sampling/createMessage", "unknown"} {
			id := method + params
			h.lines <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q%s}`, id, method, params)
			assert.Contains(t, h.answer(t, id), `"error":{`)
		}
	}
	h.lines <- `{"jsonrpc":"2.0","id":"last","method":"ping"}` // notifications are handled in order, so all were
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
