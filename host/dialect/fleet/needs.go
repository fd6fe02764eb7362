package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// connectGrace is how long a task waits for the first connection to an MCP server that it
// needs: those of a host that has just begun are not up yet.
const connectGrace = 5 * time.Second

// servers is what is known of the MCP servers.
type servers struct {
	health     map[string]fleet.Health
	connecting map[string]bool // for the first time: nobody knows yet how they are
}

// unmet says what this worker lacks for a task; "" = nothing, or nothing that is known:
// pending tells that a server which it needs is connecting.
func (f *Front) unmet(ctx context.Context, t *task) (why string, pending bool) {
	pool := host.ServicesOf(f.ctx).Workers()
	if pool == nil || len(pool.Workers()) == 0 {
		return "no worker is configured here: the config names them in the plugin multi_agent under workers", false
	}
	lacking, pending, err := f.lackingServers(ctx, t)
	if err == nil && len(t.Requirements.RequiredCapabilities) > 0 {
		var more []string
		more, err = f.lackingCapabilities(ctx, t)
		lacking = append(lacking, more...)
	}
	if err != nil {
		return "what the task requires cannot be looked up: " + reason(err), false
	}
	return strings.Join(lacking, "; "), pending
}

// lackingServers names the MCP servers that a task requires and that are not there, or do
// not work.
func (f *Front) lackingServers(ctx context.Context, t *task) (lacking []string, pending bool, err error) {
	required := t.Requirements.RequiredMCP
	if len(required) == 0 {
		return nil, false, nil
	}
	if a := t.Agent; a != nil && a.ToolScope == protocol.ToolsIsolated {
		return []string{fmt.Sprintf("the tool_scope of the agent %.64q is isolated: it has no MCP server", a.AgentID)}, false, nil
	}
	known, err := f.servers(ctx)
	for _, id := range required {
		switch h, there := known.health[id]; {
		case !there:
			lacking = append(lacking, fmt.Sprintf("the MCP server %.64q is not registered", id))
		case known.connecting[id]:
			pending = true
		case h != fleet.HealthOK:
			lacking = append(lacking, fmt.Sprintf("the MCP server %.64q is not healthy (%s)", id, h))
		}
	}
	return lacking, pending && lacking == nil, err
}

// servers asks for the state of each MCP server. The error is that of ctx.
func (f *Front) servers(ctx context.Context) (servers, error) {
	known := servers{make(map[string]fleet.Health), make(map[string]bool)}
	var resp protocol.MCPServerListResponse
	if err := f.ask(ctx, protocol.TypeMCPServerListReq, &protocol.MCPServerListRequest{}, &resp); err != nil {
		return known, err
	}
	for _, server := range resp.Servers {
		id, _ := server["server_id"].(string)
		switch {
		case server["state"] == "disabled":
		case server["status"] == "ready":
			known.health[id] = fleet.HealthOK
		case server["status"] == "connecting":
			known.health[id] = fleet.HealthTimeout
			known.connecting[id] = server["state"] != "reconnecting"
		default:
			known.health[id] = fleet.HealthError
		}
	}
	return known, nil
}

// awaitServers keeps a task until the MCP servers that it requires are connected, or are
// known not to be.
func (f *Front) awaitServers(t *task) {
	t.patience = time.Now().Add(f.pace.connect)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, t)
	if len(f.pending) == 1 {
		f.goes.Go(f.watchPending)
	}
}

// watchPending looks again and again at the tasks that wait for servers, in order, until
// there are none.
func (f *Front) watchPending() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		f.mu.Lock()
		seen := slices.Clone(f.pending)
		f.mu.Unlock()
		left, ready := f.settle(seen)
		f.admit(ready...)
		f.mu.Lock()
		f.pending = append(left, f.pending[len(seen):]...)
		over := len(f.pending) == 0
		f.mu.Unlock()
		if over {
			return
		}
		select {
		case <-tick.C:
		case <-f.ctx.Done():
		}
	}
}

