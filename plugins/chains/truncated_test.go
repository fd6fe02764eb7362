package chains

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

const toolPart = `"kind":"tool","name":"part","input":{"x":"begin"}`

// TestTruncatedResults guards against a chain that passes a part of a file on as if it were the whole file, and
// succeeds.
func TestTruncatedResults(t *testing.T) {
	const accept = `,"accept_truncated":true`
	read := `"node_id":"b",` + toolEcho + `,"input_map":{"x":"a.x"}`
	item := `"node_id":"m","kind":"map","items_path":"` + "`[1, 2]`" + `","map_node":"a"`
	s := newStage(t, Options{}, workspace(t, map[string]string{
		"chains/partly.yaml":   "nodes:\n- {node_id: a, kind: tool, name: part}\n",
		"chains/accepted.yaml": "nodes:\n- {node_id: a, kind: tool, name: part, accept_truncated: true}\n",
	}))
	for _, tc := range []struct {
		name, fields string
		outputs      string // "" = the chain fails because a result was cut
		truncated    string
	}{
		{"a tool", nodes(`"node_id":"a",`+toolPart, read), "", ""},
		{
			"a tool, accepted", nodes(`"node_id":"a",`+toolPart+accept, read), `{"a":{"x":"begin"},"b":{"x":"begin"}}`,
			"a",
		},
		{"false is not accepted", nodes(`"node_id":"a",` + toolPart + `,"accept_truncated":false`), "", ""},
		{"a whole result", nodes(`"node_id":"a",` + toolEcho + accept), `{"a":{}}`, ""},
		{"a skill", nodes(`"node_id":"a","kind":"skill","name":"part"`), "", ""},
		{
			"a skill, accepted", nodes(`"node_id":"a","kind":"skill","name":"part"` + accept), `{"a":{"hex":"70617274"}}`,
			"a",
		},
		{"a program", nodes(`"node_id":"a","kind":"proc","name":"yes"`), "", ""},
		{
			"a program, accepted", nodes(`"node_id":"a","kind":"proc","name":"yes"` + accept),
			`{"a":{"status":"completed","exit_code":0,"stdout":"y\ny\n","stderr":"","truncated":true}}`, "a",
		},
		{"an item", nodes(item, `"node_id":"a",`+toolPart), "", ""},
		{
			"items, accepted", nodes(item, `"node_id":"a",`+toolPart+accept), `{"m":[{"x":"begin"},{"x":"begin"}]}`,
			"a[0] a[1]",
		},
		{"a saved chain", nodes(`"node_id":"c","kind":"chain","name":"partly"`), "", ""},
		{"a saved chain, accepted", nodes(`"node_id":"c","kind":"chain","name":"accepted"`), `{"c":{}}`, "c/a"},
		{
			"an attempt, accepted", nodes(`"node_id":"a",` + toolPart + accept + `,"retry":{"max_attempts":2}`),
			`{"a":{"x":"begin"}}`, "a",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			id := s.Go(protocol.TypeChainReq, tc.fields)
			m := s.Answer(id)
			res := s.read(m)
			slices.Sort(res.Truncated)
			assert.Equal(t, strings.Join(res.Truncated, " "), tc.truncated)
			if tc.outputs == "" {
				e := res.Error
				must.That(t, !res.Success && e != nil, "the chain did well: %s", m.Line)
				assert.That(t, strings.Contains(e.Message, "was cut") && strings.Contains(e.Message,
					"accept_truncated") &&
					string(e.Detail) == `{"truncated":true}` && e.Cause == "chain_node_error", "error %+v", e)
				return
			}
			assert.That(t, res.Success && res.text(t) == tc.outputs, "outputs %s", res.text(t))
			marked := 0
			for _, e := range s.Messages() {
				if e.Type == protocol.TypeChainEvent && e.ReqID == id && e.Get("/phase") == "done" &&
					e.Get("/data/truncated") == "true" {
					marked++
				}
			}
			assert.Equal(t, marked, len(res.Truncated), "events with truncated")
		})
	}
	problem := s.Call(protocol.TypeChainReq, nodes(`"node_id":"a","kind":"branch","condition":"input.x"`+accept)).Problem()
	assert.Equal(t, problem, "/nodes/0/accept_truncated")
}

// TestTruncatedResultsAreKept: a cut result is not cached, and a journal keeps the fact that it was cut.
func TestTruncatedResultsAreKept(t *testing.T) {
	s := startStage(t, Options{}, memoryStore(t))
	defer s.Close()
	cached := nodes(`"node_id":"a",` + toolPart + `,"accept_truncated":true,"cache":{"ttl":100}`)
	for range 2 {
		res := s.run(cached)
		assert.That(t, len(res.Cached) == 0 && len(res.Truncated) == 1, "cached %q, truncated %q", res.Cached,
			res.Truncated)
	}
	list := nodes(`"node_id":"a",`+toolPart+`,"accept_truncated":true`, flaky("b", 1, "tool_error", `,"deps":["a"]`))
	for _, resume := range []bool{false, true} {
		res := s.run(fmt.Sprintf(`{"chain_id":"cut","journal":true,"resume":%t,%s`, resume, list[1:]))
		assert.That(t, res.Success == resume && len(res.Truncated) == 1 && res.Truncated[0] == "a",
			"resume %t: success %t, truncated %q, %+v", resume, res.Success, res.Truncated, res.Error)
	}
}
