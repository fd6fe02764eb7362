package multiagent

import (
	"context"
	"errors"
	"slices"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxRemembered is how many terminated children a session can still ask about.
const maxRemembered = 64

// Why a task is stopped.
var (
	errCancelled    = errors.New("the task was cancelled")
	errTerminated   = errors.New("the child agent was terminated")
	errSessionEnded = errors.New("the session has ended")
)

// group has the children of one session.
type group struct {
	sess *host.Session
	ctx  context.Context // of their tasks
	stop context.CancelCauseFunc

	// Guarded by Plugin.mu.
	ended    bool
	children map[string]*subagent
	order    []*subagent // in the order in which they were spawned
	alive    int         // children that are not terminated, including those being spawned
	waits    int         // requests that wait for a result, or for the end of a task
	merges   int         // merges under way
	mute     time.Time   // the agent did not answer mcp/sample/req; it is not asked before this time
}

// subagent is one child agent. Only the fields guarded by Plugin.mu change.
type subagent struct {
	group  *group
	config protocol.SubagentConfig
	asks   asks
	agent  fleet.Agent // the agent that its tasks are done as
	parent *subagent   // nil = the session's agent
	depth  int         // 0 = the agent of the first host started it
	queue  *eventQueue
	home   *stream // for events while it has no task

	// Guarded by Plugin.mu.
	status  protocol.SubagentStatus
	job     *job    // the task under way; nil = none
	last    outcome // of the last task that ended
	tasks   int     // number of tasks so far
	mailbox []mail
}

// id returns the child's id.
func (c *subagent) id() string { return c.agent.AgentID }

// groupOf returns the group of the session that ctx belongs to, and makes it if there is none.
func (p *Plugin) groupOf(ctx context.Context) (*group, error) {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "child agents belong to a session; there is none here")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "there are no child agents any more: %w", errClosed)
	case ctx.Err() != nil: // the session may be over, and nothing would end new children
		return nil, context.Cause(ctx)
	}
	g := p.groups[sess]
	if g == nil {
		g = &group{sess: sess, children: make(map[string]*subagent)}
		g.ctx, g.stop = context.WithCancelCause(host.InSession(p.ctx, sess))
		p.groups[sess] = g
	}
	return g, nil
}

// find returns a child of the request's session by its id, or by its name if no other child has
// the same name. Otherwise the error is unknown_subagent.
func (p *Plugin) find(ctx context.Context, id string) (*subagent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[host.SessionFrom(ctx)]
	if g == nil {
		return nil, unknown(id, nil)
	}
	if c := g.findLocked(id); c != nil {
		return c, nil
	}
	return nil, unknown(id, g.idsLocked())
}

func (g *group) findLocked(id string) *subagent {
	if c := g.children[id]; c != nil {
		return c
	}
	var found *subagent
	for _, c := range g.order {
		if c.config.Name != id || c.status == protocol.SubagentTerminated {
			continue
		}
		if found != nil {
			return nil
		}
		found = c
	}
	return found
}

// idsLocked returns the ids of the children that are not terminated.
func (g *group) idsLocked() []string {
	ids := []string{}
	for _, c := range g.order {
		if c.status != protocol.SubagentTerminated {
			ids = append(ids, c.id())
		}
	}
	return ids
}

func unknown(id string, known []string) error {
	return host.NotKnown(protocol.Errorf(protocol.CodeUnknownSubagent,
		"there is no child agent %.64q; multi_agent/spawn starts one and gives its subagent_id", id), id, known)
}

// treeLocked returns a child and all its descendants, the child first.
func (c *subagent) treeLocked() []*subagent {
	all := []*subagent{c}
	for _, other := range c.group.order { // parents come before their children
		if other.parent != nil && slices.Contains(all, other.parent) {
			all = append(all, other)
		}
	}
	return all
}