// settle takes those of the tasks out that need not wait any longer. What has come up for one
// of them while they were looked at has come up for those before it too: they are looked at
// once more, so that they start in order.
func (f *Front) settle(tasks []*task) (left, ready []*task) {
	able := make(map[*task]bool)
	left = tasks
	for pass := 0; pass == 0 || pass == 1 && len(able) > 0; pass++ {
		var waits []*task
		for _, t := range left {
			switch pending, why := f.stillPending(t); {
			case why != nil:
				f.decline(t, unstarted(t, why))
			case pending:
				waits = append(waits, t)
			default:
				able[t] = true
			}
		}
		left = waits
	}
	for _, t := range tasks {
		if able[t] {
			ready = append(ready, t)
		}
	}
	return left, ready
}

// stillPending reports whether a task goes on waiting for servers, or why it shall not be done.
func (f *Front) stillPending(t *task) (pending bool, refused error) {
	select {
	case why := <-t.late:
		return false, why
	default:
	}
	ctx, cancel := context.WithDeadline(f.ctx, t.patience)
	defer cancel()
	why, pending := f.unmet(ctx, t)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		return false, fmt.Errorf("the MCP servers %q did not connect within %s", t.Requirements.RequiredMCP, f.pace.connect)
	case cause != nil:
		return false, cause
	case why != "":
		return false, errors.New(why)
	}
	return pending, nil
}

// lackingCapabilities names what a task requires and its agent does not have here.
func (f *Front) lackingCapabilities(ctx context.Context, t *task) (lacking []string, err error) {
	able, err := f.abilities(ctx)
	for _, name := range t.Requirements.RequiredCapabilities {
		switch kind, there := able[name]; {
		case !there:
			lacking = append(lacking, fmt.Sprintf("there is no tool, toolkit or capability %.64q", name))
		case !t.Agent.Grants(name) && !t.Agent.Grants(string(kind)):
			lacking = append(lacking, fmt.Sprintf("the agent %.64q may not use %.64q", t.Agent.AgentID, name))
		}
	}
	return lacking, err
}

// abilities names the tools, the toolkits that are configured and the capabilities, each
// with the capability that it belongs to.
func (f *Front) abilities(ctx context.Context) (map[string]protocol.Capability, error) {
	able := make(map[string]protocol.Capability)
	tools, err := f.tools(ctx)
	for _, name := range tools {
		able[name] = protocol.CapTools
	}
	var kits protocol.ToolkitListResponse
	if err == nil {
		err = f.ask(ctx, protocol.TypeToolkitListReq, &protocol.ToolkitListRequest{}, &kits)
	}
	for _, kit := range kits.Toolkits {
		if kit.Configured {
			able[kit.Name] = protocol.CapToolkits
		}
	}
	for _, p := range host.ServicesOf(f.ctx).Plugins() { // what they serve now: one may have learned it late
		info := p.Info()
		for _, name := range append([]protocol.Capability{info.Capability}, info.Also...) {
			able[string(name)] = name
		}
	}
	delete(able, "") // of a plugin that does not know yet
	return able, err
}

// tools names all tools of the host. The error is that of ctx.
func (f *Front) tools(ctx context.Context) ([]string, error) {
	var resp protocol.ToolListResponse
	err := f.ask(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp)
	names := make([]string, 0, len(resp.Tools))
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	return names, err
}

// extensions names what can be done with a task under way.
func (f *Front) extensions() []string {
	names := []string{fleet.ExtensionCancel}
	if pool := host.ServicesOf(f.ctx).Workers(); pool != nil && slices.ContainsFunc(pool.Workers(), takesTexts) {
		names = append(names, fleet.ExtensionSteer)
	}
	return names
}

// takesTexts reports whether a worker takes texts while it works.
func takesTexts(w host.WorkerInfo) bool { return slices.Contains(w.Extensions, fleet.ExtensionSteer) }

// ask makes a request of the plugins. What no plugin answers stays empty; the error is one
// that says nothing about what there is.
func (f *Front) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	if err := host.ServicesOf(f.ctx).Call(f.in(ctx), t, req, resp, nil); !dialect.IsMissing(err) {
		return err
	}
	return nil
}

// in returns the session's context with the end of ctx.
func (f *Front) in(ctx context.Context) context.Context { return dialect.Merge(f.session().Ctx, ctx) }
