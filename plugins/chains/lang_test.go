package chains

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// flaky returns a node with a tool that fails the given number of times with a code; more has further fields of the
// node.
func flaky(id string, fails int, code, more string) string {
	return fmt.Sprintf(`"node_id":%q,"kind":"tool","name":"flaky","input":{"fail":%d,"code":%q,"id":%q}`, id, fails,
		code, id) + more
}

func TestRetry(t *testing.T) {
	for _, tc := range []struct{ name, fields, outputs, message, events string }{
		{
			"until it works", nodes(flaky("a", 2, "overloaded", `,"retry":{"max_attempts":3,"backoff":0}`)),
			`{"a":{"call":3}}`, "", "a start, a retry, a retry, a done",
		},
		{
			"not often enough", nodes(flaky("a", 3, "overloaded", `,"retry":{"max_attempts":2,"backoff":0}`)), `{}`,
			`node "a": call 2 (after 2 attempts)`, "a start, a retry, a error",
		},
		{
			"a failure that is not retryable on the wire",
			nodes(flaky("a", 1, "tool_error", `,"retry":{"max_attempts":3,"backoff":0}`)), `{"a":{"call":2}}`, "",
			"a start, a retry, a done",
		},
		{
			"a denial", nodes(flaky("a", 1, "tool_denied", `,"retry":{"max_attempts":3,"backoff":0}`)), `{}`,
			`node "a": call 1`, "a start, a error",
		},
		{
			"a schema violation", nodes(flaky("a", 1, "schema_violation", `,"retry":{"max_attempts":3,"backoff":0}`)),
			`{}`, `node "a": call 1`, "a start, a error",
		},
		{
			"a cancel", nodes(flaky("a", 1, "cancelled", `,"retry":{"max_attempts":3,"backoff":0}`)), `{}`,
			`node "a": call 1`, "a start, a error",
		},
		{
			"a denial that is listed", nodes(flaky("a", 1, "tool_denied",
				`,"retry":{"max_attempts":3,"backoff":0,"on":["tool_denied"]}`)), `{"a":{"call":2}}`, "",
			"a start, a retry, a done",
		},
		{"a result that was cut", nodes(`"node_id":"a","kind":"tool","name":"part","retry":{"max_attempts":3,"backoff":0}`), `{}`, `was cut`, "a start, a error"},
		{
			"codes of its own", nodes(flaky("a", 1, "tool_error",
				`,"retry":{"max_attempts":3,"backoff":0,"on":["tool_error"]}`)), `{"a":{"call":2}}`, "",
			"a start, a retry, a done",
		},
		{
			"other codes", nodes(flaky("a", 1, "overloaded", `,"retry":{"max_attempts":3,"backoff":0,"on":["timeout"]}`)),
			`{}`, `node "a": call 1`, "a start, a error",
		},
		{
			"its timeout is of one attempt", nodes(`"node_id":"a",` + toolBlock +
				`,"timeout":0.02,"retry":{"max_attempts":2,"backoff":0}`), `{}`, `gives it more (after 2 attempts)`,
			"a start, a retry, a error",
		},
		{
			"an item", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"a"`,
				flaky("a", 1, "overloaded", `,"retry":{"max_attempts":2,"backoff":0}`)),
			`{"m":[{"call":2}]}`, "", "m start, a start 0, a retry 0, a done 0, m done",
		},
		{
			"a map", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"a","retry":{"max_attempts":2,"backoff":0}`, flaky("a", 1, "overloaded", ``)),
			`{"m":[{"call":2}]}`, "", "m start, a start 0, a error 0, m retry, a start 0, a done 0, m done",
		},
		{
			"a saved chain", nodes(`"node_id":"c","kind":"chain","name":"flaky","retry":{"max_attempts":2,"backoff":0}`),
			`{"c":{"call":2}}`, "",
			"c start, c/a start, c/a error, c retry, c~2/a start, c~2/a done, c done",
		},
		{
			"no time for the pause", `{"timeout":30,` +
				nodes(flaky("a", 1, "overloaded", `,"retry":{"max_attempts":2,"backoff":3600}`))[1:], `{}`,
			"not tried again, as the time that is left ends", "a start, a error",
		},
		{
			"the error asks for more", `{"timeout":30,` +
				nodes(`"node_id":"a","kind":"tool","name":"flaky","input":{"fail":1,"code":"overloaded","after":1000},"retry":{"max_attempts":2,"backoff":0}`)[1:], `{}`,
			"before the pause of 16m40s", "a start, a error",
		},
		{
			"handled after the last one", nodes(flaky("a", 9, "overloaded",
				`,"retry":{"max_attempts":2,"backoff":0},"catch":"f"`),
				`"node_id":"f",`+toolEcho+`,"input_map":{"e":"error.code"}`),
			`{"a":null,"f":{"e":"overloaded"}}`, "", "a start, a retry, a error, f start, f done",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, Options{}, workspace(t, map[string]string{"chains/flaky.yaml": "nodes:\n- {node_id: a, " +
				"kind: tool, name: flaky, input: {fail: 1, code: overloaded}}\n"}))
			id := s.Go(protocol.TypeChainReq, tc.fields)
			s.ends(id, tc.outputs, tc.message, tc.events)
		})
	}
}

