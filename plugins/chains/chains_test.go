package chains

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	branch := `"nodes":[{"node_id":"b","kind":"branch","condition":"input.x == 'y'","true_node":"c"},{"node_id":"c","kind":"branch","condition":"b"}]`
	hosttest.Contract(t, func(t testing.TB) host.Plugin { return newPlugin(t, Options{}, t.TempDir()) },
		[]hosttest.Sample{
			{Type: protocol.TypeChainReq, Fields: `{"session_id":"s","chain_id":"c","entry_node":"b","initial_input":{"x":"y"},"correlation_id":"k","streaming":true,"timeout":5,` + branch + `}`},
			{
				Name: "no tools", Type: protocol.TypeChainReq,
				Fields: `{"nodes":[{"node_id":"a","kind":"tool","name":"echo"}]}`,
			},
			{Name: "empty", Type: protocol.TypeChainReq, Fields: `{}`, Code: protocol.CodeSchemaViolation},
			{
				Name: "circle", Type: protocol.TypeChainReq,
				Fields: `{"nodes":[{"node_id":"a","kind":"branch","condition":"a"}]}`, Code: protocol.CodeChainCycle,
			},
		})
}

func TestChains(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	for _, tc := range []struct {
		name, fields string
		outputs      string // as JSON
		final        string
		ran          int
	}{
		{"one", nodes(`"node_id":"a","kind":"tool","name":"echo","input":{"x": 1}`), `{"a":{"x":1}}`, `{"x":1}`, 1},
		{
			"linear", nodes(
				`"node_id":"a","kind":"tool","name":"echo","input":{"x":[1,{"y":2}]},"next_node":"b"`,
				`"node_id":"b","kind":"tool","name":"echo","input":{"k":"static","z":0},"input_map":{"z":"a.x[1].y","w":"$.a.output.x[0]"}`),
			`{"a":{"x":[1,{"y":2}]},"b":{"k":"static","z":2,"w":1}}`, `{"k":"static","z":2,"w":1}`, 2,
		},
		{
			"big numbers", `{"initial_input":{"n":12345678901234567890,"f":1.10},` + nodes(
				`"node_id":"a","kind":"tool","name":"echo","input_map":{"n":"input.n","f":"input.f"}`)[1:],
			`{"a":{"n":12345678901234567890,"f":1.10}}`, ``, 1,
		},
		{
			"constants in input_map", nodes(`"node_id":"a","kind":"tool","name":"echo","input_map":{"n":5,"o":{"p":[1]},"t":"'text'","nothing":null}`),
			`{"a":{"n":5,"o":{"p":[1]},"nothing":null,"t":"text"}}`, ``, 1,
		},
		{
			"names of older clients", nodes(
				`"id":"a","type":"tool","name":"echo","input":{"x":1},"next":"b"`,
				`"id":"b","type":"tool","name":"echo","depends_on":["a"],"input_map":{"x":"a.x"}`),
			`{"a":{"x":1},"b":{"x":1}}`, `{"x":1}`, 2,
		},
		{
			"as the SDK's models send it", nodes(
				`"node_id":"a","kind":"tool","name":"echo","input":{"path":"/raw"},"input_map":{},"condition":"","true_node":"","false_node":"","items_path":"","map_node":"","next_node":"b","on_error":"abort"`,
				`"node_id":"b","kind":"skill","name":"sum","input":{},"input_map":{"d":"a.path"},"condition":"","true_node":"","false_node":"","items_path":"","map_node":"","next_node":"","on_error":"abort"`),
			`{"a":{"path":"/raw"},"b":{"hex":"73756d"}}`, `{"hex":"73756d"}`, 2,
		},
		{
			"OR of the cookbook", nodes(
				`"node_id":"a","kind":"tool","name":"echo","input":{}`,
				`"node_id":"b-1","kind":"tool","name":"echo","input":{"s":"OR it is"}`,
				`"node_id":"c","kind":"tool","name":"echo","input_map":{"x":"a.stats OR b-1.s","y":"\"b-1\".s","z":"$.b-1.output.s"}`),
			`{"a":{},"b-1":{"s":"OR it is"},"c":{"x":"OR it is","y":"OR it is","z":"OR it is"}}`, ``, 3,
		},
		{
			"program", nodes(`"node_id":"a","kind":"proc","name":"ls","input":{"args":["-l"]}`,
				`"node_id":"b","kind":"proc","input":{"cmd":"cat x","stdin":"!"}`,
				`"node_id":"c","kind":"proc","input":{"command":["echo","a b"]},"deps":["a","b"]`),
			`{"a":{"status":"completed","exit_code":0,"stdout":"ls -l","stderr":"","truncated":false},"b":{"status":"completed","exit_code":0,"stdout":"cat x!","stderr":"","truncated":false},"c":{"status":"completed","exit_code":0,"stdout":"echo a b","stderr":"","truncated":false}}`, ``, 3,
		},
		{
			"several ends", nodes(`"node_id":"b","kind":"tool","name":"echo"`,
				`"node_id":"a","kind":"tool","name":"echo","input":{"n":1}`), `{"a":{"n":1},"b":{}}`,
			`{"a":{"n":1},"b":{}}`, 2,
		},
		{
			"branch taken", `{"initial_input":{"n":5},"entry_node":"check",` + nodes(
				`"node_id":"check","kind":"branch","condition":"input.n > `+"`3`"+`","true_node":"yes","false_node":"no"`,
				`"node_id":"yes","kind":"tool","name":"echo","input":{"s":"big"},"next_node":"end"`,
				`"node_id":"no","kind":"tool","name":"echo","next_node":"end"`,
				`"node_id":"end","kind":"tool","name":"echo","input_map":{"s":"yes.s || no.s","m":"no.s"}`)[1:],
			`{"check":true,"end":{"s":"big","m":null},"yes":{"s":"big"}}`, `{"s":"big","m":null}`, 3,
		},
		{
			"the reference host's conditions", `{"initial_input":{"n":5,"s":"ok\n","on":true},` + nodes(
				`"node_id":"a","kind":"branch","condition":"$.n > 3","true_node":"b"`,
				`"node_id":"b","kind":"branch","condition":"$.s == ok","true_node":"c"`,
				`"node_id":"c","kind":"branch","condition":"$.s!=\"other one\"","next_node":"d"`,
				`"node_id":"d","kind":"branch","condition":" $.on == true ","true_node":"e"`,
				`"node_id":"e","kind":"branch","condition":"$.n <= -1.5e3","false_node":"f"`,
				`"node_id":"f","kind":"tool","name":"echo","input":{"y":1},"next_node":"g"`,
				`"node_id":"g","kind":"branch","condition":"$.f.y == 1","next_node":"h"`,
				`"node_id":"h","kind":"branch","condition":"$.f == f"`)[1:],
			`{"a":true,"b":true,"c":true,"d":true,"e":false,"f":{"y":1},"g":true,"h":true}`, ``, 8,
		},
		{
			"the initial input after $.", `{"initial_input":{"city":"Rome","l":[1,2],"a":"a node's"},` + nodes(
				`"node_id":"a","kind":"tool","name":"echo","input_map":{"t":"$.city","n":"$.none","m":"length($.l)","in":"$.input.city"}`,
				`"node_id":"b","kind":"tool","name":"echo","input_map":{"a":"$.a.t"}`)[1:],
			`{"a":{"t":"Rome","n":null,"m":2,"in":"Rome"},"b":{"a":"Rome"}}`, ``, 2,
		},
		{"branch without a way", nodes(`"node_id":"a","kind":"tool","name":"echo","input":{"x":1},"next_node":"b"`,
			`"node_id":"b","kind":"branch","condition":"a.y","true_node":"c"`,
			`"node_id":"c","kind":"tool","name":"echo"`), `{"a":{"x":1},"b":false}`, `{"x":1}`, 2},
		{
			"branch with a default", nodes(`"node_id":"b","kind":"branch","condition":"input.y","true_node":"c","next_node":"d"`,
				`"node_id":"c","kind":"tool","name":"echo"`, `"node_id":"d","kind":"tool","name":"echo","input":{"d":1}`),
			`{"b":false,"d":{"d":1}}`, `{"d":1}`, 2,
		},
		{"only skipped", nodes(`"node_id":"b","kind":"branch","condition":"input.y","true_node":"c"`,
			`"node_id":"c","kind":"tool","name":"echo"`,
			`"node_id":"d","kind":"tool","name":"echo","input_map":{"x":"c.x"}`,
			`"node_id":"e","kind":"tool","name":"echo","deps":["d","b"]`), `{"b":false,"e":{}}`, `{}`, 2},
		{
			"untaken path that reads more", nodes(`"node_id":"a","kind":"tool","name":"echo","input":{"x":1},"next_node":"b"`, `"node_id":"b","kind":"branch","condition":"!a.x","true_node":"c"`,
				`"node_id":"c","kind":"tool","name":"echo","next_node":"d"`,
				`"node_id":"d","kind":"tool","name":"echo","input_map":{"x":"a.x"}`), `{"a":{"x":1},"b":false}`,
			`{"x":1}`, 2,
		},
		{"condition of a tool", nodes(`"node_id":"a","kind":"tool","name":"echo","condition":"input.go","next_node":"b"`, `"node_id":"b","kind":"tool","name":"echo"`), `{}`, `null`, 0},
		{
			"the whole state", `{"initial_input":{"i":1},` +
				nodes(`"node_id":"a","kind":"tool","name":"echo","input":{"x":1}`,
					`"node_id":"z","kind":"tool","name":"echo"`,
					`"node_id":"b","kind":"tool","name":"echo","input_map":{"all":"@"},"deps":["a"]`)[1:],
			`{"a":{"x":1},"b":{"all":{"a":{"x":1},"input":{"i":1}}},"z":{}}`, ``, 3,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			if got := res.text(t); got != tc.outputs || !res.Success || res.Error != nil || res.NodesRun != tc.ran {
				t.Errorf("success %t, %d nodes, error %+v, outputs\n%s\nshould be %d nodes,\n%s", res.Success,
					res.NodesRun, res.Error, got, tc.ran, tc.outputs)
			}
			assert.That(t, tc.final == "" || string(res.FinalOutput) == tc.final, "final output %s, should be %s",
				res.FinalOutput, tc.final)
		})
	}
}

