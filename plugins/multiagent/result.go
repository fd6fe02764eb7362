package multiagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Names in the result of an await.
const (
	keySummary = "summary"
	keyTokens  = "tokens_spent"
)

// Bounds of a result that is kept.
const (
	maxEntries = 1000    // of each list
	maxEntry   = 4 << 10 // bytes of one of them
	maxList    = 1 << 20 // bytes of all of them
)

// outcomeOf tells what a task came to that was not stopped: what is done in part is
// COMPLETED too, and its result says what remains.
func (p *Plugin) outcomeOf(c *subagent, res *fleet.Result, err error) outcome {
	if err != nil {
		var own *protocol.Error
		switch {
		case errors.As(err, &own):
			return outcome{status: protocol.SubagentFailed, err: own.Message}
		case errors.Is(err, context.Canceled): // of the host
			return outcome{status: protocol.SubagentTerminated, err: errClosed.Error()}
		}
		return outcome{status: protocol.SubagentFailed, err: err.Error()}
	}
	out := outcome{status: protocol.SubagentCompleted, result: p.resultOf(res)}
	switch res.Status {
	case fleet.StatusBlocked:
		out.status, out.err = protocol.SubagentFailed, "blocked: "+*res.BlockedReason
	case fleet.StatusError:
		out.status, out.err = protocol.SubagentFailed, res.Error
		if res.Error == "deadline" {
			out.err = fmt.Sprintf("the task did not end within its timeout_seconds of %d", c.config.TimeoutSeconds)
		}
		out.result["error"] = merge.Shorten(out.err, maxEntry)
	}
	out.err = merge.Shorten(out.err, maxEntry)
	return out
}

// resultOf returns a worker's result as an await tells it. What is too long is cut.
func (p *Plugin) resultOf(res *fleet.Result) map[string]any {
	m := map[string]any{
		"status":        string(res.Status),
		keySummary:      merge.Shorten(res.Summary, p.env.MaxOutputBytes),
		keyTokens:       res.TokensSpent,
		"next_steps":    entries(res.NextSteps),
		"files_changed": entries(res.Artifacts.FilesChanged),
	}
	if res.TokensEstimated {
		m["tokens_estimated"] = true
	}
	if res.Artifacts.PR != nil {
		m["pr"] = merge.Shorten(*res.Artifacts.PR, maxEntry)
	}
	if res.Artifacts.Branch != "" {
		m["branch"] = merge.Shorten(res.Artifacts.Branch, maxEntry)
	}
	if patch := res.Artifacts.Patch; patch != "" && len(patch) <= p.env.MaxOutputBytes { // a part of one is of no use
		m["patch"] = patch
	}
	size := 0
	for _, f := range res.Artifacts.Files {
		size += len(f.Content)
	}
	if size > 0 && size <= p.env.MaxOutputBytes {
		m["files"] = res.Artifacts.Files
	}
	if res.BlockedReason != nil {
		m["blocked_reason"] = merge.Shorten(*res.BlockedReason, maxEntry)
	}
	if rest := res.Remaining; len(rest) > 0 {
		m["remaining"] = rest
		if len(rest) > p.env.MaxOutputBytes {
			m["remaining"] = jsontext.Value(protocol.AppendString(nil, merge.Shorten(string(rest), p.env.MaxOutputBytes)))
		}
	}
	return m
}

// entries returns a list that is never nil and not too long.
func entries(all []string) []string {
	kept := make([]string, 0, min(len(all), maxEntries))
	size := 0
	for _, text := range all[:cap(kept)] {
		text = merge.Shorten(text, maxEntry)
		if size += len(text); size > maxList {
			break
		}
		kept = append(kept, text)
	}
	return kept
}

// text returns a member of a result that is a text.
func text(result map[string]any, key string) string {
	s, _ := result[key].(string)
	return s
}

// Bounds of the requests of a session that have left their place.
const (
	maxWaits  = 4096 // that wait for results
	maxMerges = 16   // merges, which hold results and may run a program
)

// await serves multi_agent/await: it waits for the end of the task that a child has under
// way, and says what became of it. A child without one has what became of its last one. The
// request's end ends only the wait.
func (p *Plugin) await(ctx context.Context, r *protocol.AgentAwaitRequest, _ host.Emitter) (*protocol.AgentAwaitResponse, error) {
	c, err := p.find(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	out, err := p.outcome(ctx, c)
	if err != nil {
		return nil, err
	}
	resp := &protocol.AgentAwaitResponse{SubagentID: c.id(), Status: out.status, Result: out.result}
	if out.err != "" {
		resp.Error = &out.err
	}
	return resp, nil
}

// outcome is await for a child that is known.
func (p *Plugin) outcome(ctx context.Context, c *subagent) (outcome, error) {
	p.mu.Lock()
	j, out, g := c.job, c.last, c.group
	if j == nil {
		defer p.mu.Unlock()
		if out.status = c.status; out.status == protocol.SubagentTerminated && out.err == "" {
			out.err = errTerminated.Error()
		}
		return out, nil
	}
	p.mu.Unlock()
	leave, ok := p.enter(&g.waits, maxWaits)
	if !ok {
		return out, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for child agents, which is the most there may be; one await of each child is enough", maxWaits)
	}
	defer leave()
	host.ReleaseSlot(ctx)
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

// stopWait is how long the answer waits for the end of what was stopped.
const stopWait = 10 * time.Second

// cancel serves SUBAGENT_CANCEL_REQ: the tasks of a child and of all below it end. success
// reports whether there was one. The children may be given others.
func (p *Plugin) cancel(ctx context.Context, r *protocol.SubagentCancelRequest, _ host.Emitter) (*protocol.AgentTerminateResponse, error) {
	c, err := p.find(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	var tasks []*job
	for _, below := range c.treeLocked() {
		if j := below.job; j != nil {
			j.stopLocked(protocol.SubagentCancelled, errCancelled)
			tasks = append(tasks, j)
		}
	}
	p.mu.Unlock()
	p.settled(ctx, c.group, tasks)
	return &protocol.AgentTerminateResponse{Success: len(tasks) > 0, SubagentID: c.id()}, nil
}

// terminate serves multi_agent/terminate: a child and all below it end for good. One that is
// terminated already stays so.
func (p *Plugin) terminate(ctx context.Context, r *protocol.AgentTerminateRequest, _ host.Emitter) (*protocol.AgentTerminateResponse, error) {
	c, err := p.find(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	tree := c.treeLocked()
	var tasks []*job
	for _, below := range tree {
		if below.job != nil {
			tasks = append(tasks, below.job)
		}
		p.terminateLocked(below)
	}
	p.mu.Unlock()
	p.settled(ctx, c.group, tasks)
	return &protocol.AgentTerminateResponse{Success: true, SubagentID: c.id()}, nil
}

// settled waits a moment for the end of tasks that were stopped, unless too many requests
// wait already: nothing else bounds those that wait behind nothing.
func (p *Plugin) settled(ctx context.Context, g *group, tasks []*job) {
	if len(tasks) == 0 {
		return
	}
	leave, ok := p.enter(&g.waits, maxWaits)
	if !ok {
		return
	}
	defer leave()
	host.ReleaseSlot(ctx) // it has taken effect: those behind it need not wait
	ctx, done := context.WithTimeout(ctx, stopWait)
	defer done()
	waitJobs(ctx, tasks)
}
