package multiagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/agent"
	"a2e/plugins/multiagent/merge"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// spawnShort serves multi_agent/spawn.
func (p *Plugin) spawnShort(ctx context.Context, r *protocol.AgentSpawnRequest,
	_ host.Emitter,
) (*protocol.AgentSpawnResponse, error) {
	long, err := longForm(r)
	if err != nil {
		return nil, err
	}
	return p.spawn(ctx, "", long)
}

// spawnLong serves SUBAGENT_SPAWN_REQ.
func (p *Plugin) spawnLong(ctx context.Context, r *protocol.SubagentSpawnRequest,
	_ host.Emitter,
) (*protocol.SubagentSpawnResponse, error) {
	resp, err := p.spawn(ctx, "/agent", r)
	return (*protocol.SubagentSpawnResponse)(resp), err
}

// spawn starts a child agent. path is the JSON Pointer of its config in the
// request.
func (p *Plugin) spawn(ctx context.Context, path string,
	r *protocol.SubagentSpawnRequest,
) (*protocol.AgentSpawnResponse, error) {
	if err := checkConfig(path, &r.Agent); err != nil {
		return nil, err
	}
	c := &subagent{config: r.Agent, status: protocol.SubagentReady}
	if err := c.asks.read(path+"/metadata", c.config.Metadata); err != nil {
		return nil, err
	}
	if err := p.checkWorker(path, &c.asks); err != nil {
		return nil, host.NotOwner(err)
	}
	if len(p.opts.Workers) > 0 && c.asks.Worker == "" && !p.fallback(&c.asks) {
		if err := p.CheckModel(modelOf(&c.config), c.asks.ModelTier); err != nil {
			return nil, host.NotOwner(err)
		}
	}
	g, err := p.groupOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkFamily(path, g.sess.AgentID, r); err != nil {
		return nil, err
	}
	c.group = g
	if err := p.admit(c, r); err != nil {
		return nil, err
	}
	if err := p.scopeMemory(ctx, c); err != nil {
		p.mu.Lock()
		p.letGoLocked(c)
		p.mu.Unlock()
		return nil, err
	}
	if err := p.enrol(ctx, c); err != nil {
		return nil, err
	}
	return &protocol.AgentSpawnResponse{SubagentID: c.id(), Status: protocol.SubagentReady}, nil
}

// admit sets the parent of a child, counts the child and sets its id. The error
// is unknown_subagent or subagent_limit.
func (p *Plugin) admit(c *subagent, r *protocol.SubagentSpawnRequest) error {
	g := c.group
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.adoptLocked(c, r); err != nil {
		return err
	}
	switch {
	case c.depth > p.opts.MaxDepth:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the child would be at depth %d, and max_depth allows "+
			"%d; do the task where you are, or raise max_depth in the config", c.depth, p.opts.MaxDepth)
	case g.alive >= p.opts.MaxSubagents:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the session has %s, which is all that max_subagents "+
			"allows; terminate one first", protocol.Count(g.alive, "child agent"))
	case p.alive >= maxChildren:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the host has %s, which is the limit; terminate one first",
			protocol.Count(p.alive, "child agent"))
	}
	c.agent.AgentID, c.agent.Token = fleet.NewChild()
	g.alive++
	p.alive++
	return nil
}

// adoptLocked sets the parent of a child: another child if the request names one, else the
// session's agent, under the name that the request has for it.
func (p *Plugin) adoptLocked(c *subagent, r *protocol.SubagentSpawnRequest) error {
	g, self := c.group, p.env.Agent
	c.agent = fleet.Agent{
		MemoryScope: c.config.MemoryScope, ToolScope: c.config.ToolScope, Capabilities: c.config.Capabilities,
		MaxSteps:      c.config.MaxSteps,
		ParentAgentID: g.sess.AgentID, RootAgentID: g.sess.AgentID,
	}
	above := self
	if self != nil { // the session's agent is a child itself
		c.depth, c.agent.RootAgentID = self.Depth, cmp.Or(self.RootAgentID, g.sess.AgentID)
	}
	if named := deref(r.ParentAgentID); named != "" && named != g.sess.AgentID { // may also be a child
		c.agent.ParentAgentID = named
		c.parent = g.findLocked(named)
	}
	if c.parent == nil {
		if root := deref(r.RootAgentID); root != "" && self == nil {
			c.agent.RootAgentID = root
		}
	} else {
		if c.parent.status == protocol.SubagentTerminated {
			return unknown(*r.ParentAgentID, g.idsLocked())
		}
		above = &c.parent.agent
		c.depth, c.agent.ParentAgentID, c.agent.RootAgentID = c.parent.depth+1, c.parent.id(),
			c.parent.agent.RootAgentID
	}
	c.agent.Depth = c.depth + 1
	c.agent = *worker.Confine(&c.agent, above)
	return nil
}

