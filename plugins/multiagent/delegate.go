package multiagent

import (
	"context"
	"fmt"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxTaskBytes bounds the text of one task.
const maxTaskBytes = 1 << 20

// delegateShort serves multi_agent/delegate.
func (p *Plugin) delegateShort(ctx context.Context, r *protocol.AgentDelegateRequest, _ host.Emitter) (*protocol.AgentDelegateResponse, error) {
	task := protocol.TaskDefinition{Name: r.TaskName, Instruction: r.Instruction, SuccessCriteria: r.SuccessCriteria}
	accepted, status, err := p.delegate(ctx, r.SubagentID, "", &task)
	if err != nil {
		return nil, err
	}
	return &protocol.AgentDelegateResponse{Accepted: accepted, Status: status}, nil
}

// delegateLong serves SUBAGENT_DELEGATE_REQ.
func (p *Plugin) delegateLong(ctx context.Context, r *protocol.SubagentDelegateRequest, _ host.Emitter) (*protocol.SubagentDelegateResponse, error) {
	accepted, status, err := p.delegate(ctx, r.SubagentID, "/task", &r.Task)
	if err != nil {
		return nil, err
	}
	return &protocol.SubagentDelegateResponse{Accepted: accepted, Status: status}, nil
}

// delegate has a child do a task from now on. It is not accepted while the child has one, or
// where it is terminated; the status says which. path is where the task stands in the request.
func (p *Plugin) delegate(ctx context.Context, id, path string, def *protocol.TaskDefinition) (accepted bool, status protocol.SubagentStatus, err error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return false, "", err
	}
	want := c.asks
	if err := p.checkTask(path, def, &want); err != nil {
		return false, "", err
	}
	for {
		p.mu.Lock()
		j := c.job
		if j == nil || j.stopped == "" {
			break
		}
		p.mu.Unlock()
		host.Detach(ctx)
		select { // what it did before is about to end
		case <-j.done:
		case <-ctx.Done():
			return false, "", context.Cause(ctx)
		}
	}
	if c.job != nil || c.status == protocol.SubagentTerminated {
		defer p.mu.Unlock()
		return false, c.status, nil
	}
	if !p.begin() {
		p.mu.Unlock()
		return false, "", protocol.Errorf(protocol.CodeRuntimeError, "the task was not begun: %w", errClosed)
	}
	j := p.startLocked(ctx, c, def, &want)
	p.mu.Unlock()
	<-j.placed // at once: it is in the queue by then, if it has to wait
	return true, j.first, nil
}

// checkTask tells what is wrong with a task, and reads what it wants of the workers.
func (p *Plugin) checkTask(path string, def *protocol.TaskDefinition, want *asks) error {
	if len(p.opts.Workers) == 0 {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no worker is configured that could do the task; name one in the option workers of the plugin %q", p.name)
	}
	size := len(def.Name) + len(def.Instruction) + len(def.Metadata.Raw())
	for _, text := range def.SuccessCriteria {
		size += len(text) + len("\n- ")
	}
	switch {
	case def.Instruction == "":
		return wrong(path+"/instruction", "is empty; it should say what is to be done")
	case size > maxTaskBytes:
		return wrong(path+"/instruction", "makes the task %d bytes long; it may have %d: put long texts into a file", size, maxTaskBytes)
	}
	if err := want.read(path+"/metadata", def.Metadata); err != nil {
		return err
	}
	if want.Worker != "" && !knows(p.opts.Workers, want.Worker) {
		return wrong(path+"/metadata/worker", "is %s; it should be the name of a worker in the config: %s", quote(want.Worker), p.workerNames())
	}
	return nil
}

// startLocked begins a task. begin has counted it.
func (p *Plugin) startLocked(ctx context.Context, c *child, def *protocol.TaskDefinition, want *asks) *job {
	c.tasks++
	j := &job{
		child: c, name: shorten(def.Name, maxNameBytes), steer: make(chan host.Steering), placed: make(chan struct{}), done: make(chan struct{}),
		news: p.newsLocked(ctx, c),
	}
	j.ctx, j.cancel = context.WithCancelCause(c.crew.ctx)
	timeout := time.Duration(c.config.TimeoutSeconds) * time.Second
	task := host.WorkerTask{
		Worker: want.Worker, Tier: want.ModelTier, Model: c.config.Model, Steer: j.steer,
		Started: func(worker string) { p.started(j, worker) },
		Output:  func(stream, line string) { j.news.line(p.env.Now(), stream, line) },
		Dispatch: fleet.Dispatch{
			Brief:        briefOf(c, def),
			Deadline:     p.env.Now().Add(timeout).UTC().Format(time.RFC3339Nano),
			Requirements: fleet.Requirements{RequiredMCP: want.MCP, RequiredCapabilities: want.Capabilities},
		},
	}
	agent := c.agent
	task.Agent = &agent
	task.Task = fleet.Task{TaskID: fmt.Sprintf("%s-%d", c.id(), c.tasks), Priority: want.Priority, ReplySchema: want.ReplySchema, TokenBudget: want.TokenBudget}
	c.mailbox = nil // it stands in the brief
	c.job, c.status = j, protocol.SubagentWaiting
	go p.run(j, task)
	return j
}
