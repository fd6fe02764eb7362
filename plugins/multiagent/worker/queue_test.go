package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Higher priorities start first, equal ones in order of arrival.
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
	poll(t, "the first task", func() bool { return s.info("w").Active == 1 })
	var want []string
	levels := []fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent, ""}
	byLevel := make(map[fleet.Priority][]string)
	for i := range 10 {
		level := levels[i%len(levels)]
		id := fmt.Sprintf("%d", i)
		run(id, level)
		poll(t, "a task that waits", func() bool { return s.info("w").Waiting == i+1 })
		if level == "" {
			level = fleet.PriorityNormal
		}
		byLevel[level] = append(byLevel[level], id)
	}
	for _, level := range []fleet.Priority{fleet.PriorityUrgent, fleet.PriorityHigh, fleet.PriorityNormal, fleet.PriorityLow} {
		want = append(want, byLevel[level]...)
	}
	s.touch("go")
	for range 11 {
		<-done
	}
	if diff := cmp.Diff(want, s.notes("order")); diff != "" {
		t.Error(diff)
	}
}

// A task that waits ends with its deadline or its context, and leaves the queue.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `until test -e go; do sleep 0.01; done`))
	done := make(chan *fleet.Result)
	go func() { done <- s.do(brief("first", "")) }()
	poll(t, "the first task", func() bool { return s.info("w").Active == 1 })
	const late = `error 0 error="deadline"`
	if got := describe(s.late(brief("late", ""), late)); got != late {
		t.Error(got)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("not wanted")
	go func() {
		poll(t, "the second task", func() bool { return s.info("w").Waiting == 1 })
		cancel(why)
	}()
	if _, err := s.RunTask(ctx, brief("second", "")); !errors.Is(err, why) {
		t.Error(err)
	}
	if info := s.info("w"); info.Waiting != 0 || info.Active != 1 {
		t.Errorf("%+v", info)
	}
	s.touch("go")
	<-done
	if info := s.info("w"); info.Active != 0 {
		t.Errorf("%+v", info)
	}
}

func TestRefusedTasks(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("a", "true"), shell("b", "true"))
	for name, test := range map[string]struct {
		change func(*host.WorkerTask)
		want   string
	}{
		"worker":   {func(t *host.WorkerTask) { t.Worker = "c" }, `schema_violation: no worker has the name "c"; there are a, b`},
		"priority": {func(t *host.WorkerTask) { t.Task.Priority = "highest" }, `schema_violation: /task/priority: is "highest"; should be low, normal, high or urgent`},
		"schema":   {func(t *host.WorkerTask) { t.Task.ReplySchema = "xml" }, `schema_violation: /task/reply_schema: is "xml"; should be prose, structured or json`},
		"budget":   {func(t *host.WorkerTask) { t.Task.TokenBudget = -1 }, `schema_violation: /task/token_budget: is below 0; 0 is none`},
		"deadline": {func(t *host.WorkerTask) { t.Deadline = "soon" }, `schema_violation: deadline "soon" is no RFC 3339 time, such as 2026-11-21T15:04:05Z`},
	} {
		task := brief("t", "")
		test.change(&task)
		if res, err := s.RunTask(context.Background(), task); res != nil || err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, %v", name, res, err)
		}
	}
	empty := newStage(t)
	var e *protocol.Error
	if _, err := empty.RunTask(context.Background(), brief("t", "")); !errors.As(err, &e) || e.Code != protocol.CodeCapabilityMissing {
		t.Error(err)
	}
	if all := empty.Workers(); all == nil || len(all) > 0 {
		t.Error(all)
	}
}

