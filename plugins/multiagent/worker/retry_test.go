package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"a2e/host/agent"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// TestRetries: a task whose worker died begins again, on the same worker or another, as often as the limit allows. A
// task that a worker has answered is never begun again.
func TestRetries(t *testing.T) {
	t.Parallel()
	const dies = `echo x >>tries; kill -9 $$`
	once := shell("once", `echo x >>tries; [ $(wc -l <tries) -gt 1 ] || kill -9 $$; echo fine`)
	never, none := shell("never", dies), shell("none", dies)
	none.Retries = new(int)
	inner := shell("inner", `echo x >>tries; sh -c 'kill -9 $$'; exit $?`)
	wordy := shell("wordy", `echo x >>tries; head -c 50000 /dev/zero | tr '\0' x; kill -9 $$`)
	four := 4
	const killed = "the worker ended: signal: killed"
	for name, c := range map[string]struct {
		workers []Worker
		task    func(*agent.WorkerTask)
		want    string
		tries   int
	}{
		"the second time": {[]Worker{once}, nil, `done next=[workers that died during the task: 1 (once: ` + killed +
			`); what they had done may be done twice] summary="fine" ~2`, 2},
		"elsewhere": {
			[]Worker{never, shell("other", "echo mine")},
			nil,
			`done next=[workers that died during the task: 1 (never: ` + killed +
				`); what they had done may be done twice] summary="mine" ~2`, 1,
		},
		"never": {[]Worker{never}, nil, `error error="no worker lived to end the task (tries: 3): never: ` +
			killed + `" ~0`, 3},
		"each of two": {
			[]Worker{never, shell("b", dies)},
			nil,
			`error error="no worker lived to end the task (tries: 3): never: ` + killed + `; b: ` + killed +
				`; never: ` + killed + `" ~0`, 3,
		},
		"the worker named": {
			[]Worker{never, once},
			func(t *agent.WorkerTask) { t.Worker = "never" },
			`error error="no worker lived to end the task (tries: 3): never: ` + killed + `" ~0`, 3,
		},
		"none by config": {[]Worker{none}, nil, `error error="` + killed + `" ~0`, 1},
		"some by the task": {
			[]Worker{none},
			func(t *agent.WorkerTask) { t.Retries = &four },
			`error error="no worker lived to end the task (tries: 5): none: ` + killed + `" ~0`, 5,
		},
		"a shell's child": {
			[]Worker{inner},
			nil,
			`error error="no worker lived to end the task (tries: 3): inner: the worker ended: exit status 137; its stderr ends with: Killed" ~0`, 3,
		},
		"its own failure": {
			[]Worker{shell("w", `echo x >>tries; exit 3`)},
			nil,
			`error error="the worker ended: exit status 3" ~0`, 1,
		},
		"its own error": {[]Worker{shell("w", `echo x >>tries; echo '{"status":"error","error":"no","tokens_spent":1}'`)}, nil, `error 1 error="no"`, 1},
		"one budget": {
			[]Worker{wordy},
			func(t *agent.WorkerTask) { t.Task.TokenBudget = 1 },
			`error error="token_budget: the worker was stopped, for what it printed is more than the 1 tokens that it had to spend" next=[workers that died during the task: 1`, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, c.workers...)
			s.pace.retry = time.Millisecond
			task := brief("t", "")
			if c.task != nil {
				c.task(&task)
			}
			res := s.do(task)
			if got := describe(res); got != c.want && !(name == "one budget" &&
				strings.Contains(got, "next=[workers that died during the task: 1") &&
				strings.HasPrefix(res.Error, "token_budget: ")) && !(name == "a shell's child" &&
				strings.HasPrefix(res.Error, "no worker lived to end the task (tries: 3): inner: the worker ended: "+
					"exit status 137")) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			assert.Equal(t, len(s.notes("tries")), c.tries, "… tries")
		})
	}
}

