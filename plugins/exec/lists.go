package exec

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

const (
	maxNames     = 10000   // tools and other things of one child that are remembered
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
	things map[thing]struct{}     // of other kinds, that it listed, made or answered for
}

// thing is what requests name: an episode, a process, a skill.
type thing struct{ field, name string }

// thingsOf are the fields that name what a request of a capability is about, or what its answer has made.
var thingsOf = map[protocol.Capability][]string{
	protocol.CapTools: {"tool_name"}, protocol.CapToolkits: {"toolkit_name"}, protocol.CapSkill: {"name"},
	protocol.CapEnv: {"episode_id", "env_name"}, protocol.CapProc: {"proc_id"}, protocol.CapMemory: {"memory_id"},
	protocol.CapPlanning: {"plan_id"}, protocol.CapMCP: {"server_id"}, protocol.CapMultiAgent: {"subagent_id"},
}

// thingIn returns the thing that the members of an object name; no name = none.
func thingIn(obj protocol.Object, fields []string) thing {
	for _, field := range fields {
		if name := obj.Text(field); name != "" {
			return thing{field, name}
		}
	}
	return thing{}
}

// reset forgets what a child that was started anew has no longer: all but what has a name of its own.
func (l *lists) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.things, func(t thing, _ struct{}) bool { return t.field != "name" && t.field != "env_name" })
}

// hear learns from an answer to a request of type t. It comes before all that the child says later.
func (l *lists) hear(t protocol.Type, body []byte) {
	switch t {
	case protocol.TypeToolListReq:
		var resp protocol.ToolListResponse
		if decode(body, &resp) == nil {
			l.hearTools(resp.Tools)
		}
	case protocol.TypeSkillDiscoverReq:
		var resp struct {
			Skills []struct {
				Name string `json:"name"`
			} `json:"skills"`
		}
		_ = json.Unmarshal(body, &resp) // whoever asked checks it
		for _, def := range resp.Skills {
			l.learn(thing{"name", def.Name})
		}
	}
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

// learn notes a thing as the child's.
func (l *lists) learn(t thing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.things) >= maxNames || l.things == nil {
		l.things = make(map[thing]struct{})
	}
	if t.name != "" && len(t.name) <= maxNameBytes {
		l.things[t] = struct{}{}
	}
}

// answered learns that what a request names is the child's, and what its answer names.
func (l *lists) answered(q *request, body []byte) {
	if q.list || q.about.field == "tool_name" {
		return
	}
	l.learn(q.about)
	info, _ := protocol.Lookup(q.typ)
	if obj, err := protocol.ParseObject(body); err == nil && info != nil {
		l.learn(thingIn(obj, thingsOf[info.Capability]))
		obs, _ := obj.Get("obs")
		if obj, err = protocol.ParseObject(obs); err == nil {
			l.learn(thingIn(obj, []string{"episode_id"}))
		}
	}
}

// has reports whether a thing is known as the child's.
func (l *lists) has(t thing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.field == "tool_name" {
		_, ok := l.defs[t.name]
		return ok
	}
	_, ok := l.things[t]
	return ok
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
	check := l.checks[q.about.name]
	if def := l.defs[q.about.name]; check == nil && len(def.InputParameters) > 0 { // else it takes anything
		if made, err := tools.NewCheck(def.InputParameters); err == nil {
			check, l.checks[q.about.name] = made, made
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
	if resp.Tools == nil || c.owes() < slowAfter && !c.owesList(q.want) {
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

// learnLists asks the child for its tools and skills. Calls of tools wait for the first, but not for ever.
func (p *Plugin) learnLists(c *peer) {
	defer c.endListing()
	defer time.AfterFunc(p.times.listing, c.endListing).Stop()
	for _, list := range []struct {
		typ  protocol.Type
		body string
	}{{protocol.TypeToolListReq, allTools}, {protocol.TypeSkillDiscoverReq, `{}`}} {
		if c.offer.Load().types[list.typ] {
			// what comes later is heard all the same
			_, _ = c.own(c.Context(), list.typ, []byte(list.body), min(listWithin, p.opts.Timeout))
		}
		c.endListing() // nobody waits for the skills
	}
}

// owns tells, without asking the child, whether the thing that a request names may be its own; the error is
// host.NotOwner. What belongs to other plugins shall not wait for a slow child.
func (p *Plugin) owns(ctx context.Context, c *peer, q *request) error {
	switch {
	case q.about.name == "":
		return nil
	case q.about.field == "tool_name" && c.offer.Load().types[protocol.TypeToolListReq]:
		return p.ownsTool(ctx, c, q)
	case p.lists.has(q.about):
		return nil
	case q.about.field == "proc_id": // its answer to a foreign one is no error
		return host.NotOwner(protocol.Errorf(protocol.CodeUnknownProc, "unknown process %.64q", q.about.name))
	case c.owes() >= slowAfter && !p.alone(q.typ):
		return host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child is busy and cannot tell whether %s %.64q is its own",
			p.name, q.about.field, q.about.name))
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
	if p.lists.has(q.about) {
		return nil
	}
	slow := c.owes() >= slowAfter || c.owesList(protocol.TypeToolListResp)
	if !slow && c.changed.CompareAndSwap(true, false) {
		host.HandOff(ctx)
		_, _ = c.own(ctx, protocol.TypeToolListReq, []byte(allTools), listWithin) // else the old list holds
	}
	if p.lists.has(q.about) {
		return nil
	}
	return p.noTool(q.about.name)
}

// alone reports whether no other plugin serves the capability of a type.
func (p *Plugin) alone(t protocol.Type) bool {
	info, _ := protocol.Lookup(t)
	return !slices.ContainsFunc(p.services.Plugins(), func(other host.Plugin) bool {
		o := other.Info()
		return o.Name != p.name && (o.Capability == info.Capability || slices.Contains(o.Also, info.Capability))
	})
}
