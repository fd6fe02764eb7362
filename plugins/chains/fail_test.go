package chains

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

const (
	toolFail  = `"kind":"tool","name":"fail"`
	toolEcho  = `"kind":"tool","name":"echo"`
	toolBlock = `"kind":"tool","name":"block"`
)

func TestNodeThatFails(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	for _, tc := range []struct {
		name, node     string
		code, message  string
		retryable      bool
		detailContains string
	}{
		{"reports it", toolFail, "tool_error", `node "b": tool "fail" failed: it is broken`, false, `"exit_code":3`},
		{"answers with an error", `"kind":"tool","name":"error"`, "overloaded", `node "b": busy`, true, `"limit":1`},
		{"panics", `"kind":"tool","name":"panic"`, "runtime_error", "panicked", true, ""},
		{"is not there", `"kind":"tool","name":"nothing"`, "unknown_tool", `unknown tool "nothing"`, false, ""},
		{"skill", `"kind":"skill","name":"broken"`, "skill_error", "no model", true, ""},
		{
			"program", `"kind":"proc","name":"false"`, "chain_node_error", `"false" ended with exit status 1: no`, false,
			`"exit_code":1`,
		},
		{"no program", `"kind":"proc"`, "schema_violation", "the program to run", false, ""},
		{
			"expression", toolEcho + `,"input_map":{"x":"abs(a.x)"}`, "chain_node_error",
			`the expression of input_map/x gives abs() string as argument 1; it takes number`, false, "",
		},
		{
			"condition", toolEcho + `,"condition":"a.x / ` + "`0`" + ` || ` + "`1` / `0`" + `"`, "chain_node_error",
			"divides by zero", false, "",
		},
		{"own timeout", toolBlock + `,"timeout":0.05`, "timeout", "its timeout of 50ms", true, ""},
		{
			"map of nothing", `"kind":"map","items_path":"a.x","map_node":"i"`, "chain_node_error",
			"items_path gives string; a map needs an array", false, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(failing(tc.node))
			e := res.Error
			if res.Success || e == nil || e.Code != "chain_node_error" || e.NodeID != "b" || e.Cause != tc.code ||
				e.Retryable != tc.retryable ||
				!strings.Contains(e.Message, tc.message) || !strings.Contains(string(e.Detail), tc.detailContains) {
				t.Errorf("the answer tells of %+v", e)
			}
			got := res.text(t)
			assert.That(t, got == `{"a":{"x":"text"}}` && res.NodesRun == 2 && string(res.FinalOutput) == "null",
				"%d nodes ran, outputs %s, final %s", res.NodesRun, got, res.FinalOutput)
		})
	}
}

// failing returns a chain of the nodes a, b and c, of which b fails.
func failing(b string) string {
	list := []string{
		`"node_id":"a",` + toolEcho + `,"input":{"x":"text"},"next_node":"b"`,
		`"node_id":"b","next_node":"c",` + b, `"node_id":"c",` + toolEcho,
	}
	if strings.Contains(b, `"map_node":"i"`) {
		list = append(list, `"node_id":"i",`+toolEcho)
	}
	return nodes(list...)
}