// TestRefused: an invalid chain is refused before anything runs, and the error names the place and the mistake.
func TestRefused(t *testing.T) {
	s := newStage(t, Options{MaxNodes: 50}, t.TempDir())
	a := `"node_id":"a","kind":"tool","name":"echo"`
	for _, tc := range []struct {
		name, fields, path, message string
	}{
		{"no nodes", `{"nodes":[]}`, "/nodes", "is empty"},
		{"no id", nodes(`"kind":"tool","name":"echo"`), "/nodes/0/node_id", "is required"},
		{"double id", nodes(a, a), "/nodes/1/node_id", "node 0 already"},
		{"reserved id", nodes(`"node_id":"input","kind":"tool","name":"echo"`), "/nodes/0/node_id", "initial input"},
		{"no kind", nodes(`"node_id":"a","name":"echo"`), "/nodes/0/kind", "is required"},
		{"unknown kind", nodes(`"node_id":"a","kind":"loop"`), "/nodes/0/kind", `"loop"; should be tool`},
		{"unknown field", nodes(a + `,"on_eror":"skip"`), "/nodes/0/on_eror", `did you mean "on_error"?`},
		{"unknown field like none", nodes(a + `,"x":1`), "/nodes/0/x", "some of the fields of a node: node_id, kind"},
		{"field of retry beside it", nodes(a + `,"max_attempts":3`), "/nodes/0/max_attempts", "belongs in retry"},
		{"retry that is a number", nodes(a + `,"retry":3`), "/nodes/0/retry", `such as {"max_attempts": 3}`},
		{"retry of nothing", nodes(a + `,"retry":{}`), "/nodes/0/retry/max_attempts", "is required"},
		{"retry for ever", nodes(a + `,"retry":{"max_attempts":101}`), "/nodes/0/retry/max_attempts", "1 to 100"},
		{
			"unknown field of retry", nodes(a + `,"retry":{"max_attempts":2,"back_of":1}`), "/nodes/0/retry/back_of",
			`did you mean "backoff"?`,
		},
		{
			"retry on a misspelt code", nodes(a + `,"retry":{"max_attempts":2,"on":["time_out"]}`), "/nodes/0/retry/on",
			`did you mean "timeout"?`,
		},
		{
			"retry of a branch", nodes(`"node_id":"a","kind":"branch","condition":"input.x","retry":{"max_attempts":2}`),
			"/nodes/0/retry", "only a node of kind tool, skill, proc, map, chain or while has it",
		},
		{"catch of nobody", nodes(a + `,"catch":"b"`), "/nodes/0/catch", "not a node"},
		{"catch that is not an object", nodes(a + `,"catch":1`), "/nodes/0/catch", "the id of a node"},
		{
			"two handlers", nodes(a+`,"catch":"b","on_error":"b"`, `"node_id":"b","kind":"tool","name":"echo"`),
			"/nodes/0/on_error", "as catch does",
		},
		{
			"error elsewhere", nodes(a + `,"input_map":{"x":"error.code"}`), "/nodes/0/input_map/x",
			"a catch or an on_error leads to",
		},
		{"error that is a node too", nodes(a+`,"catch":"b"`,
			`"node_id":"b","kind":"tool","name":"echo","input_map":{"x":"error.code"}`,
			`"node_id":"error","kind":"tool","name":"echo"`), "/nodes/1/input_map/x", "call that node something else"},
		{"wait for nothing", nodes(`"node_id":"a","kind":"wait"`), "/nodes/0/seconds", "either seconds or until"},
		{
			"wait for both", nodes(`"node_id":"a","kind":"wait","seconds":1,"until":2`), "/nodes/0/seconds",
			"either seconds or until",
		},
		{"wait backwards", nodes(`"node_id":"a","kind":"wait","seconds":-1`), "/nodes/0/seconds", "0 or more"},
		{"wait until a day", nodes(`"node_id":"a","kind":"wait","until":"2030-01-31"`), "/nodes/0/until", "RFC 3339"},
		{"wait of a tool", nodes(a + `,"seconds":1`), "/nodes/0/seconds", "only a node of kind wait has it"},
		{
			"while without bound", nodes(`"node_id":"a","kind":"while","condition":"index < ` + "`3`" + `","name":"x"`),
			"/nodes/0/max_iterations", "is required",
		},
		{
			"while of nothing", nodes(`"node_id":"a","kind":"while","condition":"index","max_iterations":2`),
			"/nodes/0/nodes", "either nodes",
		},
		{"in a loop", nodes(`"node_id":"a","kind":"while","condition":"index","max_iterations":2,"nodes":[{"node_id":"b","kind":"tool","nme":"echo"}]`), "/nodes/0/nodes/0/nme", `did you mean "name"?`},
		{
			"last elsewhere", nodes(a + `,"input_map":{"x":"last.y"}`), "/nodes/0/input_map/x",
			"only in a node of kind while",
		},
		{"cache without an end", nodes(a + `,"cache":{"key":"'x'"}`), "/nodes/0/cache/ttl", "is required"},
		{"cache by nothing known", nodes(a + `,"cache":{"key":"inptu","ttl":1}`), "/nodes/0/cache/key", "not a node"},
		{"cache of a map", nodes(a, `"node_id":"m","kind":"map","items_path":"input.x","map_node":"a","cache":{"ttl":1}`), "/nodes/1/cache", "only a node of kind tool"},
		{"no name", nodes(`"node_id":"a","kind":"skill"`), "/nodes/0/name", "is required"},
		{"wrong type", nodes(a + `,"input_map":[]`), "/nodes/0/input_map", "should be an object"},
		{"wrong text", nodes(a + `,"next_node":1`), "/nodes/0/next_node", "should be a string"},
		{"wrong deps", nodes(a + `,"deps":[1]`), "/nodes/0/deps", "array of the ids"},
		{"wrong timeout", nodes(a + `,"timeout":-1`), "/nodes/0/timeout", "seconds"},
		{"unknown next", nodes(a + `,"next_node":"b"`), "/nodes/0/next_node", `"b", which is not a node; there are: a`},
		{"unknown dep", nodes(a + `,"deps":["b"]`), "/nodes/0/deps", "not a node"},
		{"unknown fallback", nodes(a + `,"on_error":"continue"`), "/nodes/0/on_error", "abort, skip or the id"},
		{
			"unknown field of the chain", `{"initial_inputs":{"x":1},` + nodes(a)[1:], "/initial_inputs",
			`did you mean "initial_input"?`,
		},
		{"unknown entry", `{"entry_node":"b",` + nodes(a)[1:], "/entry_node", "not a node"},
		{"unknown in expression", nodes(a + `,"input_map":{"x":"b.x"}`), "/nodes/0/input_map/x", "input.b"},
		{"item outside of a map", nodes(a + `,"input_map":{"x":"item"}`), "/nodes/0/input_map/x", "bound only"},
		{"bad expression", nodes(a + `,"input_map":{"x/y":"a..b"}`), "/nodes/0/input_map/x~1y", "is not JMESPath"},
		{"bare text", nodes(a + `,"input_map":{"x":"/etc/passwd"}`), "/nodes/0/input_map/x", "single quotes"},
		{"unknown function", nodes(a + `,"condition":"eval('x')"`), "/nodes/0/condition", "function eval"},
		{"branch without condition", nodes(`"node_id":"a","kind":"branch"`), "/nodes/0/condition", "is required"},
		{
			"branch with input", nodes(`"node_id":"a","kind":"branch","condition":"input.x","input":{"x":1}`),
			"/nodes/0/input", "has no effect in a node of kind branch",
		},
		{
			"map without list", nodes(a, `"node_id":"m","kind":"map","map_node":"a"`), "/nodes/1/items_path",
			"is required",
		},
		{
			"map without node", nodes(`"node_id":"m","kind":"map","items_path":"input.x"`), "/nodes/0/map_node",
			"is required",
		},
		{
			"map of nothing", nodes(`"node_id":"m","kind":"map","items_path":"input.x","map_node":"a"`),
			"/nodes/0/map_node", "not a node",
		},
		{"map of a branch", nodes(`"node_id":"m","kind":"map","items_path":"input.x","map_node":"b"`,
			`"node_id":"b","kind":"branch","condition":"item"`), "/nodes/1/kind", "cannot run a branch"},
		{
			"node of a map that leads on", nodes(a+`,"next_node":"m"`,
				`"node_id":"m","kind":"map","items_path":"input.x","map_node":"a"`), "/nodes/0/next_node",
			"give next_node to the map",
		},
		{"way to the node of a map", nodes(a, `"node_id":"m","kind":"map","items_path":"input.x","map_node":"a"`,
			`"node_id":"c","kind":"tool","name":"echo","next_node":"a"`), "/nodes/2/next_node", "refer to the map"},
		{"reading the node of a map", nodes(a, `"node_id":"m","kind":"map","items_path":"input.x","map_node":"a"`,
			`"node_id":"c","kind":"tool","name":"echo","input_map":{"x":"a"}`), "/nodes/2/input_map/x", "name the map"},
		{"fallback of an item", nodes(a+`,"on_error":"b"`,
			`"node_id":"m","kind":"map","items_path":"input.x","map_node":"a"`,
			`"node_id":"b","kind":"tool","name":"echo"`), "/nodes/0/on_error", "where on_error is abort or skip"},
		{"field of another kind", nodes(a + `,"true_node":"a"`), "/nodes/0/true_node", "only a node of kind branch"},
		{"max_parallel elsewhere", nodes(a + `,"max_parallel":2`), "/nodes/0/max_parallel", "only a node of kind map"},
		{
			"unknown saved chain", nodes(`"node_id":"a","kind":"chain","name":"nightly"`), "/nodes/0/name",
			"no such chain",
		},
		{
			"saved chain elsewhere", nodes(`"node_id":"a","kind":"chain","name":"../x"`), "/nodes/0/name",
			"no saved chain may be called",
		},
		{"too many", nodes(strings.Split(strings.Repeat(a+";", 51), ";")[:51]...), "/nodes", "more than 50 nodes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := s.Call(protocol.TypeChainReq, tc.fields)
			if m.Code != protocol.CodeSchemaViolation || m.Problem() != tc.path ||
				!strings.Contains(m.Get("/message"), tc.message) {
				t.Errorf("answered by %s; should name %s and say %q", m.Line, tc.path, tc.message)
			}
		})
	}
	calls := s.shed.done()
	assert.That(t, len(calls) == 0, "something ran: %q", calls)
}

