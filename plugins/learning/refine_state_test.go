package learning

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/state/store"
	"a2e/protocol"
)

// TestRollbackRestoresTheTables: after any refinements, rolling them back in turn leaves the tables as they were, to
// the byte. A refused refinement changes nothing.
func TestRollbackRestoresTheTables(t *testing.T) {
	r := newRefiner(t)
	tools := []string{"a", "b", "c"}
	for _, tool := range tools {
		r.calls(tool, 20, 0)
	}
	editOf := rapid.Custom(func(t *rapid.T) map[string]any {
		e := map[string]any{"target": "weight", "component": rapid.SampledFrom(append(tools, "nobody")).Draw(t, "tool")}
		switch rapid.IntRange(0, 3).Draw(t, "what") {
		case 0:
			e["to"] = nil
		case 1:
			e["target"], e["name"], e["to"] = "setting", "deferred", rapid.SampledFrom([]any{true, false, nil}).Draw(t,
				"deferred")
		case 2:
			e["target"], e["name"], e["to"] = "setting", "timeout", rapid.SampledFrom([]any{1, 2.5, nil, "x"}).Draw(t,
				"timeout")
		default:
			e["to"] = rapid.Float64Range(-0.5, 3).Draw(t, "weight")
		}
		return e
	})
	all := []string{"weights", "settings", "refinements", "edits", "history"}
	applied, refused := 0, 0
	hosttest.Checks(t, 25)
	property.Check(t, func(rt *rapid.T) {
		if err := r.store.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec("DELETE FROM learning_edits")
			return err
		}); err != nil { // removes the edits of the last round
			rt.Fatal(err)
		}
		type step struct{ id, before string }
		var steps []step
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			raw := must.Get(json.Marshal(map[string]any{"edits": rapid.SliceOfN(editOf, 1, 4).Draw(rt, "edits")}))(rt)
			before, everything := dump(t, r.store, "weights", "settings"), dump(t, r.store, all...)
			resp := r.apply(string(raw))
			if resp.Error != "" {
				refused++
				if dump(t, r.store, all...) != everything {
					rt.Fatalf("%s was refused and changed the store", raw)
				}
				continue
			}
			applied++
			steps = append(steps, step{resp.RefinementID, before})
		}
		for i := len(steps) - 1; i >= 0; i-- {
			r.rolledBack(steps[i].id)
			if got := dump(t, r.store, "weights", "settings"); got != steps[i].before {
				rt.Fatalf("after the rollback of step %d:\n%s\nwas before:\n%s", i, got, steps[i].before)
			}
		}
	})
	assert.That(t, applied != 0 && refused != 0, "%d applied and %d refused", applied, refused)
}

// TestOneOfManyAppliesWins: if many refinements want to change the same target from the same value at once, one of them
// wins, whatever their hosts.
func TestOneOfManyAppliesWins(t *testing.T) {
	path := newFile(t)
	hosts := []*refiner{refinerOn(t, path), refinerOn(t, path)}
	hosts[0].calls("t", 20, 0)
	hosts[0].plan("t") // writes the recorded calls to the store
	var all sync.WaitGroup
	var mu sync.Mutex
	var won []string
	for i := range 40 {
		all.Go(func() {
			resp := hosts[i%2].apply(fmt.Sprintf(`{"component":"t","edits":[{"target":"weight","from":1,"to":%d},{"target":"setting","name":"timeout","to":%d}]}`, 2+i, 2+i))
			switch {
			case resp.Error == "":
				mu.Lock()
				won = append(won, resp.RefinementID)
				mu.Unlock()
			case resp.FailedEdits == 0 || !strings.Contains(resp.Error, "not 1 as `from` says"):
				t.Errorf("%+v", resp)
			}
		})
	}
	all.Wait()
	h := hosts[1].history()
	must.That(t, len(won) == 1 && len(h) == 1 && h[0].RefinementID == won[0], "%d have won: %v, history %+v", len(won),
		won, h)
	var rolled sync.WaitGroup
	for i := range 10 {
		rolled.Go(func() { hosts[i%2].rolledBack(won[0]) })
	}
	rolled.Wait()
	got := dump(t, hosts[0].store, "weights", "settings")
	assert.That(t, got == "", "left: %s", got)
}

