package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// origin is what the audit trail tells of a line that came.
type origin struct {
	bytes int
	came  time.Time
}

// item is what came and was not looked at yet: a task, or a message for one.
type item struct {
	task    *task
	control *fleet.Control
	size    int // bytes that it counts for
}

// itemOverhead is what an item costs in memory beyond its line.
const itemOverhead = 2048

// intake looks at what came, one after the other in order.
func (f *Front) intake() {
	for {
		f.mu.Lock()
		var it item
		if len(f.incoming) > 0 {
			it, f.incoming[0] = f.incoming[0], item{} // the memory of the list lives on
			f.incoming = f.incoming[1:]
		}
		over := f.draining && f.count == 0
		f.mu.Unlock()
		switch {
		case it.task != nil:
			f.consider(it.task)
		case it.control != nil:
			f.control(it.control)
			f.release(it.size)
		case over:
			return
		default:
			select {
			case <-f.taken:
			case <-f.idle:
			}
		}
	}
}

// refuse answers what was not taken in.
func (f *Front) refuse(it item, why string) {
	if it.task != nil {
		f.report(it.task.origin, fleet.Blocked(it.task.Task.TaskID, why))
		return
	}
	f.Broken(protocol.Errorf(protocol.CodeInvalidMessage, "%s of the task %.64q: %s", it.control.Type, it.control.TaskID, why))
}

// consider answers a task at once, or lets it wait for a place.
func (f *Front) consider(t *task) {
	why := f.wrong(t)
	if why == "" {
		why = f.enter(t)
	}
	if why != "" {
		f.report(t.origin, fleet.Blocked(t.Task.TaskID, why))
		f.release(t.size)
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, checkTimeout)
	defer cancel()
	if kept := f.results.get(ctx, t.Task.TaskID); kept != nil {
		t.kept = true
		f.decline(t, kept)
		return
	}
	at, dated, _ := t.DeadlineTime()
	if dated && !f.dueAt(t, at) {
		f.decline(t, fleet.Blocked(t.Task.TaskID, "the deadline "+t.Deadline+" is past"))
		return
	}
	if len(t.Requirements.RequiredMCP)+len(t.Requirements.RequiredCapabilities) > 0 {
		f.session() // waits for plugins that are not ready, for which the time below is too short
	}
	ctx, cancel = context.WithTimeout(f.ctx, checkTimeout)
	defer cancel()
	switch why, pending := f.unmet(ctx, t); {
	case why != "":
		f.decline(t, fleet.Blocked(t.Task.TaskID, why))
	case pending:
		f.awaitServers(t)
	default:
		f.admit(t)
	}
}

// enter notes a task as one that is under way, unless another one is by that name.
func (f *Front) enter(t *task) (refused string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks[t.Task.TaskID] != nil {
		return fmt.Sprintf("the task %.64q is under way here; its result comes once", t.Task.TaskID)
	}
	f.tasks[t.Task.TaskID] = t
	return ""
}

// decline answers a task that is not to be done. Who has sent one, and no more than that it
// cannot be done, learns before the first such answer what this worker is.
func (f *Front) decline(t *task, result *fleet.Result) {
	f.mu.Lock()
	known := f.announced != nil
	f.mu.Unlock()
	if !known {
		f.announce(f.ctx, nil)
	}
	f.conclude(t, result)
}

// conclude ends a task that was not started.
func (f *Front) conclude(t *task, result *fleet.Result) {
	f.answer(t, result)
	f.release(t.size)
}

// reason is what an error says to a peer, which gets no code with it.
func reason(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}