// ends checks the answer of a chain, and its events unless events is "". message is part of the error; "" = success.
func (s *stage) ends(id, outputs, message, events string) {
	s.t.Helper()
	res := s.read(s.Answer(id))
	got := ""
	if res.Error != nil {
		got = res.Error.Message
	}
	if res.text(s.t) != outputs || res.Success != (message == "") || !strings.Contains(got, message) {
		s.t.Errorf("success %t, outputs %s, error %q; should be %s, %q", res.Success, res.text(s.t), got, outputs,
			message)
	}
	all := strings.Join(s.events(id), ", ")
	assert.That(s.t, events == "" || all == events, "events %s; should be %s", all, events)
}

// TestEventsOfRetryAndWait: the events tell which attempt comes next, and until when a wait lasts.
func TestEventsOfRetryAndWait(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(flaky("a", 1, "overloaded", `,"retry":{"max_attempts":4,"backoff":0.01}`),
		`"node_id":"w","kind":"wait","until":1.5`))
	s.Answer(id)
	told := map[string]string{}
	for _, m := range s.Messages() {
		told[m.Get("/phase")] = m.Get("/data/attempt") + " " + m.Get("/data/max_attempts") + " " + m.Get("/error") +
			m.Get("/data/until")
	}
	assert.Equal(t, told["retry"], "1 4 call 1")
	assert.Equal(t, told["wait"], "  1.5")
}

