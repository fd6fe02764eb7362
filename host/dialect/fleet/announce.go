package fleet

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/host/schema/pattern"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// After the first announce, a worker checks every watchEvery whether its tools, its servers and the repository are
// still as announced. While a server is being connected for the first time, it checks every watchStart.
const (
	watchEvery = 2 * time.Second
	watchStart = 100 * time.Millisecond
)

// announce sends what this worker is, unless nothing has changed since the last announce. seen is what git says of the
// workspace; if it is nil, git is asked if need be. starting = a server is still being connected for the first time.
func (f *Front) announce(ctx context.Context, seen *view) (starting bool) {
	f.session() // waits for the plugins, because checkTimeout may be too short for that
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	last := f.announced
	f.mu.Unlock()
	next, starting := f.describe(ctx, last)
	if f.ctx.Err() != nil {
		return false // the end of the context made the answers incomplete
	}
	if seen == nil {
		seen = f.repo.lately(ctx)
	}
	if next.Session.RepoState = seen.state(); last != nil { // a changed number of tasks is no reason to announce
		next.Session.ActiveTasks, next.Session.SessionFresh = last.Session.ActiveTasks, last.Session.SessionFresh
		if bytes.Equal(f.encode(next), f.encode(last)) {
			return starting
		}
	}
	next.Session.ActiveTasks, next.Session.SessionFresh = f.slots.Taken(), last == nil
	f.mu.Lock()
	f.announced = next
	f.mu.Unlock()
	if last == nil {
		f.goes.Go(func() { f.watch(starting) })
	}
	if f.opts.Announced != nil {
		f.opts.Announced(next, f.able)
	}
	f.send(f.encode(next))
	return starting
}

// describe makes an announce without the state of the session. What cannot be found out in time is taken from last.
// starting = a server is being connected, and its state will be known soon.
func (f *Front) describe(ctx context.Context, last *fleet.Announce) (a *fleet.Announce, starting bool) {
	a = &fleet.Announce{
		Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version, Worker: f.opts.Worker,
		Session: fleet.Session{ContextID: f.context},
	}
	x := f.executors(ctx)
	a.Capabilities.Tools, a.MCPHealth = append([]string{}, x.tools...), x.health
	if x.err != nil && last != nil {
		a.Capabilities.Tools, a.MCPHealth = last.Capabilities.Tools, last.MCPHealth
	} else {
		f.able = slices.Concat(x.tools, slices.Collect(maps.Keys(x.able)))
	}
	a.Capabilities.MCPServers, a.Capabilities.Extensions = slices.AppendSeq([]string{}, maps.Keys(a.MCPHealth)),
		f.extensions()
	slices.Sort(a.Capabilities.MCPServers)
	if all := f.workers(); len(all) > 0 {
		w := &a.Worker
		w.Model, w.ModelTier = cmp.Or(w.Model, all[0].Model), cmp.Or(w.ModelTier, all[0].ModelTier)
		w.ContextWindow = cmp.Or(w.ContextWindow, all[0].ContextWindow)
	}
	return a, len(x.connecting) > 0
}

// watch announces again whenever something has changed.
func (f *Front) watch(starting bool) {
	for {
		pace := f.pace.watch
		if starting {
			pace = min(pace, watchStart)
		}
		select {
		case <-f.ctx.Done():
			return
		case <-time.After(pace):
		}
		starting = f.announce(f.ctx, nil)
	}
}

// connectGrace is how long after the start of the host a task waits for the first connection to an MCP server that it
// needs, if the task came before the first announce. Later tasks do not wait: a server that is being connected is
// announced as one that does not answer.
const connectGrace = 2 * time.Second

// executors is what the workers can use.
type executors struct {
	able       map[string]protocol.Capability // name of a tool, toolkit or capability -> its capability
	tools      []string                       // as an announce names them, sorted
	health     map[string]fleet.Health        // of the MCP servers
	connecting []string                       // ids of servers that connect for the first time: their state is unknown
	unknown    bool                           // a worker that announces what it has, has not done so yet
	err        error                          // why the rest is not known
}

// has reports whether a requirement of a task is met by something that may allows the agent to use.
func (x *executors) has(name string, may func(string) bool) bool {
	return fleet.Serves(func(name string) bool { return x.able[name] != "" && may(name) }, name)
}

