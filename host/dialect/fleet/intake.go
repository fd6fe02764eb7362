package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// origin has what the audit trail records of a line.
type origin struct {
	bytes int
	came  time.Time
	span  context.Context
}

// Claims of the lines of the pipe, and of tasks that wait for servers. Each kind runs one after the other, in order.
var (
	claimLine    = []protocol.Claim{{Key: "fleet/lines/", Access: protocol.Exclusive}}
	claimServers = []protocol.Claim{{Key: "fleet/servers/", Access: protocol.Exclusive}}
)

// lineOverhead is the memory that a message takes beyond its line and beyond what the host counts, in bytes.
const lineOverhead = 1536

// workOf returns the host.Work of a task. It first checks the task.
func (f *Front) workOf(t *task) *host.Work {
	f.mu.Lock()
	if f.announced == nil { // the sender could not know the state of the servers
		t.patience = f.opened.Add(f.pace.connect)
	}
	f.mu.Unlock()
	t.work = &host.Work{
		Name: string(fleet.TypeDispatch), Claims: claimLine, NoSlot: true, Size: t.bytes + lineOverhead,
		Span: t.span, Grace: f.pace.late,
		Run:      func(ctx context.Context) (any, error) { return f.consider(ctx, t), context.Cause(ctx) },
		Answer:   func(resp any, err error) []byte { return f.answer(t, resp, err) },
		Answered: f.open.Done,
	}
	f.open.Add(1)
	return t.work
}

// controlOf returns the host.Work of a message about a task. It is answered only if it cannot be done.
func (f *Front) controlOf(c *fleet.Control, size int) *host.Work {
	f.open.Add(1)
	return &host.Work{
		Name: string(c.Type), Claims: claimLine, NoSlot: true, Size: size + lineOverhead,
		Run: func(ctx context.Context) (any, error) { return f.control(ctx, c), nil },
		Answer: func(resp any, err error) []byte {
			why, _ := resp.(string)
			if err != nil {
				why = reason(refusal(err))
			}
			if why == "" {
				return nil
			}
			return ended(f.failure(impossible(c.Type, c.TaskID, why)))
		},
		Answered: f.open.Done,
	}
}

// refusal converts an error of the host to the one that the peer gets.
func refusal(err error) error {
	var e *protocol.Error
	switch {
	case errors.Is(err, host.ErrShutdown), errors.Is(err, context.Canceled):
		return errEnding
	case errors.As(err, &e) && e.Code == protocol.CodeOverloaded:
		return errFull
	}
	return err
}

// ended returns a line with a newline.
func ended(line []byte) []byte {
	if line == nil {
		return nil
	}
	return append(line, '\n')
}

// consider checks a task. It returns the result of a task that is not to be done, else its host.Work, which runs again.
func (f *Front) consider(ctx context.Context, t *task) any {
	select {
	case <-f.greeted:
	case <-ctx.Done():
		return nil
	}
	if why := f.wrong(t); why != "" {
		return fleet.Blocked(t.Task.TaskID, why)
	}
	if !f.enter(t) {
		r := fleet.Blocked(t.Task.TaskID, fmt.Sprintf("the task %.64q is already running here; its result "+
			"comes once", t.Task.TaskID))
		r.Duplicate = true
		return r
	}
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	t.keptAs = f.resultID(t)
	if kept := f.results.get(within, t.keptAs); kept != nil {
		t.kept = true
		return f.decline(kept)
	}
	at, dated, _ := t.DeadlineTime()
	if dated && !f.dueAt(t, at) {
		return f.decline(fleet.Blocked(t.Task.TaskID, "the deadline "+t.Deadline+" is past"))
	}
	if len(t.Requirements.RequiredMCP)+len(t.Requirements.RequiredCapabilities) > 0 {
		f.session() // waits for the plugins, because checkTimeout may be too short for that
	}
	if decided := f.decide(ctx, t); decided != nil {
		return decided
	}
	t.work.Claims = claimServers
	t.work.Run = func(ctx context.Context) (any, error) { return f.awaitServers(ctx, t), context.Cause(ctx) }
	return t.work
}

// resultID returns the id under which the result of a task is kept. If agents have tokens, it contains the agent, so
// that nobody gets the result of another agent by the task_id.
func (f *Front) resultID(t *task) string {
	if len(f.opts.Tokens) == 0 || t.Agent == nil {
		return t.Task.TaskID
	}
	return t.Agent.AgentID + "\n" + t.Task.TaskID
}

