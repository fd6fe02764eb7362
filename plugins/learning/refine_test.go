package learning

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// refiner is a stage that records calls directly in the plugin.
type refiner struct{ *stage }

func refinerOn(t testing.TB, path string) *refiner {
	t.Helper()
	return &refiner{newStage(t, path, DefaultOptions())}
}

func newRefiner(t testing.TB) *refiner {
	t.Helper()
	return refinerOn(t, newFile(t))
}

// calls records calls of a tool, of which the given numbers succeed and fail.
func (r *refiner) calls(tool string, successes, failures int) {
	for i := range successes + failures {
		r.plugin.CountCall(host.CallOutcome{
			Kind: host.KindTool, Component: tool, Success: i < successes,
			Duration: 2 * time.Second,
		})
	}
}

// plan asks for a plan and returns its proposals as raw JSON, and its status.
func (r *refiner) plan(component string) ([]jsontext.Value, string) {
	r.t.Helper()
	var resp struct {
		PlanID    string           `json:"plan_id"`
		Proposals []jsontext.Value `json:"proposals"`
		Status    string           `json:"status"`
	}
	r.ask(protocol.TypeRefinementPlanReq, fmt.Sprintf(`{"component_name":%q}`, component), &resp)
	must.That(r.t, resp.PlanID != "" && resp.Proposals != nil, "a plan without id or list: %+v", resp)
	return resp.Proposals, resp.Status
}

func (r *refiner) review(proposal string) (resp protocol.RefinementReviewResponse) {
	r.t.Helper()
	r.ask(protocol.TypeRefinementReviewReq, `{"proposal":`+proposal+`}`, &resp)
	return resp
}

func (r *refiner) apply(proposal string) (resp protocol.RefinementApplyResponse) {
	r.t.Helper()
	r.ask(protocol.TypeRefinementApplyReq, `{"proposal":`+proposal+`}`, &resp)
	return resp
}

// applied is apply for a proposal that must be accepted. It returns the id of the refinement.
func (r *refiner) applied(proposal string) string {
	r.t.Helper()
	resp := r.apply(proposal)
	must.That(r.t, resp.Error == "" && resp.FailedEdits == 0 && resp.AppliedEdits != 0 && resp.RollbackAvailable &&
		resp.RefinementID != "", "%s was answered by %+v", proposal, resp)
	return resp.RefinementID
}

func (r *refiner) rollback(id string) (resp protocol.RefinementRollbackResponse) {
	r.t.Helper()
	r.ask(protocol.TypeRefinementRollbackReq, fmt.Sprintf(`{"refinement_id":%q}`, id), &resp)
	return resp
}

// rolledBack is rollback for a refinement that must be rolled back.
func (r *refiner) rolledBack(id string) {
	r.t.Helper()
	resp := r.rollback(id)
	must.That(r.t, resp.RolledBack && resp.Error == "" && resp.RefinementID == id, "%+v", resp)
}

// pastRefinement is an entry of the history.
type pastRefinement struct {
	RefinementID      string         `json:"refinement_id"`
	ProposalID        string         `json:"proposal_id"`
	Component         string         `json:"component"`
	Kind              string         `json:"kind"`
	Status            string         `json:"status"`
	AppliedAt         float64        `json:"applied_at"`
	RolledBackAt      *float64       `json:"rolled_back_at"`
	RollbackAvailable bool           `json:"rollback_available"`
	Rationale         string         `json:"rationale"`
	Evidence          jsontext.Value `json:"evidence"`
	Edits             []struct {
		Target    string         `json:"target"`
		Kind      string         `json:"kind"`
		Component string         `json:"component"`
		Name      string         `json:"name"`
		From      jsontext.Value `json:"from"`
		To        jsontext.Value `json:"to"`
	} `json:"edits"`
}

func (r *refiner) history() []pastRefinement {
	r.t.Helper()
	var resp struct {
		Entries []pastRefinement `json:"entries"`
	}
	r.ask(protocol.TypeRefinementHistoryReq, `{}`, &resp)
	return resp.Entries
}