// deref returns a text, or "" for nil.
func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// letGoLocked undoes the counting of admit for a child that is not spawned.
func (p *Plugin) letGoLocked(c *subagent) {
	c.group.alive--
	p.alive--
}

// scopeMemory sets which part of its parent's memory the child sees.
func (p *Plugin) scopeMemory(ctx context.Context, c *subagent) error {
	scoper := host.First[agent.MemoryScoper](p.services)
	if scoper == nil {
		return nil
	}
	if c.parent != nil { // uses the parent's memory, not that of the agent who sent the request
		sess := *c.group.sess
		sess.AgentID = c.parent.id()
		ctx = host.InSession(ctx, &sess)
	}
	return scoper.ScopeMemory(ctx, c.id(), c.config.MemoryScope)
}

// enrol adds a child to its group, unless its session or its parent has ended meanwhile.
func (p *Plugin) enrol(ctx context.Context, c *subagent) error {
	c.queue = &eventQueue{p: p, id: c.id()}
	c.home = c.queue.open(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch g := c.group; {
	case g.ended:
		p.letGoLocked(c)
		c.home.end()
		return protocol.Errorf(protocol.CodeRuntimeError, "the child agent was not spawned: %w", errSessionEnded)
	case c.parent != nil && c.parent.status == protocol.SubagentTerminated:
		p.letGoLocked(c)
		c.home.end()
		return unknown(c.parent.id(), g.idsLocked())
	default:
		g.children[c.id()] = c
		g.order = append(g.order, c)
	}
	content := map[string]any{"name": c.config.Name, "depth": c.depth, "parent_agent_id": c.agent.ParentAgentID}
	if role := deref(c.config.Role); role != "" {
		content["role"] = merge.Shorten(role, maxShown)
	}
	c.home.tell(eventSpawned, content, false)
	return nil
}

// checkWorker returns an error if the wanted worker does not exist.
func (p *Plugin) checkWorker(path string, want *asks) *protocol.Error {
	names := p.Info().Metadata["workers"].([]string)
	if want.Worker == "" || slices.Contains(names, want.Worker) {
		return nil
	}
	return wrong(path+"/metadata/worker", "is %s; it should be the name of a worker in the config: %s",
		quote(want.Worker), cmp.Or(strings.Join(names, ", "), "there are none"))
}

// quote returns a text of the agent for an error, in quotes and cut to 64 bytes.
func quote(text string) string { return string(protocol.AppendString(nil, merge.Shorten(text, 64))) }

// Limits of a child's config.
const (
	maxNameBytes   = 256
	maxConfigBytes = 256 << 10
	maxSeconds     = 7 * 24 * 60 * 60
	maxSteps       = 1_000_000
)

// asks has the requirements for workers in the metadata of a child or a task; those of a task
// have priority over those of its child.
type asks struct {
	Worker       string            `json:"worker"` // name of the worker; "" = the pool chooses
	ModelTier    string            `json:"model_tier"`
	Fallback     *bool             `json:"fallback"` // allows another model or tier; nil = the option decides
	Retries      *int              `json:"retries"`  // after its worker died; nil = the worker's config decides
	Priority     fleet.Priority    `json:"priority"`
	ReplySchema  fleet.ReplySchema `json:"reply_schema"`
	TokenBudget  int               `json:"token_budget"`
	MCP          []string          `json:"required_mcp"`
	Capabilities []string          `json:"required_capabilities"`
}

// read reads the requirements in metadata, whose JSON Pointer in the request is path.
func (a *asks) read(path string, metadata protocol.Object) error {
	// decoding would overwrite the memory of the present lists, which others share
	a.MCP, a.Capabilities = slices.Clone(a.MCP), slices.Clone(a.Capabilities)
	if err := decodeAt(path, metadata, a); err != nil {
		return err
	}
	d := a.dispatch()
	if fault := d.Check(); fault != nil {
		return wrong(path+fault.Path[strings.LastIndexByte(fault.Path, '/'):], "%s", fault.Message)
	}
	if a.Retries != nil && (*a.Retries < 0 || *a.Retries > worker.MaxRetries) {
		return wrong(path+"/retries", "is %d; should be between 0 and %d", *a.Retries, worker.MaxRetries)
	}
	return nil
}

// dispatch returns the requirements that are fields of a Dispatch.
func (a *asks) dispatch() fleet.Dispatch {
	return fleet.Dispatch{
		Task:         fleet.Task{Priority: a.Priority, ReplySchema: a.ReplySchema, TokenBudget: a.TokenBudget},
		Requirements: fleet.Requirements{RequiredMCP: a.MCP, RequiredCapabilities: a.Capabilities},
	}
}

// fallback reports whether another model or tier is allowed.
func (p *Plugin) fallback(a *asks) bool {
	if a.Fallback != nil {
		return *a.Fallback
	}
	return p.opts.Fallback
}

// modelOf returns the model that a child asks for; "" = any, also for anyModel.
func modelOf(c *protocol.SubagentConfig) string {
	if c.Model == anyModel {
		return ""
	}
	return c.Model
}

// anyModel is the model of a spawn that names none.
const anyModel = "default"

// extras has the fields that the short spelling lacks; its metadata may have them.
type extras struct {
	SystemPrompt   *string              `json:"system_prompt"`
	Capabilities   []string             `json:"capabilities"`
	MemoryScope    protocol.MemoryScope `json:"memory_scope"`
	ToolScope      protocol.ToolScope   `json:"tool_scope"`
	TimeoutSeconds int                  `json:"timeout_seconds"`
	ParentAgentID  *string              `json:"parent_agent_id"`
	RootAgentID    *string              `json:"root_agent_id"`
}

// longForm returns the long spelling of a short spawn.
func longForm(r *protocol.AgentSpawnRequest) (*protocol.SubagentSpawnRequest, error) {
	long := new(protocol.SubagentSpawnRequest)
	long.SetDefaults()
	more := extras{MemoryScope: long.Agent.MemoryScope, TimeoutSeconds: long.Agent.TimeoutSeconds}
	if err := decodeAt("/metadata", r.Metadata, &more); err != nil {
		return nil, err
	}
	switch { // without tool_scope and capabilities a child of the short spelling has the tools of its parent
	case more.ToolScope != "":
	case more.Capabilities == nil:
		more.ToolScope = protocol.ToolsShared
	default:
		more.ToolScope = long.Agent.ToolScope
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

// checkConfig returns an error if the config of a child is wrong, and completes it. path is
// its JSON Pointer in the request: "" for the short spelling, else "/agent".
func checkConfig(path string, c *protocol.SubagentConfig) error {
	extra := path
	if path == "" {
		extra = "/metadata" // the short spelling has these fields in its metadata
	}
	switch {
	case strings.TrimSpace(c.Name) == "" || len(c.Name) > maxNameBytes:
		return wrong(path+"/name", "should be a name of at most %d bytes", maxNameBytes)
	case c.MaxSteps < 0 || c.MaxSteps > maxSteps:
		return wrong(path+"/max_steps", "is %d; should be between 1 and %d, or 0 for any number", c.MaxSteps, maxSteps)
	case c.TimeoutSeconds < 0 || c.TimeoutSeconds > maxSeconds:
		return wrong(extra+"/timeout_seconds", "is %d; should be between 1 and %d, or 0 for the default",
			c.TimeoutSeconds, maxSeconds)
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
		return wrong(path+"/system_prompt", "makes the config %d bytes long; it may have %d: long texts belong into "+
			"the instruction", len(text), maxConfigBytes)
	}
	return nil
}

// checkFamily returns an error if the name of the parent or root agent is too long, as many messages
// about the child have these names.
func checkFamily(path, self string, r *protocol.SubagentSpawnRequest) error {
	at := ""
	if path == "" {
		at = "/metadata" // the short spelling has them in its metadata
	}
	switch {
	case len(deref(r.ParentAgentID)) > max(maxNameBytes, len(self)):
		return wrong(at+"/parent_agent_id", "should be a name of at most %d bytes", maxNameBytes)
	case len(deref(r.RootAgentID)) > max(maxNameBytes, len(self)):
		return wrong(at+"/root_agent_id", "should be a name of at most %d bytes", maxNameBytes)
	}
	return nil
}

// wrong returns a schema_violation for one field.
func wrong(path, format string, args ...any) *protocol.Error {
	return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// decodeAt decodes an object into dst; the paths in its error begin with path.
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