func TestCatch(t *testing.T) {
	handler := `"node_id":"f",` + toolEcho + `,"input_map":{"e":"error"}`
	s := newStage(t, Options{}, workspace(t, map[string]string{
		"chains/caught.yaml": "nodes:\n- {node_id: a, kind: tool, name: fail, catch: b}\n- {node_id: b, kind: tool, " +
			"name: echo}\n",
	}))
	for _, tc := range []struct{ name, fields, outputs, message, events string }{
		{
			"what happened", nodes(`"node_id":"a",`+toolFail+`,"catch":"f"`, handler),
			`{"a":null,"f":{"e":{"code":"tool_error","message":"tool \"fail\" failed: it is broken","node_id":"a"}}}`,
			"", "",
		},
		{
			"the codes that it takes", nodes(flaky("a", 1, "timeout", `,"catch":{"node":"f","on":["timeout"]}`), handler),
			`{"a":null,"f":{"e":{"code":"timeout","message":"call 1","node_id":"a"}}}`, "", "",
		},
		{
			"other codes", nodes(flaky("b", 1, "overloaded", `,"catch":{"node":"f","on":["timeout"]}`), handler), `{}`,
			`node "b": call 1`, "b start, b error",
		},
		{
			"other codes are skipped", nodes(flaky("c", 1, "overloaded",
				`,"catch":{"node":"f","on":["timeout"]},"on_error":"skip"`), handler), `{"c":null}`, `the chain went on`,
			"c start, c error, f skip",
		},
		{
			"a handler that fails", nodes(`"node_id":"a",`+toolFail+`,"catch":"f"`, `"node_id":"f",`+toolFail),
			`{"a":null}`, `node "f"`, "",
		},
		{
			"a handler whose failure is handled", nodes(`"node_id":"a",`+toolFail+`,"catch":"f"`,
				`"node_id":"f",`+toolFail+`,"catch":"g"`, `"node_id":"g",`+toolEcho+`,"input_map":{"of":"error.node_id"}`),
			`{"a":null,"f":null,"g":{"of":"f"}}`, "", "",
		},
		{"a branch by the code", nodes(`"node_id":"a",`+toolFail+`,"catch":"b"`,
			`"node_id":"b","kind":"branch","condition":"error.code == 'tool_error'","true_node":"y","false_node":"n"`,
			`"node_id":"y",`+toolEcho, `"node_id":"n",`+toolEcho), `{"a":null,"b":true,"y":{}}`, "", ""},
		{
			"the first of two", nodes(`"node_id":"z",`+toolFail+`,"catch":"f"`, `"node_id":"a",`+toolFail+`,"catch":"f"`,
				`"node_id":"f",`+toolEcho+`,"input_map":{"of":"error.node_id"}`), `{"a":null,"f":{"of":"z"},"z":null}`, "",
			"",
		},
		{
			"led to without a failure", nodes(`"node_id":"a",`+toolEcho+`,"catch":"f","next_node":"f"`, handler),
			`{"a":{},"f":{"e":null}}`, "", "",
		},
		{
			"a map", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"i","catch":"f"`,
				`"node_id":"i",`+toolFail, `"node_id":"f",`+toolEcho+`,"input_map":{"of":"error.node_id"}`),
			`{"f":{"of":"m"},"m":null}`, "", "",
		},
		{"in a saved chain", nodes(`"node_id":"c","kind":"chain","name":"caught"`), `{"c":{}}`, "", ""},
		{
			"the whole", nodes(`"node_id":"a",`+toolFail+`,"catch":"f"`,
				`"node_id":"f",`+toolEcho+`,"input_map":{"e":"@.error.code"}`), `{"a":null,"f":{"e":"tool_error"}}`, "",
			"",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			s.ends(s.Go(protocol.TypeChainReq, tc.fields), tc.outputs, tc.message, tc.events)
		})
	}
	res := s.run(nodes(`"node_id":"c","kind":"chain","name":"caught"`))
	assert.That(t, len(res.Handled) == 1 && res.Handled[0].NodeID == "c/a" && res.Handled[0].By == "c/b" &&
		res.Handled[0].Code == "tool_error", "%+v", res.Handled)
}

func TestWait(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	for _, tc := range []struct{ name, fields, outputs, message string }{
		{"past", nodes(`"node_id":"w","kind":"wait","until":1.25`), `{"w":{"until":1.25}}`, ""},
		{"past, as a text", nodes(`"node_id":"w","kind":"wait","until":"2001-09-09T03:46:40+02:00","next_node":"a"`,
			`"node_id":"a",`+toolEcho), `{"a":{},"w":{"until":1000000000}}`, ""},
		{"by an expression", `{"initial_input":{"at":"2001-09-09T01:46:40Z"},` +
			nodes(`"node_id":"w","kind":"wait","until":"input.at"`)[1:], `{"w":{"until":1000000000}}`, ""},
		{
			"by an expression that gives none", `{"initial_input":{"at":"noon"},` +
				nodes(`"node_id":"w","kind":"wait","until":"input.at"`)[1:], `{}`,
			`until gives "noon"; it should be unix seconds`,
		},
		{
			"seconds by one that gives none", nodes(`"node_id":"w","kind":"wait","seconds":"input.at"`), `{}`,
			`seconds gives null; it should be a number`,
		},
		{
			"longer than the chain", `{"timeout":20,` + nodes(`"node_id":"w","kind":"wait","seconds":3600`)[1:], `{}`,
			"its time is up at",
		},
		{
			"longer than its own timeout", nodes(`"node_id":"w","kind":"wait","seconds":100,"timeout":50`), `{}`,
			"its time is up at",
		},
		{"items", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1, 2]`"+`","map_node":"w"`,
			`"node_id":"w","kind":"wait","until":"item"`), `{"m":[{"until":1},{"until":2}]}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			s.ends(s.Go(protocol.TypeChainReq, tc.fields), tc.outputs, tc.message, "")
		})
	}
	begun := time.Now()
	s.run(nodes(`"node_id":"w","kind":"wait","seconds":0.05`))
	assert.That(t, time.Since(begun) >= 50*time.Millisecond, "it ended after %s", time.Since(begun))
}

// TestCancelEndsWaits: cancelling a chain ends its waits and its pauses between attempts at once.
func TestCancelEndsWaits(t *testing.T) {
	for name, node := range map[string]string{
		"wait": `"node_id":"w","kind":"wait","seconds":100`, "pause": flaky("w", 9, "overloaded",
			`,"retry":{"max_attempts":9,"backoff":100}`),
		"wait in a loop": `"node_id":"l","kind":"while","condition":"` + "`true`" +
			`","max_iterations":9,"nodes":[{"node_id":"w","kind":"wait","seconds":100}]`,
	} {
		s := newStage(t, Options{}, t.TempDir())
		id := s.Go(protocol.TypeChainReq, nodes(node))
		hosttest.Eventually(t, name+" has begun", func() bool {
			return strings.Contains(strings.Join(s.events(id), ","), "w wait") ||
				strings.Contains(strings.Join(s.events(id), ","), "w retry")
		})
		s.Send(`{"type":"cancel","req_id":"` + id + `"}`)
		s.Answer(id).Has(t, "/code", string(protocol.CodeCancelled))
		s.Close()
	}
}

func TestWhile(t *testing.T) {
	s := newStage(t, Options{}, workspace(t, map[string]string{
		"chains/step.yaml": "nodes:\n- {node_id: a, kind: tool, name: echo, input_map: {n: input.index, was: " +
			"input.last.n}}\n",
		"chains/nap.yaml": "timeout: 1\nnodes:\n- {node_id: a, kind: tool, name: block}\n",
		"chains/catch.yaml": "nodes:\n- {node_id: a, kind: tool, name: fail, catch: b}\n- {node_id: b, kind: tool, " +
			"name: echo}\n",
	}))
	loop := func(condition string, most int, more string) string {
		return fmt.Sprintf(`"node_id":"l","kind":"while","condition":%q,"max_iterations":%d`, condition, most) + more
	}
	body := `,"nodes":[{"node_id":"a","kind":"tool","name":"echo","input_map":{"n":"input.n"}}]`
	for _, tc := range []struct{ name, fields, outputs, message, events string }{
		{
			"saved chain", nodes(loop("index < `3`", 5, `,"name":"step"`)), `{"l":{"n":2,"was":1}}`, "",
			"l start, l iteration, l[0]/a start, l[0]/a done, l iteration, l[1]/a start, l[1]/a done, l iteration, " +
				"l[2]/a start, l[2]/a done, l done",
		},
		{"its own nodes", nodes(loop("!last || last.n < `4`", 9,
			body+`,"input_map":{"n":"(last.n || `+"`1`"+`) * `+"`2`"+`"}`),
			`"node_id":"z",`+toolEcho+`,"input_map":{"x":"l.n"}`), `{"l":{"n":4},"z":{"x":4}}`, "", ""},
		{
			"not once", nodes(loop("index > `3`", 5, body), `"node_id":"z",`+toolEcho+`,"input_map":{"x":"l"}`),
			`{"l":null,"z":{"x":null}}`, "", "l start, l done, z start, z done",
		},
		{"exactly as often as it may", nodes(loop("index < `2`", 2, body)), `{"l":{"n":null}}`, "", ""},
		{
			"too often", nodes(loop("`true`", 2, body)), `{}`,
			`node "l": its condition still holds after 2 iterations, which is its max_iterations`, "",
		},
		{
			"too often, and handled", nodes(loop("`true`", 2, body+`,"catch":"f"`), `"node_id":"f",`+toolEcho),
			`{"f":{},"l":null}`, "", "",
		},
		{
			"a node of it fails", nodes(loop("index < `2`", 2,
				`,"nodes":[{"node_id":"a","kind":"tool","name":"maybe","input_map":{"fail":"input.index == `+"`1`"+`"}}]`)),
			`{}`, `node "l": iteration 1: node "a": as it was told`, "",
		},
		{"what it needs of others", nodes(`"node_id":"q",`+toolEcho+`,"input":{"k":3}`,
			loop("index < q.k", 5, body+`,"input_map":{"n":"q.k"}`)), `{"l":{"n":3},"q":{"k":3}}`, "", ""},
		{
			"in a map", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1, 2]`"+`","max_parallel":1,"map_node":"l"`,
				loop("index < item", 5, body+`,"input_map":{"n":"[item, index]"}`)), `{"m":[{"n":[1,0]},{"n":[2,1]}]}`, "",
			"m start, l start 0, l iteration 0, l[0][0]/a start, l[0][0]/a done, l done 0, l start 1, l iteration " +
				"1, l[1][0]/a start, l[1][0]/a done, l iteration 1, l[1][1]/a start, l[1][1]/a done, l done 1, m done",
		},
		{
			"in a loop", nodes(loop("index < `2`", 5,
				`,"nodes":[{"node_id":"k","kind":"while","condition":"index < input.index","max_iterations":3,"name":"step"}]`)), `{"l":{"n":0,"was":null}}`, "",
			"l start, l iteration, l[0]/k start, l[0]/k done, l iteration, l[1]/k start, l[1]/k iteration, " +
				"l[1]/k[0]/a start, l[1]/k[0]/a done, l[1]/k done, l done",
		},
		{
			"its node's timeout", nodes(loop("`true`", 2, `,"name":"nap","timeout":0.02`)), `{}`, `its timeout of 20ms`,
			"",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			s.ends(s.Go(protocol.TypeChainReq, tc.fields), tc.outputs, tc.message, tc.events)
		})
	}
	s.t = t
	res := s.run(nodes(loop("index < `200`", 300, `,"name":"catch"`)))
	assert.That(t, res.Success && len(res.Handled) == maxReported && res.Handled[1].NodeID == "l[1]/a", "%+v", res)
	deep := `{"node_id":"l","kind":"while","condition":"index","max_iterations":2,"nodes":[`
	m := s.Call(protocol.TypeChainReq, `{"nodes":[`+strings.Repeat(deep,
		10)+`{"node_id":"a",`+toolEcho+`}`+strings.Repeat("]}", 10)+`]}`)
	assert.That(t, m.Code == protocol.CodeSchemaViolation && strings.Contains(m.Get("/message"), "8 deep"), "%s",
		m.Line)
}

