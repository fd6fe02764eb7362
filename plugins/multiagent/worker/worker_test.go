package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Worker{Name: "w", Command: []string{"sh"}}
	assert.OK(t, good.Validate())
	model := agent.LLM{URL: "http://127.0.0.1:1/v1", Model: "m", APIKey: config.NewSecret("hidden")}
	for want, change := range map[string]func(*Worker){
		"a worker has no name":                        func(w *Worker) { w.Name = "" },
		"without control characters":                  func(w *Worker) { w.Name = "a\nb" },
		"at most 256 bytes":                           func(w *Worker) { w.Name = strings.Repeat("x", 300) },
		`worker "w" has neither a command nor an llm`: func(w *Worker) { w.Command = nil },
		`worker "w" has a command and an llm`:         func(w *Worker) { w.LLM = model },
		"are for a worker with an llm; this one has":  func(w *Worker) { w.Tools = []string{} },
		"llm: url must be an address":                 func(w *Worker) { w.Command, w.LLM.Model = nil, "m" },
		"llm: model is missing":                       func(w *Worker) { w.Command, w.LLM.URL = nil, model.URL },
		"llm: thinking is \"hard\"; it should be one of off": func(w *Worker) {
			w.Command, w.LLM, w.LLM.Thinking = nil,
				model, "hard"
		},
		"mode fleet is for a command; leave mode out": func(w *Worker) {
			w.Command, w.LLM, w.Mode = nil, model,
				ModeFleet
		},
		"max_turns should be between 1 and 1000": func(w *Worker) {
			w.Command, w.LLM, w.MaxTurns = nil,
				model, 1001
		},
		"token_budget should be 0 or more": func(w *Worker) {
			w.Command, w.LLM, w.TokenBudget = nil,
				model, -1
		},
		"share_state are for a command; an llm works": func(w *Worker) {
			w.Command, w.LLM, w.ShareState = nil,
				model, true
		},
		"tools: \"[\" is neither a name nor a glob": func(w *Worker) {
			w.Command, w.LLM, w.Tools = nil, model,
				[]string{"["}
		},
		`worker "w": command: a word has a NUL`:          func(w *Worker) { w.Command = []string{"sh", "\x00"} },
		`mode is "daemon"; it should be oneshot, fleet`:  func(w *Worker) { w.Mode = "daemon" },
		"context_window should be 0 or more tokens":      func(w *Worker) { w.ContextWindow = -1 },
		"max_tasks should be between 1 and 1024":         func(w *Worker) { w.MaxTasks = 1025 },
		"timeout should be 0 or more seconds":            func(w *Worker) { w.Timeout = -time.Second },
		"auth_token is for mode fleet; a oneshot worker": func(w *Worker) { w.AuthToken = config.NewSecret("hidden") },
	} {
		w := good
		change(&w)
		err := w.Validate()
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hidden"),
			"%v, want %q", err, want)
	}
	_, err := NewPool(Options{Workers: []Worker{good, good}}, Env{Launcher: noLauncher})
	assert.That(t, err != nil && err.Error() == `workers.1.name: two workers have the name "w"; each needs its own`,
		"%v", err)
	_, err = NewPool(Options{Workers: []Worker{good}}, Env{})
	assert.That(t, err != nil, "no launcher")
}

// TestOptionsLoad: the options of a worker load from the config of a plugin.
func TestOptionsLoad(t *testing.T) {
	t.Parallel()
	opts := must.Get(config.ParseOptions("x", []byte("workers:\n- {name: w, command: [a, b], mode: fleet, model: m, "+
		"model_tier: t, context_window: 5, max_tasks: 3, timeout: 90, "+
		"env: {A: b}, network: true, read: [/x], write: [/z], cwd: y, priority: 2, capabilities: [c], auth_token: "+
		"hush}\n"), nil))(t)
	var got struct {
		Workers []Worker `yaml:"workers"`
	}
	must.OK(t, opts.Decode(&got))
	w := got.Workers[0]
	err := w.Validate()
	assert.That(t, err == nil && w.Timeout == 90*time.Second && w.AuthToken.Reveal() == "hush" &&
		!strings.Contains(fmt.Sprintf("%+v", w), "hush"), "%+v %v", w, err)
}

