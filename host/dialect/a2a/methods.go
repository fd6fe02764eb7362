package a2a

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// sendParams are the params of a message in both versions.
type sendParams struct {
	Message       message `json:"message"`
	Configuration struct {
		HistoryLength     *int           `json:"historyLength"`
		Blocking          *bool          `json:"blocking"`                   // of 0.3
		ReturnImmediately bool           `json:"returnImmediately"`          // of 1.0
		Push03            jsontext.Value `json:"pushNotificationConfig"`     // of 0.3; refused
		Push10            jsontext.Value `json:"taskPushNotificationConfig"` // of 1.0; refused
	} `json:"configuration"`
}

// begin reads a message, and starts its task or passes its text to the task that it names. A greeting starts no task;
// its answer is greeting.
func (c *call) begin() (t *task, p *sendParams, greeting *a2a.Message, fault *rpcError) {
	p = new(sendParams)
	if fault = c.decode(p); fault != nil {
		return nil, nil, nil, fault
	}
	if given(p.Configuration.Push03) || given(p.Configuration.Push10) {
		_, fault = c.noPush()
		return nil, nil, nil, fault
	}
	m := &p.Message
	if fault = m.check(); fault != nil {
		return nil, nil, nil, fault
	}
	switch {
	case strings.HasPrefix(m.ContextID, handshakeContext):
		return nil, p, c.greet(m), nil
	case m.TaskID != "":
		t, fault = c.steer(m)
	default:
		t, fault = c.start(m)
	}
	return t, p, nil, fault
}

// greet returns the answer to a greeting.
func (c *call) greet(m *message) *a2a.Message {
	said := &a2a.Message{ID: uuid.NewString(), ContextID: m.ContextID, Role: a2a.MessageRoleAgent}
	text := handshakeText
	if who := c.agent.link.who(c.ctx); who != nil {
		here := *who
		here.Session.ContextID = m.ContextID
		if raw, err := protocol.AppendJSON(nil, &here); err == nil {
			text += "\n" + string(raw)
		}
	}
	said.Parts = a2a.ContentParts{a2a.TextPart{Text: text}}
	return said
}

// start starts a new task.
func (c *call) start(m *message) (*task, *rpcError) {
	id := uuid.NewString()
	m.ContextID = cmp.Or(m.ContextID, uuid.NewString())
	d, fault := m.dispatch(id, c.token)
	if fault != nil {
		return nil, fault
	}
	a := c.agent
	t := newTask(id, m, d.Task.TaskID, c.owner)
	if fault := a.tasks.add(t); fault != nil {
		return nil, fault
	}
	t.works()
	err := a.link.dispatch(d, func(result *fleet.Result) {
		if t.end(result) {
			a.goes.Go(func() { a.reply(t) })
		}
		a.tasks.over(t)
	})
	if err != nil {
		t.fails(err)
		a.tasks.over(t)
	}
	return t, nil
}

// steer passes the text of a message to the worker of a task.
func (c *call) steer(m *message) (*task, *rpcError) {
	t := c.agent.tasks.find(m.TaskID, c.owner)
	switch {
	case t == nil:
		return nil, noTask(m.TaskID)
	case m.ContextID != t.context && m.ContextID != "":
		return nil, invalid("message.contextId is not that of the task, which is %.64q", t.context)
	}
	select {
	case <-t.over:
		return nil, invalid("the task has ended; leave taskId out and send contextId %.64q to go on with the "+
			"conversation", t.context)
	default:
	}
	if who := c.agent.link.who(c.ctx); who == nil || !slices.Contains(who.Capabilities.Extensions,
		fleet.ExtensionSteer) {
		return nil, &rpcError{Code: codeUnsupported, Message: "the worker takes no texts while it works; send the " +
			"message " +
			"without taskId, as the next task of the context"}
	}
	steer := &fleet.Control{Type: fleet.TypeSteer, ProtocolVersion: fleet.Version, TaskID: t.fleetID, Text: m.text()}
	if err := c.agent.link.send(steer); err != nil {
		return nil, &rpcError{Code: codeServer, Message: err.Error()}
	}
	return t, nil
}

