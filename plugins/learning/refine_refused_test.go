package learning

import (
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	"a2e/protocol"
)

// Whatever the agent proposes is looked at, and refused with what would be right.
func TestRefusedProposals(t *testing.T) {
	r := newRefiner(t)
	r.calls("grep", 40, 0)
	r.calls("twin", 40, 0)
	r.plugin.RecordCall(host.CallRecord{Kind: host.KindSkill, Component: "twin", Success: true})
	for _, c := range []struct {
		proposal string
		failed   int
		says     []string
	}{
		{`{}`, 0, []string{"has no edits"}},
		{`{"edits":[]}`, 0, []string{"has no edits"}},
		{`{"component":"grep","edits":[{"target":"prompt","op":"update","path":"prompt.template","new_value":"x"}]}`, 1, []string{`the target is "prompt"`, "weight and setting"}},
		{`{"component":"grep","edits":[{"target":"weight"}]}`, 1, []string{"`to`"}},
		{`{"edits":[{"target":"weight","to":2}]}`, 1, []string{"no component is named"}},
		{`{"component":"none","edits":[{"target":"weight","to":2}]}`, 1, []string{`nothing was recorded of a component "none"`, "learn/stats/req"}},
		{`{"component":"grep","kind":"skill","edits":[{"target":"weight","to":2}]}`, 1, []string{`nothing was recorded of a skill "grep"`, "tool"}},
		{`{"component":"twin","edits":[{"target":"weight","to":2}]}`, 1, []string{"several components", "skill, tool"}},
		{`{"component":"grep","edits":[{"target":"weight","to":-1}]}`, 1, []string{"-1 is no weight"}},
		{`{"component":"grep","edits":[{"target":"weight","to":"2"}]}`, 1, []string{`"2" is no weight`}},
		{`{"component":"grep","edits":[{"target":"weight","from":0.5,"to":2}]}`, 1, []string{"not 0.5 as `from` says", "plan again"}},
		{`{"component":"grep","edits":[{"target":"weight","to":1}]}`, 1, []string{"already"}},
		{`{"component":"grep","edits":[{"target":"weight","to":2},{"target":"weight","to":3}]}`, 1, []string{"edit 2: edit 1 changes the weight"}},
		{`{"component":"grep","edits":[{"target":"weight","component":"grep","name":"twin","to":2}]}`, 1, []string{"two components"}},
		{`{"component":"grep","edits":[{"target":"weight","path":"os.environ","to":2}]}`, 1, []string{"router.weights.COMPONENT"}},
		{`{"component":"grep","edits":[{"target":"weight","op":"exec","to":2}]}`, 1, []string{`the op is "exec"`}},
		{`{"component":"grep","edits":[{"target":"setting","name":"retries","to":2}]}`, 1, []string{`no setting "retries"`, "timeout, deferred"}},
		{`{"component":"grep","edits":[{"target":"setting","name":"retries","to":null}]}`, 1, []string{`no setting "retries"`}},
		{`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":0}]}`, 1, []string{"from 0.1 to 3600"}},
		{`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":null}]}`, 1, []string{"already"}},
		{`{"component":"grep","edits":[{"target":"setting","name":"deferred","to":1}]}`, 1, []string{"true or false"}},
		{`{"component":"twin","kind":"skill","edits":[{"target":"setting","name":"timeout","to":5}]}`, 1, []string{"has no settings"}},
		{`{"component":"grep","edits":[{"target":"weight","to":2},{"target":"x","to":1},{"target":"setting","name":"timeout","to":-1}]}`, 2, []string{"edit 2", "edit 3"}},
	} {
		before := dump(t, r.store, "weights", "settings", "refinements", "edits", "history")
		got := r.apply(c.proposal)
		if got.FailedEdits != c.failed || got.AppliedEdits != 0 || got.RefinementID != "" || got.RollbackAvailable || !strings.HasPrefix(got.Error, "nothing was changed: ") {
			t.Errorf("%s was answered by %+v", c.proposal, got)
		}
		v := r.review(c.proposal)
		if v.Approved || v.RiskLevel != "high" || v.ConfidenceAdjusted > 0.5 {
			t.Errorf("the review of %s says %+v", c.proposal, v)
		}
		for _, says := range c.says {
			if !strings.Contains(got.Error, says) || !strings.Contains(strings.Join(v.Reasons, "\n"), says) {
				t.Errorf("%s: %q is not in %q and %q", c.proposal, says, got.Error, v.Reasons)
			}
		}
		if after := dump(t, r.store, "weights", "settings", "refinements", "edits", "history"); after != before {
			t.Errorf("%s changed the store:\n%s", c.proposal, after)
		}
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
			if m := r.Call(typ, `{"proposal":`+proposal+`}`); m.Code != protocol.CodeSchemaViolation || m.Problem() != path {
				t.Errorf("%s %.100s was answered by %.500s", typ, proposal, m.Line)
			}
		}
	}
	if m := r.Call(protocol.TypeRefinementPlanReq, fmt.Sprintf(`{"scope":%q}`, long)); m.Problem() != "/scope" {
		t.Errorf("a long scope was answered by %.500s", m.Line)
	}
}

