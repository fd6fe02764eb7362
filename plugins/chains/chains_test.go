package chains

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
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
