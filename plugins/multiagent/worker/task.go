package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// How long is waited before a task is begun again, the first time and at most, and how many
// workers may die before they are given the task.
const (
	firstRetry   = 200 * time.Millisecond
	longestRetry = 10 * time.Second
	freshTries   = 3
)

// AutoModel as the model of a task leaves open which one it is: the worker is chosen by what
// was learned of each.
const AutoModel = "auto"

// errDeadline is why a task ends at its deadline.
var errDeadline = errors.New("deadline")

// timeoutError is why a task ends that takes longer than its worker may.
type timeoutError struct{ after time.Duration }

// Error implements error.
func (e *timeoutError) Error() string {
	return fmt.Sprintf("timeout: the worker may take %s for a task", e.after)
}

// task is a task between its begin and its result.
type task struct {
	host.WorkerTask
	deadline time.Time // zero = none
	out      *listener
	weigh    func(worker string) float64
	open     bool    // it may go to a worker of any model, not the default's alone
	chosen   *runner // among those of its class, by what is learned; nil = nobody learns

	owner string // whose conversation it goes on with; "" = nobody's in particular

	// Of the goroutine that runs the task.
	talk     *conversation // that it belongs to; nil = none
	done     bool          // a worker has done it, at least in part
	setbacks []setback     // workers that have not done it
	losses   []setback     // workers that died of it, each time
	instead  string        // why the one that has it is not the wanted one; "" = it is
	printed  int           // bytes of all processes that tried, blanks left out
	spent    int           // tokens of all workers that tried
	counted  int           // of those, what they said themselves
	guessed  bool          // not all of them did

	number  uint64     // of its arrival
	granted chan grant // takes one
	rank    int        // of its priority
	waits   []*runner  // at which it would take a place; guarded by Pool.mu
}

// setback is a worker that did not take the task up, or died.
type setback struct {
	at    *runner
	res   *fleet.Result
	fresh bool // it died before it was given the task
}

// grant is the end of a wait: a place at a worker, or why there will be none.
type grant struct {
	at  *runner
	err error
}

// outcome is what became of a task at one worker.
type outcome struct {
	res   *fleet.Result
	again bool // another worker may take it up
	lost  bool // the worker died before it had a result
	fresh bool // it did so before it was given the task
	moot  bool // it says nothing about the worker
}

// newTask checks a task. The error is a *protocol.Error.
func (p *Pool) newTask(ctx context.Context, given host.WorkerTask) (*task, error) {
	t := &task{WorkerTask: given, granted: make(chan grant, 1), out: &listener{to: given.Output}}
	if given.Agent != nil {
		t.owner = given.Agent.AgentID
	}
	at, _, err := t.DeadlineTime()
	if err != nil {
		return nil, err
	}
	t.deadline = at
	if fault := t.Check(); fault != nil {
		return nil, protocol.Violation(*fault)
	}
	t.Task.Priority, t.Task.ReplySchema = cmp.Or(t.Task.Priority, fleet.PriorityNormal),
		cmp.Or(t.Task.ReplySchema, fleet.ReplyProse)
	t.rank = t.Task.Priority.Rank()
	if t.Retries != nil && (*t.Retries < 0 || *t.Retries > MaxRetries) {
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "retries is %d; it should be between 0 and %d",
			*t.Retries, MaxRetries)
	}
	if t.Agent, err = p.agentOf(t.Agent); err != nil {
		return nil, err
	}
	if t.Worker != "" && p.runner(t.Worker) == nil {
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "no worker has the name %.64q; there are %s",
			t.Worker, p.names())
	}
	if len(p.runners) == 0 {
		return nil, host.NoWorker()
	}
	if t.Model == AutoModel && !slices.ContainsFunc(p.runners, func(r *runner) bool { return r.Model == AutoModel }) {
		t.Model, t.open = "", true
	}
	if weigher := p.services.Weigher(); weigher != nil && len(p.runners) > 1 {
		t.weigh = p.weights(weigher)
	}
	return t, nil
}