func noTask(id string) *rpcError {
	return &rpcError{Code: codeTaskNotFound, Message: fmt.Sprintf("there is no task %.64q; it may have been too "+
		"long ago", id)}
}

// send answers a message with its task, or in the plain spelling with the result. It waits for the end of the task, but
// no longer than Options.Patience.
func (c *call) send() (any, *rpcError) {
	t, p, greeting, fault := c.begin()
	switch {
	case fault != nil:
		return nil, fault
	case greeting != nil:
		return c.spell.sent(greeting), nil
	}
	config := &p.Configuration
	if !config.ReturnImmediately && (config.Blocking == nil || *config.Blocking) {
		select {
		case <-t.over:
		case <-time.After(c.agent.opts.Patience):
		case <-c.ctx.Done():
		}
	}
	seen := t.seen(length(config.HistoryLength), true)
	switch {
	case c.spell != plain:
	case seen.Status.State.Terminal():
		return c.spell.sent(seen.Status.Message), nil
	case c.agent.opts.ReplyURL != "" && t.post():
		text := "[queued] the result of task " + t.id + " comes as a message"
		return c.spell.sent(a2a.NewMessageForTask(a2a.MessageRoleAgent, t, a2a.TextPart{Text: text})), nil
	}
	return c.spell.sent(seen), nil
}

// length returns the number of messages for a historyLength; negative = all.
func length(given *int) int {
	if given == nil {
		return -1
	}
	return max(*given, 0)
}

// sendStreaming answers a message with a stream of the events of its task.
func (c *call) sendStreaming() (any, *rpcError) {
	t, _, greeting, fault := c.begin()
	switch {
	case fault != nil:
		return nil, fault
	case greeting != nil:
		c.stream(func(tell func(a2a.Event)) { tell(greeting) })
		return nil, nil
	}
	first := t.seen(-1, false)
	first.Status = a2a.TaskStatus{State: a2a.TaskStateSubmitted, Timestamp: first.Status.Timestamp}
	c.stream(func(tell func(a2a.Event)) {
		tell(first)
		c.follow(t, 0, tell)
	})
	return nil, nil
}

// subscribe answers with a stream of the events of an earlier task.
func (c *call) subscribe() (any, *rpcError) {
	t, fault := c.named()
	if fault != nil {
		return nil, fault
	}
	some, _, _ := t.since(0)
	c.stream(func(tell func(a2a.Event)) {
		tell(t.seen(-1, true))
		c.follow(t, len(some), tell)
	})
	return nil, nil
}

// follow passes the events of a task to tell, from the index at on, until the task ends.
func (c *call) follow(t *task, at int, tell func(a2a.Event)) {
	for {
		some, more, over := t.since(at)
		for _, e := range some {
			tell(e)
		}
		at += len(some)
		if over {
			return
		}
		select {
		case <-more:
		case <-c.ctx.Done():
			return
		}
	}
}

// stream writes server-sent events. Each is a response of JSON-RPC.
func (c *call) stream(do func(tell func(a2a.Event))) {
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(c.w)
	do(func(e a2a.Event) {
		line := append(append([]byte("data: "), c.response(c.spell.event(e), nil)...), "\n\n"...)
		_, _ = c.w.Write(line) // if the client has gone, the context ends
		_ = out.Flush()
	})
}

// named returns the task that params.id names.
func (c *call) named() (*task, *rpcError) {
	var p struct {
		ID string `json:"id"`
	}
	if fault := c.decode(&p); fault != nil {
		return nil, fault
	}
	if p.ID == "" {
		return nil, invalid("params.id is missing; it should be the id of a task")
	}
	if t := c.agent.tasks.find(p.ID, c.owner); t != nil {
		return t, nil
	}
	return nil, noTask(p.ID)
}

func (c *call) get() (any, *rpcError) {
	t, fault := c.named()
	if fault != nil {
		return nil, fault
	}
	var p struct {
		HistoryLength *int `json:"historyLength"`
	}
	if fault := c.decode(&p); fault != nil {
		return nil, fault
	}
	return c.spell.task(t.seen(length(p.HistoryLength), true)), nil
}

