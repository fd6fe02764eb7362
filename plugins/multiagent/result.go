package multiagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Names in the result of an await.
const (
	keySummary = "summary"
	keyTokens  = "tokens_spent"
)

// Limits of a stored result.
const (
	maxEntries = 1000    // of each list
	maxEntry   = 4 << 10 // bytes of one entry
	maxList    = 1 << 20 // bytes of all entries of a list
)

// outcomeOf returns the outcome of a task that was not stopped. A partly done task is also
// COMPLETED, and its result says what remains.
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

// resultOf returns a worker's result for an await, with long texts cut.
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
	if patch := res.Artifacts.Patch; patch != "" && len(patch) <= p.env.MaxOutputBytes { // a part of a patch is useless
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
			m["remaining"] = jsontext.Value(protocol.AppendString(nil, merge.Shorten(string(rest),
				p.env.MaxOutputBytes)))
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

// text returns a string member of a result, or "".
func text(result map[string]any, key string) string {
	s, _ := result[key].(string)
	return s
}

// Limits of the requests of a session that have released their slot.
const (
	maxWaits  = 4096 // requests that wait for results
	maxMerges = 16   // merges, which hold results in memory and may run a program
)

// await serves multi_agent/await. It waits for the end of the child's task and returns its
// outcome, or the outcome of the last task if none is under way. The end of the request ends only the
// wait, not the task.
func (p *Plugin) await(ctx context.Context, r *protocol.AgentAwaitRequest,
	_ host.Emitter,
) (*protocol.AgentAwaitResponse, error) {
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

// outcome waits for the outcome of a child's task, see await.
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
		return out, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for child agents, which is the "+
			"limit; one await of each child is enough", maxWaits)
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

// enter increments count, unless it has reached limit; then ok is false. leave decrements
// it again.
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

// stopWait is how long the answer waits for the end of stopped tasks.
const stopWait = 10 * time.Second

// cancel serves SUBAGENT_CANCEL_REQ. It stops the tasks of a child and of all its descendants. success
// says whether there was a task. The children can get new tasks.
func (p *Plugin) cancel(ctx context.Context, r *protocol.SubagentCancelRequest,
	_ host.Emitter,
) (*protocol.AgentTerminateResponse, error) {
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

// terminate serves multi_agent/terminate. It terminates a child and all its descendants. A child that
// is already terminated stays terminated.
func (p *Plugin) terminate(ctx context.Context, r *protocol.AgentTerminateRequest,
	_ host.Emitter,
) (*protocol.AgentTerminateResponse, error) {
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

// settled waits up to stopWait for the end of stopped tasks, unless too many requests
// wait already: nothing else limits the requests that do not wait for a slot.
func (p *Plugin) settled(ctx context.Context, g *group, tasks []*job) {
	if len(tasks) == 0 {
		return
	}
	leave, ok := p.enter(&g.waits, maxWaits)
	if !ok {
		return
	}
	defer leave()
	host.ReleaseSlot(ctx) // the request has taken effect, so later requests need not wait
	ctx, done := context.WithTimeout(ctx, stopWait)
	defer done()
	waitJobs(ctx, tasks)
}

const (
	// sampleWait is how long the agent may take to answer a prompt: as long as a model
	// takes for sampleTokens. muteFor is how long an agent that did not answer is not asked again.
	sampleWait   = time.Minute
	muteFor      = 10 * time.Minute
	sampleTokens = 2048
	maxMerged    = 1024     // children of one merge
	maxGathered  = 16 << 20 // bytes of their results; merge.Merge refuses as many
)

// merge serves SUBAGENT_MERGE_REQ. It waits for tasks that are under way.
func (p *Plugin) merge(ctx context.Context, r *protocol.SubagentMergeRequest,
	_ host.Emitter,
) (*protocol.SubagentMergeResponse, error) {
	switch r.Strategy { // checked before waiting for tasks
	case "", merge.HierarchicalSummary, merge.Voting, merge.Custom:
	default:
		return nil, wrong("/strategy", "is %s; it should be %s, %s or %s", quote(r.Strategy), merge.HierarchicalSummary,
			merge.Voting, merge.Custom)
	}
	if len(r.SubagentIDs) == 0 || len(r.SubagentIDs) > maxMerged {
		return nil, wrong("/subagent_ids", "has %d entries; it should name between 1 and %d child agents",
			len(r.SubagentIDs), maxMerged)
	}
	var children []*subagent
	seen := make(map[*subagent]bool)
	for _, id := range r.SubagentIDs {
		c, err := p.find(ctx, id)
		if err != nil {
			return nil, err
		}
		if !seen[c] {
			seen[c] = true
			children = append(children, c)
		}
	}
	leave, ok := p.enter(&children[0].group.merges, maxMerges)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d merges are under way, which is the most there may "+
			"be at once; send this one again when one of them has ended", maxMerges)
	}
	defer leave()
	var inputs []merge.Input
	for size := 0; len(inputs) < len(children) && size <= maxGathered; {
		c := children[len(inputs)]
		in, err := p.input(ctx, c)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
		size += len(in.Result) + len(in.Summary)
	}
	host.ReleaseSlot(ctx) // a command or a model may take long
	merged, err := merge.Merge(ctx, r.Strategy, inputs, merge.Options{
		Command: p.opts.MergeCommand, Run: p.runCommand,
		Sample: p.sampler(ctx),
	})
	if err != nil {
		return nil, err
	}
	return &protocol.SubagentMergeResponse{MergedResult: merged}, nil
}

// input waits for the outcome of a child, and returns it as an input of a merge.
func (p *Plugin) input(ctx context.Context, c *subagent) (merge.Input, error) {
	in := merge.Input{ID: c.id(), Name: c.config.Name}
	out, err := p.outcome(ctx, c)
	if err != nil {
		return in, err
	}
	in.Status, in.Summary, in.Error = string(out.status), text(out.result, keySummary), out.err
	if out.result != nil {
		in.Result, err = protocol.AppendJSON(nil, out.result)
	}
	return in, err
}

// runCommand runs an allowed program in the sandbox.
func (p *Plugin) runCommand(ctx context.Context, argv []string, stdin []byte) ([]byte, error) {
	runner, err := child.Runner(p.services)
	if err != nil {
		return nil, err
	}
	res, err := runner.RunProc(ctx, child.ProcRun{Cmd: argv, Stdin: string(stdin)})
	switch {
	case err != nil:
		return nil, err
	case res.ExitCode != 0:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "it ended with status %d; its stderr is: %s",
			res.ExitCode, merge.Shorten(strings.TrimSpace(res.Stderr), maxEntry))
	case res.Truncated:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "it printed too much")
	}
	return []byte(res.Stdout), nil
}

