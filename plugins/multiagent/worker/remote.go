package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"a2e/protocol"
	"a2e/protocol/a2a"
	"a2e/protocol/fleet"
)

// Times and limits of the requests to an agent of A2A.
const (
	cardAge      = 5 * time.Minute  // age after which a card is read again
	cardTimeout  = 10 * time.Second // for a card, a question about a task, and a cancel
	maxRemote    = 16 << 20         // bytes of an answer
	firstLook    = 200 * time.Millisecond
	longestLook  = 5 * time.Second // longest pause between two questions about a task
	maxLookFails = 5               // failures in a row after which the agent counts as dead
)

// validateRemote returns an error if the config of a worker that is an agent of A2A is wrong.
func (w *Worker) validateRemote() error {
	at, err := url.Parse(w.URL)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return fmt.Errorf("worker %q: url %.100q is not the address of an agent, such as http://127.0.0.1:8766", w.Name,
			w.URL)
	case len(w.Command) > 0 || w.CLI != "" || !w.LLM.IsZero() || w.queued():
		return fmt.Errorf("worker %q has a url and a command, cli, llm or fleet; it should have one of them", w.Name)
	case w.Mode != "" && w.Mode != ModeA2A:
		return fmt.Errorf("worker %q: mode %s is for a command; leave mode out beside url", w.Name, w.Mode)
	case len(w.Env)+len(w.Read)+len(w.Write)+len(w.Tools) > 0 || w.Cwd+w.SystemPrompt+w.AuthToken.Reveal() != "" ||
		w.ShareState ||
		w.Network || w.MaxTurns+w.TokenBudget != 0:
		return fmt.Errorf("worker %q: beside url there are token, model, model_tier, context_window, capabilities, "+
			"contract, max_tasks, retries, timeout and priority; all else is up to the agent", w.Name)
	}
	return nil
}

// remote is an agent of A2A as its card describes it. It does not change.
type remote struct {
	endpoint string
	v10      bool // speaks A2A 1.0, else 0.3
	fleet    bool // accepts a TASK_DISPATCH
	read     time.Time
	announce *fleet.Announce
}

// agentCard has the parts of a card that this package uses.
type agentCard struct {
	Name                string
	URL                 string
	SupportedInterfaces []struct {
		URL             string
		ProtocolBinding string
		ProtocolVersion string
	}
	Capabilities struct{ Extensions []struct{ URI string } }
	Skills       []struct {
		ID   string
		Tags []string
	}
}

// agent returns the agent of the worker. It reads the card if it is older than cardAge.
func (r *runner) agent(ctx context.Context) (*remote, error) {
	r.starts.Lock()
	defer r.starts.Unlock()
	if a := r.remote; a != nil && r.pool.env.Now().Sub(a.read) < cardAge {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cardTimeout)
	defer cancel()
	base := strings.TrimSuffix(strings.TrimSuffix(r.URL, "/"), a2a.PathRPC)
	raw, err := r.exchange(ctx, http.MethodGet, base+a2a.PathCard, nil, "")
	if err != nil {
		return nil, err
	}
	var card agentCard
	if err := json.Unmarshal(raw, &card); err != nil || card.Name == "" {
		return nil, fmt.Errorf("%s%s is not an agent card", base, a2a.PathCard)
	}
	a := &remote{endpoint: card.URL, read: r.pool.env.Now(), announce: new(fleet.Announce)}
	for _, i := range card.SupportedInterfaces {
		if i.ProtocolBinding == "JSONRPC" && strings.HasPrefix(i.ProtocolVersion, "1") && !a.v10 {
			a.endpoint, a.v10 = i.URL, true
		}
	}
	if a.endpoint == "" {
		return nil, fmt.Errorf("the agent %.64q has no JSON-RPC endpoint of A2A 1.0 or 0.3", card.Name)
	}
	if err := sameServer(r.URL, a.endpoint); err != nil { // otherwise the token would be sent to another server
		return nil, err
	}
	a.announce.Worker.AgentID = card.Name
	for _, e := range card.Capabilities.Extensions {
		a.fleet = a.fleet || e.URI == a2a.FleetExtension
	}
	for _, s := range card.Skills {
		a.announce.Capabilities.Tools = append(append(a.announce.Capabilities.Tools, s.ID), s.Tags...)
	}
	r.hideIn([]*string{&a.announce.Worker.AgentID}, a.announce.Capabilities.Tools)
	r.remote = a
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.health.announced = a.announce
	return a, nil
}

