package exec

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

const (
	maxNames     = 10000   // of tools, and of processes, of one child that are remembered
	maxNameBytes = 1 << 10 // of one of them
	slowAfter    = 100 * time.Millisecond
)

// lists has the tools and processes that a child owns.
type lists struct {
	tools atomic.Pointer[toolList] // the last list; nil = the child has not listed its tools

	mu    sync.Mutex      // guards the field below
	procs map[string]bool // processes that the child has started
}

// toolList is a child's list of tools. It is authoritative: a call of a tool that is not in the list is not sent to
// the child.
type toolList struct {
	defs   map[string]protocol.ToolDefinition
	checks sync.Map // tools.Check of the arguments, by name; made when a tool is called
}

// has reports whether a tool is in the list, which may be nil.
func (l *toolList) has(name string) bool {
	if l == nil {
		return false
	}
	_, ok := l.defs[name]
	return ok
}

// naming has the fields that name the thing that a request of a capability is about.
var naming = map[protocol.Capability][]string{
	protocol.CapTools: {"tool_name"}, protocol.CapToolkits: {"toolkit_name"}, protocol.CapSkill: {"name"},
	protocol.CapEnv: {"episode_id", "env_name"}, protocol.CapProc: {"proc_id"}, protocol.CapMemory: {"memory_id"},
	protocol.CapPlanning: {"plan_id"}, protocol.CapMCP: {"server_id"}, protocol.CapMultiAgent: {"subagent_id"},
}

// named returns the name of the thing that a request is about; "" = none.
func named(obj protocol.Object, info *protocol.Info) string {
	for _, field := range naming[info.Capability] {
		if name := obj.Text(field); name != "" {
			return name
		}
	}
	return ""
}

// hear stores the tools or the process in an answer to a request of type t. It is called before later messages of
// the child are read.
func (l *lists) hear(t protocol.Type, body []byte) {
	switch t {
	case protocol.TypeToolListReq:
		var resp protocol.ToolListResponse
		if decode(body, &resp) != nil {
			return
		}
		list := &toolList{defs: make(map[string]protocol.ToolDefinition)}
		for _, def := range resp.Tools {
			if len(list.defs) < maxNames && len(def.Name) <= maxNameBytes {
				list.defs[def.Name] = def
			}
		}
		l.tools.Store(list)
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

// hasProc reports whether the child has started a process.
func (l *lists) hasProc(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.procs[id]
}

// noTool returns the error for a tool that the child does not list.
func (p *Plugin) noTool(name string) error {
	list := p.lists.tools.Load()
	if list == nil {
		return host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child has not listed its tools", p.name))
	}
	known := slices.Sorted(maps.Keys(list.defs))
	return host.NotKnown(protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %.64q", name), name, known)
}

// fit checks the arguments of a call against the tool's parameters, and replaces them by the form that the tool
// reads. The child itself refuses arguments that are not an object. A tool without parameters takes anything.
func (l *toolList) fit(q *request) error {
	val, _ := q.obj.Get("arguments")
	args, err := protocol.ParseObject(val)
	if l == nil || err != nil || len(l.defs[q.about].InputParameters) == 0 {
		return nil
	}
	made, ok := l.checks.Load(q.about)
	if !ok {
		check, err := tools.NewCheck(l.defs[q.about].InputParameters)
		if err != nil {
			return nil
		}
		made, _ = l.checks.LoadOrStore(q.about, check)
	}
	fitting, err := made.(tools.Check)(args)
	if err != nil || string(fitting.Raw()) == string(args.Raw()) {
		return err
	}
	q.obj, err = q.obj.With("arguments", fitting.Raw())
	return err
}

// allTools is the request for all tools of a child; the host applies the filters of the agent.
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
	var resp protocol.ToolListResponse
	if list := p.lists.tools.Load(); list != nil && c.slow(q.want) {
		for _, name := range slices.Sorted(maps.Keys(list.defs)) {
			resp.Tools = append(resp.Tools, list.defs[name])
		}
		tools.Narrow(&resp, &req)
		return protocol.AppendJSON(nil, &resp)
	}
	body, err := p.serve(ctx, c, q)
	if err == nil {
		err = decode(body, &resp)
	}
	if err != nil || !tools.Narrow(&resp, &req) {
		return body, err
	}
	return protocol.AppendJSON(nil, &resp)
}

// learnTools asks the child for its tools. Calls wait for the answer, but only for a limited time; a later answer is
// stored, too.
func (p *Plugin) learnTools(c *peer) {
	defer c.endListing()
	defer time.AfterFunc(p.times.listing, c.endListing).Stop()
	if c.offer.Load().types[protocol.TypeToolListReq] {
		_, _ = c.own(c.Context(), protocol.TypeToolListReq, []byte(allTools), min(listWithin, p.opts.Timeout))
	}
}

// owns returns a host.NotOwner error if a request names a tool or a process that is not the child's. For other
// things the child's answer decides.
func (p *Plugin) owns(ctx context.Context, c *peer, q *request) error {
	switch {
	case q.typ == protocol.TypeToolCallReq && c.offer.Load().types[protocol.TypeToolListReq]:
		return p.ownsTool(ctx, c, q)
	case q.about != "" && q.obj.Text("proc_id") == q.about && !p.lists.hasProc(q.about): // it may answer with success
		return host.NotOwner(protocol.Errorf(protocol.CodeUnknownProc, "unknown process %.64q", q.about))
	}
	return nil
}

// ownsTool returns an error if the child does not list a tool. It waits for the first list, and for a new one if
// the list may be outdated.
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
	if p.lists.tools.Load().has(q.about) {
		return nil
	}
	if !c.slow(protocol.TypeToolListResp) && c.changed.CompareAndSwap(true, false) {
		host.HandOff(ctx)
		_, _ = c.own(ctx, protocol.TypeToolListReq, []byte(allTools), listWithin) // after an error the old list holds
	}
	if p.lists.tools.Load().has(q.about) {
		return nil
	}
	return p.noTool(q.about)
}
