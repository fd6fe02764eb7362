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
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// The first and the longest pause before a task is begun again, and how many
// workers may die before they have got the task.
const (
	firstRetry   = 200 * time.Millisecond
	longestRetry = 10 * time.Second
	freshTries   = 3
)

// AutoModel as the model of a task allows any model: the worker is chosen by the learned
// weights.
const AutoModel = "auto"

// errDeadline is the cause when a task ends at its deadline.
var errDeadline = errors.New("deadline")

// timeoutError is the cause when a task takes longer than its worker's timeout.
type timeoutError struct{ after time.Duration }

// Error implements error.
func (e *timeoutError) Error() string {
	return fmt.Sprintf("timeout: the worker may take %s for a task", e.after)
}

// task is a task between its start and its result.
type task struct {
	agent.WorkerTask
	deadline time.Time // zero = none
	out      *listener
	weigh    func(worker string) float64
	open     bool    // it may go to a worker of any model, not only the default model
	chosen   *runner // chosen by learned weights among the best; nil = not chosen so

	owner string // agent that owns its conversation; "" = unknown

	// Used by the goroutine that runs the task.
	talk     *conversation // the conversation that it belongs to; nil = none
	done     bool          // a worker has done it, at least in part
	setbacks []setback     // workers that did not take it up
	losses   []setback     // workers that died of it, one entry for each death
	instead  string        // why its worker is not the wanted one; "" = it is
	printed  int           // bytes that all processes printed, without blanks
	spent    int           // tokens of all workers that tried
	counted  int           // the part of spent that the workers reported
	guessed  bool          // a part of spent is estimated

	number  uint64     // in order of arrival
	granted chan grant // has a buffer for one
	rank    int        // of its priority
	waits   []*runner  // workers whose places it waits for; guarded by Pool.mu
}

// setback is a worker that did not take the task up, or died.
type setback struct {
	at    *runner
	res   *fleet.Result
	fresh bool // it died before it got the task
}

// grant is the end of a wait: a place at a worker, or why there will be none.
type grant struct {
	at  *runner
	err error
}

// outcome is the result of a task at one worker.
type outcome struct {
	res   *fleet.Result
	again bool // another worker may take the task up
	lost  bool // the worker died before it had a result
	fresh bool // the worker died before it got the task
	moot  bool // the outcome says nothing about the worker
}

// newTask checks a task. The error is a *protocol.Error.
func (p *Pool) newTask(ctx context.Context, given agent.WorkerTask) (*task, error) {
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
		return nil, agent.NoWorker()
	}
	if t.Model == AutoModel && !slices.ContainsFunc(p.runners, func(r *runner) bool { return r.Model == AutoModel }) {
		t.Model, t.open = "", true
	}
	if weigher := p.services.Weigher(); weigher != nil && len(p.runners) > 1 {
		t.weigh = p.weights(weigher)
	}
	return t, nil
}

// choose sets t.chosen to one of the best workers for the task, by the learned weights; workers that
// never had a task come first. The caller must call done when the task has ended.
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

// wrong returns a schema_violation for one field.
func wrong(path, format string, args ...any) error {
	return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// weights reads the learned weights of all workers in advance, as reading may use the disk
// and must not happen while the pool is locked.
func (p *Pool) weights(weigher host.Weigher) func(worker string) float64 {
	all := make(map[string]float64, len(p.runners))
	for _, r := range p.runners {
		all[r.Name] = weigher.Weight(host.KindWorker, r.Name)
	}
	return func(worker string) float64 { return all[worker] }
}

// tellStart reports which worker has the task now; "" = it waits for a place.
func (t *task) tellStart(worker string) {
	if t.Started != nil {
		t.Started(worker)
	}
}

// failed returns the result of a failed task.
func (t *task) failed(format string, args ...any) *fleet.Result {
	res := fleet.NewResult(t.Task.TaskID, fleet.StatusError)
	res.Error = fmt.Sprintf(format, args...)
	return res
}

// stopped returns the outcome of a task that was stopped: for a cause of the pool a result,
// for any other cause that error.
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

// unplaced returns the result or error of a task that gets no place, or no further one.
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

// setback returns the result of a task that no worker took up: the first result that is not blocked,
// else a blocked result with all reasons.
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

// takenBy records which worker has the task now.
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

// retries records that a worker died of the task, and waits until the task may begin again. It returns
// false if the task is not begun again.
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
	t.losses = nil // the result has them now
	return res
}

// deaths returns a text that tells how the workers died.
func (t *task) deaths() string {
	var all []string
	for _, l := range t.losses {
		all = append(all, l.at.Name+": "+l.res.Error)
	}
	return strings.Join(slices.Compact(all), "; ")
}

// idle waits until over is closed, and refuses the texts that steer the task meanwhile.
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

// spend adds the tokens of one worker to those of the task.
func (t *task) spend(res *fleet.Result) {
	t.spent += res.TokensSpent
	if res.TokensEstimated {
		t.guessed = true
	} else {
		t.counted += res.TokensSpent
	}
}

// finish completes a result: it sets the tokens of all workers and gives the summary the wanted format.
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
		if !slices.Contains(res.NextSteps, line) { // a child that is a host may have added the line
			res.NextSteps = append(res.NextSteps, line)
		}
	}
	return t.shaped(res)
}

// listener passes on the output of a worker, one line at a time, until it is closed.
type listener struct {
	to func(stream, line string)

	mu     sync.Mutex // held during a call of to
	closed bool       // guarded by mu
}

// say passes a line to l.to and waits for its return.
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

// close stops the listener: no line is passed on after it returns.
func (l *listener) close() {
	if l.to == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// tell reports to the sender of a steering text whether it was taken.
func tell(s agent.Steering, taken bool) {
	select {
	case s.Taken <- taken:
	default: // no receiver
	}
}

// budget returns the tokens that the task may still spend; 0 = no limit, or nothing left.
// Estimated tokens do not count.
func (t *task) budget() int { return max(0, t.Task.TokenBudget-t.counted) }

// exhausted returns the result of a task that another worker could take up, but whose budget is used up.
// It returns nil if the budget is not used up or no other worker could take the task.
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
