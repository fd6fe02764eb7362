package chains

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/state/store"
	"a2e/protocol"
)

// drawn is a node of a random chain. It waits only for nodes with smaller indexes.
type drawn struct {
	branch       bool
	flag, fails  bool
	reads        []int // nodes that its expressions read
	deps         []int
	next, yes    int // -1 = none; yes and no are the two ways of a branch
	no, fallback int
	list         int // number of items of a map; -1 = not a map
	condition    int // the node whose flag decides whether this node runs, or which way a branch takes; -1 = none

	times, attempts int  // of a tool: number of its failures, and the most attempts
	loop, most      int  // of a loop: number of its iterations, and the most allowed; loop -1 = not a loop
	catch, other    bool // its fallback is a catch; the catch takes other codes only
	cached, handler bool // its output is cached; it is the fallback of other nodes
}

// breaks reports whether the node fails when it runs.
func (d *drawn) breaks() bool { return d.fails || d.attempts <= d.times || d.loop > d.most }

// jumps reports whether a failure of the node leads to another node.
func (d *drawn) jumps() bool { return d.fallback >= 0 && !d.other }

// drawChain draws a chain of nodes, with few or many edges.
func drawChain(t *rapid.T, most int) []drawn {
	n := rapid.IntRange(1, most).Draw(t, "nodes")
	all := make([]drawn, n)
	dense := rapid.IntRange(1, 4).Draw(t, "dense")
	for i := range all {
		before := func(most int) (list []int) {
			if i > 0 {
				list = rapid.SliceOfNDistinct(rapid.IntRange(max(0, i-30), i-1), 0, min(most, i, 30), rapid.ID).Draw(t,
					"before")
			}
			return list
		}
		after := func(share int) int {
			if i == n-1 || rapid.IntRange(0, 9).Draw(t, "leads") >= share {
				return -1
			}
			return rapid.IntRange(i+1, min(n-1, i+20)).Draw(t, "after")
		}
		d := drawn{
			flag: rapid.Bool().Draw(t, "flag"), next: after(3), yes: -1, no: -1, fallback: -1, list: -1,
			condition: -1, attempts: 1, loop: -1,
		}
		d.deps = before(dense - 1)
		if conditions := before(1); len(conditions) > 0 && rapid.IntRange(0, 4).Draw(t, "conditional") == 0 {
			d.condition = conditions[0]
		}
		d.cached = rapid.IntRange(0, 3).Draw(t, "cached") == 0
		switch rapid.IntRange(0, 6).Draw(t, "kind") {
		case 0:
			d.branch, d.yes, d.no = true, after(7), after(5)
		case 1:
			d.list = rapid.IntRange(0, 5).Draw(t, "items")
			d.reads = before(dense)
		case 2:
			d.loop, d.most, d.condition = rapid.IntRange(0, 4).Draw(t, "iterations"),
				rapid.IntRange(1, 5).Draw(t, "most"), -1
			d.reads = before(dense)
		default:
			d.reads = before(dense)
			d.fails = rapid.IntRange(0, 4).Draw(t, "fails") == 0
			d.times, d.attempts = rapid.IntRange(0, 2).Draw(t, "times"), rapid.IntRange(1, 3).Draw(t, "attempts")
		}
		if d.breaks() {
			d.fallback = after(5)
			d.catch = d.fallback >= 0 && rapid.Bool().Draw(t, "catch")
			d.other = d.catch && rapid.IntRange(0, 3).Draw(t, "other") == 0
		}
		all[i] = d
	}
	for _, d := range all {
		if d.fallback >= 0 {
			all[d.fallback].handler = true
		}
	}
	return all
}

func id(i int) string { return fmt.Sprint("n", i) }

func ids(list []int) []string {
	names := []string{}
	for _, i := range list {
		names = append(names, id(i))
	}
	return names
}