// TestLoopsGiveMemoryBack: the memory that the iterations of a loop hold is freed.
func TestLoopsGiveMemoryBack(t *testing.T) {
	s := newStage(t, Options{MaxStateBytes: 100_000}, t.TempDir())
	res := s.run(nodes(`"node_id":"l","kind":"while","condition":"index < ` + "`20`" + ` && (!last || length(last) > ` +
		"`5`" + `)","max_iterations":30,"nodes":[{"node_id":"a","kind":"tool","name":"large","input":{"n":15000}}],"input":{}`))
	assert.That(t, res.Success && len(res.Outputs["l"]) == 15002, "%+v %+v", res.Success, res.Error)
}

// cacheStage returns a stage whose host keeps its state in a file.
func cacheStage(t testing.TB, opts Options, work, path string) *stage {
	t.Helper()
	kept := stores.Open(t, path, Part())
	opened := func(context.Context) (store.Store, error) { return kept, nil }
	return stageOn(t, opts, host.Env{Workspace: work, Store: opened}, hosttest.New)
}

func TestCache(t *testing.T) {
	work, path := workspace(t, map[string]string{"chains/saved.yaml": "nodes:\n- {node_id: a, kind: tool, name: " +
		"flaky}\n"}), filepath.Join(t.TempDir(), store.FileName)
	s := cacheStage(t, Options{}, work, path)
	call := func(more string) string { return `"node_id":"a","kind":"tool","name":"flaky"` + more }
	for i, tc := range []struct{ fields, outputs, cached string }{
		{nodes(call(`,"input":{"x":1},"cache":{"ttl":100}`)), `{"a":{"call":1}}`, ""},
		{
			nodes(call(`,"input":{"x":1},"cache":{"ttl":100},"next_node":"b"`), `"node_id":"b",`+toolEcho),
			`{"a":{"call":1},"b":{}}`, "a",
		},
		{nodes(call(`,"input":{"x":2},"cache":{"ttl":100}`)), `{"a":{"call":1}}`, ""},
		{nodes(call(`,"input_map":{"k":"input.k"},"cache":{"key":"input.day","ttl":100}`)), "", "null"},
		{`{"initial_input":{"day":1,"k":1},` + nodes(call(`,"input_map":{"k":"input.k"},"cache":{"key":"input.day","ttl":100}`))[1:], `{"a":{"call":1}}`, ""},
		{`{"initial_input":{"day":1,"k":2},` + nodes(call(`,"input_map":{"k":"input.k"},"cache":{"key":"input.day","ttl":100}`))[1:], `{"a":{"call":1}}`, "a"},
		{`{"initial_input":{"day":2,"k":1},` + nodes(call(`,"input_map":{"k":"input.k"},"cache":{"key":"input.day","ttl":100}`))[1:], `{"a":{"call":2}}`, ""},
		{nodes(call(`,"input":{"y":1},"cache":{"key":"'v1'","ttl":0.000001}`)), `{"a":{"call":1}}`, ""},
		{nodes(call(`,"input":{"y":1},"cache":{"key":"'v1'","ttl":0.000001}`)), `{"a":{"call":2}}`, ""},
		{nodes(flaky("e", 1, "tool_error", `,"cache":{"ttl":100},"on_error":"skip"`)), `{"e":null}`, "error"},
		{nodes(flaky("e", 1, "tool_error", `,"cache":{"ttl":100},"on_error":"skip"`)), `{"e":{"call":2}}`, ""},
		{nodes(`"node_id":"m","kind":"map","items_path":"`+"`[5, 5]`"+`","max_parallel":1,"map_node":"a"`,
			call(`,"cache":{"ttl":100}`)), `{"m":[{"call":1},{"call":1}]}`, "a[1]"},
		{nodes(`"node_id":"c","kind":"chain","name":"saved","cache":{"ttl":100}`), `{"c":{"call":1}}`, ""},
		{nodes(`"node_id":"c","kind":"chain","name":"saved","cache":{"ttl":100}`), `{"c":{"call":1}}`, "c"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s.t = t
			id := s.Go(protocol.TypeChainReq, tc.fields)
			res := s.read(s.Answer(id))
			if tc.cached == "null" {
				assert.That(t, !res.Success && strings.Contains(res.Error.Message, "cache/key gives null"), "%+v",
					res.Error)
				return
			}
			told := strings.Contains(strings.Join(s.events(id), ","), " cached")
			if want := strings.Join(res.Cached, " "); res.text(t) != tc.outputs || tc.cached != "error" &&
				(!res.Success || want != tc.cached || told != (tc.cached != "")) {
				t.Errorf("outputs %s, cached %q, events %q, error %+v; should be %s, %q", res.text(t), res.Cached,
					s.events(id), res.Error, tc.outputs, tc.cached)
			}
		})
	}
	s.t = t
	other := cacheStage(t, Options{}, work, path) // another host on the same store
	res := other.run(nodes(call(`,"input":{"x":1},"cache":{"ttl":100}`)))
	assert.That(t, strings.Join(res.Cached, " ") == "a" && len(other.shed.done()) == 0, "%+v", res)
	other = cacheStage(t, Options{}, t.TempDir(), path) // a host of another workspace
	res = other.run(nodes(call(`,"input":{"x":1},"cache":{"ttl":100}`)))
	assert.That(t, len(res.Cached) == 0, "%+v", res)
}

