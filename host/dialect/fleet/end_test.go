package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// cancel and steer return lines about a task that was sent before.
func cancel(id string) string {
	return fmt.Sprintf(`{"type":"TASK_CANCEL","protocol_version":"2.0","task_id":%q}`, id)
}

func steer(id, text string) string {
	return fmt.Sprintf(`{"type":"TASK_STEER","protocol_version":"2.0","task_id":%q,"text":%q}`, id, text)
}

// soon returns a deadline in 200 ms. In a synctest bubble the clock stands still while a goroutine works, so the host
// has the task before its deadline.
func soon() string {
	return fmt.Sprintf(`,"deadline":%q`, time.Now().Add(200*time.Millisecond).Format(time.RFC3339Nano))
}

// TestDeadline: a deadline ends a task that waits and a task that runs.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, &pool{hold: make(chan struct{})}, front.Options{})
		at := soon()
		p.SendRaw(dispatch("runs", "low", at) + "\n" + dispatch("waits", "low", at) + "\n")
		for _, id := range []string{"runs", "waits"} {
			check(t, result(p, id), "/status", "error", "/error", "deadline")
		}
	})
}

// TestDeadlineOfTheWorkers: workers know the deadline too. A result that they send shortly after it is used, and they
// are not stopped before that.
func TestDeadlineOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
			at, _, _ := task.DeadlineTime()
			time.Sleep(time.Until(at) + 50*time.Millisecond) // shortly after the deadline: this is the case under test
			r := fleet.NewResult(task.Task.TaskID, fleet.StatusPartial)
			r.Summary = "half of it"
			return r, nil
		}}
		l := openLab(t, workers, front.Options{}, long, long, long)
		check(t, do(l.Pair, dispatch("t", "low", soon()), "t"), "/status", "partial", "/summary", "half of it")
	})
}

// TestLateWorker: a task is answered in time even if its worker does not stop. Its slot is free only when the worker
// has ended, and a result from then is dropped.
func TestLateWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{hold: make(chan struct{}), deaf: true}
		p := open(t, workers, front.Options{})
		check(t, do(p, dispatch("stuck", "low", soon()), "stuck"), "/error", "deadline")
		p.SendRaw(dispatch("next", "low", "") + "\n" + dispatch("other", "low", "") + "\n" + cancel("other") + "\n")
		check(t, result(p, "other"), "/blocked_reason", "cancelled")
		assert.Equal(t, workers.order(), "stuck", "more tasks than slots")
		close(workers.hold)
		result(p, "next")
		assert.Equal(t, len(results(p, "stuck")), 1, "… results of one dispatch")
	})
}

// TestCancel: a task can be cancelled while it runs and while it waits, even by the line right after its dispatch.
func TestCancel(t *testing.T) {
	workers := &pool{hold: make(chan struct{})}
	p := open(t, workers, front.Options{})
	p.SendRaw(dispatch("runs", "low", "") + "\n")
	workers.awaitStart(t, "runs")
	check(t, do(p, dispatch("waits", "low", "")+"\n"+cancel("waits")+"\n"+cancel("runs")+"\n"+cancel("nobody"),
		"waits"), "/status", "blocked", "/blocked_reason", "cancelled")
	check(t, result(p, "runs"), "/status", "error", "/error", "cancelled")
	check(t, result(p, ""), "/error~", `TASK_CANCEL of the task "nobody": no such task`)
	close(workers.hold)
	p.SendRaw(dispatch("waits", "low", "") + "\n") // a task that was never begun can be sent again
	check(t, resultNo(t, p, "waits", 2), "/status", "done")
}

// TestSteer: a worker that runs a task gets the text at once; for a task that waits, the text is added to its brief.
func TestSteer(t *testing.T) {
	workers, over := &pool{extensions: []string{"steer"}}, make(chan struct{})
	workers.act = func(task agent.WorkerTask) (*fleet.Result, error) {
		r := did(task)
		if task.Task.TaskID == "runs" {
			for _, taken := range []bool{true, false} {
				s := <-task.Steer
				r.Summary += " " + s.Text
				s.Taken <- taken
			}
			<-over
		}
		return r, nil
	}
	p := open(t, workers, front.Options{})
	p.SendRaw(dispatch("runs", "low", "") + "\n")
	a := announced(p)
	assert.Equal(t, a.Get("/capabilities/extensions"), `["cancel","steer"]`, "announce: %s", a.Line)
	workers.awaitStart(t, "runs")
	check(t, do(p, dispatch("waits", "low", "")+"\n"+steer("waits", "and rest")+"\n"+steer("runs",
		"left")+"\n"+steer("runs", "right"), ""), "/error~",
		`TASK_STEER of the task "runs": its worker does not take the text`)
	p.SendRaw(steer("runs", "") + "\n" + `{"type":"TASK_STEER","protocol_version":"2.0","task_id":7}` + "\n" +
		`{"type":"TASK_STEER","task_id":"runs","text":"x"}` + "\n")
	for _, want := range []string{"text is empty", "task_id", "2.x"} {
		p.Wait(want, func(m hosttest.Message) bool {
			return m.Get("/task_id") == "" && strings.Contains(m.Get("/error"), want)
		})
	}
	close(over)
	check(t, result(p, "runs"), "/summary", "did work left right")
	check(t, result(p, "waits"), "/summary", "did work\n\nand rest")
}

