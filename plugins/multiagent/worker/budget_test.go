package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/protocol/fleet"
)

// says is a worker that answers blocked.
func says(name, fields string) Worker {
	return shell(name, `echo '{"status":"blocked","blocked_reason":"not me"`+fields+`}'`)
}

// Who gets a task after another one was blocked gets what that one left of the budget.
func TestBudgetIsShared(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields string // of the first worker's result
		budget int
		want   string
	}{
		"some is left":        {`,"tokens_spent":4`, 10, `done summary="6" ~6`},
		"without a budget":    {`,"tokens_spent":4`, 0, `done summary="0" ~6`},
		"an estimate":         {``, 1, `done summary="1" ~3`},
		"nothing was spent":   {`,"tokens_spent":0`, 10, `done summary="10" ~2`},
		"nothing is left":     {`,"tokens_spent":10`, 10, `blocked 10 next=[no other worker was asked: nothing is left of the token budget of 10] reason="not me"`},
		"less than nothing":   {`,"tokens_spent":11`, 10, `blocked 11 next=[no other worker was asked: nothing is left of the token budget of 10 the token budget of 10 was exceeded: 11 were spent] reason="not me"`},
		"its own words first": {`,"tokens_spent":9,"next_steps":["x"]`, 9, `blocked 9 next=[x no other worker was asked: nothing is left of the token budget of 9] reason="not me"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := says("first", test.fields)
			first.Priority = 1
			s := newStage(t, first, shell("second", `echo x >asked; echo $A2E_TOKEN_BUDGET`))
			task := brief("id", "work")
			task.Task.TokenBudget = test.budget
			got := s.do(task)
			assert.Equal(t, describe(got), test.want)
			assert.Equal(t, len(s.notes("asked")) > 0, (got.Status == fleet.StatusDone), "the second worker was asked")
		})
	}
}

// A child learns of it too.
func TestBudgetOfAChild(t *testing.T) {
	t.Parallel()
	first := says("first", `,"tokens_spent":4`)
	first.Priority = 1
	s := newStage(t, first, fake(t, "second"))
	task := brief("id", "done")
	task.Task.TokenBudget = 10
	assert.Equal(t, describe(s.do(task)), `done 11 next=[the token budget of 10 was exceeded: 11 were spent] summary="did id"`)
	var sent fleet.Dispatch
	err := json.Unmarshal([]byte(s.notes("lines")[0]), &sent)
	assert.That(t, err == nil && sent.Task.TokenBudget == 6, "it was told %d tokens, %v", sent.Task.TokenBudget, err)
}

// Where nobody else would take the task, nobody was left out.
func TestBudgetOfTheOnlyWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t, says("first", `,"tokens_spent":10`))
	task := brief("id", "")
	task.Task.TokenBudget = 10
	assert.Equal(t, describe(s.do(task)), `blocked 10 reason="not me"`)
}

// A worker that certainly spends more than it may is stopped, and what it said is kept.
func TestBudgetStops(t *testing.T) {
	t.Parallel()
	const within = budgetSlack + 10*bytesPerToken
	print := func(bytes int, text string) string {
		return fmt.Sprintf(`head -c %d /dev/zero | tr '\0' '%s'; `, bytes, text)
	}
	for name, test := range map[string]struct {
		script string
		budget int
		stops  bool
	}{
		"for ever":            {`yes`, 10, true},
		"and ends by itself":  {print(within+32, "x"), 10, true},
		"with a result":       {print(within+32, "x") + `echo; echo '{"status":"done","tokens_spent":1}'`, 10, true},
		"on stderr":           {`{ ` + print(3*within, "x") + `} >&2`, 10, false},
		"as much as it may":   {print(within, "x"), 10, false},
		"blanks are no words": {print(3*within, " ") + print(3*within, `\n`), 10, false},
		"without a budget":    {print(3*within, "x"), 0, false},
		"a very large budget": {print(3*within, "x"), 1 << 62, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, shell("w", test.script))
			task := brief("id", "")
			task.Task.TokenBudget = test.budget
			res := s.do(task)
			if !test.stops {
				assert.Equal(t, res.Status, fleet.StatusDone, "… %s", res.Error)
				return
			}
			if res.Status != fleet.StatusError || !strings.HasPrefix(res.Error, "token_budget: ") || !res.TokensEstimated || res.TokensSpent < within/charsPerToken/2 || len(res.Summary) < within/2 {
				t.Errorf("%s %q, %d tokens, summary of %d bytes", res.Status, res.Error, res.TokensSpent, len(res.Summary))
			}
		})
	}
}