func TestCircles(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	tool := func(id, more string) string { return `"node_id":"` + id + `","kind":"tool","name":"echo"` + more }
	for _, tc := range []struct{ name, fields, circle string }{
		{"itself", nodes(tool("a", `,"input_map":{"x":"a.x"}`)), "a → a"},
		{"next", nodes(tool("a", `,"next_node":"b"`), tool("b", `,"next_node":"a"`)), "a → b → a"},
		{"data against deps", nodes(tool("x", ""), tool("a", `,"deps":["b","x"]`),
			tool("b", `,"input_map":{"y":"length(a.x)"}`)), "a → b → a"},
		{"branch back", nodes(tool("a", `,"next_node":"b"`),
			`"node_id":"b","kind":"branch","condition":"a.x","false_node":"a"`), "a → b → a"},
		{"fallback", nodes(tool("a", `,"next_node":"b"`), tool("b", `,"on_error":"a"`)), "a → b → a"},
		{"map and its node", nodes(`"node_id":"m","kind":"map","items_path":"input.x","map_node":"n"`,
			tool("n", `,"input_map":{"x":"m[0]"}`)), "m → n → m"},
		{"map of itself", nodes(`"node_id":"m","kind":"map","items_path":"input.x","map_node":"m"`), "m → m"},
		{"maps of each other", nodes(`"node_id":"m","kind":"map","items_path":"input.x","map_node":"n"`,
			`"node_id":"n","kind":"map","items_path":"input.x","map_node":"m"`), "m → n → m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := s.Call(protocol.TypeChainReq, tc.fields)
			must.That(t, m.Code == protocol.CodeChainCycle && m.Get("/retryable") == "false", "answered by %s", m.Line)
			text := m.Get("/message")
			assert.That(t, strings.Contains(text, tc.circle) || strings.Contains(text, rotated(tc.circle)),
				"it says %q, should name %s", text, tc.circle)
		})
	}
	calls := s.shed.done()
	assert.That(t, len(calls) == 0, "something ran: %q", calls)
}

