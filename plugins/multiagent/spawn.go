package multiagent

import (
	"cmp"
	"context"
	"strings"

	"a2e/host"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// spawnShort serves multi_agent/spawn.
func (p *Plugin) spawnShort(ctx context.Context, r *protocol.AgentSpawnRequest, _ host.Emitter) (*protocol.AgentSpawnResponse, error) {
	long, err := longForm(r)
	if err != nil {
		return nil, err
	}
	id, err := p.spawn(ctx, "", long)
	if err != nil {
		return nil, err
	}
	return &protocol.AgentSpawnResponse{SubagentID: id, Status: protocol.SubagentReady}, nil
}

// spawnLong serves SUBAGENT_SPAWN_REQ.
func (p *Plugin) spawnLong(ctx context.Context, r *protocol.SubagentSpawnRequest, _ host.Emitter) (*protocol.SubagentSpawnResponse, error) {
	id, err := p.spawn(ctx, "/agent", r)
	if err != nil {
		return nil, err
	}
	return &protocol.SubagentSpawnResponse{SubagentID: id, Status: protocol.SubagentReady}, nil
}

// spawn starts a child agent and gives its id. path is where its config stands in the
// request.
func (p *Plugin) spawn(ctx context.Context, path string, r *protocol.SubagentSpawnRequest) (string, error) {
	if err := checkConfig(path, &r.Agent); err != nil {
		return "", err
	}
	c := &child{config: r.Agent, status: protocol.SubagentReady}
	if err := c.asks.read(path+"/metadata", c.config.Metadata); err != nil {
		return "", err
	}
	if name := c.asks.Worker; name != "" && !knows(p.opts.Workers, name) {
		err := protocol.Violation(protocol.FieldError{Path: path + "/metadata/worker", Message: "is " + quote(name) + "; it should be the name of a worker in the config: " + p.workerNames()})
		return "", host.NotMine(err)
	}
	cr, err := p.crewOf(ctx)
	if err != nil {
		return "", err
	}
	if err := checkFamily(path, cr.sess.AgentID, r); err != nil {
		return "", err
	}
	c.crew = cr
	if err := p.admit(c, r); err != nil {
		return "", err
	}
	if err := p.scopeMemory(ctx, c); err != nil {
		p.mu.Lock()
		p.letGoLocked(c)
		p.mu.Unlock()
		return "", err
	}
	return c.id(), p.enrol(ctx, c)
}

// admit finds the place of a child in its family, counts it and gives it its id. The error
// is unknown_subagent or subagent_limit.
func (p *Plugin) admit(c *child, r *protocol.SubagentSpawnRequest) error {
	cr := c.crew
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.adoptLocked(c, r); err != nil {
		return err
	}
	switch {
	case c.depth > p.opts.MaxDepth:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the child would be at depth %d, and max_depth allows %d; do the task where you are, or raise max_depth in the config", c.depth, p.opts.MaxDepth)
	case cr.alive >= p.opts.MaxSubagents:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the session has %d child agents, which is all that max_subagents allows; terminate one first", cr.alive)
	case p.alive >= maxChildren:
		return protocol.Errorf(protocol.CodeSubagentLimit, "the host has %d child agents, which is the most there may be; terminate one first", p.alive)
	}
	for c.agent.AgentID == "" || p.takenLocked(c.id()) {
		c.agent.AgentID = newID()
	}
	cr.alive++
	p.alive++
	return nil
}

// adoptLocked says whose child it is: of another one if the request names that, else of the
// session's agent, whatever the request calls it.
func (p *Plugin) adoptLocked(c *child, r *protocol.SubagentSpawnRequest) error {
	cr, self := c.crew, p.env.Agent
	c.agent = fleet.Agent{
		MemoryScope: c.config.MemoryScope, ToolScope: c.config.ToolScope, Capabilities: c.config.Capabilities, MaxSteps: c.config.MaxSteps,
		ParentAgentID: cr.sess.AgentID, RootAgentID: cr.sess.AgentID,
	}
	above := self
	if self != nil { // the session's agent is a child itself
		c.depth, c.agent.RootAgentID = self.Depth, cmp.Or(self.RootAgentID, cr.sess.AgentID)
	}
	if named := deref(r.ParentAgentID); named != "" && named != cr.sess.AgentID { // which a child may be called too
		c.agent.ParentAgentID = named
		c.parent = cr.findLocked(named)
	}
	if c.parent == nil {
		if root := deref(r.RootAgentID); root != "" && self == nil {
			c.agent.RootAgentID = root
		}
	} else {
		if c.parent.status == protocol.SubagentTerminated {
			return unknown(*r.ParentAgentID, cr.idsLocked())
		}
		above = &c.parent.agent
		c.depth, c.agent.ParentAgentID, c.agent.RootAgentID = c.parent.depth+1, c.parent.id(), c.parent.agent.RootAgentID
	}
	c.agent.Depth = c.depth + 1
	c.agent = *worker.Confine(&c.agent, above)
	return nil
}

// deref gives a text that may be absent.
func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// takenLocked tells whether a child of any session has an id.
func (p *Plugin) takenLocked(id string) bool {
	for _, cr := range p.crews {
		if cr.children[id] != nil {
			return true
		}
	}
	return false
}

// letGoLocked takes back admit for a child that comes to nothing.
func (p *Plugin) letGoLocked(c *child) {
	c.crew.alive--
	p.alive--
}

// scopeMemory sets what the child sees of the memory of its parent.
func (p *Plugin) scopeMemory(ctx context.Context, c *child) error {
	scoper := p.services.Memory()
	if scoper == nil {
		return nil
	}
	if c.parent != nil { // its memory counts, not that of the agent whose request this is
		sess := *c.crew.sess
		sess.AgentID = c.parent.id()
		ctx = host.InSession(ctx, &sess)
	}
	return scoper.ScopeMemory(ctx, c.id(), c.config.MemoryScope)
}

// enrol makes a child known, unless its session or its parent has ended meanwhile.
func (p *Plugin) enrol(ctx context.Context, c *child) error {
	c.home = p.newWire(ctx, c, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch cr := c.crew; {
	case cr.ended:
		p.letGoLocked(c)
		c.home.end()
		return protocol.Errorf(protocol.CodeRuntimeError, "the child agent was not spawned: %w", errSessionEnded)
	case c.parent != nil && c.parent.status == protocol.SubagentTerminated:
		p.letGoLocked(c)
		c.home.end()
		return unknown(c.parent.id(), cr.idsLocked())
	default:
		cr.children[c.id()] = c
		cr.order = append(cr.order, c)
	}
	content := map[string]any{"name": c.config.Name, "depth": c.depth, "parent_agent_id": c.agent.ParentAgentID}
	if role := deref(c.config.Role); role != "" {
		content["role"] = shorten(role, maxShown)
	}
	c.home.tell(eventSpawned, content, false)
	return nil
}

// workerNames lists the workers for an error.
func (p *Plugin) workerNames() string {
	if len(p.opts.Workers) == 0 {
		return "there are none"
	}
	names := make([]string, len(p.opts.Workers))
	for i, w := range p.opts.Workers {
		names[i] = w.Name
	}
	return strings.Join(names, ", ")
}

// quote gives a text of the agent for an error.
func quote(text string) string { return string(protocol.AppendString(nil, shorten(text, 64))) }
