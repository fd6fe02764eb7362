package learning

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
)

// Whatever was applied, taking it back in turn leaves the tables as they were, to the byte;
// and what is refused changes nothing.
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
			e["target"], e["name"], e["to"] = "setting", "deferred", rapid.SampledFrom([]any{true, false, nil}).Draw(t, "deferred")
		case 2:
			e["target"], e["name"], e["to"] = "setting", "timeout", rapid.SampledFrom([]any{1, 2.5, nil, "x"}).Draw(t, "timeout")
		default:
			e["to"] = rapid.Float64Range(-0.5, 3).Draw(t, "weight")
		}
		return e
	})
	all := []string{"weights", "settings", "refinements", "edits", "history"}
	applied, refused := 0, 0
	hosttest.Checks(t, 25)
	rapid.Check(t, func(rt *rapid.T) {
		if err := r.store.Write(t.Context(), func(tx *store.Tx) error {
			_, _, err := tx.Exec("DELETE FROM learning_edits")
			return err
		}); err != nil { // of the last round
			rt.Fatal(err)
		}
		type step struct{ id, before string }
		var steps []step
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			raw, err := json.Marshal(map[string]any{"edits": rapid.SliceOfN(editOf, 1, 4).Draw(rt, "edits")})
			if err != nil {
				rt.Fatal(err)
			}
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
	if applied == 0 || refused == 0 {
		t.Errorf("%d applied and %d refused", applied, refused)
	}
}

// Of many that want to change the same target from the same value one wins, whichever
// host it is on.
func TestOneOfManyAppliesWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	hosts := []*refiner{refinerOn(t, path), refinerOn(t, path)}
	hosts[0].calls("t", 20, 0)
	hosts[0].plan("t") // what was counted is in the store
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
	if h := hosts[1].history(); len(won) != 1 || len(h) != 1 || h[0].RefinementID != won[0] {
		t.Fatalf("%d have won: %v, history %+v", len(won), won, h)
	}
	var rolled sync.WaitGroup
	for i := range 10 {
		rolled.Go(func() { hosts[i%2].rolledBack(won[0]) })
	}
	rolled.Wait()
	if got := dump(t, hosts[0].store, "weights", "settings"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A rollback would undo what came later: it says what that was.
func TestRollbackAfterALaterChange(t *testing.T) {
	r := newRefiner(t)
	r.calls("t", 20, 0)
	first := r.applied(`{"component":"t","edits":[{"target":"weight","to":1.5},{"target":"setting","name":"timeout","to":5}]}`)
	second := r.applied(`{"component":"t","edits":[{"target":"weight","to":1.7}]}`)
	if resp := r.rollback(first); resp.RolledBack || !strings.Contains(resp.Error, "is 1.7 by now, not 1.5, by the refinement "+second+"; roll that back first") {
		t.Errorf("%+v", resp)
	}
	if h := r.history(); len(h) != 2 || h[0].RefinementID != second || !h[0].RollbackAvailable || h[1].RollbackAvailable || h[1].Status != "applied" {
		t.Errorf("%+v", h)
	}
	r.rolledBack(second)
	if err := r.store.Write(t.Context(), func(tx *store.Tx) error {
		return writeWeight(tx, "tool", "t", &weightRow{Weight: 3, Strategy: "ucb1", UpdatedAt: 1})
	}); err != nil {
		t.Fatal(err)
	}
	before := dump(t, r.store, "weights", "settings", "refinements", "history")
	if resp := r.rollback(first); resp.RolledBack || !strings.Contains(resp.Error, "is 3 by now, not 1.5") || strings.Contains(resp.Error, second) {
		t.Errorf("%+v", resp)
	}
	if dump(t, r.store, "weights", "settings", "refinements", "history") != before || r.plugin.Setting("tool", "t", host.SettingTimeout) != 5.0 {
		t.Error("a refused rollback changed something")
	}
	if resp := r.rollback("nonsense"); resp.RolledBack || resp.RefinementID != "nonsense" || !strings.Contains(resp.Error, `no refinement "nonsense"`) {
		t.Errorf("%+v", resp)
	}
}

// The oldest refinements go when there are too many, those rolled back first.
func TestRefinementsAreBounded(t *testing.T) {
	r := newRefiner(t)
	r.calls("t", 20, 0)
	kept := r.applied(`{"component":"t","edits":[{"target":"setting","name":"timeout","to":5}]}`)
	gone := r.applied(`{"component":"t","edits":[{"target":"weight","to":2}]}`)
	r.rolledBack(gone)
	if err := r.store.Write(t.Context(), func(tx *store.Tx) error {
		for i := range maxRefinements - 2 {
			edit := appliedEdit{target{targetWeight, "tool", "t", nameWeight}, jsontext.Value("null"), jsontext.Value("null")}
			past := &refinement{ID: fmt.Sprint(i), Proposal: jsontext.Value("{}"), Edits: []appliedEdit{edit}}
			if err := past.insert(tx); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last := r.applied(`{"component":"t","edits":[{"target":"weight","to":3}]}`)
	h := r.history()
	if len(h) != maxRefinements || h[0].RefinementID != last || h[len(h)-1].RefinementID != kept {
		t.Errorf("%d are kept, the oldest being %s", len(h), h[len(h)-1].RefinementID)
	}
	if n := strings.Count(dump(t, r.store, "edits"), "\n"); n != maxRefinements {
		t.Errorf("%d edits are kept", n)
	}
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
	take := func(line string) error {
		_, err := r.store.Import(t.Context(), strings.NewReader(`{"a2e_state":1,"parts":["learning"]}`+"\n"+line+"\n"), store.Merge)
		return err
	}
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
		if line == c.line {
			t.Fatalf("%s is not in %s", c.old, c.line)
		}
		if err := take(line); err == nil {
			t.Errorf("taken: %s", line)
		}
	}
}