// rotated returns the text for a circle of two nodes that begins with the other node.
func rotated(circle string) string {
	ids := strings.Split(circle, " → ")
	return strings.Join(append(ids[1:], ids[1]), " → ")
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(journalHostEnv); dir != "" {
		journalHost(dir, os.Getenv(journalMachineEnv))
	}
	goleak.VerifyTestMain(m)
}

// shed is a plugin with the tools, skills and programs of these tests.
//
//	echo    returns its arguments             fail         reports a failure of its own
//	error   answers with an error             panic        panics
//	block   waits until it is stopped         gate         waits until the test opens the gate
//	again   runs a chain that calls again     part         returns its arguments as a cut result
//	large   returns a text of n bytes         timeout      returns its time limit in seconds
//	maybe   fails if its argument fail is true, or in as many first calls as times says
//	flaky   fails its first calls, as many as its argument fail says, and then returns the number of the call
//	correlation   returns its correlation id
type shed struct {
	gate chan struct{}

	mu      sync.Mutex // guards the fields below
	calls   []string   // name and arguments, in the order in which the calls end
	running int
	most    int // the most that ran at once
	begun   chan string
	records []host.CallOutcome
	tries   map[string]int // calls of flaky and of maybe, by their arguments
}

func newShed() *shed {
	return &shed{gate: make(chan struct{}), begun: make(chan string, 1<<14), tries: map[string]int{}}
}