// fields returns the node as clients send it. A map comes with the node that it runs.
func (d *drawn) fields(i int) []map[string]any {
	n := map[string]any{"node_id": id(i), "deps": ids(d.deps)}
	lead := func(field string, to int) {
		if to >= 0 {
			n[field] = id(to)
		}
	}
	lead("next_node", d.next)
	if d.condition >= 0 {
		n["condition"] = id(d.condition) + ".b"
	}
	expressions := map[string]any{}
	for k, from := range d.reads {
		expressions[fmt.Sprint("p", k)] = id(from) + ".output.b"
	}
	switch {
	case d.branch:
		n["kind"] = "branch"
		if d.condition < 0 {
			n["condition"] = "`" + fmt.Sprint(d.flag) + "`"
		}
		lead("true_node", d.yes)
		lead("false_node", d.no)
		return []map[string]any{n}
	case d.list >= 0:
		n["kind"], n["items_path"], n["map_node"] = "map", "`"+strings.ReplaceAll(fmt.Sprint(make([]int, d.list)), " ",
			",")+"`", id(i)+"item"
		expressions["x"] = "index"
		return []map[string]any{n, {
			"node_id": id(i) + "item", "kind": "tool", "name": "maybe",
			"input_map": expressions,
		}}
	}
	if d.handler {
		expressions["e"] = "error.node_id"
	}
	if d.cached {
		n["cache"] = map[string]any{"ttl": 1000}
	}
	input := map[string]any{"b": d.flag, "fail": d.fails, "id": i, "times": d.times}
	n["kind"], n["name"], n["input"], n["input_map"] = "tool", "maybe", input, expressions
	if d.loop >= 0 {
		expressions["i"], expressions["l"] = "index", "last.i"
		passed := map[string]any{}
		for _, from := range []map[string]any{input, expressions} {
			for key := range from {
				passed[key] = "input." + key
			}
		}
		n["kind"], n["name"], n["condition"], n["max_iterations"] = "while", "", fmt.Sprintf("index < `%d`", d.loop),
			d.most
		n["nodes"] = []any{map[string]any{"node_id": "body", "kind": "tool", "name": "maybe", "input_map": passed}}
	} else if d.attempts > 1 {
		n["retry"] = map[string]any{"max_attempts": d.attempts, "backoff": 0, "on": []string{"tool_error"}}
	}
	if d.breaks() {
		n["on_error"] = "skip"
	}
	switch {
	case d.other:
		n["catch"] = map[string]any{"node": id(d.fallback), "on": []string{"timeout"}}
	case d.catch:
		n["catch"] = id(d.fallback)
	default:
		lead("on_error", d.fallback)
	}
	return []map[string]any{n}
}

// expected is the result of a node that the model expects.
type expected struct {
	phase  string // done, error or skip
	output any
	side   int // of a branch: the index of the node that it leads to
}

// model runs a chain node by node, in the order of their indexes. place is the position of each node in the request.
func model(all []drawn, place map[string]int) []expected {
	results := make([]expected, len(all))
	for i, d := range all {
		r := &results[i]
		if !d.starts(i, all, results) {
			r.phase = "skip"
			continue
		}
		flagOf := func(from int) any {
			if m, ok := results[from].output.(map[string]any); ok {
				return m["b"]
			}
			return nil
		}
		condition := d.flag
		if d.condition >= 0 {
			condition = flagOf(d.condition) == true
			if !condition && !d.branch {
				r.phase = "skip"
				continue
			}
		}
		r.phase = "done"
		args := map[string]any{}
		for k, from := range d.reads {
			args[fmt.Sprint("p", k)] = flagOf(from)
		}
		switch {
		case d.branch:
			r.output = condition
			if r.side = d.no; condition {
				r.side = d.yes
			}
			if r.side < 0 {
				r.side = d.next
			}
		case d.list >= 0:
			items := make([]any, d.list)
			for k := range items {
				one := maps.Clone(args)
				one["x"] = float64(k)
				items[k] = one
			}
			r.output = items
		case d.breaks():
			r.phase = "error"
		case d.loop == 0:
		default:
			args["b"], args["fail"], args["id"], args["times"] = d.flag, false, float64(i), float64(d.times)
			if d.handler {
				args["e"] = handles(i, all, results, place)
			}
			if d.loop > 0 {
				if args["i"], args["l"] = float64(d.loop-1), float64(d.loop-2); d.loop == 1 {
					args["l"] = nil
				}
			}
			r.output = args
		}
	}
	return results
}

