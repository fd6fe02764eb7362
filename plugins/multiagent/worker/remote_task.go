package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// remoteAnswer is the result of any method, in the spelling of A2A 1.0 or 0.3.
type remoteAnswer struct {
	Task    *remoteTask    `json:"task"`
	Message *remoteMessage `json:"message"`
	remoteTask
	Parts []remotePart `json:"parts"` // of a message of 0.3
}

// remoteTask is a task of an agent.
type remoteTask struct {
	ID        string `json:"id"`
	ContextID string `json:"contextId"`
	Status    struct {
		State   string         `json:"state"`
		Message *remoteMessage `json:"message"`
	} `json:"status"`
	Artifacts []struct {
		Parts []remotePart `json:"parts"`
	} `json:"artifacts"`
}

type remoteMessage struct {
	ContextID string       `json:"contextId"`
	Parts     []remotePart `json:"parts"`
}

type remotePart struct {
	Text string          `json:"text"`
	Data json.RawMessage `json:"data"`
}

// state returns the state of a task in the spelling of A2A 0.3.
func (t *remoteTask) state() string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Status.State, "TASK_STATE_"), "_", "-"))
}

// over reports whether the agent has ended its work on the task.
func (t *remoteTask) over() bool {
	switch t.state() {
	case "", "submitted", "working", "unspecified", "unknown":
		return false
	}
	return true
}

// texts returns the texts of parts, and the first TASK_RESULT among them.
func texts(parts []remotePart) (text string, result protocol.Object, ok bool) {
	var all []string
	for _, p := range parts {
		raw := []byte(p.Text)
		if p.Data != nil {
			raw = p.Data
		} else {
			all = append(all, p.Text)
		}
		if obj, err := protocol.ParseObject(raw); err == nil && !ok && obj.Text("type") == string(fleet.TypeResult) {
			result, ok = obj, true
		}
	}
	return strings.Join(all, "\n\n"), result, ok
}

// consult lets the agent do a task. The error is the cause of ctx.
func (r *runner) consult(ctx context.Context, t *task) (outcome, error) {
	over := make(chan struct{})
	var o outcome
	var err error
	go func() {
		defer close(over)
		o, err = r.converse(ctx, t)
	}()
	t.idle(over) // steering texts cannot be sent to the agent
	return o, err
}

// converse sends the task and follows it to its end. If the agent does not answer, it may have begun the task.
func (r *runner) converse(ctx context.Context, t *task) (outcome, error) {
	a, err := r.agent(ctx)
	if err != nil {
		return r.unreached(ctx, t, err)
	}
	answer, err := r.ask(ctx, a, "SendMessage", "message/send", r.messageOf(ctx, a, t))
	refused, status := (*remoteError)(nil), (*statusError)(nil)
	switch {
	case err == nil:
		r.runs()
	case ctx.Err() != nil:
		return t.stopped(context.Cause(ctx))
	case errors.As(err, &refused):
		r.runs()
		return outcome{res: t.failed("worker %s: %v", r.Name, err), again: true, moot: true}, nil
	case errors.As(err, &status):
		return r.unreached(ctx, t, err)
	default:
		r.fails(err)
		res := t.failed("worker %s: %v", r.Name, err)
		t.estimate(res, 0)
		return outcome{res: res, lost: true}, nil
	}
	if answer.Task == nil {
		if answer.Message == nil {
			return outcome{res: t.failed("worker %s: the agent's answer is neither a message nor a task", r.Name)}, nil
		}
		t.continues(answer.Message.ContextID)
		return r.said(t, answer.Message.Parts), nil
	}
	t.continues(answer.Task.ContextID)
	return r.watch(ctx, t, a, answer.Task)
}

// unreached returns the outcome of a task that did not reach the agent; it is sent again later, there or elsewhere.
func (r *runner) unreached(ctx context.Context, t *task, err error) (outcome, error) {
	if ctx.Err() != nil {
		return t.stopped(context.Cause(ctx))
	}
	err = fmt.Errorf("worker %s was not reached: %w", r.Name, err)
	r.fails(err)
	return outcome{res: t.failed("%v", err), lost: true, fresh: true, moot: true}, nil
}

