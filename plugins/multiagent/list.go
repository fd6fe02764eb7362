package multiagent

import (
	"context"

	"a2e/host"
	"a2e/protocol"
)

// listShort serves multi_agent/list.
func (p *Plugin) listShort(ctx context.Context, _ *protocol.AgentListRequest, _ host.Emitter) (*protocol.AgentListResponse, error) {
	resp := &protocol.AgentListResponse{Subagents: []map[string]any{}}
	p.eachLocked(ctx, func(c *child) {
		row := map[string]any{
			"subagent_id": c.id(), "name": c.config.Name, "role": deref(c.config.Role), "model": c.config.Model, "status": c.status,
			"parent_agent_id": c.agent.ParentAgentID, "root_agent_id": c.agent.RootAgentID, "depth": c.depth,
			"max_steps": c.config.MaxSteps, "metadata": c.config.Metadata, "messages_waiting": len(c.mailbox),
		}
		if j := c.job; j != nil {
			row["task_name"], row["worker"] = j.name, j.worker // "" = it waits for a place
		}
		resp.Subagents = append(resp.Subagents, row)
	})
	return resp, nil
}

// listLong serves SUBAGENT_LIST_REQ.
func (p *Plugin) listLong(ctx context.Context, _ *protocol.SubagentListRequest, _ host.Emitter) (*protocol.SubagentListResponse, error) {
	resp := &protocol.SubagentListResponse{Subagents: []protocol.SubagentInfo{}}
	p.eachLocked(ctx, func(c *child) {
		parent, root := c.agent.ParentAgentID, c.agent.RootAgentID
		resp.Subagents = append(resp.Subagents, protocol.SubagentInfo{
			SubagentID: c.id(), Name: c.config.Name, Status: c.status, ParentAgentID: &parent, RootAgentID: &root, Depth: c.depth, Config: c.config,
		})
	})
	return resp, nil
}

// eachLocked calls fn with mu held for each child of the request's session, in the order
// of their spawns.
func (p *Plugin) eachLocked(ctx context.Context, fn func(*child)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cr := p.crews[host.SessionFrom(ctx)]; cr != nil {
		for _, c := range cr.order {
			fn(c)
		}
	}
}

func mergeShort(dst, src *protocol.AgentListResponse) {
	dst.Subagents = append(dst.Subagents, src.Subagents...)
}

func mergeLong(dst, src *protocol.SubagentListResponse) {
	dst.Subagents = append(dst.Subagents, src.Subagents...)
}
