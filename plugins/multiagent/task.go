package multiagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxTaskBytes is the size of the longest text of one task.
const maxTaskBytes = 1 << 20

// delegateShort serves multi_agent/delegate.
func (p *Plugin) delegateShort(ctx context.Context, r *protocol.AgentDelegateRequest,
	_ host.Emitter,
) (*protocol.AgentDelegateResponse, error) {
	return p.delegate(ctx, r.SubagentID, "", &protocol.TaskDefinition{
		Name: r.TaskName, Instruction: r.Instruction,
		SuccessCriteria: r.SuccessCriteria,
	})
}

// delegateLong serves SUBAGENT_DELEGATE_REQ.
func (p *Plugin) delegateLong(ctx context.Context, r *protocol.SubagentDelegateRequest,
	_ host.Emitter,
) (*protocol.SubagentDelegateResponse, error) {
	resp, err := p.delegate(ctx, r.SubagentID, "/task", &r.Task)
	return (*protocol.SubagentDelegateResponse)(resp), err
}

// delegate starts a task of a child. It does not accept the task if the child has one already or
// is terminated; the status tells which. path is the JSON Pointer of the task in the request.
func (p *Plugin) delegate(ctx context.Context, id, path string,
	def *protocol.TaskDefinition,
) (*protocol.AgentDelegateResponse, error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return nil, err
	}
	want := c.asks
	if err := p.checkTask(path, def, &want); err != nil {
		return nil, err
	}
	for {
		p.mu.Lock()
		j := c.job
		if j == nil || j.stopped == "" {
			break
		}
		p.mu.Unlock()
		host.HandOff(ctx)
		select { // the stopped task is about to end
		case <-j.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if c.job != nil || c.status == protocol.SubagentTerminated {
		defer p.mu.Unlock()
		return &protocol.AgentDelegateResponse{Status: c.status}, nil
	}
	if !p.begin() {
		p.mu.Unlock()
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the task was not started: %w", errClosed)
	}
	j := p.startLocked(ctx, c, def, &want)
	p.mu.Unlock()
	<-j.placed // soon: closed when the task has a worker or waits in the queue
	return &protocol.AgentDelegateResponse{Accepted: true, Status: j.first}, nil
}

// checkTask returns an error if a task is wrong, and reads its requirements for workers into want.
func (p *Plugin) checkTask(path string, def *protocol.TaskDefinition, want *asks) error {
	if len(p.opts.Workers) == 0 {
		return agent.NoWorker()
	}
	size := len(def.Name) + len(def.Instruction) + len(def.Metadata.Raw())
	for _, text := range def.SuccessCriteria {
		size += len(text) + len("\n- ")
	}
	switch {
	case def.Instruction == "":
		return wrong(path+"/instruction", "is empty; it should say what to do")
	case size > maxTaskBytes:
		return wrong(path+"/instruction", "makes the task %d bytes long; it may have %d: put long texts into a file",
			size, maxTaskBytes)
	}
	if err := want.read(path+"/metadata", def.Metadata); err != nil {
		return err
	}
	if err := p.checkWorker(path, want); err != nil {
		return err
	}
	return nil
}

// startLocked starts a task. The caller has called begin for it.
func (p *Plugin) startLocked(ctx context.Context, c *subagent, def *protocol.TaskDefinition, want *asks) *job {
	c.tasks++
	j := &job{
		child: c, name: merge.Shorten(def.Name, maxNameBytes), steer: make(chan agent.Steering),
		placed: make(chan struct{}), done: make(chan struct{}),
		events: c.queue.open(ctx),
	}
	j.ctx, j.cancel = context.WithCancelCause(c.group.ctx)
	timeout := time.Duration(c.config.TimeoutSeconds) * time.Second
	task := agent.WorkerTask{
		Worker: want.Worker, Tier: want.ModelTier, Model: modelOf(&c.config), Fallback: p.fallback(want),
		Retries: want.Retries, Steer: j.steer,
		Started:  func(worker string) { p.started(j, worker) },
		Output:   func(stream, line string) { j.events.line(p.env.Now(), stream, line) },
		Dispatch: want.dispatch(),
	}
	agent := c.agent
	task.Agent, task.Brief = &agent, briefOf(c, def)
	task.Deadline, task.Task.TaskID = p.env.Now().Add(timeout).UTC().Format(time.RFC3339Nano),
		fmt.Sprintf("%s-%d", c.id(), c.tasks)
	c.mailbox = nil // the brief has the messages
	c.job, c.status = j, protocol.SubagentWaiting
	go p.run(j, task)
	return j
}

// job is one task of a child.
type job struct {
	child  *subagent
	name   string
	events *stream
	steer  chan agent.Steering // texts for the worker of the task
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Guarded by Plugin.mu.
	worker  string                  // the worker that has it; "" = it waits for a place
	stopped protocol.SubagentStatus // status of the child if the task was stopped; "" = it was not

	first  protocol.SubagentStatus // status in the answer to the delegate
	placed chan struct{}           // closed when first is set

	done chan struct{} // closed when the task has ended
	out  outcome       // set before done is closed
}

// outcome is the result of a task.
type outcome struct {
	status protocol.SubagentStatus
	result map[string]any // nil = none
	err    string         // why it failed; "" = it did not
}

// errBroken is the error of a task whose goroutine panicked.
var errBroken = errors.New("the host failed while it ran the task; its log has the details")

// run lets a worker do the task, and settles it.
func (p *Plugin) run(j *job, task agent.WorkerTask) {
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

// started records that a worker has the task now, or that it waits for a place (worker "").
func (p *Plugin) started(j *job, worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.stopped != "" {
		return
	}
	if j.worker, j.child.status = worker, protocol.SubagentRunning; worker == "" {
		j.child.status = protocol.SubagentWaiting
	} else {
		j.events.tell(eventStarted, map[string]any{"task": j.name, "worker": worker}, false)
	}
	j.placeLocked(j.child.status)
}

// placeLocked sets the status in the answer to the delegate, at the first call.
func (j *job) placeLocked(status protocol.SubagentStatus) {
	if j.first == "" {
		j.first = status
		close(j.placed)
	}
}

// stopLocked stops the task, and sets the status of its child at once.
func (j *job) stopLocked(status protocol.SubagentStatus, cause error) {
	if j.stopped == protocol.SubagentTerminated || j.stopped == status {
		return
	}
	j.stopped, j.child.status = status, status
	event := eventCancelled
	if status == protocol.SubagentTerminated {
		event = eventTerminated
	}
	j.events.tell(event, map[string]any{"task": j.name}, true)
	j.placeLocked(status)
	j.cancel(cause)
}

// settle records the end of a task and its outcome.
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
		content := map[string]any{"task": j.name, "summary": merge.Shorten(text(out.result, keySummary), maxShown)}
		content[keyTokens] = out.result[keyTokens]
		j.events.tell(eventCompleted, content, true)
	case protocol.SubagentFailed:
		j.events.tell(eventFailed, map[string]any{"task": j.name, "error": merge.Shorten(out.err, maxShown)}, true)
	}
	if out.status == protocol.SubagentTerminated {
		c.group.forgetLocked()
	}
	j.placeLocked(protocol.SubagentRunning)
	j.out = out
	close(j.done)
	j.cancel(nil)
}

// briefOf returns the brief for a worker: the role of the child, its messages and the task.
func briefOf(c *subagent, def *protocol.TaskDefinition) string {
	var b strings.Builder
	part := func(format string, args ...any) {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, format, args...)
	}
	if role := deref(c.config.Role); role != "" {
		part("You are %s. Your role: %s", c.config.Name, role)
	}
	if prompt := deref(c.config.SystemPrompt); prompt != "" {
		part("%s", prompt)
	}
	if len(c.mailbox) > 0 {
		part("Messages for you:")
		for _, l := range c.mailbox {
			b.WriteString("\n- " + l.text)
		}
	}
	if def.Name != "" {
		part("Task: %s", def.Name)
	}
	part("%s", def.Instruction)
	if len(def.SuccessCriteria) > 0 {
		part("The task is done when:")
		for _, text := range def.SuccessCriteria {
			b.WriteString("\n- " + text)
		}
	}
	b.WriteString("\n")
	return b.String()
}
