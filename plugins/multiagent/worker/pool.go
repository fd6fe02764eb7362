package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/child"
	"a2e/host/dialect/fleetdb"
	"a2e/host/guard/redact"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxWaiting is how many tasks may wait for a place.
const maxWaiting = 65_536

// Options are those of a Pool.
type Options struct {
	Workers []Worker // the first is the default
	// Durable has the tasks of a fleet keep their ids, so that they are found again by those;
	// otherwise each gets one that no other host has.
	Durable bool
}

// Env is what the host gives to the plugin.
type Env = host.Env

// Pool is the workers of the config. It implements host.WorkerPool and is safe for
// concurrent use.
type Pool struct {
	env       Env
	workspace string // absolute
	stateDir  string // absolute
	durable   bool   // see Options
	instance  string // tells the tasks of this pool from those of other hosts
	runners   []*runner
	pace      pace

	ctx      context.Context // of the children
	stop     context.CancelCauseFunc
	services *host.Services // set by Start
	goes     sync.WaitGroup // goroutines of the children; Go under mu while not closed
	tasks    sync.WaitGroup // RunTask calls; Add under mu while not closed

	mu      sync.Mutex // guards the fields below, and those of runners and tasks that say so
	closed  bool
	queue   []*task       // those without a place, who comes first first; each may wait at several workers
	news    chan struct{} // closed, and made anew, when a child announces itself
	arrived uint64        // tasks so far
}

// pace is how patient the pool is; tests are in a hurry.
type pace struct {
	stop  time.Duration // stopGrace
	rest  time.Duration // firstRest
	end   time.Duration // closeGrace
	greet time.Duration // greetTime
	retry time.Duration // firstRetry
}

// runner is a worker at run time.
type runner struct {
	Worker
	pool *Pool

	secrets *redact.Set     // of the host, and those that it was told
	starts  sync.Mutex      // held by whoever starts the child of mode fleet, or makes the model of mode llm
	sender  *fleetdb.Sender // mode queue: made with the first task; guarded by starts
	remote  *remote         // mode a2a: by its card, read with the first task; guarded by starts
	llm     agent.Model     // mode llm: made with the first task; guarded by starts
	llmKey  string          // that it was made with; guarded by starts
	meter   agent.Meter     // of that model

	// Guarded by Pool.mu.
	active int         // tasks that have a place
	health health      // whether it runs
	child  *peer       // mode fleet: the one that runs; nil = none
	wake   *time.Timer // mode fleet: looks at the queue once a rest is over; nil = none is set
}

var (
	_ host.WorkerPool = (*Pool)(nil)
	_ host.Summariser = (*Pool)(nil)
)

// errClosed is why tasks and children end with the host.
var errClosed = errors.New("the host ends")

