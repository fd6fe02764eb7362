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

// cancel and steer make the lines about a task under way.
func cancel(id string) string {
	return fmt.Sprintf(`{"type":"TASK_CANCEL","protocol_version":"2.0","task_id":%q}`, id)
}

func steer(id, text string) string {
	return fmt.Sprintf(`{"type":"TASK_STEER","protocol_version":"2.0","task_id":%q,"text":%q}`, id, text)
}

// soon is a deadline that comes shortly. It is for the clock of a bubble, which stands while
// anybody works: the task is there before it comes.
func soon() string {
	return fmt.Sprintf(`,"deadline":%q`, time.Now().Add(200*time.Millisecond).Format(time.RFC3339Nano))
}

// TestDeadline: a deadline ends a task that waits and one that runs.
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

// TestDeadlineOfTheWorkers: the workers know the deadline too. What they make of it in a
// moment is the result; they are not stopped over it.
func TestDeadlineOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
			at, _, _ := task.DeadlineTime()
			time.Sleep(time.Until(at) + 50*time.Millisecond) // what the test is about: this is after the deadline
			r := fleet.NewResult(task.Task.TaskID, fleet.StatusPartial)
			r.Summary = "half of it"
			return r, nil
		}}
		l := openLab(t, workers, front.Options{}, long, long, long)
		check(t, do(l.Pair, dispatch("t", "low", soon()), "t"), "/status", "partial", "/summary", "half of it")
	})
}

// TestLateWorker: a task is answered in time although its worker does not stop. Its place
// is free once the worker has ended, and what that says then is no second result.
func TestLateWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{hold: make(chan struct{}), deaf: true}
		p := open(t, workers, front.Options{})
		check(t, do(p, dispatch("stuck", "low", soon()), "stuck"), "/error", "deadline")
		p.SendRaw(dispatch("next", "low", "") + "\n" + dispatch("other", "low", "") + "\n" + cancel("other") + "\n")
		check(t, result(p, "other"), "/blocked_reason", "cancelled")
		assert.Equal(t, workers.order(), "stuck", "more tasks than places")
		close(workers.hold)
		result(p, "next")
		assert.Equal(t, len(results(p, "stuck")), 1, "… results of one dispatch")
	})
}

// TestCancel: a task is cancelled wherever it is, also in the line after its dispatch.
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
	p.SendRaw(dispatch("waits", "low", "") + "\n") // nobody has begun with it
	check(t, resultNo(t, p, "waits", 2), "/status", "done")
}

// TestSteer: a worker at work gets a text; a task that waits gets it with its brief.
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
	a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
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

// TestOverloaded: the host's limits bound the tasks that wait, and the texts for them. What is refused may be sent
// again later.
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

// TestWorkersRefuse: what the workers do not begin with is blocked and may be tried again; a
// panic of theirs ends one task and not the host.
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

// TestShutdown: the end of the host gives each task that is left its one result. What was
// not begun is blocked and not kept; a task without the token is not kept either.
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

// TestCancelAgain: a task that is cancelled again and again is answered when the patience
// with its worker is over, not when that is so after the last time.
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