// starting reports whether a tool, by its name, belongs to a server that is being connected.
func (x *executors) starting(tool string) bool {
	return slices.ContainsFunc(x.connecting, func(id string) bool {
		return strings.HasPrefix(tool, protocol.MCPName(id, ""))
	})
}

// executors asks the workers what they have. For workers with the host's tools it also asks the host. It does not wait
// for lists that are on their way.
func (f *Front) executors(ctx context.Context) *executors {
	x := &executors{able: make(map[string]protocol.Capability), health: make(map[string]fleet.Health)}
	workers := f.workers()
	ctx = host.WithKnown(ctx)
	var own map[string]fleet.Health
	if own, x.err = f.servers(ctx, x); x.err == nil && slices.ContainsFunc(workers,
		func(w agent.WorkerInfo) bool { return w.HostTools }) {
		x.err = f.abilities(ctx, x, func(tool string) bool {
			return slices.ContainsFunc(workers, func(w agent.WorkerInfo) bool {
				return w.HostTools && allows(&w, tool)
			})
		})
	}
	for _, w := range workers {
		for id, h := range own {
			if w.HostTools && (allows(&w, protocol.MCPName(id, "*")) || slices.ContainsFunc(w.Only,
				func(name string) bool { return strings.HasPrefix(name, protocol.MCPName(id, "")) })) {
				x.health[id] = h
			}
		}
		x.unknown = x.unknown || w.Unknown
		for _, name := range w.Tools {
			if h, server := own[name]; server { // Tools in the config may also name servers
				x.health[name] = h
			} else if x.tools = append(x.tools, name); x.able[name] == "" {
				x.able[name] = protocol.CapTools
			}
		}
		for _, id := range w.MCPServers {
			if h := cmp.Or(w.MCPHealth[id], fleet.HealthOK); x.health[id] == "" || h == fleet.HealthOK {
				x.health[id] = h
			}
		}
	}
	x.connecting = slices.DeleteFunc(x.connecting, func(id string) bool { return x.health[id] == "" })
	for _, word := range fleet.Words() {
		if x.has(word, func(string) bool { return true }) {
			x.tools = append(x.tools, word)
		}
	}
	slices.Sort(x.tools)
	x.tools = slices.Compact(x.tools)
	return x
}

// allows reports whether a worker may use a tool of the host.
func allows(w *agent.WorkerInfo, tool string) bool {
	return w.Only == nil || pattern.Listed(w.Only, tool)
}

// workers returns the workers of the host.
func (f *Front) workers() []agent.WorkerInfo {
	if pool := agent.Workers(host.ServicesOf(f.ctx)); pool != nil {
		return pool.Workers()
	}
	return nil
}

// unmet returns what this worker lacks for a task; "" = nothing, as far as is known. pending = a server that the task
// needs is still connecting.
func (f *Front) unmet(ctx context.Context, t *task) (why string, pending bool) {
	if len(f.workers()) == 0 {
		return agent.NoWorker().Message, false
	}
	if len(t.Requirements.RequiredMCP)+len(t.Requirements.RequiredCapabilities) == 0 {
		return "", false
	}
	return f.executors(ctx).unmet(t)
}

// unmet returns what x lacks for a task; see Front.unmet.
func (x *executors) unmet(t *task) (why string, pending bool) {
	if x.err != nil {
		return "what the task requires cannot be looked up: " + reason(x.err), false
	}
	early := time.Now().Before(t.patience)
	lacking, starting := x.lackingServers(t, early)
	for _, name := range t.Requirements.RequiredCapabilities {
		may := func(name string) bool { return t.Agent.Grants(name) || t.Agent.Grants(string(x.able[name])) }
		switch {
		case x.has(name, may), x.unknown:
		case x.has(name, func(string) bool { return true }):
			lacking = append(lacking, fmt.Sprintf("the agent %.64q may not use %.64q", t.Agent.AgentID, name))
		case early && x.starting(name):
			starting = true
		default:
			lacking = append(lacking, fmt.Sprintf("there is no tool, toolkit or capability %.64q", name))
		}
	}
	return strings.Join(lacking, "; "), starting && lacking == nil
}

