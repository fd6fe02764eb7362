package chains

import (
	"strings"
	"testing"
	"time"

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
		{"program", `"kind":"proc","name":"false"`, "chain_node_error", `"false" ended with exit status 1: no`, false, `"exit_code":1`},
		{"no program", `"kind":"proc"`, "schema_violation", "the program to run", false, ""},
		{"expression", toolEcho + `,"input_map":{"x":"abs(a.x)"}`, "chain_node_error", `the expression of input_map/x gives abs() string as argument 1; it takes number`, false, ""},
		{"condition", toolEcho + `,"condition":"a.x / ` + "`0`" + ` || ` + "`1` / `0`" + `"`, "chain_node_error", "divides by zero", false, ""},
		{"own timeout", toolBlock + `,"timeout":0.05`, "timeout", "its timeout of 50ms", true, ""},
		{"map of nothing", `"kind":"map","items_path":"a.x","map_node":"i"`, "chain_node_error", "items_path gives string; a map needs an array", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(failing(tc.node))
			e := res.Error
			if res.Success || e == nil || e.Code != "chain_node_error" || e.NodeID != "b" || e.Cause != tc.code || e.Retryable != tc.retryable ||
				!strings.Contains(e.Message, tc.message) || !strings.Contains(string(e.Detail), tc.detailContains) {
				t.Errorf("the answer tells of %+v", e)
			}
			if got := res.text(t); got != `{"a":{"x":"text"}}` || res.NodesRun != 2 || string(res.FinalOutput) != "null" {
				t.Errorf("%d nodes ran, outputs %s, final %s", res.NodesRun, got, res.FinalOutput)
			}
		})
	}
}

// failing is a chain of a, b and c, of which b fails.
func failing(b string) string {
	list := []string{`"node_id":"a",` + toolEcho + `,"input":{"x":"text"},"next_node":"b"`, `"node_id":"b","next_node":"c",` + b, `"node_id":"c",` + toolEcho}
	if strings.Contains(b, `"map_node":"i"`) {
		list = append(list, `"node_id":"i",`+toolEcho)
	}
	return nodes(list...)
}

func TestOnError(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	for _, tc := range []struct{ name, fields, outputs, final string }{
		{"skip", nodes(`"node_id":"a",`+toolFail+`,"on_error":"skip","next_node":"b"`, `"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x"}`),
			`{"a":null,"b":{"x":null}}`, `{"x":null}`},
		{"skip without next", nodes(`"node_id":"a",`+toolFail+`,"on_error":"skip"`, `"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x || 'none'"}`),
			`{"a":null,"b":{"x":"none"}}`, `{"x":"none"}`},
		{"another node", nodes(`"node_id":"a",`+toolFail+`,"on_error":"f","next_node":"b"`, `"node_id":"b",`+toolEcho,
			`"node_id":"f",`+toolEcho+`,"input":{"f":1},"next_node":"end"`, `"node_id":"end",`+toolEcho+`,"input_map":{"x":"a.x || f.f"}`),
			`{"a":null,"end":{"x":1},"f":{"f":1}}`, `{"x":1}`},
		{"another node, and who reads the failed one", nodes(`"node_id":"a",`+toolFail+`,"on_error":"f"`, `"node_id":"b",`+toolEcho+`,"input_map":{"x":"a.x"}`,
			`"node_id":"f",`+toolEcho), `{"a":null,"f":{}}`, `{}`},
		{"branch that fails", nodes(`"node_id":"a","kind":"branch","condition":"abs('x')","on_error":"skip","true_node":"b","next_node":"c"`, `"node_id":"b",`+toolEcho,
			`"node_id":"c",`+toolEcho), `{"a":null,"c":{}}`, `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			if got := res.text(t); got != tc.outputs || string(res.FinalOutput) != tc.final {
				t.Errorf("outputs %s, final %s; should be %s, %s", got, res.FinalOutput, tc.outputs, tc.final)
			}
			if e := res.Error; res.Success || e == nil || e.NodeID != "a" || len(e.Failed) != 1 || !strings.HasSuffix(e.Message, "; the chain went on") {
				t.Errorf("success %t, error %+v", res.Success, e)
			}
		})
	}
	res := s.run(nodes(`"node_id":"a",`+toolEcho+`,"on_error":"f"`, `"node_id":"f",`+toolEcho))
	if got := res.text(t); got != `{"a":{}}` || !res.Success || res.NodesRun != 1 {
		t.Errorf("a fallback that nobody needs: %s, %+v", got, res)
	}
}

// A node that ends the chain stops those that run beside it.
func TestFailureStopsTheOthers(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"b",`+toolBlock, `"node_id":"g","kind":"tool","name":"gate","next_node":"f"`, `"node_id":"f",`+toolFail, `"node_id":"n",`+toolEcho+`,"deps":["b"]`))
	for range 2 {
		<-s.shed.begun
	}
	close(s.shed.gate)
	res := s.read(s.Answer(id))
	if res.Success || res.Error.NodeID != "f" || len(res.Error.Failed) != 1 || res.NodesRun != 3 {
		t.Errorf("%+v %+v", res, res.Error)
	}
	all := strings.Join(s.events(id), ", ")
	if !strings.Contains(all, "b error") || strings.Contains(all, "n ") {
		t.Errorf("events: %s", all)
	}
}

