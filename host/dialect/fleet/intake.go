package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/trace"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// origin is what the audit trail tells of a line that came.
type origin struct {
	bytes int
	came  time.Time
	span  *trace.Span
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
		it, _ := dialect.Shift(&f.incoming)
		f.mu.Unlock()
		switch {
		case it.task != nil:
			f.consider(it.task)
		case it.control != nil:
			f.control(it.control)
			f.room.Leave(it.size)
		default:
			select {
			case <-f.taken:
			case <-f.room.Empty():
				return
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
	f.cannot(it.control.Type, it.control.TaskID, why)
}

// consider answers a task at once, or lets it wait for a place.
func (f *Front) consider(t *task) {
	var refused *fleet.Result
	if why := f.wrong(t); why != "" {
		refused = fleet.Blocked(t.Task.TaskID, why)
	} else if !f.enter(t) {
		refused = fleet.Blocked(t.Task.TaskID, fmt.Sprintf("the task %.64q is already running here; its result "+
			"comes once", t.Task.TaskID))
		refused.Duplicate = true
	}
	if refused != nil {
		f.report(t.origin, refused)
		f.room.Leave(t.size)
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

// enter notes a task as one that is under way; false = another one is by that name.
func (f *Front) enter(t *task) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks[t.Task.TaskID] != nil {
		return false
	}
	f.tasks[t.Task.TaskID] = t
	return true
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
	f.room.Leave(t.size)
}

// reason is what an error says to a peer, which gets no code with it.
func reason(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

const (
	maxTaskID    = 256             // bytes
	checkTimeout = 5 * time.Second // for what plugins are asked before a task starts
)

// wrong says what is wrong with the dispatch itself, but for a deadline that is past; "" =
// nothing. It sets defaults.
func (f *Front) wrong(t *task) string {
	d := &t.Dispatch
	if d.Task.Priority == "" {
		d.Task.Priority = fleet.PriorityNormal
	}
	if d.Task.ReplySchema == "" {
		d.Task.ReplySchema = fleet.ReplyProse
	}
	_, _, err := d.DeadlineTime()
	fault := d.Check()
	switch {
	case d.Agent != nil && !d.Agent.Proven():
		return "agent.agent_id is that of a child agent, which agent.agent_token does not prove; the host that " +
			"started the child has that token"
	case !f.admits(d):
		return "unauthorized: the dispatch needs the host's auth_token"
	case !fleet.Speaks(d.ProtocolVersion):
		return fleet.WrongVersion(d.ProtocolVersion)
	case t.unread != nil:
		return t.unread.Error()
	case d.Task.TaskID == "" || len(d.Task.TaskID) > maxTaskID:
		return fmt.Sprintf("task.task_id must have 1 to %d bytes", maxTaskID)
	case fault != nil:
		return strings.ReplaceAll(fault.Path[1:], "/", ".") + " " + fault.Message
	case strings.TrimSpace(d.Brief) == "":
		return "brief is empty: it should say what to do"
	case err != nil:
		return reason(err)
	}
	d.AuthToken = "" // it is of no use to a worker
	return wrongAgent(d.Agent)
}

// wrongAgent says what is wrong with the agent that a task is done as; "" = nothing.
func wrongAgent(a *fleet.Agent) string {
	switch {
	case a == nil:
		return ""
	case a.AgentID == "":
		return "agent.agent_id is missing"
	case !slices.Contains([]protocol.ToolScope{protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated}, a.ToolScope):
		return fmt.Sprintf("agent.tool_scope %.32q is not one of shared, restricted, isolated", a.ToolScope)
	case !slices.Contains([]protocol.MemoryScope{"", protocol.MemoryShared, protocol.MemoryIsolated, protocol.MemorySnapshot}, a.MemoryScope):
		return fmt.Sprintf("agent.memory_scope %.32q is not one of shared, isolated, snapshot", a.MemoryScope)
	case a.Depth < 0 || a.MaxSteps < 0:
		return "agent.depth and agent.max_steps must not be negative"
	}
	return ""
}

// admits reports whether the token of a dispatch is for the agent that its task is done as, see
// auth.AdmitFor, and notes which that is. After some wrong tokens each answer waits.
func (f *Front) admits(d *fleet.Dispatch) bool {
	if len(f.opts.Tokens) == 0 {
		return true
	}
	agent, ok := f.opts.Tokens.AdmitFor(d.AuthToken, d.Agent)
	switch {
	case !ok:
	case d.Agent != nil:
		d.Agent.AgentID = agent
	case agent != "":
		d.Agent = &fleet.Agent{AgentID: agent, ToolScope: protocol.ToolsShared, MemoryScope: protocol.MemoryShared}
	}
	return f.guard.Checked(f.ctx, ok)
}

// maxTexts is how many texts may wait for a worker to take them, of one task.
const maxTexts = 16

// control does what a message about a task says. Only what cannot be done is answered.
func (f *Front) control(c *fleet.Control) {
	why := ""
	f.mu.Lock()
	t := f.tasks[c.TaskID]
	f.mu.Unlock()
	switch {
	case !fleet.Speaks(c.ProtocolVersion):
		why = fleet.WrongVersion(c.ProtocolVersion)
	case t == nil:
		why = "no such task is running here"
	case c.Type == fleet.TypeCancel:
		f.end(t, errCancelled)
	case c.Text == "":
		why = "text is empty"
	default:
		why = f.steer(t, c.Text)
	}
	if why != "" {
		f.cannot(c.Type, c.TaskID, why)
	}
}

// cannot tells that something cannot be done with a task.
func (f *Front) cannot(t protocol.Type, id, why string) {
	f.fail(protocol.Errorf(protocol.CodeInvalidMessage, "%s of the task %.64q: %s", t, id, why))
}

// steer returns a text to the worker of a task; one that has not started gets it with its
// brief. It says why it cannot.
func (f *Front) steer(t *task, text string) (refused string) {
	s := make(chan bool, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case t.answered:
		return "it has ended"
	case t.steer == nil && !f.room.Grow(len(text)):
		return "overloaded: too much waits here"
	case t.steer == nil:
		t.Brief += "\n\n" + text
		t.size += len(text)
		return ""
	}
	select {
	case t.steer <- host.Steering{Text: text, Taken: s}:
		f.goes.Go(func() { f.followText(t, s) })
		return ""
	default:
		return fmt.Sprintf("%d texts wait for its worker already", maxTexts)
	}
}

// followText tells when the worker of a task does not take a text.
func (f *Front) followText(t *task, taken <-chan bool) {
	select {
	case ok := <-taken:
		if ok {
			return
		}
	case <-t.over:
		return
	}
	f.cannot(fleet.TypeSteer, t.Task.TaskID, "its worker does not take the text")
}
