package worker

import (
	"fmt"
	"maps"
	"slices"

	"a2e/host/config"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Confine returns the agent that a task is done as: child, with no more than own, its parent,
// may use. Nil is an agent of which nothing is known: a nil own has everything, and what is
// done for a nil child is done as own. It is deeper than own in any case, so that max_depth
// ends it. Neither is changed.
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

// common returns what two lists both grant. The capability tools grants every tool by its name.
func common(a, b []string) []string {
	both := []string{}
	for _, lists := range [][2][]string{{a, b}, {b, a}} {
		for _, name := range lists[0] {
			granted := slices.Contains(lists[1], name) || slices.Contains(lists[1], string(protocol.CapTools)) && !isCapability(name)
			if granted && !slices.Contains(both, name) {
				both = append(both, name)
			}
		}
	}
	return both
}

// isCapability reports whether a name is that of a capability, and so of no single tool.
func isCapability(name string) bool {
	return name == string(protocol.CapTest) || slices.ContainsFunc(protocol.Types(), func(t protocol.Info) bool { return string(t.Capability) == name })
}

// agentOf returns the agent that a task is done as where a says it. It is none of those
// above the agent that the host serves: their memory is not its own.
func (p *Pool) agentOf(a *fleet.Agent) (*fleet.Agent, error) {
	own := p.env.Agent
	switch {
	case a == nil:
	case a.AgentID == "":
		return nil, wrong("/agent/agent_id", "is missing; it names the child agent")
	case a.ToolScope != protocol.ToolsShared && a.ToolScope != protocol.ToolsRestricted && a.ToolScope != protocol.ToolsIsolated:
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

// environment returns the variables of a process that works for an agent, or for nobody in
// particular (nil): those of the config, then vars. Neither can say another agent.
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