func (s *shed) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shed", Capability: protocol.CapTools, Also: []protocol.Capability{protocol.CapSkill}}
}

func (s *shed) Close(context.Context) error { return nil }

func (s *shed) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, s.tool), host.Handle(protocol.TypeSkillCallReq, s.skill)}
}

// CountCall implements host.CallCounter.
func (s *shed) CountCall(r host.CallOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
}

// RunProc implements child.ProcRunner.
func (s *shed) RunProc(_ context.Context, run child.ProcRun) (*child.ProcResult, error) {
	switch run.Cmd[0] {
	case "yes":
		return &child.ProcResult{Stdout: "y\ny\n", Truncated: true}, nil
	case "false":
		return &child.ProcResult{Stderr: "no\n", ExitCode: 1}, nil
	}
	return &child.ProcResult{Stdout: strings.Join(run.Cmd, " ") + run.Stdin}, nil
}

func (s *shed) enter(name string) {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	select {
	case s.begun <- name:
	default: // the channel is full: no test reads that many
	}
}

func (s *shed) leave(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.calls = append(s.calls, what)
}

func (s *shed) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

// try returns the number of calls with these arguments so far, this one included.
func (s *shed) try(args protocol.Object) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries[string(args.Raw())]++
	return s.tries[string(args.Raw())]
}