func TestOnError(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	for _, tc := range []struct{ name, fields, outputs, final, handler string }{
		{
			"skip", nodes(`"node_id":"a",`+toolFail+`,"on_error":"skip","next_node":"b"`,
				`"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x"}`),
			`{"a":null,"b":{"x":null}}`, `{"x":null}`, "",
		},
		{
			"skip without next", nodes(`"node_id":"a",`+toolFail+`,"on_error":"skip"`,
				`"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x || 'none'"}`),
			`{"a":null,"b":{"x":"none"}}`, `{"x":"none"}`, "",
		},
		{
			"another node", nodes(`"node_id":"a",`+toolFail+`,"on_error":"f","next_node":"b"`, `"node_id":"b",`+toolEcho,
				`"node_id":"f",`+toolEcho+`,"input":{"f":1},"next_node":"end"`,
				`"node_id":"end",`+toolEcho+`,"input_map":{"x":"a.x || f.f"}`),
			`{"a":null,"end":{"x":1},"f":{"f":1}}`, `{"x":1}`, "f",
		},
		{"another node, and who reads the failed one", nodes(`"node_id":"a",`+toolFail+`,"on_error":"f"`,
			`"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x"}`,
			`"node_id":"f",`+toolEcho), `{"a":null,"f":{}}`, `{}`, "f"},
		{"another node that does not run", nodes(`"node_id":"a",`+toolFail+`,"on_error":"f"`,
			`"node_id":"f",`+toolEcho+`,"condition":"error.code == 'timeout'"`), `{"a":null}`, `null`, ""},
		{"branch that fails", nodes(`"node_id":"a","kind":"branch","condition":"abs('x')","on_error":"skip","true_node":"b","next_node":"c"`, `"node_id":"b",`+toolEcho,
			`"node_id":"c",`+toolEcho), `{"a":null,"c":{}}`, `{}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			if got := res.text(t); got != tc.outputs || string(res.FinalOutput) != tc.final {
				t.Errorf("outputs %s, final %s; should be %s, %s", got, res.FinalOutput, tc.outputs, tc.final)
			}
			if tc.handler != "" {
				if !res.Success || res.Error != nil || len(res.Handled) != 1 || res.Handled[0].NodeID != "a" ||
					res.Handled[0].By != tc.handler {
					t.Errorf("success %t, error %+v, handled %+v", res.Success, res.Error, res.Handled)
				}
				return
			}
			e := res.Error
			assert.That(t, !res.Success && e != nil && e.NodeID == "a" && len(e.Failed) == 1 &&
				strings.HasSuffix(e.Message, "; the chain went on"), "success %t, error %+v", res.Success, e)
		})
	}
	res := s.run(nodes(`"node_id":"a",`+toolEcho+`,"on_error":"f"`, `"node_id":"f",`+toolEcho))
	got := res.text(t)
	assert.That(t, got == `{"a":{}}` && res.Success && res.NodesRun == 1, "a fallback that nobody needs: %s, %+v", got,
		res)
}

// TestFailureStopsTheOthers: a failed node that ends the chain stops the nodes that run at the same time.
func TestFailureStopsTheOthers(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"b",`+toolBlock,
		`"node_id":"g","kind":"tool","name":"gate","next_node":"f"`, `"node_id":"f",`+toolFail,
		`"node_id":"n",`+toolEcho+`,"deps":["b"]`))
	for range 2 {
		<-s.shed.begun
	}
	close(s.shed.gate)
	res := s.read(s.Answer(id))
	assert.That(t, !res.Success && res.Error.NodeID == "f" && len(res.Error.Failed) == 1 && res.NodesRun == 3,
		"%+v %+v", res, res.Error)
	all := strings.Join(s.events(id), ", ")
	assert.That(t, strings.Contains(all, "b error") && !strings.Contains(all, "n "), "events: %s", all)
}