// TestCacheBounds: the cache is bounded, and the oldest outputs are removed first.
func TestCacheBounds(t *testing.T) {
	s := cacheStage(t, Options{MaxCacheEntries: 3, MaxCacheBytes: 8000}, t.TempDir(),
		filepath.Join(t.TempDir(), store.FileName))
	get := func(n int) bool {
		res := s.run(nodes(fmt.Sprintf(`"node_id":"a","kind":"tool","name":"large","input":{"n":%d},"cache":{"ttl":100}`, n)))
		return len(res.Cached) == 1
	}
	for n := range 4 {
		assert.That(t, !get(n), "%d was there", n)
	}
	assert.That(t, get(1) && get(2) && get(3) && !get(0) && !get(1), "not the oldest went")
	for range 2 {
		assert.That(t, !get(2000), "one that is too large was kept")
	}
	for n := range 9 {
		get(900 + n)
	}
	assert.That(t, get(908), "the newest went")
}

// TestWaitIsResumed: a wait that was interrupted continues with its chain, and ends at its first end time.
func TestWaitIsResumed(t *testing.T) {
	work, path := t.TempDir(), filepath.Join(t.TempDir(), store.FileName)
	var until []string
	for range 2 {
		s := cacheStage(t, Options{}, work, path)
		id := s.Go(protocol.TypeChainReq, `{"chain_id":"nap","resume":true,`+nodes(`"node_id":"l","kind":"while","condition":"!last","max_iterations":2,"nodes":[{"node_id":"w","kind":"wait","seconds":200}]`)[1:])
		hosttest.Eventually(t, "the wait has begun", func() bool {
			return strings.Contains(strings.Join(s.events(id), ","), "w wait")
		})
		for _, m := range s.Messages() {
			if m.Get("/phase") == "wait" {
				until = append(until, m.Get("/data/until"))
			}
		}
		s.Send(`{"type":"cancel","req_id":"` + id + `"}`)
		s.Answer(id)
		s.Close()
	}
	assert.That(t, len(until) == 2 && until[1] <= until[0], "it waits until %v, later than before", until)
}