// choose has what is learned of workers choose one among the best for the task, those that
// never had one first. done is to be called when the task has ended.
func (p *Pool) choose(ctx context.Context, t *task) (done func()) {
	if p.services.Chooser() == nil || t.Worker != "" {
		return func() {}
	}
	p.mu.Lock()
	best, err := p.bestLocked(t)
	p.mu.Unlock()
	if err != nil || len(best) < 2 {
		return func() {}
	}
	names := make([]string, len(best))
	for i, r := range best {
		names[i] = r.Name
	}
	at, done := p.services.Chooser().Choose(ctx, host.KindWorker, names)
	t.chosen = best[at]
	return done
}

// wrong is a schema_violation at one place.
func wrong(path, format string, args ...any) error {
	return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// weights asks for the learned weights of all workers at once: they may come from the disk,
// which nobody waits for with the pool locked.
func (p *Pool) weights(weigher host.Weigher) func(worker string) float64 {
	all := make(map[string]float64, len(p.runners))
	for _, r := range p.runners {
		all[r.Name] = weigher.Weight(host.KindWorker, r.Name)
	}
	return func(worker string) float64 { return all[worker] }
}

// tellStart tells who has the task now; "" = it waits for a place.
func (t *task) tellStart(worker string) {
	if t.Started != nil {
		t.Started(worker)
	}
}

// failed makes the result of a task that came to nothing.
func (t *task) failed(format string, args ...any) *fleet.Result {
	res := fleet.NewResult(t.Task.TaskID, fleet.StatusError)
	res.Error = fmt.Sprintf(format, args...)
	return res
}

// stopped tells what a task comes to that was stopped for a cause: those of the pool
// make a result, any other is the error.
func (t *task) stopped(cause error) (outcome, error) {
	var timeout *timeoutError
	var over *budgetError
	switch {
	case errors.Is(cause, errDeadline), errors.As(cause, &timeout), errors.As(cause, &over):
		return outcome{res: t.failed("%v", cause)}, nil
	case errors.Is(cause, errClosed):
		return outcome{res: t.failed("%v", cause), moot: true}, nil
	}
	return outcome{}, cause
}

// unplaced ends a task that gets no place, or no further one.
func (t *task) unplaced(err error) (*fleet.Result, error) {
	var none *nobodyError
	var down *downError
	switch {
	case len(t.setbacks) > 0 && (errors.As(err, &none) || errors.As(err, &down)):
		return t.finish(t.setback()), nil
	case len(t.losses) > 0 && (errors.As(err, &none) || errors.As(err, &down)):
		return t.finish(t.died("; and now " + err.Error())), nil
	case errors.As(err, &none):
		return t.finish(fleet.Blocked(t.Task.TaskID, none.Error())), nil
	case errors.As(err, &down):
		return t.finish(t.failed("%v", down)), nil
	}
	o, err := t.stopped(err)
	if err != nil {
		return nil, err
	}
	return t.finish(o.res), nil
}

// setback returns the result of a task that no worker took up: the first that is no blocked
// one, else all reasons.
func (t *task) setback() *fleet.Result {
	reasons := make([]string, 0, len(t.setbacks))
	for _, s := range t.setbacks {
		if s.res.Status != fleet.StatusBlocked {
			return s.res
		}
		reasons = append(reasons, s.at.Name+": "+*s.res.BlockedReason)
	}
	res := t.setbacks[0].res
	if len(reasons) > 1 {
		all := strings.Join(reasons, "; ")
		res.BlockedReason = &all
	}
	return res
}

// takenBy notes who has the task now.
func (t *task) takenBy(r *runner) {
	r.pool.mu.Lock()
	t.instead = ""
	if !r.wantedLocked(t) {
		t.instead = fmt.Sprintf("no worker with %s was available: worker %s got the task instead, which has %s",
			profile(t.Model, t.Tier), r.Name, r.profileLocked())
	}
	r.pool.mu.Unlock()
	t.tellStart(r.Name)
}

// retries notes that a worker died of the task, and waits until it may be begun again. False
// means that it is not.
func (t *task) retries(ctx context.Context, r *runner, o outcome) bool {
	t.losses = append(t.losses, setback{r, o.res, o.fresh})
	begun, most := t.begun(), defaultRetries
	if own := cmp.Or(t.Retries, r.Retries); own != nil {
		most = *own
	}
	if begun > most || len(t.losses)-begun >= freshTries {
		return false
	}
	pause, cancel := context.WithTimeout(ctx, min(r.pool.pace.retry<<min(len(t.losses)-1, 16), longestRetry))
	defer cancel()
	t.idle(pause.Done())
	return true
}

// begun returns how often a worker that had begun with the task died.
func (t *task) begun() (times int) {
	for _, l := range t.losses {
		if !l.fresh {
			times++
		}
	}
	return times
}

// lostAt returns how often a worker died of the task.
func (t *task) lostAt(r *runner) (times int) {
	for _, l := range t.losses {
		if l.at == r {
			times++
		}
	}
	return times
}

// died returns the result of a task that is not begun again after its worker died, and why.
func (t *task) died(why string) *fleet.Result {
	res := t.losses[len(t.losses)-1].res
	if tries := len(t.losses); tries > 1 || why != "" {
		res.Error = fmt.Sprintf("no worker lived to end the task (tries: %d): %s%s", tries, t.deaths(), why)
	}
	t.losses = nil // it is said
	return res
}

// deaths tells how the workers died.
func (t *task) deaths() string {
	var all []string
	for _, l := range t.losses {
		all = append(all, l.at.Name+": "+l.res.Error)
	}
	return strings.Join(slices.Compact(all), "; ")
}

// idle waits for the end of something; texts that steer the task are not taken meanwhile.
func (t *task) idle(over <-chan struct{}) {
	steer := t.Steer
	for {
		select {
		case <-over:
			return
		case s, ok := <-steer:
			if !ok {
				steer = nil
				continue
			}
			tell(s, false)
		}
	}
}

// spend counts the tokens of one worker.
func (t *task) spend(res *fleet.Result) {
	t.spent += res.TokensSpent
	if res.TokensEstimated {
		t.guessed = true
	} else {
		t.counted += res.TokensSpent
	}
}

// finish completes a result: all tokens count, and its summary has the wanted shape.
func (t *task) finish(res *fleet.Result) *fleet.Result {
	res.TokensSpent, res.TokensEstimated = t.spent, t.guessed
	if t.instead != "" && res.Status != fleet.StatusBlocked {
		res.NextSteps = append(res.NextSteps, t.instead)
	}
	if n := t.begun(); n > 0 {
		res.NextSteps = append(res.NextSteps, fmt.Sprintf("workers that died during the task: %d (%s); what they "+
			"had done may be done twice", n, t.deaths()))
	}
	if budget := t.Task.TokenBudget; budget > 0 && t.counted > budget {
		line := fmt.Sprintf("the token budget of %d was exceeded: %d were spent", budget, t.counted)
		if !slices.Contains(res.NextSteps, line) { // a child that is a host says so itself
			res.NextSteps = append(res.NextSteps, line)
		}
	}
	return t.shaped(res)
}

// listener passes on what a worker prints, one line at a time, until it is closed.
type listener struct {
	to func(stream, line string)

	mu     sync.Mutex // held during a call of to
	closed bool       // guarded by mu
}

// say passes a line on. It waits for whoever listens.
func (l *listener) say(stream string, line []byte) {
	if l.to == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.to(stream, strings.ToValidUTF8(string(line), "\uFFFD"))
	}
}

// close has no line passed on any more once it returns.
func (l *listener) close() {
	if l.to == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// tell says whether the text of whoever steers the task was taken.
func tell(s host.Steering, taken bool) {
	select {
	case s.Taken <- taken:
	default: // no room, or nobody asked
	}
}

// budget returns the tokens that the task may still spend; 0 = any number, or none any more.
// What workers only may have spent, by an estimate, does not count.
func (t *task) budget() int { return max(0, t.Task.TokenBudget-t.counted) }

// exhausted returns the result of a task that others would take up, but that has nothing left
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
	res.NextSteps = append(res.NextSteps, fmt.Sprintf("no other worker was asked: nothing is left of the token "+
		"budget of %d", t.Task.TokenBudget))
	return t.finish(res)
}