func (s *shed) tool(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	s.enter(req.ToolName)
	defer s.leave(req.ToolName + string(req.Arguments.Raw()))
	resp := &protocol.ToolCallResponse{Data: protocol.ToolResult{
		Success: true, ToolName: req.ToolName,
		Data: jsontext.Value(req.Arguments.Raw()),
	}}
	switch req.ToolName {
	case "echo":
	case "part":
		resp.Data.Truncated = new(true)
	case "maybe": // fails if its arguments say so, and yields a random number of times
		for range rand.IntN(20) {
			runtime.Gosched()
		}
		times, _ := req.Arguments.Get("times") // number of failures before the first success
		n, _ := times.Int()
		if fail, _ := req.Arguments.Get("fail"); fail.Kind() == 't' || n > 0 && s.try(req.Arguments) <= n {
			return nil, protocol.Errorf(protocol.CodeToolError, "as it was told")
		}
	case "flaky":
		var args struct {
			Fail  int                `json:"fail"`
			Code  protocol.ErrorCode `json:"code"`
			After float64            `json:"after"`
		}
		_ = req.Arguments.Decode(&args)
		n := s.try(req.Arguments)
		if n <= args.Fail {
			return nil, protocol.Errorf(args.Code, "call %d", n).With("retry_after", args.After)
		}
		resp.Data.Data = jsontext.Value(fmt.Sprintf(`{"call":%d}`, n))
	case "timeout":
		resp.Data.Data = jsontext.Value(fmt.Sprint(req.Timeout))
	case "correlation":
		resp.Data.Data = protocol.AppendString(nil, req.CorrelationID)
	case "large":
		n, _ := req.Arguments.Get("n")
		size, _ := n.Int()
		resp.Data.Data = protocol.AppendString(nil, strings.Repeat("x", size))
	case "fail":
		why, code := "it is broken", 3
		resp.Data.Success, resp.Data.Error, resp.Data.ExitCode = false, &why, &code
	case "error":
		return nil, protocol.Errorf(protocol.CodeOverloaded, "busy").With("limit", 1)
	case "panic":
		panic("oh")
	case "again":
		var answer protocol.Object
		list := []map[string]string{{"node_id": "a", "kind": "tool", "name": "again"}}
		if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeChainReq, map[string]any{"nodes": list}, &answer,
			nil); err != nil {
			return nil, err
		}
		if ok, _ := answer.Get("success"); ok.Kind() == 'f' {
			failed, _ := answer.Get("error")
			why, err := protocol.ParseObject(failed)
			if err != nil {
				return nil, err
			}
			return nil, protocol.Errorf(protocol.CodeToolError, "%s", why.Text("message"))
		}
	case "block":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "gate":
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	default:
		return nil, protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q", req.ToolName)
	}
	return resp, nil
}

