package exec

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

const (
	maxNames     = 10000   // tools and processes of one child that are remembered
	maxNameBytes = 1 << 10 // of one of them
	slowAfter    = 100 * time.Millisecond
)

// lists is what a child says that it has. The list of its tools is authoritative: a call of a
// tool which is not in it is not the child's, and is not given to it.
type lists struct {
	mu     sync.Mutex // guards the fields below
	listed bool       // it has listed its tools
	defs   map[string]protocol.ToolDefinition
	checks map[string]tools.Check // of defs; made when they are called
	procs  map[string]bool        // processes that it has started
}

// naming are the fields that name what a request of a capability is about.
var naming = map[protocol.Capability][]string{
	protocol.CapTools: {"tool_name"}, protocol.CapToolkits: {"toolkit_name"}, protocol.CapSkill: {"name"},
	protocol.CapEnv: {"episode_id", "env_name"}, protocol.CapProc: {"proc_id"}, protocol.CapMemory: {"memory_id"},
	protocol.CapPlanning: {"plan_id"}, protocol.CapMCP: {"server_id"}, protocol.CapMultiAgent: {"subagent_id"},
}

// named returns the name of what a request is about; "" = it is about nothing that has one.
func named(obj protocol.Object, info *protocol.Info) string {
	for _, field := range naming[info.Capability] {
		if name := obj.Text(field); name != "" {
			return name
		}
	}
	return ""
}

// hear learns from an answer to a request of type t. It comes before all that the child says later.
func (l *lists) hear(t protocol.Type, body []byte) {
	switch t {
	case protocol.TypeToolListReq:
		var resp protocol.ToolListResponse
		if decode(body, &resp) == nil {
			l.hearTools(resp.Tools)
		}
	case protocol.TypeProcSpawnReq:
		if obj, err := protocol.ParseObject(body); err == nil {
			l.hearProc(obj.Text("proc_id"))
		}
	}
}

func (l *lists) hearProc(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.procs == nil || len(l.procs) >= maxNames {
		l.procs = make(map[string]bool)
	}
	l.procs[id] = len(id) <= maxNameBytes
}

func (l *lists) hearTools(defs []protocol.ToolDefinition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listed, l.defs, l.checks = true, make(map[string]protocol.ToolDefinition), make(map[string]tools.Check)
	for _, def := range defs {
		if len(l.defs) < maxNames && len(def.Name) <= maxNameBytes {
			l.defs[def.Name] = def
		}
	}
}

// hasTool reports whether the child lists a tool.
func (l *lists) hasTool(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.defs[name]
	return ok
}

// hasProc reports whether the child has started a process.
func (l *lists) hasProc(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.procs[id]
}

// noTool is the refusal of a tool that the child does not list.
func (p *Plugin) noTool(name string) error {
	l := &p.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed {
		return host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child has not listed its tools", p.name))
	}
	known := slices.Sorted(maps.Keys(l.defs))
	hint := schema.DidYouMean(name, known)
	if hint != "" {
		hint = "; " + hint
	}
	unknown := protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %.64q%s", name, hint)
	return host.NotOwner(unknown.With("known", known))
}

// fit holds the arguments of a call against what the tool declares.
func (l *lists) fit(q *request) error {
	l.mu.Lock()
	check := l.checks[q.about]
	if def := l.defs[q.about]; check == nil && len(def.InputParameters) > 0 { // else it takes anything
		if made, err := tools.NewCheck(def.InputParameters); err == nil {
			check, l.checks[q.about] = made, made
		}
	}
	l.mu.Unlock()
	val, _ := q.obj.Get("arguments")
	args, err := protocol.ParseObject(val)
	if check == nil || err != nil { // what is no object is the child's to refuse
		return nil
	}
	fitting, err := check(args)
	if err != nil || string(fitting.Raw()) == string(args.Raw()) {
		return err
	}
	q.obj, err = q.obj.With("arguments", fitting.Raw())
	return err
}

// allTools is the request for all tools of a child: what an agent does not want is left out here.
const allTools = `{"include_deferred":true}`

// listTools answers a request for tools from the whole list of the child.
func (p *Plugin) listTools(ctx context.Context, c *peer, q *request) ([]byte, error) {
	var req protocol.ToolListRequest
	if err := protocol.Decode(q.obj, nil, &req); err != nil {
		return nil, err
	}
	all := allTools
	if req.Detail {
		all = `{"include_deferred":true,"detail":true}`
	}
	q.obj, _ = protocol.ParseObject([]byte(all))
	resp := protocol.ToolListResponse{Tools: p.lists.tools()}
	if resp.Tools == nil || !c.slow(q.want) {
		body, err := p.serve(ctx, c, q)
		if err == nil {
			err = decode(body, &resp)
		}
		if err != nil || !tools.Narrow(&resp, &req) {
			return body, err
		}
	} else {
		tools.Narrow(&resp, &req)
	}
	return protocol.AppendJSON(nil, &resp)
}

// tools are those that the child listed last, by name; nil = it has not.
func (l *lists) tools() (all []protocol.ToolDefinition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.defs)) {
		all = append(all, l.defs[name])
	}
	return all
}

// learnTools asks the child for its tools. Calls wait for the answer, but not for ever; what comes later is heard
// all the same.
func (p *Plugin) learnTools(c *peer) {
	defer c.endListing()
	defer time.AfterFunc(p.times.listing, c.endListing).Stop()
	if c.offer.Load().types[protocol.TypeToolListReq] {
		_, _ = c.own(c.Context(), protocol.TypeToolListReq, []byte(allTools), min(listWithin, p.opts.Timeout))
	}
}

// owns tells, without asking the child, whether a tool or a process that a request names is not its own; the error
// is host.NotOwner. Of other things the child's answer says so.
func (p *Plugin) owns(ctx context.Context, c *peer, q *request) error {
	switch {
	case q.typ == protocol.TypeToolCallReq && c.offer.Load().types[protocol.TypeToolListReq]:
		return p.ownsTool(ctx, c, q)
	case q.about != "" && q.obj.Text("proc_id") == q.about && !p.lists.hasProc(q.about): // its answer may be no error
		return host.NotOwner(protocol.Errorf(protocol.CodeUnknownProc, "unknown process %.64q", q.about))
	}
	return nil
}

// ownsTool reports whether the child lists a tool. It waits for the first list, and for another one where that
// may have become old.
func (p *Plugin) ownsTool(ctx context.Context, c *peer, q *request) error {
	select {
	case <-c.listed:
	default:
		host.HandOff(ctx)
		select {
		case <-c.listed:
		case <-c.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if p.lists.hasTool(q.about) {
		return nil
	}
	if !c.slow(protocol.TypeToolListResp) && c.changed.CompareAndSwap(true, false) {
		host.HandOff(ctx)
		_, _ = c.own(ctx, protocol.TypeToolListReq, []byte(allTools), listWithin) // else the old list holds
	}
	if p.lists.hasTool(q.about) {
		return nil
	}
	return p.noTool(q.about)
}