// TestRollbackAfterALaterChange: a rollback that would undo a later change is refused, and the error names that change.
func TestRollbackAfterALaterChange(t *testing.T) {
	r := newRefiner(t)
	r.calls("t", 20, 0)
	first := r.applied(`{"component":"t","edits":[{"target":"weight","to":1.5},{"target":"setting","name":"timeout","to":5}]}`)
	second := r.applied(`{"component":"t","edits":[{"target":"weight","to":1.7}]}`)
	if resp := r.rollback(first); resp.RolledBack || !strings.Contains(resp.Error, "is 1.7 by now, not 1.5, by the "+
		"refinement "+second+"; roll that back first") {
		t.Errorf("%+v", resp)
	}
	h := r.history()
	assert.That(t, len(h) == 2 && h[0].RefinementID == second && h[0].RollbackAvailable && !h[1].RollbackAvailable &&
		h[1].Status == "applied", "%+v", h)
	r.rolledBack(second)
	must.OK(t, r.store.Write(t.Context(), func(tx *store.Tx) error {
		return weightOf("tool", "t").write(tx, &setting{Weight: new(3.0), Strategy: "ucb1", UpdatedAt: 1})
	}))
	before := dump(t, r.store, "weights", "settings", "refinements", "history")
	if resp := r.rollback(first); resp.RolledBack || !strings.Contains(resp.Error, "is 3 by now, not 1.5") ||
		strings.Contains(resp.Error, second) {
		t.Errorf("%+v", resp)
	}
	assert.That(t, dump(t, r.store, "weights", "settings", "refinements", "history") == before &&
		r.plugin.Overrides("tool")["t"].Timeout == 5*time.Second, "a refused rollback changed something")
	if resp := r.rollback("nonsense"); resp.RolledBack || resp.RefinementID != "nonsense" ||
		!strings.Contains(resp.Error, `no refinement "nonsense"`) {
		t.Errorf("%+v", resp)
	}
}

// TestRefinementsAreBounded: if there are too many refinements, the oldest are removed, and those that were rolled back
// are removed first.
func TestRefinementsAreBounded(t *testing.T) {
	r := newRefiner(t)
	r.calls("t", 20, 0)
	kept := r.applied(`{"component":"t","edits":[{"target":"setting","name":"timeout","to":5}]}`)
	gone := r.applied(`{"component":"t","edits":[{"target":"weight","to":2}]}`)
	r.rolledBack(gone)
	must.OK(t, r.store.Write(t.Context(), func(tx *store.Tx) error {
		for i := range maxRefinements - 2 {
			edit := appliedEdit{
				target{targetWeight, "tool", "t", nameWeight},
				nil, nil, 1,
			}
			past := &refinement{ID: fmt.Sprint(i), Proposal: jsontext.Value("{}"), Edits: []*appliedEdit{&edit}}
			if err := past.insert(tx); err != nil {
				return err
			}
		}
		return nil
	}))
	last := r.applied(`{"component":"t","edits":[{"target":"weight","to":3}]}`)
	h := r.history()
	if len(h) != maxRefinements || h[0].RefinementID != last || h[len(h)-1].RefinementID != kept {
		t.Errorf("%d are kept, the oldest being %s", len(h), h[len(h)-1].RefinementID)
	}
	n := strings.Count(dump(t, r.store, "edits"), "\n")
	assert.That(t, n == maxRefinements, "%d edits are kept", n)
	r.applied(`{"component":"t","edits":[{"target":"setting","name":"deferred","to":true}]}`)
	if h := r.history(); len(h) != maxRefinements || h[len(h)-1].RefinementID == kept {
		t.Errorf("%d are kept, the oldest being %s", len(h), h[len(h)-1].RefinementID)
	}
}