// The words of the public specification mean the same as ours.
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
		if v := r.review(proposal); !v.Approved || v.RiskLevel != "low" {
			t.Errorf("%s: %+v", proposal, v)
		}
		id := r.applied(proposal)
		if h := r.history(); len(h) != 1 || h[0].Edits[0].Component != "grep" || h[0].Edits[0].Kind != "tool" || h[0].Component != "other" && (h[0].Component != "grep" || h[0].Kind != "tool") {
			t.Errorf("%s: the history is %+v", proposal, h)
		}
		if w := r.plugin.Weight("tool", "grep"); w != 1.5 {
			t.Errorf("%s: the weight is %v", proposal, w)
		}
		r.applied(`{"edits":[{"target":"router_weight","op":"delete","path":"router.weights.grep","old_value":1.5}]}`)
		if w := r.plugin.Weight("tool", "grep"); w != 1 {
			t.Errorf("%s: deleted, the weight is %v", proposal, w)
		}
		if resp := r.rollback(id); resp.RolledBack || !strings.Contains(resp.Error, "null by now") {
			t.Errorf("%s: %+v", proposal, resp)
		}
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
		confidence float64 // at most
		says       string
	}{
		{`{"component":"good","edits":[{"target":"weight","to":1.5}]}`, true, "low", 0.95, "50 of 50"},
		{`{"component":"good","confidence":0.4,"edits":[{"target":"weight","to":1.5}]}`, true, "low", 0.4, ""},
		{`{"component":"good","confidence":0.2,"edits":[{"target":"weight","to":1.5}]}`, false, "medium", 0.2, "it takes 0.3"},
		{`{"component":"good","confidence":0.9,"evidence":{"calls":500},"edits":[{"target":"weight","to":1.5}]}`, true, "medium", 0.5, "speaks of 500 calls, 50 were recorded"},
		{`{"component":"good","edits":[{"target":"weight","to":9}]}`, true, "medium", 0.95, "factor of 9"},
		{`{"component":"good","edits":[{"target":"weight","to":0.5}]}`, false, "high", 0.5, "speaks against"},
		{`{"component":"bad","edits":[{"target":"weight","to":2}]}`, false, "high", 0.5, "speaks against"},
		{`{"component":"bad","edits":[{"target":"weight","to":0}]}`, false, "high", 0.95, "being used at all"},
		{`{"component":"bad","edits":[{"target":"weight","to":0.5}]}`, true, "low", 0.95, ""},
		{`{"component":"unclear","edits":[{"target":"weight","to":1.1}]}`, true, "medium", 0.7, "not clear"},
		{`{"component":"few","confidence":1,"edits":[{"target":"weight","to":2}]}`, false, "medium", 0.5, "not enough evidence"},
		{`{"component":"bad","edits":[{"target":"setting","name":"deferred","to":true}]}`, true, "low", 0.95, ""},
		{`{"component":"good","edits":[{"target":"setting","name":"deferred","to":true}]}`, false, "high", 0.5, "does well"},
		{`{"component":"good","edits":[{"target":"setting","name":"timeout","to":10}]}`, true, "low", 0.95, ""},
		{`{"component":"good","edits":[{"target":"setting","name":"timeout","to":1}]}`, false, "high", 0.5, "cut them off"},
	} {
		v := r.review(c.proposal)
		if v.Approved != c.approved || v.RiskLevel != c.risk || v.ConfidenceAdjusted > c.confidence || !strings.Contains(strings.Join(v.Reasons, "\n"), c.says) {
			t.Errorf("%s: %+v", c.proposal, v)
		}
	}
}

// A proposal from before another refinement is out of date, whatever `from` says.
func TestReviewSeesConflicts(t *testing.T) {
	r := newRefiner(t)
	r.calls("good", 80, 0)
	proposals, _ := r.plan("good")
	id := r.applied(`{"component":"good","edits":[{"target":"weight","to":1.2}]}`)
	if v := r.review(string(proposals[0])); v.Approved || v.RiskLevel != "high" || !strings.Contains(strings.Join(v.Reasons, "\n"), "not 1 as `from` says") {
		t.Errorf("%+v", v)
	}
	old := strings.Replace(string(proposals[0]), `"from":1,`, "", 1)
	if v := r.review(old); v.Approved || !strings.Contains(strings.Join(v.Reasons, "\n"), "the refinement "+id+" changed the weight") {
		t.Errorf("%+v", v)
	}
	r.rolledBack(id)
	if v := r.review(old); !v.Approved {
		t.Errorf("after the rollback: %+v", v)
	}
}
