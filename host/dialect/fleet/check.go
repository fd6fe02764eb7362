package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	maxTaskID    = 256             // bytes
	checkTimeout = 5 * time.Second // for what plugins are asked before a task starts
	maxFailures  = 3               // wrong tokens in a row, after which an answer waits
	authDelay    = time.Second
)

// wrong says what is wrong with the dispatch itself, but for a deadline that is past; "" =
// nothing. It sets defaults.
func (f *Front) wrong(t *task) string {
	d := &t.Dispatch
	if d.Task.Priority == "" {
		d.Task.Priority = fleet.PriorityNormal
	}
	if d.Task.ReplySchema == "" {
		d.Task.ReplySchema = fleet.ReplyProse
	}
	_, _, err := d.DeadlineTime()
	switch {
	case !f.admits(d):
		return "unauthorized: the dispatch needs the host's auth_token"
	case d.ProtocolVersion != fleet.Version:
		return fmt.Sprintf("protocol_version %.32q is not spoken here; it must be %q", d.ProtocolVersion, fleet.Version)
	case d.Task.TaskID == "" || len(d.Task.TaskID) > maxTaskID:
		return fmt.Sprintf("task.task_id must have 1 to %d bytes", maxTaskID)
	case !slices.Contains(priorities(), d.Task.Priority):
		return fmt.Sprintf("task.priority %.32q is none of low, normal, high, urgent", d.Task.Priority)
	case !slices.Contains([]fleet.ReplySchema{fleet.ReplyProse, fleet.ReplyStructured, fleet.ReplyJSON}, d.Task.ReplySchema):
		return fmt.Sprintf("task.reply_schema %.32q is none of prose, structured, json", d.Task.ReplySchema)
	case d.Task.TokenBudget < 0:
		return "task.token_budget must not be negative; 0 is none"
	case strings.TrimSpace(d.Brief) == "":
		return "brief is empty: it says what is to be done"
	case err != nil:
		return reason(err)
	}
	d.AuthToken = "" // it is of no use to a worker
	return wrongAgent(d.Agent)
}

// wrongAgent says what is wrong with the agent that a task is done as; "" = nothing.
func wrongAgent(a *fleet.Agent) string {
	switch {
	case a == nil:
		return ""
	case a.AgentID == "":
		return "agent.agent_id is missing"
	case !slices.Contains([]protocol.ToolScope{protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated}, a.ToolScope):
		return fmt.Sprintf("agent.tool_scope %.32q is none of shared, restricted, isolated", a.ToolScope)
	case !slices.Contains([]protocol.MemoryScope{"", protocol.MemoryShared, protocol.MemoryIsolated, protocol.MemorySnapshot}, a.MemoryScope):
		return fmt.Sprintf("agent.memory_scope %.32q is none of shared, isolated, snapshot", a.MemoryScope)
	case a.Depth < 0 || a.MaxSteps < 0:
		return "agent.depth and agent.max_steps must not be negative"
	}
	return ""
}

// admits tells whether the token of a dispatch is for the agent that its task is done as, and
// has it done as the agent that the token is for where the dispatch names none. A child agent,
// whose id no token is for, is its parent's affair. After some wrong tokens each answer waits.
func (f *Front) admits(d *fleet.Dispatch) bool {
	if len(f.opts.Tokens) == 0 {
		return true
	}
	claimed := ""
	if d.Agent != nil && f.opts.Tokens.Name(d.Agent.AgentID) {
		claimed = d.Agent.AgentID
	}
	agent, ok := f.opts.Tokens.Admit(d.AuthToken, claimed)
	if ok && agent != "" && d.Agent == nil {
		d.Agent = &fleet.Agent{AgentID: agent, ToolScope: protocol.ToolsShared, MemoryScope: protocol.MemoryShared}
	}
	f.mu.Lock()
	if f.failures++; ok {
		f.failures = 0
	}
	late := f.failures > maxFailures
	f.mu.Unlock()
	if late {
		select {
		case <-time.After(authDelay):
		case <-f.ctx.Done():
		}
	}
	return ok
}
