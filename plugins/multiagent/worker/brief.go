package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"a2e/host/agent"
	"a2e/host/config"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// asked returns a text after the contract that says how to answer, unless the config disables the contract.
func (r *runner) asked(ctx context.Context, t *task, text string) string {
	if r.Contract != nil && !*r.Contract {
		return text
	}
	return t.contract(r.due(ctx, t)) + text
}

// contract returns the beginning of a brief for models: how to answer, and by when. due is a time, "" = any
// time. The object in the text is not valid JSON, so that a worker that repeats its brief prints no
// result by that. A turn of a conversation has no contract, as a person reads the answer.
func (t *task) contract(due string) string {
	if t.Talk != nil {
		return ""
	}
	var b strings.Builder
	b.WriteString(`[How to answer. What you are to do follows under "Task".]
End your answer with one JSON object, and nothing after it:
{"status": STATUS, "summary": ANSWER, "next_steps": [TEXT, ...], ` +
		`"artifacts": {"files_changed": [PATH, ...], "pr": URL}, "tokens_spent": NUMBER}
- STATUS is "done", or "partial" with "remaining": what is left to do, or "blocked" with "blocked_reason": why you could not begin, or "error" with "error": what went wrong.
`)
	switch t.Task.ReplySchema {
	case fleet.ReplyJSON:
		b.WriteString("- ANSWER is a JSON value, not prose.\n")
	case fleet.ReplyStructured:
		b.WriteString("- ANSWER is a short text; what belongs in the other fields stands there.\n")
	default:
		b.WriteString("- ANSWER is a plain text.\n")
	}
	b.WriteString("- URL is that of the pull request that you opened, null if there is none. " +
		"NUMBER is what you spent; leave it out if you do not know.\n")
	b.WriteString("- " + verification(t.Task.Priority) + "\n")
	if budget := t.budget(); budget > 0 {
		fmt.Fprintf(&b, "- You may spend %d tokens, on all that you read and write.\n", budget)
	}
	if due != "" {
		fmt.Fprintf(&b, "- Answer before %s, with \"partial\" if need be.\n", due)
	}
	b.WriteString("\n[Task]\n")
	return b.String()
}

// verification returns the instruction how thoroughly to verify a task of a priority.
func verification(p fleet.Priority) string {
	p = cmp.Or(p, fleet.PriorityNormal)
	how := map[fleet.Priority]string{
		fleet.PriorityLow:    "look once over the result; run no further checks.",
		fleet.PriorityNormal: "run the checks and tests that concern what you changed.",
		fleet.PriorityHigh:   "run all checks and tests there are, and read each change again, before you say \"done\".",
		fleet.PriorityUrgent: "do nothing beside the task; run the checks and tests that concern what you changed, " +
			"and read each change again, before you say \"done\".",
	}[p]
	return fmt.Sprintf("The priority is %s: %s", p, how)
}