// AgentInfo describes a worker that is an agent of A2A.
type AgentInfo struct {
	Name   string `json:"name"`   // of the worker
	Agent  string `json:"agent"`  // name in its card; "" = the card cannot be read
	State  string `json:"state"`  // ready or dead
	Reason string `json:"reason"` // why it is dead
	Model  string `json:"model"`  // model and tier in the config
	URL    string `json:"url"`
}

// The states of an agent.
const (
	AgentReady = "ready"
	AgentDead  = "dead"
)

// Agents reads the card of each worker that is an agent of A2A, all at the same time.
func (p *Pool) Agents(ctx context.Context) []AgentInfo {
	var all []AgentInfo
	var of []*runner
	for _, r := range p.runners {
		if r.Mode == ModeA2A {
			all = append(all, AgentInfo{
				Name: r.Name, URL: r.URL, State: AgentReady,
				Model: strings.TrimSpace(r.Model + " " + r.ModelTier),
			})
			of = append(of, r)
		}
	}
	var looks sync.WaitGroup
	for i, r := range of {
		looks.Go(func() {
			a, err := r.agent(ctx)
			if err != nil {
				all[i].State, all[i].Reason = AgentDead, r.secrets.Text(err.Error())
				return
			}
			all[i].Agent = a.announce.Worker.AgentID
		})
	}
	looks.Wait()
	return all
}

// sameServer returns an error if an endpoint is on another server than the url in the config.
func sameServer(given, endpoint string) error {
	a, errA := url.Parse(given)
	b, errB := url.Parse(endpoint)
	if errA != nil || errB != nil || a.Scheme != b.Scheme || !strings.EqualFold(a.Host, b.Host) {
		return fmt.Errorf("the card names the endpoint %.100q, which is on another server than the url of the "+
			"worker; if that is right, make it the url", endpoint)
	}
	return nil
}

var remotes = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
	return errors.New("the agent redirects; make the url where that leads")
}}

// statusError is an HTTP error status of an agent.
type statusError struct{ status string }

// Error implements error.
func (e *statusError) Error() string { return "the agent answers " + e.status }

// exchange sends a request and returns the body of the answer.
func (r *runner) exchange(ctx context.Context, method, to string, body []byte, version string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token := r.Token.Reveal(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if version != "" {
		req.Header.Set(a2a.VersionHeader, version)
	}
	resp, err := remotes.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxRemote+1))
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxRemote:
		return nil, fmt.Errorf("the agent's answer is longer than %d bytes", maxRemote)
	case resp.StatusCode != http.StatusOK:
		return nil, &statusError{resp.Status}
	}
	return raw, nil
}

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

// remoteError is an error of JSON-RPC.
type remoteError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *remoteError) Error() string {
	return fmt.Sprintf("the agent refuses: %s (%d)", e.Message, e.Code)
}

// ask calls a method of the agent; it has different names in A2A 1.0 and 0.3.
func (r *runner) ask(ctx context.Context, a *remote, method10, method03 string, params any) (*remoteAnswer, error) {
	method, version := method03, ""
	if a.v10 {
		method, version = method10, "1.0"
	}
	body, err := protocol.AppendJSON(nil, map[string]any{
		"jsonrpc": "2.0", "id": uuid.NewString(), "method": method,
		"params": params,
	})
	if err != nil {
		return nil, err
	}
	raw, err := r.exchange(ctx, http.MethodPost, a.endpoint, body, version)
	if err != nil {
		return nil, err
	}
	var resp struct {
		Result *remoteAnswer `json:"result"`
		Error  *remoteError  `json:"error"`
	}
	switch err := json.Unmarshal(raw, &resp); {
	case err != nil:
		return nil, fmt.Errorf("the agent's answer cannot be read: %w", err)
	case resp.Error != nil:
		return nil, resp.Error
	case resp.Result == nil:
		return nil, errors.New("the agent's answer has neither a result nor an error")
	}
	if resp.Result.Task == nil && resp.Result.ID != "" {
		resp.Result.Task = &resp.Result.remoteTask
	}
	if resp.Result.Message == nil && resp.Result.Parts != nil {
		resp.Result.Message = &remoteMessage{resp.Result.ContextID, resp.Result.Parts}
	}
	return resp.Result, nil
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