// cancelPatience is how long a cancelled task may take to end before the answer says that it still works.
const cancelPatience = 5 * time.Second

func (c *call) cancel() (any, *rpcError) {
	t, fault := c.named()
	if fault != nil {
		return nil, fault
	}
	if !t.cancelled() {
		return nil, &rpcError{Code: codeNotCancelable, Message: "the task has ended already"}
	}
	err := c.agent.link.send(&fleet.Control{Type: fleet.TypeCancel, ProtocolVersion: fleet.Version, TaskID: t.fleetID})
	if err != nil {
		return nil, &rpcError{Code: codeServer, Message: err.Error()}
	}
	select {
	case <-t.over:
	case <-time.After(cancelPatience):
	case <-c.ctx.Done():
	}
	return c.spell.task(t.seen(-1, true)), nil
}

const (
	usualPage = 50
	mostPage  = 100
)

// list answers with a page of the tasks, the newest first. A page token is the number of tasks before the page.
func (c *call) list() (any, *rpcError) {
	var p struct {
		ContextID        string `json:"contextId"`
		Status           string `json:"status"`
		PageSize         int    `json:"pageSize"`
		PageToken        string `json:"pageToken"`
		HistoryLength    *int   `json:"historyLength"`
		IncludeArtifacts bool   `json:"includeArtifacts"`
		After            string `json:"statusTimestampAfter"` // RFC 3339
	}
	if fault := c.decode(&p); fault != nil {
		return nil, fault
	}
	from, err := strconv.Atoi("0" + p.PageToken)
	after, wrongTime := time.Time{}, error(nil)
	if p.After != "" {
		after, wrongTime = time.Parse(time.RFC3339, p.After)
	}
	wanted := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(p.Status, "TASK_STATE_"), "_", "-"))
	switch {
	case err != nil:
		return nil, invalid("params.pageToken is not one that an answer had")
	case wrongTime != nil:
		return nil, invalid("params.statusTimestampAfter is %.40q; should be a time such as 2026-11-21T15:04:05Z",
			p.After)
	case !slices.Contains(states(), wanted):
		return nil, invalid("params.status is %.40q; should be a state such as TASK_STATE_WORKING", p.Status)
	case p.PageSize < 0 || p.PageSize > mostPage:
		return nil, invalid("params.pageSize is %d; should be 1 to %d", p.PageSize, mostPage)
	case p.PageSize == 0:
		p.PageSize = usualPage
	}
	all := c.agent.tasks.of(c.owner, func(t *task) bool {
		status := t.seen(0, false).Status
		return (p.ContextID == "" || t.context == p.ContextID) && status.Timestamp.After(after) &&
			(wanted == "" || wanted == "unspecified" || string(status.State) == wanted)
	})
	from = min(from, len(all))
	end := min(from+p.PageSize, len(all))
	page := make([]any, 0, end-from)
	history := 0
	if p.HistoryLength != nil {
		history = length(p.HistoryLength)
	}
	for _, t := range all[from:end] {
		page = append(page, c.spell.task(t.seen(history, p.IncludeArtifacts)))
	}
	next := ""
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	return object{"tasks": page, "nextPageToken": next, "pageSize": p.PageSize, "totalSize": len(all)}, nil
}

// states returns the states of a task as 0.3 spells them; "" and unspecified stand for any.
func states() []string {
	return []string{
		"", "unspecified", "submitted", "working", "completed", "failed", "canceled", "input-required",
		"rejected",
		"auth-required",
	}
}

func (c *call) noPush() (any, *rpcError) {
	return nil, &rpcError{Code: codeNoPush, Message: "push notifications are not supported; ask by GetTask, or " +
		"follow the task by SubscribeToTask"}
}

func (c *call) extendedCard() (any, *rpcError) {
	return nil, &rpcError{Code: codeNoExtended, Message: "there is no extended card; the public one says all"}
}
