package multiagent

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
)

const (
	// sampleWait is how long the agent may take to answer a prompt: as long as a model
	// takes for sampleTokens. muteFor is how long one that did not is not asked again.
	sampleWait   = time.Minute
	muteFor      = 10 * time.Minute
	sampleTokens = 2048
	maxMerged    = 1024     // children of one merge
	maxGathered  = 16 << 20 // bytes of their results; merge.Merge refuses as many
)

// merge serves SUBAGENT_MERGE_REQ. Tasks that are under way are waited for.
func (p *Plugin) merge(ctx context.Context, r *protocol.SubagentMergeRequest, _ host.Emitter) (*protocol.SubagentMergeResponse, error) {
	switch r.Strategy { // before what is under way is waited for
	case "", merge.HierarchicalSummary, merge.Voting, merge.Custom:
	default:
		return nil, wrong("/strategy", "is %s; it should be %s, %s or %s", quote(r.Strategy), merge.HierarchicalSummary, merge.Voting, merge.Custom)
	}
	if len(r.SubagentIDs) == 0 || len(r.SubagentIDs) > maxMerged {
		return nil, wrong("/subagent_ids", "has %d entries; it should name between 1 and %d child agents", len(r.SubagentIDs), maxMerged)
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
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d merges are under way, which is the most there may be at once; send this one again when one of them has ended", maxMerges)
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
	host.ReleaseSlot(ctx) // a command or a model takes its time
	merged, err := merge.Merge(ctx, r.Strategy, inputs, merge.Options{Command: p.opts.MergeCommand, Run: p.runCommand, Sample: p.sampler(ctx)})
	if err != nil {
		return nil, err
	}
	return &protocol.SubagentMergeResponse{MergedResult: merged}, nil
}

// input waits for what a child came to, for a merge.
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
	runner, err := p.services.Procs()
	if err != nil {
		return nil, err
	}
	res, err := runner.RunProc(ctx, host.ProcRun{Cmd: argv, Stdin: string(stdin)})
	switch {
	case err != nil:
		return nil, err
	case res.ExitCode != 0:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "it ended with status %d; its stderr is: %s", res.ExitCode, merge.Shorten(strings.TrimSpace(res.Stderr), maxEntry))
	case res.Truncated:
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "it printed too much")
	}
	return []byte(res.Stdout), nil
}

// sampler returns the model of the session's agent; nil where it has none, as far as is
// known: an agent that answers mcp/sample/req asks for the capability mcp.
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

// sample has the agent's model answer a prompt.
func (p *Plugin) sample(ctx context.Context, prompt string) (string, error) {
	ctx, done := context.WithTimeout(ctx, sampleWait)
	defer done()
	raw, err := json.Marshal(map[string]any{"role": "user", "content": map[string]string{"type": "text", "text": prompt}}, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	msg, err := protocol.ParseObject(raw)
	if err != nil {
		return "", err
	}
	req := &protocol.MCPSampleRequest{ServerID: "multi_agent", MCPRequestID: "merge", Messages: []protocol.Object{msg}, StopSequences: []string{}}
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
