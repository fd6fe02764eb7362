package worker

import (
	"bytes"
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
