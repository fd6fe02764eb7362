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