// dump returns the rows of tables as text, in order.
func dump(t testing.TB, s store.Store, tables ...string) string {
	t.Helper()
	var b strings.Builder
	queries := map[string]struct{ columns, from string }{
		"weights": {"kind, component, updated_at, weight, strategy", "FROM learning_settings WHERE weight IS NOT " +
			"NULL ORDER BY kind, component"},
		"settings": {"kind, component, name, updated_at, value", "FROM learning_settings WHERE value IS NOT NULL " +
			"ORDER BY kind, component, name"},
		"refinements": {"number, id, proposal_id, applied_at, rolled_back_at, proposal", "FROM learning_refinements " +
			"ORDER BY number"},
		"edits": {
			"refinement, place, target, kind, component, name, before, after",
			"FROM learning_edits ORDER BY refinement, place",
		},
		"history": {"at, kind, component, weight, score, strategy", "FROM learning_weight_history ORDER BY number"},
	}
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		for _, table := range tables {
			q := queries[table]
			err := tx.Each("SELECT "+q.columns+" "+q.from, nil, func(scan func(...any) error) error {
				row := make([]any, strings.Count(q.columns, ",")+1)
				into := make([]any, len(row))
				for i := range row {
					into[i] = &row[i]
				}
				err := scan(into...)
				fmt.Fprintln(&b, table, row)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return b.String()
}

func TestFromPlanToRollback(t *testing.T) {
	r := newRefiner(t)
	r.calls("good", 60, 0)
	r.calls("so-so", 20, 12)
	r.calls("new", 0, 3)
	if proposals, status := r.plan("so-so"); status != "empty" || len(proposals) != 0 {
		t.Errorf("on evidence that is not clear: %s %s", status, proposals)
	}
	proposals, status := r.plan("")
	must.That(t, status == "ready" && len(proposals) == 1, "%s %s", status, proposals)
	text := string(proposals[0])
	var pr struct {
		ProposalID string  `json:"proposal_id"`
		Component  string  `json:"component"`
		Kind       string  `json:"kind"`
		Confidence float64 `json:"confidence"`
		Scope      string  `json:"scope"`
		Evidence   claim   `json:"evidence"`
		Edits      []struct {
			Target string  `json:"target"`
			From   float64 `json:"from"`
			To     float64 `json:"to"`
		} `json:"edits"`
	}
	must.OK(t, json.Unmarshal(proposals[0], &pr))
	if pr.Component != "good" || pr.Kind != "tool" || pr.Scope != "local" || pr.Evidence.Calls != 60 ||
		pr.Evidence.SuccessRate != 1 || len(pr.Edits) != 1 ||
		pr.Edits[0].Target != "weight" || pr.Edits[0].From != 1 || pr.Edits[0].To <= 1.5 || pr.Edits[0].To > 2 ||
		pr.Confidence < 0.9 {
		t.Fatalf("%s", text)
	}
	if v := r.review(text); !v.Approved || v.RiskLevel != "low" || v.ConfidenceAdjusted != pr.Confidence ||
		!strings.Contains(strings.Join(v.Reasons, " "), "60 of 60 calls") {
		t.Errorf("the review says %+v", v)
	}
	id := r.applied(text)
	if w := r.plugin.Weight("tool", "good"); w != pr.Edits[0].To {
		t.Errorf("the weight is %v, not %v", w, pr.Edits[0].To)
	}
	m := r.Call(protocol.TypeLearnStatsReq, `{"component_name":"good"}`)
	assert.That(t, m.Get("/components/0/routing_weight") == fmt.Sprint(pr.Edits[0].To), "stats: %s", m.Line)
	resp := r.apply(text)
	assert.That(t, resp.Error != "" && resp.FailedEdits == 1 && resp.RefinementID == "" &&
		strings.Contains(resp.Error, id), "applied again: %+v", resp)
	if h := r.history(); len(h) != 1 || h[0].RefinementID != id || h[0].ProposalID != pr.ProposalID ||
		h[0].Status != "applied" || !h[0].RollbackAvailable ||
		h[0].AppliedAt == 0 || h[0].RolledBackAt != nil || len(h[0].Edits) != 1 ||
		string(h[0].Edits[0].From) != "null" || h[0].Rationale == "" {
		t.Errorf("the history is %+v", h)
	}
	if row := fmt.Sprintf("[tool good %.0f %v refinement]", r.history()[0].AppliedAt*1e6, pr.Edits[0].To); dump(t,
		r.store, "weights") != "weights "+row+"\n" {
		t.Errorf("the weights are %s, should be %s", dump(t, r.store, "weights"), row)
	}
	for range 2 { // the second rollback changes nothing
		r.rolledBack(id)
		got := dump(t, r.store, "weights", "settings")
		assert.That(t, got == "" && r.plugin.Weight("tool", "good") == 1, "left after the rollback: %s", got)
	}
	n := strings.Count(dump(t, r.store, "history"), "\n")
	assert.That(t, n == 2, "the history of weights has %d changes, not the one and its rollback", n)
	if h := r.history(); h[0].Status != "rolled_back" || h[0].RollbackAvailable || h[0].RolledBackAt == nil {
		t.Errorf("the history is %+v", h)
	}
	if v := r.review(text); !v.Approved || v.RiskLevel != "medium" || v.ConfidenceAdjusted >= pr.Confidence {
		t.Errorf("of what was rolled back before the review says %+v", v)
	}
	r.rolledBack(r.applied(text))
	if v := r.review(text); v.Approved || v.RiskLevel != "high" {
		t.Errorf("of what was rolled back twice the review says %+v", v)
	}
}

// TestPlansComeToRest: repeated plans on the same records end: they do not change a weight further and further.
func TestPlansComeToRest(t *testing.T) {
	r := newRefiner(t)
	r.calls("good", 300, 1)
	r.calls("bad", 1, 40)
	rounds := 0
	for ; ; rounds++ {
		proposals, _ := r.plan("")
		if len(proposals) == 0 {
			break
		}
		must.That(t, rounds <= 20, "still proposed: %s", proposals)
		for _, pr := range proposals {
			v := r.review(string(pr))
			assert.That(t, v.Approved, "%s: %+v", pr, v)
			r.applied(string(pr))
		}
	}
	good, bad := r.plugin.Weight("tool", "good"), r.plugin.Weight("tool", "bad")
	assert.That(t, rounds != 0 && good >= 1.8 && good <= 2 && bad <= 0.5 && bad >= 0, "after %d rounds the weights "+
		"are %v and %v", rounds, good, bad)
	if o := r.plugin.Overrides("tool")["bad"]; o == nil || o.Deferred == nil || !*o.Deferred {
		t.Errorf("a tool that never works is not deferred: %+v", o)
	}
	r.calls("bad", 10_000, 0)
	proposals, _ := r.plan("bad")
	for _, pr := range proposals {
		r.applied(string(pr))
	}
	if o := r.plugin.Overrides("tool")["bad"]; o != nil || r.plugin.Weight("tool", "bad") < 1 {
		t.Errorf("a tool that works again stays deferred (%+v) and weighs %v", o, r.plugin.Weight("tool", "bad"))
	}
}

func TestFeedbackSpeaksForAPlan(t *testing.T) {
	r := newRefiner(t)
	r.calls("t", 30, 0)
	if proposals, _ := r.plan("t"); len(proposals) != 1 || !strings.Contains(string(proposals[0]), "raise") {
		t.Fatalf("by the calls: %s", proposals)
	}
	r.rateTurns("t", 0, 40, -1)
	if proposals, status := r.plan("t"); status != "empty" {
		t.Errorf("feedback that contradicts the calls: %s", proposals)
	}
	v := r.review(`{"component":"t","edits":[{"target":"weight","to":1.5}]}`)
	assert.That(t, v.RiskLevel == "medium" && strings.Contains(strings.Join(v.Reasons, " "), "contradicts"), "%+v", v)
}

// TestRefusedProposals: any proposal of the agent is checked, and a refusal says what would be right.
func TestRefusedProposals(t *testing.T) {
	r := newRefiner(t)
	r.calls("grep", 40, 0)
	r.calls("twin", 40, 0)
	r.plugin.CountCall(host.CallOutcome{Kind: host.KindSkill, Component: "twin", Success: true})
	for _, c := range []struct {
		proposal string
		failed   int
		says     []string
	}{
		{`{}`, 0, []string{"has no edits"}},
		{`{"edits":[]}`, 0, []string{"has no edits"}},
		{
			`{"component":"grep","edits":[{"target":"prompt","op":"update","path":"prompt.template","new_value":"x"}]}`, 1,
			[]string{`no text of "grep" can be changed`},
		},
		{`{"component":"grep","edits":[{"target":"code","to":"x"}]}`, 1, []string{
			`the target is "code"`,
			"weight, setting and text",
		}},
		{`{"component":"grep","edits":[{"target":"weight"}]}`, 1, []string{"`to`"}},
		{`{"edits":[{"target":"weight","to":2}]}`, 1, []string{"no component is named"}},
		{
			`{"component":"none","edits":[{"target":"weight","to":2}]}`, 1,
			[]string{`nothing was recorded of a component "none"`, "learn/stats/req"},
		},
		{
			`{"component":"grep","kind":"skill","edits":[{"target":"weight","to":2}]}`, 1,
			[]string{`nothing was recorded of a skill "grep"`, "tool"},
		},
		{`{"component":"twin","edits":[{"target":"weight","to":2}]}`, 1, []string{"several components", "skill, tool"}},
		{`{"component":"grep","edits":[{"target":"weight","to":-1}]}`, 1, []string{"-1 is not a weight"}},
		{`{"component":"grep","edits":[{"target":"weight","to":"2"}]}`, 1, []string{`"2" is not a weight`}},
		{
			`{"component":"grep","edits":[{"target":"weight","from":0.5,"to":2}]}`, 1,
			[]string{"not 0.5 as `from` says", "plan again"},
		},
		{`{"component":"grep","edits":[{"target":"weight","to":1}]}`, 1, []string{"already"}},
		{
			`{"component":"grep","edits":[{"target":"weight","to":2},{"target":"weight","to":3}]}`, 1,
			[]string{"edit 2: edit 1 changes the weight"},
		},
		{
			`{"component":"grep","edits":[{"target":"weight","component":"grep","name":"twin","to":2}]}`, 1,
			[]string{"two components"},
		},
		{
			`{"component":"grep","edits":[{"target":"weight","path":"os.environ","to":2}]}`, 1,
			[]string{"router.weights.COMPONENT"},
		},
		{`{"component":"grep","edits":[{"target":"weight","op":"exec","to":2}]}`, 1, []string{`the op is "exec"`}},
		{
			`{"component":"grep","edits":[{"target":"setting","name":"retries","to":2}]}`, 1,
			[]string{`no setting "retries"`, "timeout, deferred"},
		},
		{
			`{"component":"grep","edits":[{"target":"setting","name":"retries","to":null}]}`, 1,
			[]string{`no setting "retries"`},
		},
		{
			`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":0}]}`, 1,
			[]string{"from 0.1 to 3600"},
		},
		{`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":null}]}`, 1, []string{"already"}},
		{`{"component":"grep","edits":[{"target":"setting","name":"deferred","to":1}]}`, 1, []string{"true or false"}},
		{
			`{"component":"twin","kind":"skill","edits":[{"target":"setting","name":"timeout","to":5}]}`, 1,
			[]string{"has no settings"},
		},
		{`{"component":"grep","edits":[{"target":"weight","to":2},{"target":"x","to":1},{"target":"setting","name":"timeout","to":-1}]}`, 2, []string{"edit 2", "edit 3"}},
	} {
		before := dump(t, r.store, "weights", "settings", "refinements", "edits", "history")
		got := r.apply(c.proposal)
		if got.FailedEdits != c.failed || got.AppliedEdits != 0 || got.RefinementID != "" || got.RollbackAvailable ||
			!strings.HasPrefix(got.Error, "nothing was changed: ") {
			t.Errorf("%s was answered by %+v", c.proposal, got)
		}
		v := r.review(c.proposal)
		assert.That(t, !v.Approved && v.RiskLevel == "high" && v.ConfidenceAdjusted <= 0.5, "the review of %s says %+v",
			c.proposal, v)
		for _, says := range c.says {
			assert.That(t, strings.Contains(got.Error, says) && strings.Contains(strings.Join(v.Reasons, "\n"), says),
				"%s: %q is not in %q and %q", c.proposal, says, got.Error, v.Reasons)
		}
		after := dump(t, r.store, "weights", "settings", "refinements", "edits", "history")
		assert.That(t, after == before, "%s changed the store:\n%s", c.proposal, after)
	}
}

func TestProposalsThatAreNone(t *testing.T) {
	r := newRefiner(t)
	long := strings.Repeat("x", maxProposal)
	many := strings.Repeat(`{"target":"weight"},`, maxEdits) + `{"target":"weight"}`
	for proposal, path := range map[string]string{
		`{"confidence":1.5}`:                             "/proposal/confidence",
		`{"confidence":"high"}`:                          "/proposal/confidence",
		`{"edits":{}}`:                                   "/proposal/edits",
		`{"edits":[{"target":1}]}`:                       "/proposal/edits/0/target",
		`{"edits":[` + many + `]}`:                       "/proposal/edits",
		`{"component":"a","component_name":"b"}`:         "/proposal/component_name",
		fmt.Sprintf(`{"rationale":%q}`, long):            "/proposal",
		`{"component":["a"],"edits":[{"target":"x"}]}`:   "/proposal/component",
		`{"created_at":"now","edits":[{"target":"x"}]}`:  "/proposal/created_at",
		`{"edits":[{"target":"x"},{"name":{"a":null}}]}`: "/proposal/edits/1/name",
	} {
		for _, typ := range []protocol.Type{protocol.TypeRefinementReviewReq, protocol.TypeRefinementApplyReq} {
			if m := r.Call(typ, `{"proposal":`+proposal+`}`); m.Code != protocol.CodeSchemaViolation ||
				m.Problem() != path {
				t.Errorf("%s %.100s was answered by %.500s", typ, proposal, m.Line)
			}
		}
	}
	if m := r.Call(protocol.TypeRefinementPlanReq, fmt.Sprintf(`{"scope":%q}`, long)); m.Problem() != "/scope" {
		t.Errorf("a long scope was answered by %.500s", m.Line)
	}
}

// TestSpellingsOfProposals: the spellings of the public specification mean the same as our own.
func TestSpellingsOfProposals(t *testing.T) {
	for _, proposal := range []string{
		`{"component":"grep","kind":"tool","confidence":0.9,"edits":[{"target":"weight","name":"routing_weight","from":1,"to":1.5}]}`,
		`{"target":"router_weight","op":"update","path":"router.weights.grep","old_value":1,"new_value":1.5}`,
		`{"component_name":"grep","refinement_id":"r1","edits":[{"target":"router_weight","op":"replace","path":"router.weights.grep","new_value":1.5}]}`,
		`{"component":"other","edits":[{"target":"weight","name":"grep","from":null,"to":1.50}]}`,
		`{"component":"other","kind":"skill","edits":[{"component":"grep","kind":"tool","target":"weight","to":1.5}]}`,
	} {
		r := newRefiner(t)
		r.calls("grep", 40, 0)
		v := r.review(proposal)
		assert.That(t, v.Approved && v.RiskLevel == "low", "%s: %+v", proposal, v)
		id := r.applied(proposal)
		if h := r.history(); len(h) != 1 || h[0].Edits[0].Component != "grep" || h[0].Edits[0].Kind != "tool" ||
			h[0].Component != "other" && (h[0].Component != "grep" || h[0].Kind != "tool") {
			t.Errorf("%s: the history is %+v", proposal, h)
		}
		if w := r.plugin.Weight("tool", "grep"); w != 1.5 {
			t.Errorf("%s: the weight is %v", proposal, w)
		}
		r.applied(`{"edits":[{"target":"router_weight","op":"delete","path":"router.weights.grep","old_value":1.5}]}`)
		if w := r.plugin.Weight("tool", "grep"); w != 1 {
			t.Errorf("%s: deleted, the weight is %v", proposal, w)
		}
		resp := r.rollback(id)
		assert.That(t, !resp.RolledBack && strings.Contains(resp.Error, "null by now"), "%s: %+v", proposal, resp)
	}
}

func TestReviewLooksAtTheEvidence(t *testing.T) {
	r := newRefiner(t)
	r.calls("good", 50, 0)
	r.calls("unclear", 30, 15)
	r.calls("few", 3, 0)
	r.calls("bad", 0, 50)
	for _, c := range []struct {
		proposal   string
		approved   bool
		risk       string
		confidence float64 // the most that the answer may have
		says       string
	}{
		{`{"component":"good","edits":[{"target":"weight","to":1.5}]}`, true, "low", 0.95, "50 of 50"},
		{`{"component":"good","confidence":0.4,"edits":[{"target":"weight","to":1.5}]}`, true, "low", 0.4, ""},
		{
			`{"component":"good","confidence":0.2,"edits":[{"target":"weight","to":1.5}]}`, false, "medium", 0.2,
			"it takes 0.3",
		},
		{
			`{"component":"good","confidence":0.9,"evidence":{"calls":500},"edits":[{"target":"weight","to":1.5}]}`, true,
			"medium", 0.5, "speaks of 500 calls, 50 were recorded",
		},
		{`{"component":"good","edits":[{"target":"weight","to":9}]}`, true, "medium", 0.95, "factor of 9"},
		{`{"component":"good","edits":[{"target":"weight","to":0.5}]}`, false, "high", 0.5, "speaks against"},
		{`{"component":"bad","edits":[{"target":"weight","to":2}]}`, false, "high", 0.5, "speaks against"},
		{`{"component":"bad","edits":[{"target":"weight","to":0}]}`, false, "high", 0.95, "being used at all"},
		{`{"component":"bad","edits":[{"target":"weight","to":0.5}]}`, true, "low", 0.95, ""},
		{`{"component":"unclear","edits":[{"target":"weight","to":1.1}]}`, true, "medium", 0.7, "not clear"},
		{
			`{"component":"few","confidence":1,"edits":[{"target":"weight","to":2}]}`, false, "medium", 0.5,
			"not enough evidence",
		},
		{`{"component":"bad","edits":[{"target":"setting","name":"deferred","to":true}]}`, true, "low", 0.95, ""},
		{
			`{"component":"good","edits":[{"target":"setting","name":"deferred","to":true}]}`, false, "high", 0.5,
			"does well",
		},
		{`{"component":"good","edits":[{"target":"setting","name":"timeout","to":10}]}`, true, "low", 0.95, ""},
		{
			`{"component":"good","edits":[{"target":"setting","name":"timeout","to":1}]}`, false, "high", 0.5,
			"cut them off",
		},
	} {
		v := r.review(c.proposal)
		assert.That(t, v.Approved == c.approved && v.RiskLevel == c.risk && v.ConfidenceAdjusted <= c.confidence &&
			strings.Contains(strings.Join(v.Reasons, "\n"), c.says), "%s: %+v", c.proposal, v)
	}
}

// TestReviewSeesConflicts: a proposal from before another refinement is out of date, whatever its `from` says.
func TestReviewSeesConflicts(t *testing.T) {
	r := newRefiner(t)
	r.calls("good", 80, 0)
	proposals, _ := r.plan("good")
	id := r.applied(`{"component":"good","edits":[{"target":"weight","to":1.2}]}`)
	if v := r.review(string(proposals[0])); v.Approved || v.RiskLevel != "high" ||
		!strings.Contains(strings.Join(v.Reasons, "\n"), "not 1 as `from` says") {
		t.Errorf("%+v", v)
	}
	old := strings.Replace(string(proposals[0]), `"from":1,`, "", 1)
	if v := r.review(old); v.Approved || !strings.Contains(strings.Join(v.Reasons, "\n"),
		"the refinement "+id+" changed the weight") {
		t.Errorf("%+v", v)
	}
	r.rolledBack(id)
	if v := r.review(old); !v.Approved {
		t.Errorf("after the rollback: %+v", v)
	}
}