// idlePool is a pool whose workers never start: their places are taken by hand.
func idlePool(t testing.TB, workers ...Worker) *Pool {
	t.Helper()
	p, err := NewPool(Options{Workers: workers}, Env{Launcher: noLauncher, Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTooManyWait(t *testing.T) {
	t.Parallel()
	p := idlePool(t, Worker{Name: "w", Command: []string{"x"}})
	p.runners[0].active = 1
	p.waiting = maxWaiting
	var e *protocol.Error
	if _, err := p.RunTask(context.Background(), brief("t", "")); !errors.As(err, &e) || e.Code != protocol.CodeOverloaded {
		t.Error(err)
	}
}

// A worker that goes down sends those that wait for it elsewhere, each once: also where the
// first of them has another worker look at its queue, in which the next one stands as well.
func TestEvictedOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := Worker{Mode: ModeFleet, Command: []string{"x"}, MaxTasks: 4}
	a, b := w, w
	a.Name, b.Name = "a", "b"
	p := idlePool(t, a, b)
	p.env.Now = func() time.Time { return now }
	first, second := p.runners[0], p.runners[1]
	p.mu.Lock()
	defer p.mu.Unlock()
	broken := errors.New("broken")
	first.health.lost(now, broken, 0, false, false, time.Hour)
	second.health.lost(now, broken, 0, false, false, time.Second)
	tasks := make([]*task, 2)
	for i := range tasks {
		var err error
		if tasks[i], err = p.newTask(context.Background(), brief(fmt.Sprint(i), "")); err != nil {
			t.Fatal(err)
		}
		tasks[i].number = uint64(i)
		if r, err := p.assignLocked(tasks[i]); r != nil || err != nil {
			t.Fatal(r, err)
		}
	}
	now = now.Add(2 * time.Second) // the second has rested
	down(first, broken)
	first.evictLocked()
	for i, task := range tasks {
		select {
		case g := <-task.granted:
			if g.at != second || g.err != nil {
				t.Errorf("task %d: %+v", i, g)
			}
		default:
			t.Errorf("task %d waits", i)
		}
	}
	if p.waiting != 0 || len(first.queue) != 0 || len(second.queue) != 0 || second.active != 2 {
		t.Errorf("%d tasks wait, %d and %d in the queues, %d places are taken", p.waiting, len(first.queue), len(second.queue), second.active)
	}
	for _, r := range p.runners {
		if r.wake != nil {
			r.wake.Stop()
		}
	}
}

// The queues against a plain list: any order of arrivals, withdrawals and free places gives
// the task that is next by priority and arrival.
func TestQueueAgainstAList(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	p := idlePool(t, Worker{Name: "a", Command: []string{"x"}}, Worker{Name: "b", Command: []string{"x"}}, Worker{Name: "c", Command: []string{"x"}, Model: "other"})
	for _, r := range p.runners {
		r.active = 1
	}
	type waiter struct {
		task *task
		rank int
		at   string // the one worker that it wants; "" = a or b
	}
	var list []waiter
	ranks := []fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent}
	p.mu.Lock()
	defer p.mu.Unlock()
	for step := range 5000 {
		switch what := random.IntN(10); {
		case what < 5:
			rank := random.IntN(4)
			given := brief(fmt.Sprint(step), "")
			given.Task.Priority, given.Worker = ranks[rank], []string{"", "a", "b", "c"}[random.IntN(4)]
			task, err := p.newTask(context.Background(), given)
			if err != nil {
				t.Fatal(err)
			}
			task.number = uint64(step)
			if r, err := p.assignLocked(task); r != nil || err != nil {
				t.Fatal(r, err)
			}
			list = append(list, waiter{task, rank, given.Worker})
		case what < 6 && len(list) > 0:
			i := random.IntN(len(list))
			p.removeLocked(list[i].task)
			list = slices.Delete(list, i, i+1)
		default:
			r := p.runners[random.IntN(3)]
			next := -1
			for i, w := range list {
				fits := w.at == r.Name || w.at == "" && r.Name != "c"
				if fits && (next < 0 || w.rank > list[next].rank) {
					next = i
				}
			}
			r.active--
			r.serveLocked()
			if next < 0 {
				r.active++
				continue
			}
			select {
			case g := <-list[next].task.granted:
				if g.at != r || g.err != nil {
					t.Fatalf("step %d: %+v", step, g)
				}
			default:
				t.Fatalf("step %d: %s did not get its place", step, list[next].task.Task.TaskID)
			}
			list = slices.Delete(list, next, next+1)
		}
		if p.waiting != len(list) {
			t.Fatalf("step %d: %d wait, should be %d", step, p.waiting, len(list))
		}
	}
}