// NewPool makes a Pool. It starts nothing: each worker starts with its first task. The
// error says which worker is wrong.
func NewPool(opts Options, env Env) (*Pool, error) {
	if err := validate(opts.Workers); err != nil {
		return nil, err
	}
	if env.Launcher == nil && slices.ContainsFunc(opts.Workers,
		func(w Worker) bool { return len(w.Command) > 0 || w.CLI != "" }) {
		return nil, errors.New("workers need a launcher to start programs with")
	}
	env = env.WithDefaults()
	workspace, err := filepath.Abs(env.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	stateDir, err := filepath.Abs(env.StateDir)
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	p := &Pool{
		env: env, durable: opts.Durable, instance: uuid.NewString()[:13], workspace: workspace,
		stateDir: stateDir, pace: pace{
			stop: stopGrace, rest: firstRest, end: closeGrace, greet: greetTime,
			retry: firstRetry,
		}, news: make(chan struct{}),
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	for _, w := range opts.Workers {
		if w.ShareState && env.StateDir == "" {
			return nil, fmt.Errorf("worker %q: share_state needs a host with a state_dir", w.Name)
		}
		p.runners = append(p.runners, &runner{Worker: w.withDefaults(), pool: p, secrets: secretsOf(&w, env.Secrets)})
	}
	return p, nil
}

// Workers implements host.WorkerPool.
func (p *Pool) Workers() []host.WorkerInfo {
	all := make([]host.WorkerInfo, 0, len(p.runners))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.runners {
		info := host.WorkerInfo{
			Name: r.Name, Mode: r.Mode, Model: r.modelLocked(), ModelTier: r.tierLocked(),
			ContextWindow: r.ContextWindow,
			MaxTasks:      r.MaxTasks, Active: r.active, Reason: r.health.Reason(p.env.Now()),
			Tools: append([]string{}, r.Capabilities...), MCPServers: []string{},
			HostTools: r.Mode == ModeLLM || r.Mode == ModeOneshot && r.Capabilities == nil, Only: slices.Clone(r.Tools),
		}
		for _, t := range p.queue {
			if r.awaitedBy(t) {
				info.Waiting++
			}
		}
		if r.Mode == ModeLLM {
			info.Extensions, info.Thinking = []string{fleet.ExtensionSteer, fleet.ExtensionCancel},
				cmp.Or(r.LLM.Thinking, "off")
			info.ServedBy = func(ctx context.Context, model string) ([]string, bool, error) {
				return agent.ServedBy(ctx, r.endpoint(), model)
			}
			if r.LLM.APIKey.Reveal() == "" {
				info.KeyFor = agent.Origin(r.LLM.URL)
			}
		}
		info.Healthy = info.Reason == ""
		a := r.health.announced
		info.Unknown = r.Mode == ModeFleet && a == nil
		if a != nil {
			info.Tools, info.MCPServers = append(info.Tools, a.Capabilities.Tools...),
				append(info.MCPServers, a.Capabilities.MCPServers...)
			info.MCPHealth = maps.Clone(a.MCPHealth)
			info.Extensions, info.ContextWindow = slices.Clone(a.Capabilities.Extensions),
				cmp.Or(info.ContextWindow, a.Worker.ContextWindow)
		}
		all = append(all, info)
	}
	return all
}

// RunTask implements host.WorkerPool. It waits while all places of the workers that may do
// the task are taken; higher priorities get one first, equal ones in order. Where task has
// no Worker, one that answers blocked is followed by the next that fits, which gets what is
// left of the token budget; a worker that died is followed by another one, or by itself. A
// task whose deadline has passed is blocked. The error is a schema_violation for a task that
// makes no sense, overloaded where too many wait, or the cause of ctx, which ends what was
// started for the task.
func (p *Pool) RunTask(ctx context.Context, given host.WorkerTask) (*fleet.Result, error) {
	t, err := p.newTask(ctx, given)
	if err != nil {
		return nil, err
	}
	if err := p.enter(t); err != nil {
		return nil, err
	}
	defer p.tasks.Done()
	defer t.out.close()
	host.HandOff(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(errClosed) })()
	if !t.deadline.IsZero() {
		left := t.deadline.Sub(p.env.Now())
		if left <= 0 {
			return t.shaped(fleet.Blocked(t.Task.TaskID, "the deadline "+t.Deadline+" has passed")), nil
		}
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, left, errDeadline)
		defer done()
	}
	if !p.converses(t) {
		return p.run(ctx, t)
	}
	if err := p.recall(ctx, t); err != nil {
		return t.shaped(t.failed("the conversation %.64q cannot be read: %v", t.Task.ContextID, err)), nil
	}
	before := t.talk.Session
	res, err := p.run(ctx, t)
	if err == nil && t.talk.Worker != "" && (t.done || t.talk.Session != before) {
		p.keep(ctx, t)
	}
	return res, err
}