// TestTooManyNeeds: the number of requirements of a task is bounded, because the search for a worker holds up all other
// tasks.
func TestTooManyNeeds(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	for i, path := range []string{"/requirements/required_mcp", "/requirements/required_capabilities"} {
		task := brief("t", "")
		list := []*[]string{&task.Requirements.RequiredMCP, &task.Requirements.RequiredCapabilities}[i]
		*list = make([]string, 1024)
		_, err := s.RunTask(context.Background(), task)
		assert.That(t, err == nil, "%s: %v", path, err)
		*list = make([]string, 1025)
		res, err := s.RunTask(context.Background(), task)
		assert.That(t, res == nil && err != nil && strings.Contains(err.Error(), path), "%s: %v %v", path, res, err)
	}
}

// TestPriorityOrder: tasks of a higher priority start first, and tasks of the same priority in the order of their
// arrival.
func TestPriorityOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `if test "$A2E_TASK_ID" = first; then until test -e go; do sleep 0.01; done; else echo "$A2E_TASK_ID" >>order; fi`))
	done := make(chan *fleet.Result)
	run := func(id string, priority fleet.Priority) {
		task := brief(id, "")
		task.Task.Priority = priority
		go func() { done <- s.do(task) }()
	}
	run("first", "")
	hosttest.Eventually(t, "the first task", func() bool { return s.info("w").Active == 1 })
	var want []string
	levels := []fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent, ""}
	byLevel := make(map[fleet.Priority][]string)
	for i := range 10 {
		level := levels[i%len(levels)]
		id := fmt.Sprintf("%d", i)
		run(id, level)
		hosttest.Eventually(t, "a task that waits", func() bool { return s.info("w").Waiting == i+1 })
		if level == "" {
			level = fleet.PriorityNormal
		}
		byLevel[level] = append(byLevel[level], id)
	}
	for _, level := range []fleet.Priority{
		fleet.PriorityUrgent, fleet.PriorityHigh, fleet.PriorityNormal,
		fleet.PriorityLow,
	} {
		want = append(want, byLevel[level]...)
	}
	s.touch("go")
	for range 11 {
		<-done
	}
	assert.Diff(t, want, s.notes("order"))
}

// TestWaitingEnds: a waiting task ends with its deadline or its context, and leaves the queue.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `until test -e go; do sleep 0.01; done`))
	done := make(chan *fleet.Result)
	go func() { done <- s.do(brief("first", "")) }()
	hosttest.Eventually(t, "the first task", func() bool { return s.info("w").Active == 1 })
	const late = `error 0 error="deadline"`
	assert.Equal(t, describe(s.late(brief("late", ""), late)), late)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("not wanted")
	go func() {
		hosttest.Eventually(t, "the second task", func() bool { return s.info("w").Waiting == 1 })
		cancel(why)
	}()
	_, err := s.RunTask(ctx, brief("second", ""))
	assert.That(t, errors.Is(err, why), "%v", err)
	info := s.info("w")
	assert.That(t, info.Waiting == 0 && info.Active == 1, "%+v", info)
	s.touch("go")
	<-done
	info = s.info("w")
	assert.Equal(t, info.Active, 0, "%+v", info)
}

func TestRefusedTasks(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("a", "true"), shell("b", "true"))
	for name, test := range map[string]struct {
		change func(*agent.WorkerTask)
		want   string
	}{
		"worker": {
			func(t *agent.WorkerTask) { t.Worker = "c" },
			`schema_violation: no worker has the name "c"; there are a, b`,
		},
		"priority": {
			func(t *agent.WorkerTask) { t.Task.Priority = "highest" },
			`schema_violation: /task/priority: is "highest"; should be low, normal, high or urgent`,
		},
		"schema": {
			func(t *agent.WorkerTask) { t.Task.ReplySchema = "xml" },
			`schema_violation: /task/reply_schema: is "xml"; should be prose, structured or json`,
		},
		"budget": {
			func(t *agent.WorkerTask) { t.Task.TokenBudget = -1 },
			`schema_violation: /task/token_budget: is -1; should be 0 for none, or more`,
		},
		"deadline": {
			func(t *agent.WorkerTask) { t.Deadline = "soon" },
			`schema_violation: deadline "soon" is not an RFC 3339 time, such as 2026-11-21T15:04:05Z`,
		},
	} {
		task := brief("t", "")
		test.change(&task)
		res, err := s.RunTask(context.Background(), task)
		assert.That(t, res == nil && err != nil && err.Error() == test.want, "%s: %v, %v", name, res, err)
	}
	empty := newStage(t)
	var e *protocol.Error
	_, err := empty.RunTask(context.Background(), brief("t", ""))
	assert.That(t, errors.As(err, &e) && e.Code == protocol.CodeCapabilityMissing, "%v", err)
	all := empty.Workers()
	assert.That(t, all != nil && len(all) == 0, "%v", all)
}

