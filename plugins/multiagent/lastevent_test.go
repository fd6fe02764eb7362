package multiagent

import (
	"fmt"
	"testing"

	"a2e/protocol"
)

// A child that is terminated while its cancelled task ends is told of as terminated too.
func TestTerminatedWhileItsTaskEnds(t *testing.T) {
	s, plugin := openStage(t, options(fleetWorker(t, "f")), Env{})
	id := s.spawn("ann", "", "")
	s.delegate(id, "listen")
	s.file("dispatched")
	c := plugin.childOf(t, id)
	plugin.mu.Lock() // as one after the other, before the task has ended
	c.job.stopLocked(protocol.SubagentCancelled, errCancelled)
	plugin.terminateLocked(c)
	plugin.mu.Unlock()
	s.event(id, eventCancelled)
	s.event(id, eventTerminated)
	if got := s.await(id); got.Status != protocol.SubagentTerminated {
		t.Errorf("%+v", got)
	}
	s.Call(protocol.TypePing, `{}`)
	told := map[string]int{}
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeSubagentEvent {
			told[m.Get("/event")]++
		}
	}
	if want := "map[cancelled:1 spawned:1 started:1 terminated:1]"; fmt.Sprint(told) != want {
		t.Errorf("got %v, want %s", told, want)
	}
}

// The events of a child come in order, those of different requests too: of a task after those
// of the task before, and its end after all.
func TestEventsInOrder(t *testing.T) {
	s, plugin := openStage(t, options(fleetWorker(t, "f")), Env{})
	id := s.spawn("ann", "", "")
	s.event(id, eventSpawned)
	c := plugin.childOf(t, id)
	plugin.mu.Lock()
	slow := plugin.taskEventsLocked(t.Context(), c) // which is still to send its events
	next := plugin.taskEventsLocked(t.Context(), c)
	next.tell(eventStarted, map[string]any{}, true)
	plugin.terminateLocked(c)
	plugin.mu.Unlock()
	for range 200 { // time for what would come too early
		s.Call(protocol.TypePing, `{}`)
	}
	if isClosed(next.begun) {
		t.Error("a task began to tell before the one before had ended")
	}
	for _, m := range s.Messages() {
		if m.Get("/event") == eventTerminated {
			t.Error("the child's end was told before that of its tasks")
		}
	}
	slow.end()
	s.event(id, eventTerminated)
}