func TestCancelReachesTheNodes(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"b",`+toolBlock+`,"next_node":"c"`, `"node_id":"c",`+toolEcho,
		`"node_id":"m","kind":"map","items_path":"input.x || `+"`[1,2,3]`"+`","map_node":"i"`,
		`"node_id":"i",`+toolBlock))
	for range 4 {
		<-s.shed.begun
	}
	s.Send(`{"type":"cancel","req_id":"` + id + `"}`)
	s.Answer(id).Has(t, "/code", string(protocol.CodeCancelled))
	hosttest.Eventually(t, "all four end", func() bool { return len(s.shed.done()) == 4 })
}

// callInTime repeats Call until the chain itself answers: on a busy machine, the host may answer with a timeout in its
// place.
func (s *stage) callInTime(fields string) (m hosttest.Message) {
	s.t.Helper()
	for range 5 {
		if m = s.Call(protocol.TypeChainReq, fields); m.Code != protocol.CodeTimeout {
			break
		}
	}
	return m
}

// TestTimeout: the timeout of a chain stops the running nodes, and the answer has the outputs up to then.
func TestTimeout(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	m := s.callInTime(`{"timeout":2,` + nodes(`"node_id":"a",`+toolEcho+`,"next_node":"b"`,
		`"node_id":"b",`+toolBlock+`,"on_error":"skip","next_node":"c"`, `"node_id":"c",`+toolEcho)[1:])
	res := s.read(m)
	e := res.Error
	assert.That(t, !res.Success && e.Code == "timeout" && e.NodeID == "b" && e.Retryable && len(e.Running) == 1 &&
		res.text(t) == `{"a":{}}`, "%+v %+v", res, e)
}

// TestTimeoutOfCalls: a node has the time limit of its chain, or its own, instead of the default limit of a call.
func TestTimeoutOfCalls(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	res := s.run(`{"timeout":1000,` + nodes(`"node_id":"a","kind":"tool","name":"timeout"`,
		`"node_id":"b","kind":"tool","name":"timeout","timeout":77`)[1:])
	var a, b int
	_, err := fmt.Sscanf(res.text(t), `{"a":%d,"b":%d}`, &a, &b)
	assert.That(t, err == nil && 900 <= a && a <= 1000 && 70 <= b && b <= 77, "the calls had %s", res.text(t))
}

func TestLimits(t *testing.T) {
	s := newStage(t, Options{MaxItems: 10, MaxStateBytes: 100_000, MaxResultBytes: 3000}, t.TempDir())
	large := func(id, n, more string) string {
		return `"node_id":"` + id + `","kind":"tool","name":"large","input":{"n":` + n + `}` + more
	}
	res := s.run(nodes(large("a", "1000", ""), large("b", "2000", ""), large("c", "1500", ""),
		`"node_id":"z",`+toolEcho+`,"deps":["a","b","c"]`))
	if string(res.Outputs["b"]) != `{"truncated":true,"bytes":2002}` || len(res.Outputs["a"]) != 1002 ||
		len(res.Outputs["c"]) != 1502 || !res.Success {
		t.Errorf("outputs: %.3000s", res.text(t))
	}
	if res = s.run(nodes(large("a", "5000", ""))); string(res.FinalOutput) != `{"truncated":true,"bytes":5002}` {
		t.Errorf("final output: %.100s", res.FinalOutput)
	}
	if res = s.run(nodes(large("a", "60000", ""), large("b", "60000", ""))); res.Success ||
		!strings.Contains(res.Error.Message, "more than 100000 bytes together") {
		t.Errorf("too much in memory: %+v", res.Error)
	}
	if res = s.run(nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3,4,5,6,7,8,9,10,11]`"+`","map_node":"i"`,
		`"node_id":"i",`+toolEcho)); res.Success || !strings.Contains(res.Error.Message, "11 items") {
		t.Errorf("too many items: %+v", res.Error)
	}
	if res = s.run(nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3]`"+`","map_node":"i"`,
		large("i", "60000", ""))); res.Success || !strings.Contains(res.Error.Message, "bytes together") {
		t.Errorf("too much of a map in memory: %+v", res.Error)
	}
}

// TestWallHostileChains: hostile chains are answered, in bounded time and memory.
func TestWallHostileChains(t *testing.T) {
	tool := func(id, more string) string { return `"node_id":"` + id + `",` + toolEcho + more }
	long := func(n int, one func(i int) string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = one(i)
		}
		return nodes(list...)
	}
	deep := strings.Repeat("[", 500) + strings.Repeat("]", 500)
	for _, tc := range []struct {
		name, fields string
		code         string // code of the error; "" = the answer is a chain/resp
		message      string
	}{
		{
			"20,000 nodes", long(20_000, func(i int) string { return tool(fmt.Sprint("n", i), "") }), "schema_violation",
			"more than 10000 nodes",
		},
		{"10,000 nodes in a row", long(10_000, func(i int) string {
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"next_node":"n%d"`, min(i+1, 9_999))+strings.Repeat(" ", i%3))
		}), "chain_cycle", "n9999 → n9999"},
		{"10,000 nodes in a circle", long(10_000, func(i int) string {
			return tool(fmt.Sprint("n", i),
				fmt.Sprintf(`,"deps":["n%d"]`, (i+1)%10_000))
		}), "chain_cycle", "(10000 in all)"},
		{"10,000 broken nodes", long(10_000, func(i int) string {
			return tool(fmt.Sprint("n", i), `,"input_map":{"x":"nothing.`+fmt.Sprint("x", i)+`"}`)
		}), "schema_violation", "(and 19 more)"},
		{"all wait for all before", long(750, func(i int) string {
			var deps []string
			for k := range i {
				deps = append(deps, fmt.Sprintf(`"n%d"`, k))
			}
			return tool(fmt.Sprint("n", i), `,"deps":[`+strings.Join(deps, ",")+`]`)
		}), "schema_violation", "more than 250000 ways"},
		{"maps that share what they wait for", func() string {
			var deps []string
			list := []string{""}
			for k := range 750 {
				deps = append(deps, fmt.Sprintf(`"n%d"`, k))
				list = append(list, tool(fmt.Sprint("n", k), ""),
					fmt.Sprintf(`"node_id":"m%d","kind":"map","items_path":"input.x","map_node":"i"`, k))
			}
			list[0] = tool("i", `,"deps":[`+strings.Join(deps, ",")+`]`)
			return nodes(list...)
		}(), "schema_violation", "more than 250000 ways"},
		{"maps deep in each other", long(6, func(i int) string {
			if i == 5 {
				return tool("n5", "")
			}
			return fmt.Sprintf(`"node_id":"n%d","kind":"map","items_path":"item","map_node":"n%d"`, i, i+1)
		}), "schema_violation", "bound only"},
		{"deep maps", long(6, func(i int) string {
			if i == 5 {
				return tool("n5", "")
			}
			return fmt.Sprintf(`"node_id":"n%d","kind":"map","items_path":"input.x","map_node":"n%d"`, i, i+1)
		}), "schema_violation", "at most 4 are allowed"},
		{
			"giant expression", nodes(tool("a", `,"input_map":{"x":"`+strings.Repeat("input.x || ", 100_000)+`input.x"}`)),
			"schema_violation", "longer than 8192 bytes",
		},
		{"deep expression", nodes(tool("a", `,"input_map":{"x":"`+strings.Repeat("(", 4_000)+strings.Repeat(")",
			4_000)+`"}`)), "schema_violation", "is not JMESPath"},
		{"very many expressions", long(1_100, func(i int) string {
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"condition":"'%d%s'"`, i, strings.Repeat("x", 4_000)))
		}), "schema_violation", "more than 4194304 bytes together"},
		{
			"doubling", nodes(tool("a", `,"input_map":{"x":"input`+strings.Repeat(" | [@,@]", 90)+`"}`)), "",
			"is too large",
		},
		{"doubling from node to node", long(200, func(i int) string {
			if i == 0 {
				return tool("n0", `,"input":{"x":"0123456789"}`)
			}
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"input_map":{"x":"[n%d,n%d]"}`, i-1, i-1))
		}), "", "bytes together"},
		{"doubling by references", nodes(tool("a", `,"input_map":{"x":"to_string(input`+strings.Repeat(" | [@,@]",
			90)+`)"}`)), "", "too large"},
		{"nested projections", nodes(tool("a", `,"input_map":{"x":"let $l = split(pad_left('', `+"`3000`"+`, 'x'), '') in $l[?$l[?$l[?$l[?!@]]]]"}`)), "", "too many steps"},
		{
			"a text of a terabyte", nodes(tool("a", `,"input_map":{"x":"pad_left('', `+"`1000000000000`"+`)"}`)), "",
			"too large",
		},
		{
			"deep value", `{"initial_input":{"x":` + deep + `},` +
				nodes(tool("a", `,"input_map":{"x":"input.x`+strings.Repeat(" | [@]",
					90)+strings.Repeat(" | {a: [[[[[[[@]]]]]]]}", 20)+strings.Repeat(" | [[[[[[[[[[@]]]]]]]]]]", 18)+`"}`))[1:],
			"", "nested deeper",
		},
		{"a map of a million", nodes(`"node_id":"m","kind":"map","items_path":"split(pad_left('', `+"`200000`"+`, 'x'), '')","map_node":"i"`, tool("i", "")), "", "a map takes 100000"},
		{"a loop without an end", `{"timeout":1,` + nodes(`"node_id":"l","kind":"while","condition":"` + "`true`" +
			`","max_iterations":1000000,"nodes":[{"node_id":"k","kind":"while","condition":"` + "`true`" +
			`","max_iterations":1000000,"nodes":[{` + tool("a", "") + `}]}]`)[1:], "", "did not end within its " +
			"timeout"},
		{
			"ids that are long", nodes(tool(strings.Repeat("x", 10_000), "")), "schema_violation",
			"longer than 128 bytes",
		},
		{"ids with everything", nodes(tool(`a\u0000\n\"'`+"`"+`$.@`, `,"next_node":"\u202e\ud83d\ude00"`), tool(`\u202e\ud83d\ude00`, "")), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, Options{MaxStateBytes: 4 << 20}, t.TempDir())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			m := s.callInTime(tc.fields)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			text := m.Get("/message") + m.Get("/error/message")
			assert.That(t, string(m.Code) == tc.code && strings.Contains(text, tc.message),
				"answered by %.600s; should say %q", m.Line, tc.message)
			if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 4096 { // only a defect takes that much
				t.Errorf("%d MiB were allocated", made)
			}
			assert.That(t, len(m.Line) <= 6<<20, "the answer has %d bytes", len(m.Line))
			t.Logf("%s, %d MiB allocated", took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20)
		})
	}
}