// idlePool returns a pool whose workers never start: tests take their places by hand.
func idlePool(t testing.TB, workers ...Worker) *Pool {
	t.Helper()
	p := must.Get(NewPool(Options{Workers: workers}, Env{Launcher: noLauncher, Workspace: t.TempDir()}))(t)
	return p
}

func TestTooManyWait(t *testing.T) {
	t.Parallel()
	p := idlePool(t, Worker{Name: "w", Command: []string{"x"}})
	p.runners[0].active = 1
	p.queue = slices.Repeat([]*task{{}}, maxWaiting)
	var e *protocol.Error
	_, err := p.RunTask(context.Background(), brief("t", ""))
	assert.That(t, errors.As(err, &e) && e.Code == protocol.CodeOverloaded, "%v", err)
}

// learner is a plugin that records calls and has weights.
type learner struct {
	begun  chan context.Context // receives the context of Start, which has the host
	weight map[string]float64

	mu    sync.Mutex
	calls []host.CallOutcome // guarded by mu
}

func (l *learner) Info() host.PluginInfo {
	return host.PluginInfo{Name: "learner", Capability: protocol.CapLearning}
}
func (l *learner) Routes() []host.Route          { return nil }
func (l *learner) Close(context.Context) error   { return nil }
func (l *learner) Weight(_, name string) float64 { return l.weight[name] }

func (l *learner) Start(ctx context.Context, _ *host.Services) error {
	l.begun <- ctx
	return nil
}

func (l *learner) CountCall(r host.CallOutcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Duration = min(r.Duration, time.Nanosecond)
	l.calls = append(l.calls, r)
}

// TestTasksAreCounted: each task that ran is recorded once for the worker that did it, and weights decide between equal
// workers.
func TestTasksAreCounted(t *testing.T) {
	t.Parallel()
	l := &learner{begun: make(chan context.Context, 1), weight: map[string]float64{"good": 2, "fair": 1, "blocked": 3}}
	hosttest.New(t, host.Options{Plugins: []host.Plugin{l}})
	inHost := <-l.begun
	s := newStage(t, shell("fair", "exit 1"), shell("good", "true"), shell("blocked", `echo '{"status":"blocked"}'`))
	_ = s.Start(inHost, host.ServicesOf(inHost))
	for _, worker := range []string{"", "fair"} {
		task := brief("t"+worker, "")
		task.Worker = worker
		must.Get(s.RunTask(inHost, task))(t)
	}
	ctx, cancel := context.WithCancel(inHost)
	cancel()
	_, err := s.RunTask(ctx, brief("no", ""))
	assert.That(t, err != nil, "a task that nobody wants ran")
	want := []host.CallOutcome{
		{Kind: host.KindWorker, Component: "good", Correlation: "t", Success: true, Duration: 1},
		{Kind: host.KindWorker, Component: "fair", Correlation: "tfair", Duration: 1},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	assert.Diff(t, want, l.calls)
}

// picker is a learner that chooses the last of the offered workers.
type picker struct {
	*learner
	busy  int // choices whose task has not ended; guarded by mu
	among []string
}

func (p *picker) Choose(_ context.Context, _ string, names []string) (at int, done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
	p.among = append(p.among, strings.Join(names, " "))
	return len(names) - 1, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy--
	}
}

// TestAutoModel: a task with the model "auto" goes to the worker that the learner chooses, of any model. A task without
// a model goes to one of the workers with the default worker's model, which the learner chooses, too.
func TestAutoModel(t *testing.T) {
	t.Parallel()
	p := &picker{learner: &learner{begun: make(chan context.Context, 1)}}
	hosttest.New(t, host.Options{Plugins: []host.Plugin{p}})
	inHost := <-p.begun
	first, far := shell("first", "true"), shell("far", "true")
	far.Model = "m"
	s := newStage(t, first, shell("second", "true"), far)
	_ = s.Start(inHost, host.ServicesOf(inHost))
	for model, want := range map[string]string{"auto": "far", "": "second", "m": "far"} {
		task := brief("t"+model, "")
		task.Model = model
		must.Get(s.RunTask(inHost, task))(t)
		p.mu.Lock()
		assert.Equal(t, p.calls[len(p.calls)-1].Component, want)
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.among)
	assert.Diff(t, []string{"first second", "first second far"}, p.among)
	assert.Equal(t, p.busy, 0)
}
