package multiagent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Bounds of what a child may be.
const (
	maxNameBytes   = 256
	maxNeeds       = 256 // entries of each list of what a worker must have
	maxConfigBytes = 256 << 10
	maxSeconds     = 7 * 24 * 60 * 60
	maxSteps       = 1_000_000
)

// asks is what metadata may say of the workers that do a child's tasks; those of a task
// win over those of the child.
type asks struct {
	Worker       string            `json:"worker"`     // the one that does it; "" = one is chosen
	ModelTier    string            `json:"model_tier"` // that is preferred
	Priority     fleet.Priority    `json:"priority"`
	ReplySchema  fleet.ReplySchema `json:"reply_schema"`
	TokenBudget  int               `json:"token_budget"`
	MCP          []string          `json:"required_mcp"`
	Capabilities []string          `json:"required_capabilities"`
}

// read takes over what metadata say. path is where they stand in the request.
func (a *asks) read(path string, metadata protocol.Object) error {
	a.MCP, a.Capabilities = slices.Clone(a.MCP), slices.Clone(a.Capabilities) // a list is decoded into the memory of the one before
	if err := decodeAt(path, metadata, a); err != nil {
		return err
	}
	switch a.Priority {
	case "", fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent:
	default:
		return wrong(path+"/priority", "is %.32q; should be low, normal, high or urgent", a.Priority)
	}
	switch a.ReplySchema {
	case "", fleet.ReplyProse, fleet.ReplyStructured, fleet.ReplyJSON:
	default:
		return wrong(path+"/reply_schema", "is %.32q; should be prose, structured or json", a.ReplySchema)
	}
	switch {
	case a.TokenBudget < 0:
		return wrong(path+"/token_budget", "is %d; should be 0 or more tokens", a.TokenBudget)
	case len(a.MCP) > maxNeeds:
		return wrong(path+"/required_mcp", "has %d entries; it may have %d", len(a.MCP), maxNeeds)
	case len(a.Capabilities) > maxNeeds:
		return wrong(path+"/required_capabilities", "has %d entries; it may have %d", len(a.Capabilities), maxNeeds)
	}
	return nil
}

// extras is what the short spelling has no fields for: it may stand in the metadata.
type extras struct {
	SystemPrompt   *string              `json:"system_prompt"`
	Capabilities   []string             `json:"capabilities"`
	MemoryScope    protocol.MemoryScope `json:"memory_scope"`
	ToolScope      protocol.ToolScope   `json:"tool_scope"`
	TimeoutSeconds int                  `json:"timeout_seconds"`
	ParentAgentID  *string              `json:"parent_agent_id"`
	RootAgentID    *string              `json:"root_agent_id"`
}

// longForm gives the long spelling of a short spawn.
func longForm(r *protocol.AgentSpawnRequest) (*protocol.SubagentSpawnRequest, error) {
	long := new(protocol.SubagentSpawnRequest)
	long.SetDefaults()
	more := extras{MemoryScope: long.Agent.MemoryScope, ToolScope: long.Agent.ToolScope, TimeoutSeconds: long.Agent.TimeoutSeconds}
	if err := decodeAt("/metadata", r.Metadata, &more); err != nil {
		return nil, err
	}
	long.ParentAgentID, long.RootAgentID = more.ParentAgentID, more.RootAgentID
	long.Agent = protocol.SubagentConfig{
		Name: r.Name, Model: r.Model, MaxSteps: r.MaxSteps, Metadata: r.Metadata,
		SystemPrompt: more.SystemPrompt, Capabilities: more.Capabilities, MemoryScope: more.MemoryScope,
		ToolScope: more.ToolScope, TimeoutSeconds: more.TimeoutSeconds,
	}
	if r.Role != "" {
		long.Agent.Role = &r.Role
	}
	return long, nil
}

// checkConfig tells what is wrong with the config of a child, and completes it. path is
// where it stands in the request: "" for the short spelling, else "/agent".
func checkConfig(path string, c *protocol.SubagentConfig) error {
	extra := path
	if path == "" {
		extra = "/metadata" // where the short spelling has the rest
	}
	switch {
	case strings.TrimSpace(c.Name) == "" || len(c.Name) > maxNameBytes:
		return wrong(path+"/name", "should be a name of at most %d bytes", maxNameBytes)
	case c.MaxSteps < 0 || c.MaxSteps > maxSteps:
		return wrong(path+"/max_steps", "is %d; should be between 1 and %d, or 0 for any number", c.MaxSteps, maxSteps)
	case c.TimeoutSeconds < 0 || c.TimeoutSeconds > maxSeconds:
		return wrong(extra+"/timeout_seconds", "is %d; should be between 1 and %d, or 0 for the default", c.TimeoutSeconds, maxSeconds)
	}
	switch c.MemoryScope {
	case protocol.MemoryShared, protocol.MemoryIsolated, protocol.MemorySnapshot:
	default:
		return wrong(extra+"/memory_scope", "is %.32q; should be shared, isolated or snapshot", c.MemoryScope)
	}
	switch c.ToolScope {
	case protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated:
	default:
		return wrong(extra+"/tool_scope", "is %.32q; should be shared, restricted or isolated", c.ToolScope)
	}
	if c.TimeoutSeconds == 0 {
		var usual protocol.SubagentConfig
		usual.SetDefaults()
		c.TimeoutSeconds = usual.TimeoutSeconds
	}
	c.Metadata = c.Metadata.Clone()
	text, err := protocol.AppendJSON(nil, c)
	if err != nil {
		return err
	}
	if len(text) > maxConfigBytes {
		return wrong(path+"/system_prompt", "makes the config %d bytes long; it may have %d: long texts belong into the instruction", len(text), maxConfigBytes)
	}
	return nil
}

// checkFamily bounds the names of those above a child, which is told of them with all that
// is told of it.
func checkFamily(path, self string, r *protocol.SubagentSpawnRequest) error {
	at := ""
	if path == "" {
		at = "/metadata" // where the short spelling has them
	}
	switch {
	case len(deref(r.ParentAgentID)) > max(maxNameBytes, len(self)):
		return wrong(at+"/parent_agent_id", "should be a name of at most %d bytes", maxNameBytes)
	case len(deref(r.RootAgentID)) > max(maxNameBytes, len(self)):
		return wrong(at+"/root_agent_id", "should be a name of at most %d bytes", maxNameBytes)
	}
	return nil
}

// knows tells whether a worker has a name.
func knows(workers []worker.Worker, name string) bool {
	for i := range workers {
		if workers[i].Name == name {
			return true
		}
	}
	return false
}

// wrong is a schema_violation at one place.
func wrong(path, format string, args ...any) error {
	return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// decodeAt decodes an object that stands at path in the request.
func decodeAt(path string, obj protocol.Object, dst any) error {
	err := obj.Decode(dst)
	var misfit *protocol.Error
	if !errors.As(err, &misfit) {
		return err
	}
	all, _ := misfit.Detail["errors"].([]protocol.FieldError)
	if len(all) == 0 {
		return wrong(path, "%s", misfit.Message)
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Path = path + all[i].Path
	}
	return protocol.Violation(all...)
}
