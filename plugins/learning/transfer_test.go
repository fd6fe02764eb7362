package learning

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

// filled is a host whose store has something of everything.
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
	if err := s.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func imported(t *testing.T, s store.Store, text string, how store.How) error {
	t.Helper()
	_, err := s.Import(t.Context(), strings.NewReader(text), how)
	return err
}

// An export brings everything into another store, twice does no harm, and in place of
// other things leaves nothing of them.
func TestExportAndImport(t *testing.T) {
	from := filled(t)
	text := exported(t, from.store)
	for _, kind := range []string{"component", "feedback", "experience", "weight", "weight_change", "setting", "refinement"} {
		if !strings.Contains(text, `"kind":"learning.`+kind+`"`) {
			t.Errorf("there is no %s in the export", kind)
		}
	}
	to := newStage(t, newFile(t), DefaultOptions())
	to.calls("other", 1, 1)
	to.adapt("", "")
	if err := imported(t, to.store, text, store.Replace); err != nil {
		t.Fatal(err)
	}
	if got := exported(t, to.store); got != text {
		t.Errorf("it became\n%s\nof\n%s", got, text)
	}
	if err := imported(t, to.store, text, store.Merge); err != nil {
		t.Fatal(err)
	}
	if got := exported(t, to.store); got != text {
		t.Errorf("the second time it became\n%s\nof\n%s", got, text)
	}
	for i, r := range to.stats("") {
		if want := from.stats("")[i]; r != want {
			t.Errorf("the record is %+v, should be %+v", r, want)
		}
	}
	if h := (&refiner{to}).history(); len(h) != 2 || !h[1].RollbackAvailable {
		t.Errorf("the history is %+v", h)
	}
	to.plugin.forgetWeights()
	if w := from.one("grep").Weight; to.plugin.Weight(host.KindTool, "grep") != w || w == 1 {
		t.Errorf("the weight in memory is %g, should be %g", to.plugin.Weight(host.KindTool, "grep"), w)
	}
}

// A merge keeps what is there; the counts of a component that both have are replaced, and
// its score is that of all feedback.
func TestMerge(t *testing.T) {
	from := filled(t)
	to := newStage(t, newFile(t), DefaultOptions())
	to.calls("other", 1, 1)
	to.work(work{Kind: host.KindTool, Component: "grep", Correlation: "c"})
	to.rate(`{"feedback_id":"mine","correlation_id":"c","rated_turn":null,"polarity":"negative","score":-0.7,"confidence":0.3}`)
	if err := imported(t, to.store, exported(t, from.store), store.Merge); err != nil {
		t.Fatal(err)
	}
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

// A host's weights in memory are not taken for those of a store that was emptied and
// filled again.
func TestClearIsSeen(t *testing.T) {
	s := filled(t)
	for _, weight := range []float64{7, 8} {
		record := fmt.Sprintf(`{"kind":"learning.weight","record":{"kind":"tool","component":"grep","at":1,"weight":%g,"strategy":"x"}}`, weight)
		if err := imported(t, s.store, `{"a2e_state":1,"parts":["learning"]}`+"\n"+record+"\n", store.Replace); err != nil {
			t.Fatal(err)
		}
		hosttest.Eventually(t, "the weight of the import", func() bool { return s.plugin.Weight(host.KindTool, "grep") == weight })
	}
}

func TestBrokenImports(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	head := `{"a2e_state":1,"parts":["learning"]}` + "\n"
	for record, says := range map[string]string{
		`{"kind":"learning.dog","record":{}}`: "no such record",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":1,"successes":2}}`:                           "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":-1}}`:                                        "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","calls":1,"rewards":1,"reward_m2":-1}}`:              "fit together",
		`{"kind":"learning.component","record":{"kind":"tool","component":"x","durations":"AAAA"}}`:                                "sketch",
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
		if err := imported(t, s.store, head+record+"\n", store.Merge); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", record, err)
		}
	}
	if got := exported(t, s.store); strings.Count(got, "\n") != 1 {
		t.Errorf("something was kept: %s", got)
	}
}

// Of two plugins on one store each component, and each refinement, is in the answer once.
func TestTwoPluginsOnOneStore(t *testing.T) {
	s := openStore(t, newFile(t))
	one, two := newPlugin(t, s, DefaultOptions(), Env{}), newPlugin(t, s, DefaultOptions(), Env{})
	two.name = "two"
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{one, two, worker{}}})
	pair.Handshake()
	r := &refiner{&stage{Pair: pair, t: t, store: s, plugin: one}}
	r.stage.calls("x", 30, 1)
	r.applied(`{"component":"x","edits":[{"target":"weight","to":1.5}]}`)
	if got, h := r.one("x"), r.history(); got.Calls != 31 || len(h) != 1 {
		t.Errorf("counted %+v, applied %+v", got, h)
	}
}