func (s *shed) skill(_ context.Context, req *protocol.SkillCallRequest, _ host.Emitter) (*protocol.SkillCallResponse,
	error,
) {
	s.enter(req.Name)
	defer s.leave(req.Name)
	if req.Name == "broken" {
		why := "no model"
		return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Error: &why}}, nil
	}
	return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{
		Success:   true,
		Truncated: new(req.Name == "part"), Data: jsontext.Value(`{"hex":"` + hex.EncodeToString([]byte(req.Name)) +
			`"}`),
	}}, nil
}

// stage is a host with a chains plugin and a shed.
type stage struct {
	*hosttest.Pair
	t    testing.TB
	shed *shed
}

func newPlugin(t testing.TB, opts Options, workspace string) *Plugin {
	t.Helper()
	return must.Get(New("chains", opts, host.Env{Workspace: workspace}))(t)
}

func newStage(t testing.TB, opts Options, workspace string) *stage {
	t.Helper()
	return stageOn(t, opts, host.Env{Workspace: workspace}, hosttest.New)
}

// startStage is newStage for tests that call Close themselves.
func startStage(t testing.TB, opts Options, kept store.Opener) *stage {
	t.Helper()
	return stageOn(t, opts, host.Env{Workspace: ".", Store: kept}, hosttest.Start)
}