// TestRetriesEnd: a task that was cancelled, or has no time left, does not begin again.
func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo x >>tries; kill -9 $$`))
	s.pace.retry = patience
	const late = `error next=[workers that died during the task: 1 (w: the worker ended: signal: killed); what they had done may be done twice] error="deadline" ~0`
	assert.Equal(t, describe(s.late(brief("late", ""), late)), late)
	ctx, cancel := context.WithCancel(context.Background())
	tried := len(s.notes("tries"))
	go func() {
		s.await("tries", tried+1)
		cancel()
	}()
	if res, err := s.RunTask(ctx, brief("unwanted", "")); err == nil {
		t.Error(describe(res))
	}
}

// TestFallback: a model or tier that no worker has is refused. With fallback, another worker does the task, and the
// result says so.
func TestFallback(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "told", announceLine), model(shell("small", "echo hi"), "s1"))
	s.pace.greet = patience
	task := brief("t", "done")
	task.Model = "huge"
	if _, err := s.RunTask(context.Background(), task); err == nil || !strings.Contains(err.Error(),
		`no worker has the model "huge": told has the model "m" of tier "strong", small has the model "s1"; ask for what there is`) {
		t.Error(err)
	}
	task.Fallback = true
	if got := describe(s.do(task)); got != `done 7 next=[no worker with the model "huge" was available: worker told got the task instead, which has the model "m" of tier "strong"] summary="did t"` {
		t.Error(got)
	}
	for model, want := range map[string]string{
		"m":  `done 7 summary="did t"`,
		"s1": `done summary="hi" ~2`,
	} { // this is the model of the announcement, before the worker sent anything else
		fresh := newStage(t, fake(t, "told", announceLine), shell("plain", "false"),
			Worker{Name: "small", Command: []string{"echo", "hi"}, Model: "s1"})
		fresh.pace.greet = patience
		task := brief("t", "done")
		task.Model = model
		assert.Equal(t, describe(fresh.do(task)), want, "%s", model)
	}
}

// realWorkers returns four workers that are real hosts. They store their results in one state, and each does a task
// with a shell. One is reached through a stand-in for ssh.
func realWorkers(t *testing.T) (workers []Worker) {
	t.Helper()
	state, ssh := t.TempDir(), filepath.Join(t.TempDir(), "ssh")
	must.OK(t, os.WriteFile(ssh, []byte("#!/bin/sh\n[ \"$1 $2\" = \"-T far\" ] && shift 2 && exec \"$@\"\n"), 0o700))
	for i := range 4 {
		workers = append(workers, Worker{
			Name: fmt.Sprint("w", i), Mode: ModeFleet, MaxTasks: 2, Retries: new(9),
			Env: map[string]string{"A2E_STATE_DIR": state},
			Command: []string{
				hosttest.Program(t, "a2e"), "worker", "--max-tasks", "2", "--no-contract", "--", "sh",
				"-c", `sleep 0.02; read -r n; echo "$n" >>did; echo "did $n"`,
			},
		})
	}
	workers[3].Command = append([]string{ssh, "-T", "far"}, workers[3].Command...)
	return workers
}

// TestKilledWorkers: each of four real workers is killed in turn while they do 200 tasks, and each task has one result.
// A new pool, as after the end of its host, has the same results for the same ids, and no task runs again.
func TestKilledWorkers(t *testing.T) {
	t.Parallel()
	const tasks = 200
	workers := realWorkers(t)
	s := newStage(t, workers...)
	s.pace.rest = 50 * time.Millisecond
	var all sync.WaitGroup
	results := make(chan *fleet.Result, tasks+1)
	for i := range tasks {
		all.Go(func() { results <- s.do(brief(fmt.Sprint("t", i), strconv.Itoa(i)+"\n")) })
	}
	for i := range workers {
		s.await("did", (i+1)*tasks/8)
		s.killWorker(i)
	}
	all.Wait()
	close(results)
	died := 0
	for res := range results {
		if res.Status != fleet.StatusDone || res.Summary != "did "+strings.TrimPrefix(res.TaskID, "t") {
			t.Errorf("%s: %s", res.TaskID, describe(res))
		}
		for _, step := range res.NextSteps {
			n := 0
			_, err := fmt.Sscanf(step, "workers that died during the task: %d ", &n)
			assert.That(t, err == nil, "%s: %s", res.TaskID, step)
			died += n
		}
	}
	did := s.notes("did")
	assert.That(t, died != 0 && len(did) >= tasks && len(did) <= tasks+died,
		"%d lines by %d tasks, which were begun again %d times", len(did), tasks, died)
	must.OK(t, s.Close(context.Background()))
	again := newStage(t, workers...)
	again.Pool.workspace = s.dir
	for i := range tasks {
		task := brief(fmt.Sprint("t", i), strconv.Itoa(i)+"\n")
		if res := again.do(task); res.Summary != "did "+strconv.Itoa(i) {
			t.Errorf("again: %s", describe(res))
		}
	}
	got := len(s.notes("did"))
	assert.Equal(t, got, len(did), "%d tasks were done again", got-len(did))
}

// killWorker kills the child of a worker that has a task.
func (s *stage) killWorker(i int) {
	s.t.Helper()
	hosttest.Eventually(s.t, "a child at work", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.runners[i].child
		return c != nil && c.jobs.Len() > 0 && c.Signal(syscall.SIGKILL) == nil
	})
}

// TestChaos: each task has one result, or its own cancellation, whatever happens to the workers and the callers.
func TestChaos(t *testing.T) {
	t.Parallel()
	const tasks = 200
	var workers []Worker
	for i := range 4 {
		w := fake(t, fmt.Sprint("fleet", i))
		w.MaxTasks = 3
		workers = append(workers, w)
	}
	workers = append(workers, shell("shell", `cat >/dev/null; exit $((RANDOM % 2))`))
	s := newStage(t, workers...)
	s.pace.stop, s.pace.rest, s.pace.retry = 50*time.Millisecond, time.Millisecond, time.Millisecond
	random := rand.New(rand.NewPCG(3, 4))
	briefs := []string{
		"done", "done", "sleep 2ms; done", "sleep 20ms; done", "sleep 50ms; done", "twice",
		"say x; done", "crash", "hang",
		`result "status":"blocked","blocked_reason":"busy"`, `result "status":"fine"`,
	}
	var mu sync.Mutex
	seen := make(map[fleet.Status]int)
	var all sync.WaitGroup
	levels := []fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent}
	for i := range tasks {
		task := brief(fmt.Sprint("t", i), briefs[random.IntN(len(briefs))])
		task.Task.Priority = levels[random.IntN(len(levels))]
		if task.Brief == "hang" || random.IntN(10) == 0 {
			task.Deadline = time.Now().Add(time.Duration(random.IntN(800)) * time.Millisecond).Format(time.RFC3339Nano)
		}
		cancelAfter := time.Duration(-1)
		if random.IntN(10) == 0 {
			cancelAfter = time.Duration(random.IntN(800)) * time.Millisecond
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			if cancelAfter >= 0 {
				defer time.AfterFunc(cancelAfter, cancel).Stop()
			}
			res, err := s.RunTask(ctx, task)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && (!errors.Is(err, context.Canceled) || cancelAfter < 0 || res != nil):
				t.Errorf("%s: %v, %v", task.Task.TaskID, res, err)
			case err != nil:
				seen["cancelled"]++
			default:
				checkResult(t, res, task.Task.TaskID)
				seen[res.Status]++
			}
		})
	}
	all.Wait()
	assert.That(t, seen[fleet.StatusDone] != 0 && seen[fleet.StatusError] != 0, "%v", seen)
	for _, info := range s.Workers() {
		assert.That(t, info.Active == 0 && info.Waiting == 0, "%+v", info)
	}
	assert.Equal(t, len(s.queue), 0, "… tasks wait for ever")
}