// awaitServers waits until the MCP servers that a task requires are connected, or known to be unusable. Tasks that came
// before the first announce wait one after the other, so that they start in order.
func (f *Front) awaitServers(ctx context.Context, t *task) any {
	for {
		if decided := f.decide(ctx, t); decided != nil || ctx.Err() != nil {
			return decided
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// decide returns the result of a task whose requirements are not met, or, if all are met, its host.Work, which waits
// for a slot. nil = a server that the task requires is still connecting.
func (f *Front) decide(ctx context.Context, t *task) any {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch why, pending := f.unmet(ctx, t); {
	case why != "":
		return f.decline(fleet.Blocked(t.Task.TaskID, why))
	case pending:
		return nil
	}
	w := t.work
	w.Claims, w.NoSlot, w.Slots, w.Priority = nil, false, f.slots, t.Task.Priority.Rank()
	if t.Task.ContextID != "" { // the tasks of one conversation run in order
		w.Claims = []protocol.Claim{{Key: "fleet/context/" + t.Task.ContextID, Access: protocol.Exclusive}}
	}
	w.Run = func(ctx context.Context) (any, error) { return f.run(ctx, t), nil }
	return w
}

// enter adds a task to those under way; false = one with this id is under way already.
func (f *Front) enter(t *task) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks[t.Task.TaskID] != nil {
		return false
	}
	f.tasks[t.Task.TaskID] = t
	return true
}

// decline returns the result of a task that is not to be done. If nothing was announced yet, it sends an announce
// first, so that the sender learns what this worker is.
func (f *Front) decline(result *fleet.Result) *fleet.Result {
	f.mu.Lock()
	known := f.announced != nil
	f.mu.Unlock()
	if !known {
		f.announce(f.ctx, nil)
	}
	return result
}

// reason returns the text of an error for a peer, without its code.
func reason(err error) string {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

const (
	maxTaskID    = 256             // bytes
	checkTimeout = 5 * time.Second // for questions to plugins before a task starts
)

// wrong returns what is wrong with a dispatch itself; "" = nothing. It does not check whether the deadline is past. It
// also sets defaults.
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
	d.AuthToken = "" // workers do not need it
	return wrongAgent(d.Agent)
}

// wrongAgent returns what is wrong with the agent as which a task is done; "" = nothing.
func wrongAgent(a *fleet.Agent) string {
	switch {
	case a == nil:
		return ""
	case a.AgentID == "":
		return "agent.agent_id is missing"
	case !slices.Contains([]protocol.ToolScope{protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated},
		a.ToolScope):
		return fmt.Sprintf("agent.tool_scope %.32q is not one of shared, restricted, isolated", a.ToolScope)
	case !slices.Contains([]protocol.MemoryScope{
		"", protocol.MemoryShared, protocol.MemoryIsolated,
		protocol.MemorySnapshot,
	}, a.MemoryScope):
		return fmt.Sprintf("agent.memory_scope %.32q is not one of shared, isolated, snapshot", a.MemoryScope)
	case a.Depth < 0 || a.MaxSteps < 0:
		return "agent.depth and agent.max_steps must not be negative"
	}
	return ""
}

// admits reports whether the token of a dispatch allows the agent as which its task is done, and stores that agent in
// the dispatch; see auth.AdmitFor. After some wrong tokens it waits before it returns.
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

// maxTexts is how many texts for one task may wait until its worker takes them.
const maxTexts = 16

// control does what a message about a task asks for, or returns why it cannot.
func (f *Front) control(ctx context.Context, c *fleet.Control) (refused string) {
	f.mu.Lock()
	t := f.tasks[c.TaskID]
	f.mu.Unlock()
	switch {
	case !fleet.Speaks(c.ProtocolVersion):
		return fleet.WrongVersion(c.ProtocolVersion)
	case t == nil:
		return "no such task is running here"
	case c.Type == fleet.TypeCancel:
		t.work.Stop(errCancelled)
	case c.Text == "":
		return "text is empty"
	default:
		return f.steer(ctx, t, c.Text)
	}
	return ""
}

// impossible returns the error for a message about a task that cannot be done.
func impossible(t protocol.Type, id, why string) *protocol.Error {
	return protocol.Errorf(protocol.CodeInvalidMessage, "%s of the task %.64q: %s", t, id, why)
}

// cannot reports that a message about a task cannot be done.
func (f *Front) cannot(t protocol.Type, id, why string) { f.fail(impossible(t, id, why)) }

// steer passes a text to the worker of a task. If the task has not started, it appends the text to the brief. It
// returns why it cannot, or that the worker does not take the text.
func (f *Front) steer(ctx context.Context, t *task, text string) (refused string) {
	taken := make(chan bool, 1)
	_, limits := host.ServicesOf(f.ctx).Bounds()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case t.answered:
		return "it has ended"
	case t.steer == nil && f.texts+len(text) > limits.QueueBytes:
		return "overloaded: too much waits here"
	case t.steer == nil:
		t.Brief += "\n\n" + text
		t.texts += len(text)
		f.texts += len(text)
		return ""
	}
	select {
	case t.steer <- agent.Steering{Text: text, Taken: taken}:
	default:
		return fmt.Sprintf("%d texts wait for its worker already", maxTexts)
	}
	f.mu.Unlock()
	defer f.mu.Lock()
	host.ReleaseOrder(ctx)
	select {
	case ok := <-taken:
		if !ok {
			return "its worker does not take the text"
		}
	case <-t.over:
	case <-ctx.Done():
	}
	return ""
}