// due returns when the worker must have ended a task, as an RFC 3339 time: the deadline or the end of
// its timeout, whichever is earlier; "" = any time.
func (r *runner) due(ctx context.Context, t *task) string {
	if end, ok := ctx.Deadline(); ok {
		at := r.pool.env.Now().Add(time.Until(end)).Add(time.Millisecond) // rounds up, as the text has milliseconds
		if t.deadline.IsZero() || at.Before(t.deadline) {
			return at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
	}
	return t.Deadline
}

// maxEarlier is the size of the earlier conversation in a brief, in bytes. The oldest messages are left out.
const maxEarlier = 32 << 10

// brief returns the brief for a program: the earlier conversation, the task's brief and the
// names of its images.
func (t *task) brief(workspace string) string {
	talk := t.Talk
	if talk == nil {
		return t.Brief
	}
	var b strings.Builder
	from, size := len(talk.Earlier), 0
	for ; from > 0; from-- {
		if size += min(len(talk.Earlier[from-1].Text), maxEarlier/4); size > maxEarlier {
			break
		}
	}
	if from < len(talk.Earlier) {
		b.WriteString("The conversation so far, the oldest message first")
		if from > 0 {
			fmt.Fprintf(&b, " (%d earlier ones are left out)", from)
		}
		b.WriteString(":\n\n")
		for _, e := range talk.Earlier[from:] {
			if most := maxEarlier / 4; len(e.Text) > most { // one message must not displace all others
				e.Text = strings.ToValidUTF8(e.Text[:most], "") + "… (cut)"
			}
			fmt.Fprintf(&b, "[%s]\n%s\n\n", e.Role, e.Text)
		}
		b.WriteString("[user, now]\n")
	}
	b.WriteString(t.Brief)
	if len(talk.Images) > 0 {
		b.WriteString("\n\n" + imageList(workspace, talk.Images))
	}
	return b.String()
}

// imageList returns a text that names images for a program, which can only see images that are files.
func imageList(workspace string, images []agent.Image) string {
	var b strings.Builder
	root, err := os.OpenRoot(workspace)
	if err == nil {
		defer root.Close()
	}
	b.WriteString("Images, as files in the workspace:\n")
	for _, i := range images {
		lacks := ", which is not a file here"
		if err == nil {
			if info, err := root.Stat(i.Name); err == nil && info.Mode().IsRegular() {
				lacks = ""
			}
		}
		fmt.Fprintf(&b, "- %s (%s, %d bytes%s)\n", i.Name, i.MIME, len(i.Data), lacks)
	}
	return b.String()
}

// Confine returns the agent that a task is done as: child, limited to what own, its parent,
// may use. nil means an unknown agent: a nil own may use everything, and a task for a nil child
// is done as own. If own is not nil, the result is deeper than own, so that max_depth limits the
// nesting. It does not change its arguments.
func Confine(child, own *fleet.Agent) *fleet.Agent {
	if own == nil {
		return child
	}
	if child == nil {
		child = own
	}
	c := *child
	c.Depth = max(c.Depth, own.Depth+1)
	switch {
	case own.ToolScope == protocol.ToolsShared:
	case own.ToolScope != protocol.ToolsRestricted:
		c.ToolScope, c.Capabilities = protocol.ToolsIsolated, []string{}
	case c.ToolScope == protocol.ToolsShared:
		c.ToolScope, c.Capabilities = protocol.ToolsRestricted, slices.Clone(own.Capabilities)
	default:
		c.Capabilities = common(c.Capabilities, own.Capabilities)
	}
	if own.MaxSteps > 0 && (c.MaxSteps == 0 || c.MaxSteps > own.MaxSteps) {
		c.MaxSteps = own.MaxSteps
	}
	return &c
}

// common returns the names that both lists grant. The capability tools grants every tool.
func common(a, b []string) []string {
	both := []string{}
	for _, lists := range [][2][]string{{a, b}, {b, a}} {
		for _, name := range lists[0] {
			granted := slices.Contains(lists[1], name) || slices.Contains(lists[1], string(protocol.CapTools)) &&
				!isCapability(name)
			if granted && !slices.Contains(both, name) {
				both = append(both, name)
			}
		}
	}
	return both
}

// isCapability reports whether a name is that of a capability and not of a tool.
func isCapability(name string) bool {
	return name == string(protocol.CapTest) || slices.ContainsFunc(protocol.Types(),
		func(t protocol.Info) bool { return string(t.Capability) == name })
}

// agentOf returns the agent that a task is done as, for the agent a of its dispatch. It refuses
// the ancestors of the host's own agent, as a child must not get their memory.
func (p *Pool) agentOf(a *fleet.Agent) (*fleet.Agent, error) {
	own := p.env.Agent
	switch {
	case a == nil:
	case a.AgentID == "":
		return nil, wrong("/agent/agent_id", "is missing; it names the child agent")
	case a.ToolScope != protocol.ToolsShared && a.ToolScope != protocol.ToolsRestricted &&
		a.ToolScope != protocol.ToolsIsolated:
		return nil, wrong("/agent/tool_scope", "is %.32q; should be shared, restricted or isolated", a.ToolScope)
	case a.Depth < 0:
		return nil, wrong("/agent/depth", "is below 0; the agent of the first host has 0")
	case a.MaxSteps < 0:
		return nil, wrong("/agent/max_steps", "is below 0; 0 is any number")
	case own != nil && a.AgentID != own.AgentID && (a.AgentID == own.ParentAgentID || a.AgentID == own.RootAgentID):
		return nil, wrong("/agent/agent_id", "is that of an agent above this one; it should be that of a child")
	}
	return Confine(a, own), nil
}

// environment returns the variables of a process that works for an agent (nil = unknown): those of the
// config, then vars. Neither of them can set fleet.EnvAgent.
func (r *runner) environment(vars map[string]string, agent *fleet.Agent) (map[string]string, error) {
	all := maps.Clone(r.Env)
	if all == nil {
		all = make(map[string]string, len(vars)+2)
	}
	maps.Copy(all, vars)
	delete(all, fleet.EnvAgent)
	if agent != nil {
		text, err := protocol.AppendJSON(nil, agent)
		if err != nil {
			return nil, fmt.Errorf("agent of the task: %w", err)
		}
		all[fleet.EnvAgent] = string(text)
	}
	if r.ShareState {
		all[config.EnvStateDir] = r.pool.stateDir
		if url := r.pool.env.StateURL; url != "" {
			all[config.EnvState] = url
		}
	}
	return all, nil
}
