package multiagent

import (
	"context"

	"a2e/host"
	"a2e/protocol"
)

// Bounds of the requests of a session that have left their place.
const (
	maxWaits  = 4096 // that wait for results
	maxMerges = 16   // merges, which hold results and may run a program
)

// awaitShort serves multi_agent/await.
func (p *Plugin) awaitShort(ctx context.Context, r *protocol.AgentAwaitRequest, _ host.Emitter) (*protocol.AgentAwaitResponse, error) {
	id, out, err := p.await(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	return &protocol.AgentAwaitResponse{SubagentID: id, Status: out.status, Result: out.result, Error: out.why()}, nil
}

// awaitLong serves SUBAGENT_AWAIT_REQ.
func (p *Plugin) awaitLong(ctx context.Context, r *protocol.SubagentAwaitRequest, _ host.Emitter) (*protocol.SubagentAwaitResponse, error) {
	id, out, err := p.await(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	return &protocol.SubagentAwaitResponse{SubagentID: id, Status: out.status, Result: out.result, Error: out.why()}, nil
}

// why gives the error of an outcome; nil = there is none.
func (o *outcome) why() *string {
	if o.err == "" {
		return nil
	}
	return &o.err
}

// await waits for the end of the task that a child has under way, and gives the child's id
// and what became of the task. A child without one has what became of its last one. The
// request's end ends only the wait.
func (p *Plugin) await(ctx context.Context, id string) (string, outcome, error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return "", outcome{}, err
	}
	out, err := p.outcome(ctx, c)
	return c.id(), out, err
}

// outcome is await for a child that is known.
func (p *Plugin) outcome(ctx context.Context, c *child) (outcome, error) {
	p.mu.Lock()
	j, out, cr := c.job, c.last, c.crew
	if j == nil {
		defer p.mu.Unlock()
		if out.status = c.status; out.status == protocol.SubagentTerminated && out.err == "" {
			out.err = errTerminated.Error()
		}
		return out, nil
	}
	p.mu.Unlock()
	leave, ok := p.enter(&cr.waits, maxWaits)
	if !ok {
		return out, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for child agents, which is the most there may be; one await of each child is enough", maxWaits)
	}
	defer leave()
	host.Leave(ctx)
	select {
	case <-j.done:
		return j.out, nil
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
}

// enter counts one more of something, of which there may be limit; ok is false where there
// are as many. leave takes it back.
func (p *Plugin) enter(count *int, limit int) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *count >= limit {
		return nil, false
	}
	*count++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		*count--
	}, true
}