func TestRecordsThatAreNoRefinements(t *testing.T) {
	r := newRefiner(t)
	good := `{"kind":"learning.refinement","record":{"refinement_id":"0123456789ab","proposal_id":"","applied_at":1,"rolled_back_at":null,"proposal":{},` +
		`"edits":[{"target":"weight","kind":"tool","component":"t","name":"routing_weight","before":null,"after":{"weight":2,"strategy":"refinement","updated_at":1}}]}}`
	setting := `{"kind":"learning.setting","record":{"kind":"tool","component":"t","name":"timeout","value":5,"updated_at":1}}`
	take := func(line string) error { return imported(t, r.store, exportOf(line), store.Merge) }
	for _, line := range []string{good, setting} {
		if err := take(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, c := range []struct{ line, old, new string }{
		{good, `"0123456789ab"`, `"no id"`},
		{good, `"applied_at":1`, `"applied_at":-1`},
		{good, `"rolled_back_at":null`, `"rolled_back_at":1e20`},
		{good, `"proposal":{}`, `"proposal":[]`},
		{good, `"target":"weight"`, `"target":"prompt"`},
		{good, `"component":"t"`, `"component":""`},
		{good, `"weight":2`, `"weight":-2`},
		{good, `"before":null`, `"before":7`},
		{good, `"proposal_id":""`, `"other":""`},
		{good, `"edits":[`, `"edits":[],"more":[`},
		{setting, `"timeout"`, `"retries"`},
		{setting, `"value":5`, `"value":-5`},
		{setting, `"value":5`, `"value":null`},
		{setting, `"component":"t"`, `"component":""`},
		{setting, `"updated_at":1`, `"updated_at":-1`},
	} {
		line := strings.Replace(c.line, c.old, c.new, 1)
		must.That(t, line != c.line, "%s is not in %s", c.old, c.line)
		if err := take(line); err == nil {
			t.Errorf("taken: %s", line)
		}
	}
}

// filled returns a host whose store has some content of every kind.
func filled(t *testing.T) *stage {
	t.Helper()
	s := newStage(t, newFile(t), DefaultOptions())
	reward := 0.1
	s.work(work{Kind: host.KindEnv, Component: "grid", Times: 3, Millis: 7, Reward: &reward})
	s.work(work{Kind: host.KindTool, Component: "grep", Times: 5, Millis: 3, Correlation: "c"})
	s.work(work{Kind: host.KindTool, Component: "find", Times: 5, Fail: true})
	s.rate(`{"feedback_id":"1","correlation_id":"c","rated_turn":null,"polarity":"positive","score":0.3,"confidence":0.7,"ts":5.25}`, turn("2", "m", -0.5, 1, `,"correction":"é"`),
		`{"feedback_id":"3","rated_turn":null,"polarity":"neutral"}`)
	var stored protocol.LearnExperienceResponse
	s.ask(protocol.TypeLearnExperienceReq, `{"experiences":[{"experience_id":"x1","state":{"n":9007199254740993}},{"experience_id":"x2","reward":1,"done":true}]}`, &stored)
	s.adapt("", "ucb1")
	s.adapt("", "ppo")
	r := &refiner{s}
	r.applied(`{"component":"grep","proposal_id":"mine","rationale":"why\u0000not","edits":[{"target":"weight","to":1.5},{"target":"setting","name":"timeout","to":5}]}`)
	r.rolledBack(r.applied(`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":null}]}`))
	return s
}

func exported(t *testing.T, s store.Store) string {
	t.Helper()
	var out bytes.Buffer
	must.OK(t, s.Export(t.Context(), &out))
	return out.String()
}

// exportOf returns an export with these records, one a line.
func exportOf(records string) string {
	return `{"a2e_state":1,"parts":["learning"]}` + "\n" + records + "\n"
}

func imported(t *testing.T, s store.Store, text string, how store.How) error {
	t.Helper()
	_, err := s.Import(t.Context(), strings.NewReader(text), how)
	return err
}

// TestExportAndImport: an import brings all content of an export into another store. A second import does no harm, and
// a replacing import leaves no other content.
func TestExportAndImport(t *testing.T) {
	from := filled(t)
	text := exported(t, from.store)
	for _, kind := range []string{
		"component", "feedback", "experience", "weight", "weight_change", "setting",
		"refinement",
	} {
		assert.That(t, strings.Contains(text, `"kind":"learning.`+kind+`"`), "there is no %s in the export", kind)
	}
	to := newStage(t, newFile(t), DefaultOptions())
	to.calls("other", 1, 1)
	to.adapt("", "")
	must.OK(t, imported(t, to.store, text, store.Replace))
	if got := exported(t, to.store); got != text {
		t.Errorf("it became\n%s\nof\n%s", got, text)
	}
	must.OK(t, imported(t, to.store, text, store.Merge))
	if got := exported(t, to.store); got != text {
		t.Errorf("the second time it became\n%s\nof\n%s", got, text)
	}
	for i, r := range to.stats("") {
		want := from.stats("")[i]
		assert.That(t, r == want, "the record is %+v, should be %+v", r, want)
	}
	h := (&refiner{to}).history()
	assert.That(t, len(h) == 2 && h[1].RollbackAvailable, "the history is %+v", h)
	to.plugin.forgetWeights()
	if w := from.one("grep").Weight; to.plugin.Weight(host.KindTool, "grep") != w || w == 1 {
		t.Errorf("the weight in memory is %g, should be %g", to.plugin.Weight(host.KindTool, "grep"), w)
	}
}

// TestMerge: a merge keeps existing content. The counts of a component that both stores have are replaced, and its
// score is that of all feedback.
func TestMerge(t *testing.T) {
	from := filled(t)
	to := newStage(t, newFile(t), DefaultOptions())
	to.calls("other", 1, 1)
	to.work(work{Kind: host.KindTool, Component: "grep", Correlation: "c"})
	to.rate(`{"feedback_id":"mine","correlation_id":"c","rated_turn":null,"polarity":"negative","score":-0.7,"confidence":0.3}`)
	must.OK(t, imported(t, to.store, exported(t, from.store), store.Merge))
	if r := to.one("other"); r.Calls != 2 {
		t.Errorf("what was there: %+v", r)
	}
	if r := to.one("grep"); r.Calls != 5 || r.Feedbacks != 2 || !near(r.Score, 0) {
		t.Errorf("what both have: %+v", r)
	}
	to.calls("grep", 1, 0)
	if r := to.one("grep"); r.Calls != 6 {
		t.Errorf("counted on: %+v", r)
	}
}

// TestClearIsSeen: after a store was cleared and filled again, a host does not use its old weights in memory.
func TestClearIsSeen(t *testing.T) {
	s := filled(t)
	for _, weight := range []float64{7, 8} {
		record := fmt.Sprintf(`{"kind":"learning.weight","record":{"kind":"tool","component":"grep","at":1,"weight":%g,"strategy":"x"}}`, weight)
		must.OK(t, imported(t, s.store, exportOf(record), store.Replace))
		hosttest.Eventually(t, "the weight of the import",
			func() bool { return s.plugin.Weight(host.KindTool, "grep") == weight })
	}
}

func TestBrokenImports(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	for record, says := range map[string]string{
		`{"kind":"learning.dog","record":{}}`: "no such record",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":1,"successes":2}}`:                           "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":-1}}`:                                        "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":1,"rewards":1,"reward_m2":-1}}`:              "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","durations":"AAAA"}}`:                                "durations",
		`{"kind":"learning.component","record":{"kind":"tool","component":""}}`:                                                    "name",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","last_called":-1}}`:                                  "seconds",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","dog":1}}`:                                           "dog",
		`{"kind":"learning.feedback","record":{"kind":"","component":"","feedback":{"polarity":"neutral"}}}`:                       "feedback_id",
		`{"kind":"learning.feedback","record":{"kind":"","component":"","feedback":{"feedback_id":"x","polarity":"?"}}}`:           "polarity",
		`{"kind":"learning.feedback","record":{"kind":"tool","component":"","feedback":{"feedback_id":"x","polarity":"neutral"}}}`: "name",
		`{"kind":"learning.experience","record":{}}`:                                                                               "experience_id",
		`{"kind":"learning.weight","record":{"kind":"tool","component":"x","at":1,"weight":-1,"strategy":"s"}}`:                    "weight",
		`{"kind":"learning.weight","record":{"kind":"tool","component":"x","at":1,"weight":1,"strategy":""}}`:                      "strategy",
		`{"kind":"learning.weight_change","record":{"kind":"","component":"x","at":1,"weight":1,"strategy":"s"}}`:                  "kind",
	} {
		err := imported(t, s.store, exportOf(record), store.Merge)
		assert.That(t, err != nil && strings.Contains(err.Error(), says), "%s: %v", record, err)
	}
	got := exported(t, s.store)
	assert.That(t, strings.Count(got, "\n") == 1, "something was kept: %s", got)
}

// TestTwoPluginsOnOneStore: with two plugins on one store, an answer has each component and each refinement once.
func TestTwoPluginsOnOneStore(t *testing.T) {
	s := openStore(t, newFile(t))
	one, two := newPlugin(t, s, DefaultOptions(), host.Env{}), newPlugin(t, s, DefaultOptions(), host.Env{})
	two.name = "two"
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{one, two, worker{}}})
	pair.Handshake()
	r := &refiner{&stage{Pair: pair, t: t, store: s, plugin: one}}
	r.stage.calls("x", 30, 1)
	r.applied(`{"component":"x","edits":[{"target":"weight","to":1.5}]}`)
	got, h := r.one("x"), r.history()
	assert.That(t, got.Calls == 31 && len(h) == 1, "counted %+v, applied %+v", got, h)
}
