package worker

import (
	"testing"
	"time"

	"a2e/protocol/fleet"
)

// A child that takes cancels is asked for what it has at a deadline, or at the worker's
// timeout, before it is cancelled; the result names what ended the task, whatever the child
// calls it.
func TestFleetHaltSaysWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, then, summary string
		stop                time.Duration
	}{
		{"speaks", `result "status":"error","error":"my time was up","summary":"half"`, "half", patience},
		{"is cancelled", "hang", "", 20 * time.Millisecond},
	} {
		for _, dated := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, fake(t, "w", announceLine))
				s.do(brief("first", "done"))
				s.pace.stop = c.stop
				var res *fleet.Result
				why := "deadline"
				for ahead := 100 * time.Millisecond; res == nil || res.Status == fleet.StatusBlocked; ahead *= 2 { // until it is looked at in time
					task := brief("a", "sleep "+(2*ahead).String()+"; "+c.then)
					if dated {
						task.Deadline = time.Now().Add(ahead).Format(time.RFC3339Nano)
					} else {
						s.runners[0].Timeout, why = ahead, "timeout: the worker may take 100ms for a task"
					}
					res = s.do(task)
				}
				if got := s.notes("messages"); res.Error != why || res.Summary != c.summary || c.summary != "" && len(got) > 0 {
					t.Errorf("%s after %q", describe(res), got)
				}
			})
		}
	}
}
