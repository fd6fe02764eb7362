package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// origin is what the audit trail tells of a line that came.
type origin struct {
	bytes int
	came  time.Time
	span  context.Context
}

// What the lines of the pipe claim, one after the other in order, and tasks that wait for servers.
var (
	claimLine    = []protocol.Claim{{Key: "fleet/lines/", Access: protocol.Exclusive}}
	claimServers = []protocol.Claim{{Key: "fleet/servers/", Access: protocol.Exclusive}}
)

// lineOverhead is what a message costs in memory beyond its line, and beyond what the host counts.
const lineOverhead = 1536

// workOf makes a task one of the host's scheduler, which checks it first.
func (f *Front) workOf(t *task) *host.Work {
	f.mu.Lock()
	if f.announced == nil { // whoever sent it could not know yet how the servers are
		t.patience = f.opened.Add(f.pace.connect)
	}
	f.mu.Unlock()
	t.work = &host.Work{
		Name: string(fleet.TypeDispatch), Claims: claimLine, Ahead: true, Size: t.bytes + lineOverhead,
		Span: t.span, Grace: f.pace.late,
		Run:      func(ctx context.Context) (any, error) { return f.consider(ctx, t), context.Cause(ctx) },
		Answer:   func(resp any, err error) []byte { return f.answer(t, resp, err) },
		Answered: f.open.Done,
	}
	f.open.Add(1)
	return t.work
}

// controlOf makes a message about a task one of the host's scheduler. Only what cannot be done is answered.
func (f *Front) controlOf(c *fleet.Control, size int) *host.Work {
	f.open.Add(1)
	return &host.Work{
		Name: string(c.Type), Claims: claimLine, Ahead: true, Size: size + lineOverhead,
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

// refusal is what an error of the host says to the peer.
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

// ended returns a line with its end.
func ended(line []byte) []byte {
	if line == nil {
		return nil
	}
	return append(line, '\n')
}

// consider checks a task. It returns its result where it is not to be done, and its work otherwise.
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
		f.session() // waits for plugins that are not ready, for which the time below is too short
	}
	if decided := f.decide(ctx, t); decided != nil {
		return decided
	}
	t.work.Claims = claimServers
	t.work.Run = func(ctx context.Context) (any, error) { return f.awaitServers(ctx, t), context.Cause(ctx) }
	return t.work
}

// resultID is what the result of a task is kept under. Where agents have tokens, nobody gets the result of another one
// by the task_id alone.
func (f *Front) resultID(t *task) string {
	if len(f.opts.Tokens) == 0 || t.Agent == nil {
		return t.Task.TaskID
	}
	return t.Agent.AgentID + "\n" + t.Task.TaskID
}

// awaitServers waits until the MCP servers that a task requires are connected, or are known not to be. Tasks that came
// before the first announce do so one after the other, so that they start in order.
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

// decide returns the result of a task that requires what is not there, and its work, which waits for a place, where
// all is there; nil = a server that it requires is connecting.
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
	w.Claims, w.Ahead, w.Places, w.Priority = nil, false, f.places, t.Task.Priority.Rank()
	if t.Task.ContextID != "" { // what is said in a conversation is said in order
		w.Claims = []protocol.Claim{{Key: "fleet/context/" + t.Task.ContextID, Access: protocol.Exclusive}}
	}
	w.Run = func(ctx context.Context) (any, error) { return f.run(ctx, t), nil }
	return w
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

// decline returns the result of a task that is not to be done. Who has sent one, and no more than that it
// cannot be done, learns before the first such answer what this worker is.
func (f *Front) decline(result *fleet.Result) *fleet.Result {
	f.mu.Lock()
	known := f.announced != nil
	f.mu.Unlock()
	if !known {
		f.announce(f.ctx, nil)
	}
	return result
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

// control does what a message about a task says, or says why it cannot.
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

// impossible is the error of a message about a task that cannot be done.
func impossible(t protocol.Type, id, why string) *protocol.Error {
	return protocol.Errorf(protocol.CodeInvalidMessage, "%s of the task %.64q: %s", t, id, why)
}

// cannot tells that something cannot be done with a task.
func (f *Front) cannot(t protocol.Type, id, why string) { f.fail(impossible(t, id, why)) }

// steer gives a text to the worker of a task; one that has not started gets it with its
// brief. It says why it cannot, or why the worker does not take it.
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
	case t.steer <- host.Steering{Text: text, Taken: taken}:
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
