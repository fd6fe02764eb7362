package chains

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestMaps(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	item := `"node_id":"i",` + toolEcho
	for _, tc := range []struct {
		name, fields, outputs string
		ran                   int
	}{
		{
			"order kept", `{"initial_input":{"xs":[3,1,2]},` +
				nodes(`"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i"`,
					item+`,"input":{"s":"t"},"input_map":{"x":"item","n":"index"}`,
					`"node_id":"after",`+toolEcho+`,"input_map":{"xs":"m[].x","first":"m.output[0].n"}`)[1:],
			`{"after":{"xs":[3,1,2],"first":0},"m":[{"s":"t","x":3,"n":0},{"s":"t","x":1,"n":1},{"s":"t","x":2,"n":2}]}`, 3,
		},
		{
			"as the cookbook has it", `{"initial_input":{"files":[{"path":"a"},{"path":"b"}]},` +
				nodes(`"node_id":"m","kind":"map","items_path":"input.files","map_node":"i"`,
					item+`,"input_map":{"p":"_item.path","i":"_index"}`)[1:],
			`{"m":[{"p":"a","i":0},{"p":"b","i":1}]}`, 2,
		},
		{
			"item as it is", `{"initial_input":{"xs":["a",{"b":12345678901234567890}]},` +
				nodes(`"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i"`, item)[1:],
			`{"m":[{"item":"a"},{"item":{"b":12345678901234567890}}]}`, 2,
		},
		{"empty", `{"initial_input":{"xs":[]},` + nodes(`"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i"`, item)[1:], `{"m":[]}`, 1},
		{
			"its node reads others", nodes(`"node_id":"a",`+toolEcho+`,"input":{"k":7}`,
				`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"i"`,
				item+`,"input_map":{"k":"a.k","x":"item"}`),
			`{"a":{"k":7},"m":[{"k":7,"x":1}]}`, 3,
		},
		{
			"condition of its node", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3]`"+`","map_node":"i"`,
				item+`,"condition":"item != `+"`2`"+`","input_map":{"x":"item"}`),
			`{"m":[{"x":1},null,{"x":3}]}`, 2,
		},
		{
			"one node, two maps", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"i"`,
				`"node_id":"n","kind":"map","items_path":"`+"`[2]`"+`","map_node":"i"`, item+`,"input_map":{"x":"item"}`),
			`{"m":[{"x":1}],"n":[{"x":2}]}`, 3,
		},
		{
			"map in a map", nodes(`"node_id":"m","kind":"map","items_path":"`+"`[[1,2],[3]]`"+`","map_node":"n"`,
				`"node_id":"n","kind":"map","items_path":"item","map_node":"i"`, item+`,"input_map":{"x":"item"}`),
			`{"m":[[{"x":1},{"x":2}],[{"x":3}]]}`, 3,
		},
		{"not taken", nodes(`"node_id":"b","kind":"branch","condition":"input.x","true_node":"m"`,
			`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"i"`, item), `{"b":false}`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			if got := res.text(t); got != tc.outputs || !res.Success || res.NodesRun != tc.ran {
				t.Errorf("success %t, %d nodes, %+v, outputs\n%s\nshould be %d nodes,\n%s", res.Success, res.NodesRun,
					res.Error, got, tc.ran, tc.outputs)
			}
		})
	}
}

func TestItemsThatFail(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	request := func(mapSays, itemSays string) string {
		return nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2,3]`"+`","map_node":"i"`+mapSays,
			`"node_id":"i",`+toolEcho+itemSays+`,"input_map":{"x":"item == `+"`2`"+` && abs('x') || item"}`,
			`"node_id":"after",`+toolEcho+`,"input_map":{"m":"m"}`)
	}
	for _, tc := range []struct{ name, fields, outputs, failed string }{
		{"abort", request("", ""), `{}`, "m"},
		{
			"the item says skip", request("", `,"on_error":"skip"`),
			`{"after":{"m":[{"x":1},null,{"x":3}]},"m":[{"x":1},null,{"x":3}]}`, "i 1",
		},
		{
			"the map says skip", request(`,"on_error":"skip"`, `,"on_error":"abort"`),
			`{"after":{"m":[{"x":1},null,{"x":3}]},"m":[{"x":1},null,{"x":3}]}`, "i 1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			res := s.run(tc.fields)
			must.That(t, !res.Success && len(res.Error.Failed) == 1, "%+v %+v", res, res.Error)
			failed := res.Error.Failed[0].NodeID
			if item := res.Error.Failed[0].Item; item != nil {
				failed += fmt.Sprint(" ", *item)
			}
			got := res.text(t)
			assert.That(t, got == tc.outputs && failed == tc.failed, "%s failed, outputs %s; should be %s, %s", failed,
				got, tc.failed, tc.outputs)
		})
	}
}

func TestParallel(t *testing.T) {
	gates := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(`"node_id":"g%d","kind":"tool","name":"gate"`, i))
		}
		return all
	}
	list := "`[1,2,3,4,5,6,7,8,9,10]`"
	for _, tc := range []struct {
		name, fields string
		most         int
	}{
		{"independent nodes", nodes(gates(10)...), 4},
		{"items", nodes(`"node_id":"m","kind":"map","items_path":"`+list+`","map_node":"g0"`, gates(1)[0]), 4},
		{"items of a map with a bound", nodes(`"node_id":"m","kind":"map","max_parallel":2,"items_path":"`+list+`","map_node":"g0"`, gates(1)[0]), 2},
		{"items of a map that goes one by one", nodes(`"node_id":"m","kind":"map","max_parallel":1,"items_path":"`+list+`","map_node":"g0"`, gates(1)[0]), 1},
		{"two maps and a node", nodes(`"node_id":"m","kind":"map","items_path":"`+list+`","map_node":"g0"`,
			`"node_id":"n","kind":"map","items_path":"`+list+`","map_node":"g0"`, gates(2)[0], gates(2)[1]), 4},
		{"maps in maps", nodes(`"node_id":"m","kind":"map","items_path":"[`+list+`,`+list+`]","map_node":"n"`,
			`"node_id":"n","kind":"map","items_path":"item","map_node":"g0"`, gates(1)[0]), 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, Options{MaxParallel: 4}, t.TempDir())
			id := s.Go(protocol.TypeChainReq, tc.fields)
			for range tc.most {
				<-s.shed.begun // this many run before any of them has ended
			}
			for range tc.most { // one call ends at a time, so that one call too many would have time to begin
				for range 20_000 {
					runtime.Gosched()
				}
				s.shed.gate <- struct{}{}
			}
			close(s.shed.gate)
			res := s.read(s.Answer(id))
			must.That(t, res.Success, "%+v", res.Error)
			assert.Equal(t, s.shed.most, tc.most, "… ran at once")
		})
	}
}

// TestHelpComesLater: a goroutine that becomes free helps a map that asked for help earlier. Here it runs the second
// item while the first item waits.
func TestHelpComesLater(t *testing.T) {
	s := newStage(t, Options{MaxParallel: 2}, t.TempDir())
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"m","kind":"map","items_path":"`+"`[1,2]`"+`","map_node":"g"`,
		`"node_id":"g","kind":"tool","name":"gate"`, `"node_id":"e",`+toolEcho))
	for range 3 { // both items, and the node e
		select {
		case <-s.shed.begun:
		case <-time.After(hosttest.Patience):
			t.Fatal("nobody takes the second item")
		}
	}
	close(s.shed.gate)
	res := s.read(s.Answer(id))
	assert.That(t, res.Success, "%+v", res.Error)
}