// TestNestedRequests: a chain that calls itself through a skill or another request ends.
func TestNestedRequests(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	m := s.Call(protocol.TypeChainReq, nodes(`"node_id":"a","kind":"tool","name":"again"`))
	assert.That(t, m.Get("/success") == "false" && strings.Contains(m.Get("/error/message"), "nested"),
		"answered by %.1000s", m.Line)
}

// TestNumbersAsIDsLeavePlacesAlone: a number may be the id of a node, and an index of a list still means a place in the
// list.
func TestNumbersAsIDsLeavePlacesAlone(t *testing.T) {
	odd := map[string]bool{"0": true, "1": true, "-1": true, "read-file": true}
	for text, want := range map[string]string{
		"input.xs | [0]":      "input.xs | [0]",
		"[ 1 ]":               "[ 1 ]",
		"input.xs[-1]":        "input.xs[-1]",
		"input.xs[0:1]":       "input.xs[0:1]",
		"input.xs[:1]":        "input.xs[:1]",
		"input.xs[::-1]":      "input.xs[::-1]",
		"0.text":              `"0".text`,
		"[0, 1]":              `["0", "1"]`,
		"{a: 0, b: 1}":        `{a: "0", b: "1"}`,
		"read-file[0].x OR 1": `"read-file"[0].x || "1"`,
	} {
		assert.Equal(t, forgiving(text, odd), want, "%s becomes", text)
	}
	s := newStage(t, Options{}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"0","kind":"tool","name":"echo","input_map":{"v":"input.xs | [0]"}`,
		`"node_id":"1","kind":"tool","name":"echo","input_map":{"v":"0.v"}`,
	), "}") + `,"initial_input":{"xs":["first"]}}`)
	assert.That(t, r.Success && string(r.FinalOutput) == `{"v":"first"}`, "%+v", r)
}

// TestMapThatFailedHoldsNothing: the memory that a failed map held is free again for the nodes after it.
func TestMapThatFailedHoldsNothing(t *testing.T) {
	s := newStage(t, Options{MaxStateBytes: 1 << 20}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"m","kind":"map","items_path":"input.items","map_node":"i","max_parallel":1,"on_error":"after"`,
		`"node_id":"i","kind":"tool","name":"maybe","input_map":{"fail":"index == `+"`8`"+`","text":"input.text"}`,
		`"node_id":"after","kind":"tool","name":"large","input":{"n":400000}`,
	), "}") + `,"initial_input":{"items":[0,1,2,3,4,5,6,7,8],"text":"` + strings.Repeat("x", 100_000) + `"}}`)
	assert.That(t, len(r.Outputs["after"]) >= 400_000, "%+v", r.Error)
}

// TestPoolForgetsAGroupThatHasEnded: the pool drops a group that ended before the pool had a goroutine for it, so that
// the memory of its tasks is freed.
func TestPoolForgetsAGroupThatHasEnded(t *testing.T) {
	p, tasks := &pool{}, 3
	c := &group{
		pool: p, most: 2, do: func(int) {}, more: func() bool { return tasks > 0 },
		next: func() (int, bool) { tasks--; return tasks, tasks >= 0 },
	}
	c.run()
	assert.That(t, c.asked && len(p.waiting) == 0, "asked: %v, %d wait", c.asked, len(p.waiting))
}
