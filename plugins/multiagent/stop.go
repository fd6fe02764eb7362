package multiagent

import (
	"context"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// stopWait is how long the answer waits for the end of what was stopped.
const stopWait = 10 * time.Second

// cancel serves SUBAGENT_CANCEL_REQ: the tasks of a child and of all below it end. success
// tells whether there was one. The children may be given others.
func (p *Plugin) cancel(ctx context.Context, r *protocol.SubagentCancelRequest, _ host.Emitter) (*protocol.AgentTerminateResponse, error) {
	c, err := p.find(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	var tasks []*job
	for _, below := range c.treeLocked() {
		if j := below.job; j != nil {
			j.stopLocked(protocol.SubagentCancelled, errCancelled)
			tasks = append(tasks, j)
		}
	}
	p.mu.Unlock()
	p.settled(ctx, c.crew, tasks)
	return &protocol.AgentTerminateResponse{Success: len(tasks) > 0, SubagentID: c.id()}, nil
}

// terminateShort serves multi_agent/terminate.
func (p *Plugin) terminateShort(ctx context.Context, r *protocol.AgentTerminateRequest, _ host.Emitter) (*protocol.AgentTerminateResponse, error) {
	return p.terminate(ctx, r.SubagentID)
}

// terminateLong serves SUBAGENT_TERMINATE_REQ.
func (p *Plugin) terminateLong(ctx context.Context, r *protocol.SubagentTerminateRequest, _ host.Emitter) (*protocol.AgentTerminateResponse, error) {
	return p.terminate(ctx, r.SubagentID)
}

// terminate ends a child and all below it for good. One that is terminated already stays so.
func (p *Plugin) terminate(ctx context.Context, id string) (*protocol.AgentTerminateResponse, error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	tree := c.treeLocked()
	var tasks []*job
	for _, below := range tree {
		if below.job != nil {
			tasks = append(tasks, below.job)
		}
		p.terminateLocked(below)
	}
	p.mu.Unlock()
	p.settled(ctx, c.crew, tasks)
	return &protocol.AgentTerminateResponse{Success: true, SubagentID: c.id()}, nil
}

// settled waits a moment for the end of tasks that were stopped, unless too many requests
// wait already: nothing else bounds those that wait behind nothing.
func (p *Plugin) settled(ctx context.Context, cr *crew, tasks []*job) {
	if len(tasks) == 0 {
		return
	}
	leave, ok := p.enter(&cr.waits, maxWaits)
	if !ok {
		return
	}
	defer leave()
	host.Leave(ctx) // it has taken effect: those behind it need not wait
	ctx, done := context.WithTimeout(ctx, stopWait)
	defer done()
	waitJobs(ctx, tasks)
}