// lackingServers returns what is wrong with the MCP servers that a task requires and that are missing or do not work.
// For an early task, a server that is being connected only sets starting.
func (x *executors) lackingServers(t *task, early bool) (lacking []string, starting bool) {
	required := t.Requirements.RequiredMCP
	if a := t.Agent; a != nil && a.ToolScope == protocol.ToolsIsolated && len(required) > 0 {
		return []string{fmt.Sprintf("the tool_scope of the agent %.64q is isolated: it has no MCP server", a.AgentID)},
			false
	}
	for _, id := range required {
		switch h := x.health[id]; {
		case h == fleet.HealthOK, h == "" && (x.unknown || x.able[id] != ""):
		case h == "":
			lacking = append(lacking, fmt.Sprintf("the MCP server %.64q is not registered", id))
		case early && slices.Contains(x.connecting, id):
			starting = true
		default:
			lacking = append(lacking, fmt.Sprintf("the MCP server %.64q is not healthy (%s)", id, h))
		}
	}
	return lacking, starting
}

// servers returns the state of each MCP server of the host that is not disabled.
func (f *Front) servers(ctx context.Context, x *executors) (map[string]fleet.Health, error) {
	health := make(map[string]fleet.Health)
	var resp protocol.MCPServerListResponse
	err := f.ask(ctx, protocol.TypeMCPServerListReq, &protocol.MCPServerListRequest{}, &resp)
	for _, server := range resp.Servers {
		id, _ := server["server_id"].(string)
		switch {
		case server["state"] == "disabled":
		case server["status"] == "ready" && server["listed"] != false: // else its list of tools is still to come
			health[id] = fleet.HealthOK
		case server["status"] == "ready", server["status"] == "connecting":
			health[id] = fleet.HealthTimeout
			if server["state"] != "reconnecting" {
				x.connecting = append(x.connecting, id)
			}
		default:
			health[id] = fleet.HealthError
		}
	}
	return health, err
}

// abilities adds the host's tools that are allowed to x. If all are allowed, it also adds the configured toolkits and
// the capabilities.
func (f *Front) abilities(ctx context.Context, x *executors, allowed func(tool string) bool) error {
	var tools protocol.ToolListResponse
	if err := f.ask(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true},
		&tools); err != nil {
		return err
	}
	for _, def := range tools.Tools {
		if allowed(def.Name) && !x.starting(def.Name) { // the tools of a server come before its other lists
			x.able[def.Name] = protocol.CapTools
			x.tools = append(x.tools, def.Name)
		}
	}
	if !allowed("*") {
		return nil
	}
	var kits protocol.ToolkitListResponse
	if err := f.ask(ctx, protocol.TypeToolkitListReq, &protocol.ToolkitListRequest{}, &kits); err != nil {
		return err
	}
	for _, kit := range kits.Toolkits {
		if kit.Configured {
			x.able[kit.Name] = protocol.CapToolkits
		}
	}
	for _, p := range host.ServicesOf(f.ctx).Plugins() { // asked anew, because a plugin may learn late what it serves
		info := p.Info()
		for _, name := range append([]protocol.Capability{info.Capability}, info.Also...) {
			x.able[string(name)] = name
		}
	}
	delete(x.able, "") // from a plugin that does not know yet what it serves
	return nil
}

// extensions returns the extensions of the protocol that this worker supports for tasks under way.
func (f *Front) extensions() []string {
	names := []string{fleet.ExtensionCancel}
	if slices.ContainsFunc(f.workers(), takesTexts) {
		names = append(names, fleet.ExtensionSteer)
	}
	return names
}

// takesTexts reports whether a worker takes texts while it works.
func takesTexts(w agent.WorkerInfo) bool { return slices.Contains(w.Extensions, fleet.ExtensionSteer) }

// ask sends a request to the plugins. If no plugin serves it, resp stays empty and there is no error.
func (f *Front) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	if err := host.ServicesOf(f.ctx).Call(f.in(ctx), t, req, resp, nil); !dialect.IsMissing(err) {
		return err
	}
	return nil
}

// in returns the context of the session, which also ends with ctx.
func (f *Front) in(ctx context.Context) context.Context { return dialect.Merge(f.session().Ctx, ctx) }