// handles returns the node whose failure led to node i. Of several such nodes, it is the first one in the request.
func handles(i int, all []drawn, results []expected, place map[string]int) (first any) {
	for k, d := range all[:i] {
		if results[k].phase == "error" && d.jumps() && d.fallback == i && (first == nil ||
			place[id(k)] < place[first.(string)]) {
			first = id(k)
		}
	}
	return first
}

// succeeds reports whether all failures were handled.
func succeeds(all []drawn, results []expected) bool {
	for i, r := range results {
		if r.phase == "error" && !(all[i].jumps() && results[all[i].fallback].phase != "skip") {
			return false
		}
	}
	return true
}

// starts reports whether a node runs, judging by the results of the nodes before it.
func (d *drawn) starts(i int, all []drawn, results []expected) bool {
	ways, led := 0, false
	for k, from := range all[:i] {
		r := results[k]
		goesOn := r.phase == "done" || r.phase == "error" && !from.jumps()
		lead := func(to int, alive bool) {
			if to == i {
				ways++
				led = led || alive
			}
		}
		if from.branch {
			lead(from.yes, r.phase == "done" && r.output == true)
			lead(from.no, r.phase == "done" && r.output == false)
			lead(from.next, r.phase == "done" && (from.yes < 0 && r.output == true || from.no < 0 && r.output == false))
			continue
		}
		lead(from.next, goesOn)
		lead(from.fallback, r.phase == "error" && from.jumps())
	}
	if ways > 0 {
		return led
	}
	waits := d.waits()
	return len(waits) == 0 || slices.ContainsFunc(waits, func(k int) bool {
		return results[k].phase == "done" || results[k].phase == "error" && !all[k].jumps()
	})
}

// waits returns the nodes that d reads or depends on.
func (d *drawn) waits() []int {
	list := slices.Concat(d.reads, d.deps)
	if d.condition >= 0 {
		list = append(list, d.condition)
	}
	return list
}

// TestRandomChains checks random chains against the model. Whatever the order of the nodes in the request and the order
// of their ends, the result is the same as running them one by one. Each node runs at most once, and never before the
// nodes that it waits for have ended. A second run with cached outputs has the same result.
func TestRandomChains(t *testing.T) {
	outer, most := t, 30
	kept := memoryStore(t)
	property.Check(t, func(t *rapid.T) {
		all := drawChain(t, most)
		var list []map[string]any
		for i, d := range all {
			list = append(list, d.fields(i)...)
		}
		for _, parallel := range []int{1, 16} {
			must.OK(t, kept.Write(outer.Context(),
				func(tx *store.Tx) error { return Part().Clear(outer.Context(), tx) }))
			s := startStage(outer, Options{MaxParallel: parallel}, kept)
			defer s.Close()
			list = rapid.Permutation(list).Draw(t, "order")
			place := map[string]int{}
			for i, n := range list {
				place[n["node_id"].(string)] = i
			}
			fields := must.Get(json.Marshal(map[string]any{"nodes": list}, json.Deterministic(true)))(t)
			want := model(all, place)
			var before []string // ids of the cached nodes after the first run
			for range 2 {
				clear(s.shed.tries)
				before = s.randomRun(t, string(fields), all, want, before)
			}
			clear(s.shed.tries)
			s.journalRun(t, fmt.Sprint(parallel), string(fields))
		}
	})
}

