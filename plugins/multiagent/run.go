package multiagent

import (
	"context"
	"errors"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// job is one task of a child.
type job struct {
	child  *child
	name   string
	news   *wire
	steer  chan host.Steering // texts for the worker at work
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Guarded by Plugin.mu.
	worker  string                  // that has it; "" = it waits for a place
	stopped protocol.SubagentStatus // what the child is when it ends early; "" = it does not

	first  protocol.SubagentStatus // that the delegate is answered with
	placed chan struct{}           // closed when first is set

	done chan struct{} // closed when it has ended
	out  outcome       // set before that
}

// outcome is what became of a task.
type outcome struct {
	status protocol.SubagentStatus
	result map[string]any // nil = there is none
	err    string         // why it failed; "" = it did not
}

// errBroken is what a task fails with whose goroutine panicked.
var errBroken = errors.New("the host failed while it ran the task; its log has the details")

// run has a worker do the task.
func (p *Plugin) run(j *job, task host.WorkerTask) {
	defer p.goes.Done()
	ended := make(chan struct{})
	res, err := (*fleet.Result)(nil), errBroken
	host.Go(j.ctx, func() {
		defer close(ended)
		done, fault := p.RunTask(j.ctx, task)
		res, err = done, fault
	})
	<-ended
	p.settle(j, res, err)
}

// started notes that a worker has the task now, or that it waits for a place.
func (p *Plugin) started(j *job, worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.stopped != "" {
		return
	}
	if j.worker, j.child.status = worker, protocol.SubagentRunning; worker == "" {
		j.child.status = protocol.SubagentWaiting
	} else {
		j.news.tell(eventStarted, map[string]any{"task": j.name, "worker": worker}, false)
	}
	j.placeLocked(j.child.status)
}

// placeLocked lets the delegate be answered.
func (j *job) placeLocked(status protocol.SubagentStatus) {
	if j.first == "" {
		j.first = status
		close(j.placed)
	}
}

// stopLocked has the task end early, which its child is known by at once.
func (j *job) stopLocked(status protocol.SubagentStatus, cause error) {
	if j.stopped == protocol.SubagentTerminated || j.stopped == status {
		return
	}
	j.stopped, j.child.status = status, status
	event := eventCancelled
	if status == protocol.SubagentTerminated {
		event = eventTerminated
	}
	j.news.tell(event, map[string]any{"task": j.name}, true)
	j.placeLocked(status)
	j.cancel(cause)
}

// settle ends a task.
func (p *Plugin) settle(j *job, res *fleet.Result, err error) {
	c := j.child
	out := p.outcomeOf(c, res, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.stopped != "" {
		out = outcome{status: j.stopped, err: context.Cause(j.ctx).Error()}
	}
	c.job, c.last, c.status = nil, out, out.status
	switch out.status {
	case protocol.SubagentCompleted:
		content := map[string]any{"task": j.name, "summary": shorten(text(out.result, keySummary), maxShown)}
		content[keyTokens] = out.result[keyTokens]
		j.news.tell(eventCompleted, content, true)
	case protocol.SubagentFailed:
		j.news.tell(eventFailed, map[string]any{"task": j.name, "error": shorten(out.err, maxShown)}, true)
	}
	if out.status == protocol.SubagentTerminated {
		c.crew.forgetLocked()
	}
	j.placeLocked(protocol.SubagentRunning)
	j.out = out
	close(j.done)
	j.cancel(nil)
}