func TestCancelReachesTheNodes(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"b",`+toolBlock+`,"next_node":"c"`, `"node_id":"c",`+toolEcho,
		`"node_id":"m","kind":"map","items_path":"input.x || `+"`[1,2,3]`"+`","map_node":"i"`, `"node_id":"i",`+toolBlock))
	for range 4 {
		<-s.shed.begun
	}
	s.Send(`{"type":"cancel","req_id":"` + id + `"}`)
	if m := s.Answer(id); m.Code != protocol.CodeCancelled {
		t.Errorf("answered by %s", m.Line)
	}
	if calls := s.shed.done(); len(calls) != 4 {
		t.Errorf("these ended: %q", calls)
	}
}

// The time of a chain reaches the running nodes, and what was done until then is answered.
func TestTimeout(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	res := s.run(`{"timeout":2,` + nodes(`"node_id":"a",`+toolEcho+`,"next_node":"b"`, `"node_id":"b",`+toolBlock+`,"on_error":"skip","next_node":"c"`, `"node_id":"c",`+toolEcho)[1:])
	e := res.Error
	if res.Success || e.Code != "timeout" || e.NodeID != "b" || !e.Retryable || len(e.Running) != 1 || res.text(t) != `{"a":{}}` {
		t.Errorf("%+v %+v", res, e)
	}
}

// Nodes have the time of their chain, or their own, and not the usual one of a call.
func TestTimeoutOfCalls(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	res := s.run(`{"timeout":1000,` + nodes(`"node_id":"a","kind":"tool","name":"timeout"`, `"node_id":"b","kind":"tool","name":"timeout","timeout":77`)[1:])
	if got := res.text(t); got != `{"a":1000,"b":77}` {
		t.Errorf("the calls had %s", got)
	}
}

// A handler that ends its goroutine takes neither the host nor the chain with it.
func TestGoexit(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	begun := time.Now()
	m := s.Call(protocol.TypeChainReq, nodes(`"node_id":"a","kind":"tool","name":"exit"`, `"node_id":"b",`+toolEcho))
	if m.Type != protocol.TypeError && m.Get("/success") != "false" {
		t.Errorf("answered by %s after %s", m.Line, time.Since(begun))
	}
	if res := s.run(nodes(`"node_id":"a",` + toolEcho)); !res.Success {
		t.Errorf("afterwards: %+v", res)
	}
}

func TestLimits(t *testing.T) {
	s := newStage(t, Options{MaxItems: 10, MaxStateBytes: 100_000, MaxResultBytes: 3000}, t.TempDir())
	large := func(id, n, more string) string {
		return `"node_id":"` + id + `","kind":"tool","name":"large","input":{"n":` + n + `}` + more
	}
	res := s.run(nodes(large("a", "1000", ""), large("b", "2000", ""), large("c", "1500", ""), `"node_id":"z",`+toolEcho+`,"deps":["a","b","c"]`))
	if string(res.Outputs["b"]) != `{"truncated":true,"bytes":2002}` || len(res.Outputs["a"]) != 1002 || len(res.Outputs["c"]) != 1502 || !res.Success {
		t.Errorf("outputs: %.3000s", res.text(t))
	}
	if res = s.run(nodes(large("a", "5000", ""))); string(res.FinalOutput) != `{"truncated":true,"bytes":5002}` {
		t.Errorf("final output: %.100s", res.FinalOutput)
	}
	if res = s.run(nodes(large("a", "60000", ""), large("b", "60000", ""))); res.Success || !strings.Contains(res.Error.Message, "more than 100000 bytes together") {
		t.Errorf("too much in memory: %+v", res.Error)
	}
	if res = s.run(nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3,4,5,6,7,8,9,10,11]`"+`","map_node":"i"`, `"node_id":"i",`+toolEcho)); res.Success || !strings.Contains(res.Error.Message, "11 items") {
		t.Errorf("too many items: %+v", res.Error)
	}
	if res = s.run(nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3]`"+`","map_node":"i"`, large("i", "60000", ""))); res.Success || !strings.Contains(res.Error.Message, "bytes together") {
		t.Errorf("too much of a map in memory: %+v", res.Error)
	}
}
