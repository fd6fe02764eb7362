package worker

import (
	"fmt"

	"a2e/protocol/fleet"
)

// A worker whose stdout has more than bytesPerToken bytes for each token of its budget, and
// budgetSlack on top, has spent more than that for certain: tokenizers make about four bytes
// of a text one token and nowhere sixteen on average, but for runs of blanks, which do not
// count here. The slack is for what programs print themselves, such as a greeting or their
// progress.
const (
	bytesPerToken = 16
	budgetSlack   = 64 << 10
)

// budgetError is why a worker is stopped that certainly spends more than it may.
type budgetError struct{ budget int }

// Error implements error.
func (e *budgetError) Error() string {
	return fmt.Sprintf("token_budget: the worker was stopped, for what it printed is more than the %d tokens that it had to spend", e.budget)
}

// overspent tells whether so many bytes, blanks left out, are certainly more than a budget.
func overspent(bytes, budget int) bool {
	return budget > 0 && (bytes-budgetSlack)/bytesPerToken > budget
}

// budget gives the tokens that the task may still spend; 0 = any number, or none any more.
// What workers only may have spent, by an estimate, does not count.
func (t *task) budget() int { return max(0, t.Task.TokenBudget-t.counted) }

// exhausted gives the result of a task that others would take up, but that has nothing left
// to spend; nil = it goes on, or nobody else would.
func (p *Pool) exhausted(t *task) *fleet.Result {
	if t.Task.TokenBudget == 0 || t.budget() > 0 {
		return nil
	}
	p.mu.Lock()
	_, err := p.candidatesLocked(t)
	p.mu.Unlock()
	if err != nil {
		return nil
	}
	res := t.setback()
	res.NextSteps = append(res.NextSteps, fmt.Sprintf("no other worker was asked: nothing is left of the token budget of %d", t.Task.TokenBudget))
	return t.finish(res)
}
