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

// crew is the children of one session.
type crew struct {
	sess *host.Session
	ctx  context.Context // of their tasks
	stop context.CancelCauseFunc

	// Guarded by Plugin.mu.
	ended    bool
	children map[string]*child
	order    []*child  // as they were spawned
	alive    int       // not terminated, or being spawned
	waits    int       // requests that wait for a result, or for the end of a task
	merges   int       // under way
	mute     time.Time // the agent did not answer mcp/sample/req and is not asked before
}

// child is one child agent. Its fields do not change but for those at the end.
type child struct {
	crew   *crew
	config protocol.SubagentConfig
	asks   asks
	agent  fleet.Agent // as whom its tasks are done
	parent *child      // nil = the session's agent itself
	depth  int         // 0 = the agent of the first host started it
	home   *wire       // events while it has no task

	// Guarded by Plugin.mu.
	status  protocol.SubagentStatus
	job     *job    // the task under way; nil = none
	news    *wire   // of the newest task; nil = there was none
	last    outcome // of the last task that ended
	tasks   int     // so far
	mailbox []letter
}

// id gives the child's id.
func (c *child) id() string { return c.agent.AgentID }

// crewOf gives the children of the session that ctx belongs to, which may have none yet.
func (p *Plugin) crewOf(ctx context.Context) (*crew, error) {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "child agents belong to a session; there is none here")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "there are no child agents any more: %w", errClosed)
	case ctx.Err() != nil: // its session may be over, and nobody would end its children
		return nil, context.Cause(ctx)
	}
	cr := p.crews[sess]
	if cr == nil {
		cr = &crew{sess: sess, children: make(map[string]*child)}
		cr.ctx, cr.stop = context.WithCancelCause(host.InSession(p.ctx, sess))
		p.crews[sess] = cr
	}
	return cr, nil
}

// find gives a child of the request's session by its id, or by a name that no other one
// has. The error is that of an unknown one.
func (p *Plugin) find(ctx context.Context, id string) (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cr := p.crews[host.SessionFrom(ctx)]
	if cr == nil {
		return nil, unknown(id, nil)
	}
	if c := cr.findLocked(id); c != nil {
		return c, nil
	}
	return nil, unknown(id, cr.idsLocked())
}

func (cr *crew) findLocked(id string) *child {
	if c := cr.children[id]; c != nil {
		return c
	}
	var found *child
	for _, c := range cr.order {
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

// idsLocked names the children that are not terminated.
func (cr *crew) idsLocked() []string {
	ids := []string{}
	for _, c := range cr.order {
		if c.status != protocol.SubagentTerminated {
			ids = append(ids, c.id())
		}
	}
	return ids
}

func unknown(id string, known []string) error {
	err := protocol.Errorf(protocol.CodeUnknownSubagent, "there is no child agent %.64q; multi_agent/spawn starts one and gives its subagent_id", id)
	if len(known) > 0 {
		err.With("known", known)
	}
	return host.NotMine(err)
}

// treeLocked gives a child and all below it, itself first.
func (c *child) treeLocked() []*child {
	all := []*child{c}
	for _, other := range c.crew.order { // parents stand before their children
		if other.parent != nil && slices.Contains(all, other.parent) {
			all = append(all, other)
		}
	}
	return all
}

// terminateLocked ends a child for good.
func (p *Plugin) terminateLocked(c *child) {
	if c.status == protocol.SubagentTerminated {
		return
	}
	c.status, c.mailbox = protocol.SubagentTerminated, nil
	if c.job != nil && c.job.stopped == "" {
		c.job.stopLocked(protocol.SubagentTerminated, errTerminated)
		c.home.end()
	} else {
		if c.job != nil { // it tells of nothing any more
			c.job.stopLocked(protocol.SubagentTerminated, errTerminated)
		}
		c.home.terminated(c.news)
	}
	c.crew.alive--
	p.alive--
	c.crew.forgetLocked()
}

// forgetLocked forgets the oldest of too many terminated children, but for those whose
// task has not ended yet.
func (cr *crew) forgetLocked() {
	for over := len(cr.order) - cr.alive - maxRemembered; over > 0; over-- {
		i := slices.IndexFunc(cr.order, func(c *child) bool {
			return c.status == protocol.SubagentTerminated && c.job == nil
		})
		if i < 0 {
			return
		}
		delete(cr.children, cr.order[i].id())
		cr.order = slices.Delete(cr.order, i, i+1)
	}
}

// dissolveLocked ends a crew, and gives the tasks that are to end now. Nobody is told: the
// session is over.
func (p *Plugin) dissolveLocked(cr *crew, cause error) []*job {
	var tasks []*job
	for _, c := range cr.order {
		c.home.cut()
		if c.job != nil {
			c.job.news.cut()
			c.job.stopLocked(protocol.SubagentTerminated, cause)
			tasks = append(tasks, c.job)
		}
		if c.status != protocol.SubagentTerminated {
			c.status, c.mailbox = protocol.SubagentTerminated, nil
			p.alive--
		}
	}
	cr.ended = true
	cr.stop(cause)
	delete(p.crews, cr.sess)
	return tasks
}

// waitJobs waits until tasks have ended, or ctx has.
func waitJobs(ctx context.Context, tasks []*job) {
	for _, j := range tasks {
		select {
		case <-j.done:
		case <-ctx.Done():
			return
		}
	}
}
