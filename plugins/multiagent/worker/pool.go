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

// Options are the options of a Pool.
type Options struct {
	Workers []Worker // the first is the default
	// Durable lets the tasks of a fleet keep their ids, so that they can be found again after a restart;
	// otherwise each task gets an id that no other host has.
	Durable bool
}

// Env is what the host passes to the plugin.
type Env = host.Env

// Pool has the workers of the config. It implements agent.WorkerPool and is safe for
// concurrent use.
type Pool struct {
	env       Env
	workspace string // absolute
	stateDir  string // absolute
	durable   bool   // see Options
	instance  string // distinguishes the tasks of this pool from those of other hosts
	runners   []*runner
	pace      pace

	ctx      context.Context // of the children
	stop     context.CancelCauseFunc
	services *host.Services // set by Start
	goes     sync.WaitGroup // goroutines of the children; Go under mu while not closed
	tasks    sync.WaitGroup // RunTask calls; Add under mu while not closed

	mu      sync.Mutex // guards the fields below, and the marked fields of runners and tasks
	closed  bool
	queue   []*task       // tasks without a place, in the order in which they get one
	news    chan struct{} // closed and replaced when a child announces itself
	arrived uint64        // number of tasks so far
}

// pace has the waiting times of the pool; tests use shorter ones.
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

	secrets *redact.Set     // of the host, and those that the worker gets
	starts  sync.Mutex      // held while the child of mode fleet is started, or the fields below are made
	sender  *fleetdb.Sender // mode queue: made with the first task; guarded by starts
	remote  *remote         // mode a2a: from the card, read with the first task; guarded by starts
	llm     agent.Model     // mode llm: made with the first task; guarded by starts
	llmKey  string          // the key that llm was made with; guarded by starts
	meter   agent.Meter     // of llm

	// Guarded by Pool.mu.
	active int         // number of tasks that have a place
	health health      // its failures
	child  *peer       // mode fleet: the running child; nil = none
	wake   *time.Timer // looks at the queue when a rest is over; nil = not set
}

var (
	_ agent.WorkerPool = (*Pool)(nil)
	_ agent.Summariser = (*Pool)(nil)
)

// errClosed is the cause when tasks and children end with the host.
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

// Workers implements agent.WorkerPool.
func (p *Pool) Workers() []agent.WorkerInfo {
	all := make([]agent.WorkerInfo, 0, len(p.runners))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.runners {
		info := agent.WorkerInfo{
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

// RunTask implements agent.WorkerPool. It waits while all places of the workers that may do
// the task are taken; higher priorities get a place first, equal ones in order. If the task names
// no Worker and a worker answers blocked, the next suitable one gets the task with the rest of
// the token budget. If a worker dies, another one gets the task, or the same one again. A
// task whose deadline has passed is blocked. The error is a schema_violation for an invalid
// task, overloaded if too many tasks wait, or the cause of ctx. The end of ctx stops everything
// that was started for the task.
func (p *Pool) RunTask(ctx context.Context, given agent.WorkerTask) (*fleet.Result, error) {
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

// run lets one worker after the other try the task, until it has a result.
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

// work lets one worker, at which the task has a place, try the task.
func (p *Pool) work(ctx context.Context, r *runner, t *task) (outcome, error) {
	defer p.leave(r)
	t.takenBy(r)
	if t.talk != nil && t.talk.Worker != r.Name { // another worker does not know the session
		t.talk.Worker, t.talk.Session = r.Name, ""
	}
	start := p.env.Now()
	within, cancel := ctx, func() {}
	if r.Mode != ModeQueue { // in mode queue the timeout begins when a worker takes the task
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
		p.services.CountCall(ctx, host.CallOutcome{
			Kind: host.KindWorker, Component: r.Name, Correlation: t.Task.TaskID,
			Success: o.res.Status == fleet.StatusDone, Duration: p.env.Now().Sub(start),
		})
	}
	return o, err
}

// Start sets the services of the host that the pool uses.
func (p *Pool) Start(_ context.Context, s *host.Services) error {
	p.services = s
	return nil
}

// enter counts one more task. It returns an error if the pool is closed.
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

// Close ends all tasks and children and waits until they have ended or ctx ends. It closes the input of
// a child of mode fleet, so that the child can end by itself, and kills it after a moment.
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

// letGo closes the input of the children without a task, and waits a moment for their end.
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

// names returns the names of the workers for an error.
func (p *Pool) names() string {
	var names []string
	for _, r := range p.runners {
		names = append(names, r.Name)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}