// TestOverloaded: the limits of the host bound the tasks that wait, and the texts for them. A task that was refused
// can be sent again later.
func TestOverloaded(t *testing.T) {
	workers := &pool{hold: make(chan struct{})}
	p := hosttest.New(t, host.Options{
		Plugins:  []host.Plugin{workers, newKit()},
		Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})},
		Limits:   host.Limits{Queue: 1, QueueBytes: 10_000},
	})
	p.SendRaw(dispatch("runs", "low", "") + "\n")
	workers.awaitStart(t, "runs")
	p.SendRaw(dispatch("waits", "low", "") + "\n")
	check(t, do(p, steer("waits", strings.Repeat("x", 6_000))+"\n"+steer("nobody", "x"), ""), "/error~", "no such task")
	p.SendRaw(steer("waits", strings.Repeat("x", 6_000)) + "\n")
	p.Wait("the text is refused", func(m hosttest.Message) bool {
		return strings.Contains(m.Get("/error"), `TASK_STEER of the task "waits": overloaded`)
	})
	check(t, do(p, dispatch("refused", "urgent", ""), "refused"), "/status", "blocked", "/blocked_reason~",
		"overloaded: too many tasks")
	close(workers.hold)
	check(t, result(p, "waits"), "/status", "done")
	p.SendRaw(dispatch("refused", "urgent", "") + "\n")
	check(t, resultNo(t, p, "refused", 2), "/status", "done")
}

// TestWorkersRefuse: a task that the workers refuse is blocked and can be tried again. A panic of the workers ends
// only one task, not the host.
func TestWorkersRefuse(t *testing.T) {
	workers := &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		switch task.Task.TaskID {
		case "refused":
			return nil, protocol.Errorf(protocol.CodeOverloaded, "too many")
		case "lost":
			return nil, errors.New("lost")
		case "nothing":
			return nil, nil
		}
		panic("at the workers")
	}}
	p := open(t, workers, front.Options{})
	for _, c := range []struct{ id, status, member, text string }{
		{"refused", "blocked", "/blocked_reason", "too many"},
		{"refused", "blocked", "/blocked_reason", "too many"},
		{"lost", "error", "/error", "lost"},
		{"nothing", "error", "/error", "no result"},
		{"panics", "error", "/error", "panicked"},
	} {
		n := len(results(p, c.id)) + 1
		p.SendRaw(dispatch(c.id, "low", "") + "\n")
		m := resultNo(t, p, c.id, n)
		assert.That(t, m.Get("/status") == c.status && strings.Contains(m.Get(c.member), c.text), "%s: %s", c.id,
			m.Line)
	}
	assert.Equal(t, workers.order(), "refused refused lost nothing panics", "tried")
}

// TestShutdown: at the end of the host each task that is left gets exactly one result, which is not kept. Tasks that
// were not begun are blocked.
func TestShutdown(t *testing.T) {
	state := newState(t, t.TempDir())
	for _, deaf := range []bool{false, true} {
		workers := &pool{hold: make(chan struct{}), deaf: deaf}
		p := open(t, workers, front.Options{MaxTasks: 2, Store: state})
		for i := range 20 {
			p.SendRaw(dispatch(fmt.Sprintf("%t%d", deaf, i), "low", "") + "\n")
		}
		hosttest.Eventually(t, "two starts", func() bool { return strings.Count(workers.order(), " ") == 1 })
		p.SendRaw(`{"type":"shutdown","timeout":0}` + "\n")
		for i := range 20 {
			m := result(p, fmt.Sprintf("%t%d", deaf, i))
			status := "blocked"
			if i < 2 {
				status = "error"
			}
			assert.That(t, m.Get("/status") == status && strings.Contains(m.Get("/error")+m.Get("/blocked_reason"),
				"the worker is ending"),
				"%d: %s", i, m.Line)
		}
		if deaf {
			close(workers.hold)
		}
		assert.OK(t, p.WaitEnd())
		for i := range 20 {
			assert.Equal(t, len(results(p, fmt.Sprintf("%t%d", deaf, i))), 1, "%t%d has … results", deaf, i)
		}
	}
	kept := 0
	err := state.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT count(*) FROM fleet_results", nil, &kept)
		return err
	})
	assert.That(t, err == nil && kept == 0,
		"%d results are kept; the tasks that the end cut off may be done by another host: %v", kept, err)
}

// TestCancelAgain: repeated cancels do not extend the time that the worker of a cancelled task has left to stop.
func TestCancelAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{hold: make(chan struct{}), deaf: true}
		p := openLab(t, workers, front.Options{}, 200*time.Millisecond, long, long)
		p.SendRaw(dispatch("t", "low", "") + "\n")
		workers.awaitStart(t, "t")
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; len(results(p.Pair, "t")) == 0; n++ {
			if n == 300 { // 3 s
				t.Error("there is no result")
				break
			}
			p.SendRaw(cancel("t") + "\n")
			<-tick.C
		}
		close(workers.hold)
		m := result(p.Pair, "t")
		assert.That(t, strings.Contains(string(m.Line), `"error":"cancelled"`), "%s", m.Line)
	})
}
