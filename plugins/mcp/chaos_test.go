package mcp

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
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
	plugin, err := New("mcp", opts, env)
	if err != nil {
		t.Fatal(err)
	}
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
		if !known[what] {
			t.Errorf("%s: %d calls were answered %q", id, n, what)
		}
	}
	if sum != calls {
		t.Errorf("%s: %d calls, want %d", id, sum, calls)
	}
	if known["done"] && got["done"] == 0 {
		t.Errorf("%s never served: %v", id, maps.Clone(got))
	}
}