func TestEvents(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	fields := nodes(`"node_id":"a",`+toolEcho+`,"input":{"x":1},"next_node":"b"`,
		`"node_id":"b","kind":"branch","condition":"a.x","true_node":"m","false_node":"c"`,
		`"node_id":"m","kind":"map","items_path":"`+"`[1,2]`"+`","max_parallel":1,"map_node":"i","on_error":"skip"`,
		`"node_id":"i",`+toolEcho+`,"input_map":{"x":"item == `+"`2`"+` && abs('x') || item"}`,
		`"node_id":"c",`+toolEcho+`,"next_node":"d"`, `"node_id":"d",`+toolEcho)
	id := s.Go(protocol.TypeChainReq, fields)
	s.Answer(id)
	want := []string{
		"a start", "a done", "b start", "b done", "c skip", "d skip", "m start", "i start 0", "i done 0",
		"i error 1", "m done",
	}
	got := s.events(id)
	// A skip may come before or after the start of the node that runs instead.
	at := func(line string) int { return slices.Index(got, line) }
	if sorted(got) != sorted(slices.Insert(slices.Clone(want), 9, "i start 1")) {
		t.Errorf("events\n%s\nshould be\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, pair := range [][2]string{
		{"a start", "a done"},
		{"a done", "b start"},
		{"b done", "c skip"},
		{"b done", "m start"},
		{"m start", "i start 0"},
		{"i done 0", "m done"},
		{"i error 1", "m done"},
	} {
		if at(pair[0]) < 0 || at(pair[0]) > at(pair[1]) {
			t.Errorf("%s does not come before %s in %q", pair[0], pair[1], got)
		}
	}
	id = s.Go(protocol.TypeChainReq, `{"streaming":false,`+fields[1:])
	s.Answer(id)
	if got := s.events(id); got != nil {
		t.Errorf("without a stream: %q", got)
	}
}

func sorted(all []string) string {
	all = slices.Clone(all)
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func TestEventsAreBounded(t *testing.T) {
	s := stageOn(t, Options{}, host.Env{Workspace: ".", MaxOutputBytes: 1000}, hosttest.New)
	id := s.Go(protocol.TypeChainReq, nodes(`"node_id":"a","kind":"tool","name":"large","input":{"n":998}`,
		`"node_id":"b","kind":"tool","name":"large","input":{"n":999}`))
	s.Answer(id)
	got := map[string]string{}
	for _, m := range s.Messages() {
		if m.Get("/phase") == "done" {
			got[m.Get("/node_id")] = m.Get("/output/bytes")
		}
	}
	assert.That(t, len(got) == 2 && got["a"] == "" && got["b"] == "1001", "in place of the outputs: %v", got)
}

// TestRecords: feedback can tell the calls of the nodes apart by their correlation ids, and the chain is recorded once.
func TestRecords(t *testing.T) {
	s := newStage(t, Options{}, t.TempDir())
	correlation := `"kind":"tool","name":"correlation"`
	res := s.run(`{"chain_id":"nightly","correlation_id":"k",` + nodes(`"node_id":"a",`+correlation,
		`"node_id":"m","kind":"map","items_path":"`+"`[1]`"+`","map_node":"i"`, `"node_id":"i",`+correlation)[1:])
	assert.Equal(t, res.text(t), `{"a":"k/a","m":["k/i/0"]}`, "correlations")
	s.run(`{"chain_id":"0123abcd",` + nodes(`"node_id":"a",` + toolFail)[1:])
	s.Call(protocol.TypeChainReq, `{}`)
	var got []string
	for _, r := range s.shed.records {
		got = append(got, fmt.Sprint(r.Kind, " ", r.Component, " ", r.Correlation, " ", r.Success))
	}
	assert.That(t, len(got) == 2 && got[0] == "chain nightly k true" && strings.HasPrefix(got[1], "chain chain-") &&
		strings.HasSuffix(got[1], " 0123abcd false"), "records %q", got)
}