// journalRun runs a chain with a journal. If the chain came to its end, a second run has the same answer and calls no
// tool.
func (s *stage) journalRun(t *rapid.T, id, fields string) {
	first := s.Call(protocol.TypeChainReq, fmt.Sprintf(`{"chain_id":%q,"journal":true,%s`, id, fields[1:]))
	if m := first.Get("/error/message"); m != "" && !strings.HasSuffix(m, "; the chain went on") {
		_ = s.Call(protocol.TypeChainReq, fmt.Sprintf(`{"chain_id":%q,"resume":true}`,
			id)) // ends the journal, so that the next chain of this id begins anew
		return
	}
	calls := len(s.shed.done())
	again := s.Call(protocol.TypeChainReq, fmt.Sprintf(`{"chain_id":%q,"resume":true}`, id))
	for _, field := range []string{
		"/success", "/outputs", "/final_output", "/nodes_run", "/error/failed_total",
		"/handled",
	} {
		must.That(t, again.Get(field) == first.Get(field), "%s: %s was answered by\n%s and then by\n%s", field, fields,
			first.Line, again.Line)
	}
	must.That(t, len(s.shed.done()) == calls, "%s made calls again: %v", fields, s.shed.done()[calls:])
}

// randomRun runs a random chain. kept are the ids of the nodes whose outputs are cached before the run; now are those
// that are cached afterwards.
func (s *stage) randomRun(t *rapid.T, fields string, all []drawn, want []expected, kept []string) (now []string) {
	req := s.Go(protocol.TypeChainReq, fields)
	m := s.Answer(req)
	var got struct {
		Success bool           `json:"success"`
		Outputs map[string]any `json:"outputs"`
		Cached  []string       `json:"cached"`
	}
	err := json.Unmarshal(m.Line, &got)
	must.That(t, err == nil && m.Type == protocol.TypeChainResp, "%s answered by %s", fields, m.Line)
	slices.Sort(got.Cached)
	must.That(t, slices.Equal(got.Cached, kept), "cached %q, should be %q", got.Cached, kept)
	must.That(t, got.Success == succeeds(all, want), "success is %t: %s", got.Success, m.Line)
	verifyResults(t, want, got.Outputs)
	verifyOrder(t, all, s.events(req))
	for i, d := range all {
		if d.cached && !d.branch && d.list < 0 && want[i].phase == "done" {
			now = append(now, id(i))
		}
	}
	slices.Sort(now)
	return now
}

// verifyResults compares outputs with the expectations of the model.
func verifyResults(t *rapid.T, want []expected, got map[string]any) {
	for i, w := range want {
		output, ran := got[id(i)]
		if ran != (w.phase != "skip") {
			t.Fatalf("%s is in the outputs: %t; the model says %s", id(i), ran, w.phase)
		}
		a, errA := json.Marshal(output, json.Deterministic(true))
		b, errB := json.Marshal(w.output, json.Deterministic(true))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Fatalf("%s gave %s, should give %s", id(i), a, b)
		}
		delete(got, id(i))
	}
	must.That(t, len(got) == 0, "outputs of unknown nodes: %v", got)
}

// verifyOrder checks that each node started at most once, and that it ended after all nodes that it waits for.
func verifyOrder(t *rapid.T, all []drawn, events []string) {
	began, ended := map[string]int{}, map[string]int{}
	for at, line := range events {
		words := strings.Fields(line)
		if len(words) > 2 { // an event of an item
			continue
		}
		times := ended
		switch words[1] {
		case "start":
			times = began
		case "retry", "iteration", "cached":
			continue
		}
		_, twice := times[words[0]]
		must.That(t, !twice, "%s twice in %q", line, events)
		times[words[0]] = at
	}
	for i, d := range all {
		start, ran := began[id(i)]
		end, over := ended[id(i)]
		if !over || ran && start > end {
			t.Fatalf("%s has no end after its start", id(i))
		}
		for _, from := range d.waits() {
			if ran && ended[id(from)] > start {
				t.Fatalf("%s began before %s had ended", id(i), id(from))
			}
		}
	}
}