// terminateLocked terminates a child. It cannot get a task any more.
func (p *Plugin) terminateLocked(c *subagent) {
	if c.status == protocol.SubagentTerminated {
		return
	}
	c.status, c.mailbox = protocol.SubagentTerminated, nil
	if c.job != nil && c.job.stopped == "" {
		c.job.stopLocked(protocol.SubagentTerminated, errTerminated)
		c.home.end()
	} else {
		if c.job != nil { // the stream of a stopped task is closed, so home sends the event
			c.job.stopLocked(protocol.SubagentTerminated, errTerminated)
		}
		c.home.tell(eventTerminated, map[string]any{}, true)
	}
	c.group.alive--
	p.alive--
	c.group.forgetLocked()
}

// forgetLocked forgets the oldest terminated children over maxRemembered, except those whose
// task has not ended yet.
func (g *group) forgetLocked() {
	for over := len(g.order) - g.alive - maxRemembered; over > 0; over-- {
		i := slices.IndexFunc(g.order, func(c *subagent) bool {
			return c.status == protocol.SubagentTerminated && c.job == nil
		})
		if i < 0 {
			return
		}
		delete(g.children, g.order[i].id())
		g.order = slices.Delete(g.order, i, i+1)
	}
}

// dissolveLocked ends a group, and returns its tasks, which it has stopped. It sends no events, as the
// session is over.
func (p *Plugin) dissolveLocked(g *group, cause error) []*job {
	var tasks []*job
	for _, c := range g.order {
		c.queue.drop()
		if c.job != nil {
			c.job.stopLocked(protocol.SubagentTerminated, cause)
			tasks = append(tasks, c.job)
		}
		if c.status != protocol.SubagentTerminated {
			c.status, c.mailbox = protocol.SubagentTerminated, nil
			p.alive--
		}
	}
	g.ended = true
	g.stop(cause)
	delete(p.groups, g.sess)
	return tasks
}

// waitJobs waits until the tasks have ended, or ctx ends.
func waitJobs(ctx context.Context, tasks []*job) {
	for _, j := range tasks {
		select {
		case <-j.done:
		case <-ctx.Done():
			return
		}
	}
}

// listShort serves multi_agent/list.
func (p *Plugin) listShort(ctx context.Context, _ *protocol.AgentListRequest,
	_ host.Emitter,
) (*protocol.AgentListResponse, error) {
	resp := &protocol.AgentListResponse{Subagents: []map[string]any{}}
	p.each(ctx, func(c *subagent) {
		row := map[string]any{
			"subagent_id": c.id(), "name": c.config.Name, "role": deref(c.config.Role), "model": c.config.Model,
			"status":          c.status,
			"parent_agent_id": c.agent.ParentAgentID, "root_agent_id": c.agent.RootAgentID, "depth": c.depth,
			"max_steps": c.config.MaxSteps, "metadata": c.config.Metadata, "messages_waiting": len(c.mailbox),
		}
		if j := c.job; j != nil {
			row["task_name"], row["worker"] = j.name, j.worker // worker "" = it waits for a place
		}
		resp.Subagents = append(resp.Subagents, row)
	})
	return resp, nil
}

// listLong serves SUBAGENT_LIST_REQ.
func (p *Plugin) listLong(ctx context.Context, _ *protocol.SubagentListRequest,
	_ host.Emitter,
) (*protocol.SubagentListResponse, error) {
	resp := &protocol.SubagentListResponse{Subagents: []protocol.SubagentInfo{}}
	p.each(ctx, func(c *subagent) {
		parent, root := c.agent.ParentAgentID, c.agent.RootAgentID
		resp.Subagents = append(resp.Subagents, protocol.SubagentInfo{
			SubagentID: c.id(), Name: c.config.Name, Status: c.status, ParentAgentID: &parent, RootAgentID: &root,
			Depth: c.depth, Config: c.config,
		})
	})
	return resp, nil
}

// each calls fn with mu held for each child of the request's session, in the order
// of their spawns.
func (p *Plugin) each(ctx context.Context, fn func(*subagent)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.groups[host.SessionFrom(ctx)]; g != nil {
		for _, c := range g.order {
			fn(c)
		}
	}
}
