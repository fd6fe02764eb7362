package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/protocol/fleet"
)

// Whatever becomes of the workers and of who asks, each task has one result, or its own cancellation.
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
	briefs := []string{"done", "done", "sleep 2ms; done", "sleep 20ms; done", "sleep 50ms; done", "twice", "say x; done", "crash", "hang",
		`result "status":"blocked","blocked_reason":"busy"`, `result "status":"fine"`}
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
	assert.Equal(t, s.waiting, 0, "… tasks wait for ever")
}