// run has one worker after the other try the task, until one has ended it.
func (p *Pool) run(ctx context.Context, t *task) (*fleet.Result, error) {
	for first := true; ; first = false {
		p.meet(ctx, t)
		if first {
			defer p.choose(ctx, t)()
		}
		r, err := p.place(ctx, t)
		if err != nil {
			return t.unplaced(err)
		}
		o, err := p.work(ctx, r, t)
		if err != nil {
			return nil, err
		}
		t.spend(o.res)
		switch {
		case o.lost:
			if !t.retries(ctx, r, o) {
				return t.finish(t.died("")), nil
			}
		case !o.again || t.Worker != "":
			return t.finish(o.res), nil
		default:
			t.setbacks = append(t.setbacks, setback{at: r, res: o.res})
			if res := p.exhausted(t); res != nil {
				return res, nil
			}
		}
	}
}

// work has one worker try the task, which has a place there.
func (p *Pool) work(ctx context.Context, r *runner, t *task) (outcome, error) {
	defer p.leave(r)
	t.takenBy(r)
	if t.talk != nil && t.talk.Worker != r.Name { // another one knows nothing of its session
		t.talk.Worker, t.talk.Session = r.Name, ""
	}
	start := p.env.Now()
	within, cancel := ctx, func() {}
	if r.Mode != ModeQueue { // there it counts from when a worker has taken the task
		within, cancel = context.WithTimeoutCause(ctx, r.Timeout, &timeoutError{r.Timeout})
	}
	defer cancel()
	var o outcome
	var err error
	switch r.Mode {
	case ModeFleet:
		o, err = r.delegate(within, t)
	case ModeLLM:
		o, err = r.think(within, t)
	case ModeQueue:
		o, err = r.queueUp(within, t)
	case ModeA2A:
		o, err = r.consult(within, t)
	default:
		o, err = r.process(within, t)
	}
	if err == nil {
		r.clean(o.res)
		t.done = o.res.Status == fleet.StatusDone || o.res.Status == fleet.StatusPartial
	}
	if err == nil && !o.again && !o.moot {
		p.services.Record(ctx, host.CallRecord{
			Kind: host.KindWorker, Component: r.Name, Correlation: t.Task.TaskID,
			Success: o.res.Status == fleet.StatusDone, Duration: p.env.Now().Sub(start),
		})
	}
	return o, err
}

// Start returns the pool what it asks of the host.
func (p *Pool) Start(_ context.Context, s *host.Services) error {
	p.services = s
	return nil
}

// enter counts one more task, unless the pool is closed.
func (p *Pool) enter(t *task) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return protocol.Errorf(protocol.CodeRuntimeError, "the workers were closed: %w", errClosed)
	}
	p.tasks.Add(1)
	p.arrived++
	t.number = p.arrived
	return nil
}

// Close ends all tasks and children and waits for their end, or that of ctx. A child of
// mode fleet may end by itself when its input ends; it is killed after a moment.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	var children []*peer
	for _, r := range p.runners {
		if r.wake != nil {
			r.wake.Stop()
		}
		if r.child != nil {
			children = append(children, r.child)
		}
	}
	p.mu.Unlock()
	p.letGo(ctx, children)
	p.stop(errClosed)
	err := child.WaitFor(ctx, "workers", &p.tasks, &p.goes)
	var unqueued sync.WaitGroup
	for _, r := range p.runners {
		err = errors.Join(err, r.disconnect())
		unqueued.Go(func() { r.unqueue(ctx) })
	}
	unqueued.Wait()
	return err
}

// letGo ends the input of the children that have no task, and gives them a moment to end.
func (p *Pool) letGo(ctx context.Context, children []*peer) {
	children = slices.DeleteFunc(children, func(c *peer) bool { return c.jobs.Len() > 0 })
	for _, c := range children {
		c.Close()
	}
	grace := time.After(p.pace.end)
	for _, c := range children {
		select {
		case <-c.Done():
		case <-grace:
			return
		case <-ctx.Done():
			return
		}
	}
}

// names lists the workers for an error.
func (p *Pool) names() string {
	var names []string
	for _, r := range p.runners {
		names = append(names, r.Name)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}
