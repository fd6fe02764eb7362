package chains

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"a2e/protocol"
)

// Chains made to hurt are answered, in bounded time and memory.
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
		code         string // of the error; "" = it is answered by chain/resp
		message      string
	}{
		{"20,000 nodes", long(20_000, func(i int) string { return tool(fmt.Sprint("n", i), "") }), "schema_violation", "more than 10000 nodes"},
		{"10,000 nodes in a row", long(10_000, func(i int) string {
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"next_node":"n%d"`, min(i+1, 9_999))+strings.Repeat(" ", i%3))
		}), "chain_cycle", "n9999 → n9999"},
		{"10,000 nodes in a circle", long(10_000, func(i int) string { return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"deps":["n%d"]`, (i+1)%10_000)) }), "chain_cycle", "(10000 in all)"},
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
				list = append(list, tool(fmt.Sprint("n", k), ""), fmt.Sprintf(`"node_id":"m%d","kind":"map","items_path":"input.x","map_node":"i"`, k))
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
		}), "schema_violation", "4 is the most"},
		{"giant expression", nodes(tool("a", `,"input_map":{"x":"`+strings.Repeat("input.x || ", 100_000)+`input.x"}`)), "schema_violation", "longer than 8192 bytes"},
		{"deep expression", nodes(tool("a", `,"input_map":{"x":"`+strings.Repeat("(", 4_000)+strings.Repeat(")", 4_000)+`"}`)), "schema_violation", "is no JMESPath"},
		{"very many expressions", long(1_100, func(i int) string {
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"condition":"'%d%s'"`, i, strings.Repeat("x", 4_000)))
		}), "schema_violation", "more than 4194304 bytes together"},
		{"doubling", nodes(tool("a", `,"input_map":{"x":"input`+strings.Repeat(" | [@,@]", 90)+`"}`)), "", "is too large"},
		{"doubling from node to node", long(200, func(i int) string {
			if i == 0 {
				return tool("n0", `,"input":{"x":"0123456789"}`)
			}
			return tool(fmt.Sprint("n", i), fmt.Sprintf(`,"input_map":{"x":"[n%d,n%d]"}`, i-1, i-1))
		}), "", "bytes together"},
		{"doubling by references", nodes(tool("a", `,"input_map":{"x":"to_string(input`+strings.Repeat(" | [@,@]", 90)+`)"}`)), "", "too large"},
		{"nested projections", nodes(tool("a", `,"input_map":{"x":"let $l = split(pad_left('', `+"`3000`"+`, 'x'), '') in $l[?$l[?$l[?$l[?!@]]]]"}`)), "", "too many steps"},
		{"a text of a terabyte", nodes(tool("a", `,"input_map":{"x":"pad_left('', `+"`1000000000000`"+`)"}`)), "", "too large"},
		{"deep value", `{"initial_input":{"x":` + deep + `},` + nodes(tool("a", `,"input_map":{"x":"input.x`+strings.Repeat(" | [@]", 90)+strings.Repeat(" | {a: [[[[[[[@]]]]]]]}", 20)+strings.Repeat(" | [[[[[[[[[[@]]]]]]]]]]", 18)+`"}`))[1:], "", "nested deeper"},
		{"a map of a million", nodes(`"node_id":"m","kind":"map","items_path":"split(pad_left('', `+"`200000`"+`, 'x'), '')","map_node":"i"`, tool("i", "")), "", "a map takes 100000"},
		{"ids that are long", nodes(tool(strings.Repeat("x", 10_000), "")), "schema_violation", "longer than 128 bytes"},
		{"ids with everything", nodes(tool(`a\u0000\n\"'`+"`"+`$.@`, `,"next_node":"\u202e\ud83d\ude00"`), tool(`\u202e\ud83d\ude00`, "")), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, Options{MaxStateBytes: 4 << 20}, t.TempDir())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			m := s.Call(protocol.TypeChainReq, tc.fields)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			text := m.Get("/message") + m.Get("/error/message")
			if string(m.Code) != tc.code || !strings.Contains(text, tc.message) {
				t.Errorf("answered by %.600s; should say %q", m.Line, tc.message)
			}
			if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 4096 { // only a defect takes that much
				t.Errorf("%d MiB were allocated", made)
			}
			if len(m.Line) > 6<<20 {
				t.Errorf("the answer has %d bytes", len(m.Line))
			}
			t.Logf("%s, %d MiB allocated", took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20)
		})
	}
}

// A chain that calls itself by way of a skill, or another request, ends.
func TestNestedRequests(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	if m := s.Call(protocol.TypeChainReq, nodes(`"node_id":"a","kind":"tool","name":"again"`)); m.Get("/success") != "false" || !strings.Contains(m.Get("/error/message"), "nested") {
		t.Errorf("answered by %.1000s", m.Line)
	}
}

// Nodes may be called by numbers, and lists have places all the same.
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
		if got := forgiving(text, odd); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
	s := newStage(t, Options{}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"0","kind":"tool","name":"echo","input_map":{"v":"input.xs | [0]"}`,
		`"node_id":"1","kind":"tool","name":"echo","input_map":{"v":"0.v"}`,
	), "}") + `,"initial_input":{"xs":["first"]}}`)
	if !r.Success || string(r.FinalOutput) != `{"v":"first"}` {
		t.Errorf("%+v", r)
	}
}

// What a map that failed has held is free again for those that come after it.
func TestMapThatFailedHoldsNothing(t *testing.T) {
	s := newStage(t, Options{MaxStateBytes: 1 << 20}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"m","kind":"map","items_path":"input.items","map_node":"i","max_parallel":1,"on_error":"after"`,
		`"node_id":"i","kind":"tool","name":"maybe","input_map":{"fail":"index == `+"`8`"+`","text":"input.text"}`,
		`"node_id":"after","kind":"tool","name":"large","input":{"n":400000}`,
	), "}") + `,"initial_input":{"items":[0,1,2,3,4,5,6,7,8],"text":"` + strings.Repeat("x", 100_000) + `"}}`)
	if len(r.Outputs["after"]) < 400_000 {
		t.Errorf("%+v", r.Error)
	}
}

// A plugin that ends the goroutine of a pool ends its own call alone: who waits for the pool
// is still helped.
func TestGoroutineThatAPluginEndsIsReplaced(t *testing.T) {
	p := &pool{}
	once := func(do func()) *group {
		begun := false
		c := &group{pool: p, most: 2, active: 1, done: make(chan struct{}), do: func(int) { do() }, more: func() bool { return false }}
		c.next = func() (int, bool) {
			defer func() { begun = true }()
			return 0, !begun
		}
		return c
	}
	helped := make(chan struct{})
	ended, waits := once(runtime.Goexit), once(func() { close(helped) })
	p.ask(waits)
	p.all.Go(func() { p.serve(ended) })
	p.all.Wait()
	select {
	case <-helped:
	default:
		t.Error("who waited was forgotten")
	}
	if p.free != 1 || len(p.waiting) != 0 {
		t.Errorf("%d free, %d wait", p.free, len(p.waiting))
	}
}