// messageOf returns the message with the task: a TASK_DISPATCH if the agent accepts one, else a text.
func (r *runner) messageOf(ctx context.Context, a *remote, t *task) map[string]any {
	text := r.asked(ctx, t, t.brief(r.pool.workspace))
	if a.fleet {
		d := r.dispatchOf(ctx, t, t.Task.TaskID)
		if raw, err := protocol.AppendJSON(nil, d); err == nil {
			text = string(raw)
		}
	}
	part, role := map[string]any{"text": text}, "ROLE_USER"
	config := map[string]any{"returnImmediately": true}
	if !a.v10 {
		part["kind"], role = "text", "user"
		config = map[string]any{"blocking": false}
	}
	message := map[string]any{"messageId": uuid.NewString(), "role": role, "parts": []any{part}}
	if !a.v10 {
		message["kind"] = "message"
	}
	if t.talk != nil {
		message["contextId"] = cmp.Or(t.talk.Session, t.Task.ContextID)
	}
	return map[string]any{"message": message, "configuration": config}
}

// continues stores the agent's own id of the conversation.
func (t *task) continues(context string) {
	if t.talk != nil && context != "" {
		t.talk.Session = context
	}
}

// watch asks for the state of a task until it has ended. If ctx ends first, it cancels the task at the agent.
func (r *runner) watch(ctx context.Context, t *task, a *remote, at *remoteTask) (outcome, error) {
	fails := 0
	for pause := firstLook; !at.over(); pause = min(2*pause, longestLook) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			r.abandon(ctx, a, at.ID)
			return t.stopped(context.Cause(ctx))
		}
		within, cancel := context.WithTimeout(ctx, cardTimeout)
		answer, err := r.ask(within, a, "GetTask", "tasks/get", map[string]any{"id": at.ID})
		cancel()
		switch refused := (*remoteError)(nil); {
		case err == nil && answer.Task != nil:
			at, fails = answer.Task, 0
		case ctx.Err() != nil:
		case errors.As(err, &refused): // the agent does not know the task any more, for example after a restart
			return outcome{res: t.failed("worker %s: the agent lost the task: %v", r.Name, err), lost: true}, nil
		default:
			if fails++; fails >= maxLookFails {
				r.fails(err)
				return outcome{
					res:  t.failed("worker %s: the agent does not answer any more: %v", r.Name, err),
					lost: true,
				}, nil
			}
		}
	}
	var parts []remotePart
	for _, made := range at.Artifacts {
		parts = append(parts, made.Parts...)
	}
	if at.Status.Message != nil {
		if len(parts) == 0 || !hasResult(parts) && hasResult(at.Status.Message.Parts) {
			parts = at.Status.Message.Parts
		}
	}
	o := r.said(t, parts)
	if state := at.state(); state != "completed" && !hasResult(parts) {
		why := cmp.Or(o.res.Summary, "the agent gave no reason")
		o.res = t.failed("worker %s: the task is %s: %s", r.Name, state, why)
		if state == "rejected" || state == "input-required" || state == "auth-required" {
			o.res = fleet.Blocked(t.Task.TaskID, fmt.Sprintf("the agent %s: %s", strings.ReplaceAll(state, "-", " "),
				why))
		}
		t.estimate(o.res, 0)
	}
	o.again = o.res.Status == fleet.StatusBlocked
	return o, nil
}

func hasResult(parts []remotePart) bool {
	_, _, ok := texts(parts)
	return ok
}

// abandon tells the agent to cancel a task.
func (r *runner) abandon(ctx context.Context, a *remote, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.pool.pace.stop)
	defer cancel()
	_, err := r.ask(ctx, a, "CancelTask", "tasks/cancel", map[string]any{"id": id})
	if err != nil {
		r.pool.env.Log.Info().Err(err).Str("worker", r.Name).Msg("a task could not be cancelled at its agent")
	}
}

// said returns the outcome from the agent's message: a TASK_RESULT, a result in its text, or any text.
func (r *runner) said(t *task, parts []remotePart) outcome {
	text, obj, ok := texts(parts)
	if !ok {
		obj, ok = resultIn([]byte(text))
	}
	if ok {
		res := t.read(obj, 0)
		return outcome{res: res, again: res.Status == fleet.StatusBlocked}
	}
	res := fleet.NewResult(t.Task.TaskID, fleet.StatusDone)
	res.Summary = text
	t.estimate(res, utf8.RuneCountInString(text))
	if t.Task.ReplySchema == fleet.ReplyStructured {
		res.Summary = wrapped(text, res.Status)
	}
	return outcome{res: res}
}