// stageOn begins a host whose plugin has this environment.
func stageOn(t testing.TB, opts Options, env host.Env, begin func(testing.TB, host.Options) *hosttest.Pair) *stage {
	t.Helper()
	s := &stage{t: t, shed: newShed()}
	s.Pair = begin(t, host.Options{Plugins: []host.Plugin{must.Get(New("chains", opts, env))(t), s.shed}})
	m := s.Handshake(protocol.CapChains)
	must.That(t, m.Get("/ok") == "true", "no session: %s", m.Line)
	return s
}

// memoryStore returns a store in memory.
func memoryStore(t testing.TB) store.Opener {
	kept := stores.Memory(t, Part())
	return func(context.Context) (store.Store, error) { return kept, nil }
}

// result has the fields of a chain/resp.
type result struct {
	ChainID     string                    `json:"chain_id"`
	Success     bool                      `json:"success"`
	Outputs     map[string]jsontext.Value `json:"outputs"`
	FinalOutput jsontext.Value            `json:"final_output"`
	NodesRun    int                       `json:"nodes_run"`
	Cached      []string                  `json:"cached"`
	Truncated   []string                  `json:"truncated"`
	Handled     []struct {
		NodeID string `json:"node_id"`
		Code   string `json:"code"`
		By     string `json:"handled_by"`
	} `json:"handled"`
	Error *struct {
		Code      string         `json:"code"`
		Message   string         `json:"message"`
		NodeID    string         `json:"node_id"`
		Cause     string         `json:"cause"`
		Retryable bool           `json:"retryable"`
		Detail    jsontext.Value `json:"detail"`
		Running   []string       `json:"running"`
		Failed    []struct {
			NodeID  string `json:"node_id"`
			Item    *int   `json:"item"`
			Message string `json:"message"`
		} `json:"failed"`
	} `json:"error"`
}

// run sends a chain and returns its answer, which must be a chain/resp.
func (s *stage) run(fields string) *result {
	s.t.Helper()
	return s.read(s.Call(protocol.TypeChainReq, fields))
}

func (s *stage) read(m hosttest.Message) *result {
	s.t.Helper()
	must.That(s.t, m.Type == protocol.TypeChainResp, "answered by %.2000s", m.Line)
	res := new(result)
	m.Decode(s.t, res)
	return res
}

// text returns the outputs as one JSON text, sorted by node.
func (r *result) text(t testing.TB) string {
	t.Helper()
	raw := must.Get(json.Marshal(r.Outputs, json.Deterministic(true)))(t)
	return string(raw)
}

// nodes returns the fields of a request with the given nodes. Each node is a JSON object without its braces.
func nodes(list ...string) string {
	return `{"nodes":[{` + strings.Join(list, "},{") + `}]}`
}

// events returns the node, phase and index of each event of a request, in order.
func (s *stage) events(id string) (all []string) {
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeChainEvent && m.ReqID == id {
			var e struct {
				NodeID string `json:"node_id"`
				Phase  string `json:"phase"`
				Data   struct {
					Index jsontext.Value `json:"index"`
				} `json:"data"`
			}
			m.Decode(s.t, &e)
			all = append(all, strings.TrimSpace(e.NodeID+" "+e.Phase+" "+string(e.Data.Index)))
		}
	}
	return all
}