// sampler returns a function that asks the model of the session's agent, or nil if the agent has no
// capability mcp, which an agent that answers mcp/sample/req has, or did not answer recently.
func (p *Plugin) sampler(ctx context.Context) func(context.Context, string) (string, error) {
	sess := host.SessionFrom(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[sess]
	if g == nil || p.env.Now().Before(g.mute) || !sess.Caps[protocol.CapMCP] {
		return nil
	}
	return func(ctx context.Context, prompt string) (string, error) {
		text, err := p.sample(ctx, prompt)
		if err != nil && ctx.Err() == nil {
			p.mu.Lock()
			g.mute = p.env.Now().Add(muteFor)
			p.mu.Unlock()
		}
		return text, err
	}
}

// sample sends a prompt to the agent's model and returns its answer.
func (p *Plugin) sample(ctx context.Context, prompt string) (string, error) {
	ctx, done := context.WithTimeout(ctx, sampleWait)
	defer done()
	raw, err := json.Marshal(map[string]any{"role": "user", "content": map[string]string{
		"type": "text",
		"text": prompt,
	}}, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	msg, err := protocol.ParseObject(raw)
	if err != nil {
		return "", err
	}
	req := &protocol.MCPSampleRequest{
		ServerID: "multi_agent", MCPRequestID: "merge", Messages: []protocol.Object{msg},
		StopSequences: []string{},
	}
	req.SetDefaults()
	req.MaxTokens = sampleTokens
	var resp protocol.MCPSampleResponse
	if err := p.services.Ask(ctx, protocol.TypeMCPSampleReq, req, &resp); err != nil {
		return "", err
	}
	val, _ := resp.Content.Get("text")
	text, ok := val.Str()
	switch {
	case resp.Error != "":
		return "", errors.New(resp.Error)
	case !ok || text == "":
		return "", errors.New("the answer has no text")
	}
	return text, nil
}
