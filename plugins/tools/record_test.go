package tools

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// ledger is a plugin that counts calls and weighs tools.
type ledger struct {
	weights map[string]float64

	mu    sync.Mutex
	calls []host.CallRecord // guarded by mu
}

func (l *ledger) Info() host.PluginInfo {
	return host.PluginInfo{Name: "ledger", Capability: protocol.CapLearning}
}
func (l *ledger) Routes() []host.Route        { return nil }
func (l *ledger) Close(context.Context) error { return nil }

func (l *ledger) RecordCall(c host.CallRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

func (l *ledger) Weight(kind, component string) float64 {
	if w, ok := l.weights[component]; ok && kind == host.KindTool {
		return w
	}
	return 1
}

// last returns how the last call was counted, and how many there are.
func (l *ledger) last() (string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) == 0 {
		return "", 0
	}
	c := l.calls[len(l.calls)-1]
	return fmt.Sprintf("%s %s %s %t", c.Kind, c.Component, c.Correlation, c.Success), len(l.calls)
}

// Each call that ran is counted once, as what it came to. What was refused before, or
// stopped by the agent, says nothing of a tool.
func TestCallsAreRecorded(t *testing.T) {
	p, err := New("mytools", Options{Deny: []string{"write_file"}}, Env{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	book := &ledger{}
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{p, book}})
	pair.Handshake()
	n := 0
	for _, c := range []struct{ fields, want string }{
		{`{"tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c1"}`, "tool echo c1 true"},
		{`{"tool_name":"read_file","arguments":{"path":"none"},"correlation_id":"c2"}`, "tool read_file c2 false"},
		{`{"tool_name":"run_command","arguments":{"command":["sh","-c","exit 1"]},"correlation_id":"c3"}`, "tool run_command c3 false"},
		{`{"tool_name":"run_command","arguments":{"command":["sleep","60"]},"correlation_id":"c4","timeout":1}`, "tool run_command c4 false"},
		{`{"tool_name":"echo","arguments":{}}`, ""},
		{`{"tool_name":"ecko","arguments":{"text":"x"}}`, ""},
		{`{"tool_name":"write_file","arguments":{"path":"a","content":"b"}}`, ""},
	} {
		pair.Call(protocol.TypeToolCallReq, c.fields)
		if c.want != "" {
			n++
		}
		if got, count := book.last(); count != n || c.want != "" && got != c.want {
			t.Errorf("%s: %d calls were counted, the last as %q", c.fields, count, got)
		}
	}
	id := pair.Go(protocol.TypeToolCallReq, `{"tool_name":"run_command","arguments":{"command":["sh","-c","echo up; exec sleep 60"]},"streaming":true}`)
	pair.Event(id)
	pair.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	if m := pair.Answer(id); m.Code != protocol.CodeCancelled {
		t.Fatalf("answered by %s", m)
	}
	pair.Close() // waits for the handler
	if got, count := book.last(); count != n {
		t.Errorf("a cancelled call was counted: %s", got)
	}
}

// Tools that a search finds equal come by weight, also those of different plugins.
func TestSearchBreaksTiesByWeight(t *testing.T) {
	ship := func(name string) Tool {
		return Tool{Def: protocol.ToolDefinition{Name: "ship_" + name, Description: "Ship it."}, Kind: KindBuiltin, Call: echoTool().Call}
	}
	shelf := func(name string, all ...Tool) *Plugin {
		p := withTools(t, Options{}, all...)
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		p.name, p.root = name, root // the host closes it
		return p
	}
	for name, plugins := range map[string][]host.Plugin{
		"one":  {shelf("one", ship("a"), ship("b"), ship("c"), ship("d"))},
		"more": {shelf("one", ship("a"), ship("c")), shelf("two", ship("b"), ship("d"))},
	} {
		t.Run(name, func(t *testing.T) {
			book := &ledger{weights: map[string]float64{"ship_d": 3, "ship_c": 2, "ship_b": 0.5}}
			pair := hosttest.New(t, host.Options{Plugins: append(plugins, book)})
			pair.Handshake()
			for query, want := range map[string]string{`"query":"ship"`: "ship_d ship_c ship_a ship_b", "": "ship_a ship_b ship_c ship_d"} {
				m := pair.Call(protocol.TypeToolListReq, "{"+query+"}")
				var names []string
				for i := range 4 {
					names = append(names, m.Get(fmt.Sprintf("/tools/%d/name", i)))
				}
				if got := strings.Join(names, " "); got != want {
					t.Errorf("%s: %s, should be %s", query, got, want)
				}
			}
		})
	}
}
