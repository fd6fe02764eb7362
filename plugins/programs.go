package plugins

import (
	"context"
	"os"
	"slices"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Programs is the allow list of one plugin.
type Programs struct {
	Plugin  string // its name
	Default bool   // the config names no programs; one that this machine lacks is no error
	List    *sandbox.AllowList
}

// AllowedPrograms returns the programs that each enabled plugin may start on request.
func AllowedPrograms(cfg *config.Config) ([]Programs, error) {
	dirs := sandbox.SafePath(os.Getenv("PATH"), cfg.Workspace)
	shared, err := sharedAllowance(cfg)
	if err != nil {
		return nil, err
	}
	var all []Programs
	for _, p := range cfg.Plugins {
		own, starts, err := allowanceOf(p)
		if err != nil {
			return nil, err
		}
		if !p.Enabled || !starts {
			continue
		}
		if own.names == nil {
			own.names = shared.names
		}
		one := Programs{Plugin: p.Name, Default: own.names == nil}
		if one.List, err = sandbox.NewAllowList(own.names, dirs, cfg.Workspace, shared.strict()); err != nil {
			return nil, p.Options.Locate(config.At(err, "allowed_commands"))
		}
		all = append(all, one)
	}
	return all, nil
}

// allowance is what the options of a plugin say about the programs that requests may name.
type allowance struct {
	names []string // allowed_commands; nil = not set
	exec  string
}

func (a allowance) strict() bool { return a.exec == sandbox.ExecStrict }

// sharedAllowance returns the allowance of plugins that set none themselves: the allowed_commands of the
// first plugin that sets them, and exec: strict if any plugin sets it. Otherwise run_command could start
// what the list for processes forbids, and the other way round.
func sharedAllowance(cfg *config.Config) (shared allowance, err error) {
	for _, p := range cfg.Plugins {
		if !p.Enabled {
			continue
		}
		own, _, err := allowanceOf(p)
		if err != nil {
			return shared, err
		}
		if shared.names == nil {
			shared.names = own.names
		}
		if own.strict() {
			shared.exec = own.exec
		}
	}
	return shared, nil
}

// programOptions are options that list the programs that requests may name.
type programOptions interface {
	// AllowList returns pointers to allowed_commands and exec.
	AllowList() (names *[]string, exec *string)
}

// allowanceOf reads the allowance from the options of a plugin; starts is false for a plugin without such
// options.
func allowanceOf(p config.Plugin) (a allowance, starts bool, err error) {
	t, known := typeOf(p.Type)
	if !known {
		return a, false, nil
	}
	opts, err := t.read(p)
	o, starts := opts.(programOptions)
	if !starts {
		return a, false, nil
	}
	names, exec := o.AllowList()
	return allowance{*names, *exec}, true, err
}

// allow sets exec to strict if any plugin has it, and allowed_commands where the options set none. The
// error names an entry that cannot be a program, or that exec: strict forbids. Whether the programs exist
// is checked later, as that takes a while.
func (b *build) allow(p config.Plugin, opts programOptions) error {
	names, exec := opts.AllowList()
	if b.allowance.strict() {
		*exec = b.allowance.exec
	}
	if _, err := sandbox.NewAllowList(*names, nil, "", b.allowance.strict()); err != nil {
		return p.Options.Locate(config.At(err, "allowed_commands"))
	}
	if *names == nil {
		*names = b.allowance.names
	}
	return nil
}

// scope limits the plugins of a host to what its child agent may use.
type scope struct {
	agent *fleet.Agent
	steps atomic.Int64 // tool calls so far
}

// newScope returns the scope of an agent; nil = no limits.
func newScope(agent *fleet.Agent) *scope {
	if agent == nil || agent.ToolScope == protocol.ToolsShared && agent.MaxSteps == 0 {
		return nil
	}
	return &scope{agent: agent}
}

// admits reports whether a kind of plugin is loaded at all: its capability is granted, or it has tools,
// some of which may be granted.
func (s *scope) admits(kind string) bool {
	if s == nil || s.agent.Grants(kind) {
		return true
	}
	return s.agent.ToolScope == protocol.ToolsRestricted &&
		slices.Contains([]string{"tools", "toolkits", "mcp", "exec"}, kind)
}

// confine returns a plugin that offers only the tools that the agent may use.
func (s *scope) confine(p host.Plugin) host.Plugin {
	if s == nil {
		return p
	}
	return &scoped{Plugin: p, scope: s}
}

// scoped is a plugin that is limited to the scope of a child agent.
type scoped struct {
	host.Plugin
	scope *scope
}

// Unwrap returns the inner plugin, for interfaces beyond host.Plugin.
func (c *scoped) Unwrap() host.Plugin { return c.Plugin }

// Info implements host.Plugin. It leaves out the capabilities that are not granted.
func (c *scoped) Info() host.PluginInfo {
	info := c.Plugin.Info()
	if info.Capability != "" && !c.scope.agent.Grants(string(info.Capability)) {
		info.Capability = protocol.CapTools
	}
	info.Also = slices.DeleteFunc(slices.Clone(info.Also), func(also protocol.Capability) bool {
		return also != protocol.CapTools && !c.scope.agent.Grants(string(also))
	})
	return info
}

// Routes implements host.Plugin.
func (c *scoped) Routes() []host.Route {
	agent := c.scope.agent
	var routes []host.Route
	for _, r := range c.Plugin.Routes() {
		info, known := protocol.Lookup(r.Type)
		switch {
		case r.Type == protocol.TypeToolCallReq:
			routes = append(routes, r.Wrap(c.scope.call))
		case r.Type == protocol.TypeToolListReq:
			routes = append(routes, r.Wrap(c.scope.list))
		case known && agent.Grants(string(info.Capability)), !known && agent.Grants(string(c.Plugin.Info().Capability)):
			routes = append(routes, r)
		}
	}
	return routes
}

// call passes a tool call on if the agent may use the tool and has steps left.
func (s *scope) call(_ context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
	name := obj.Text("tool_name")
	if !s.tool(name) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the tool %.64q is not among those of the child agent "+
			"%.64q", name, s.agent.AgentID)
	}
	if n := s.steps.Add(1); s.agent.MaxSteps > 0 && n > int64(s.agent.MaxSteps) {
		s.steps.Add(-1) // a refused call is no step
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the child agent %.64q has used its max_steps of %d",
			s.agent.AgentID, s.agent.MaxSteps)
	}
	answer, err := next()
	if host.IsNotOwner(err) {
		s.steps.Add(-1) // the next plugin is asked, or no plugin has the tool
	}
	return answer, err
}

// list removes the tools that the agent may not use from the answer.
func (s *scope) list(_ context.Context, _ protocol.Object, next func() (any, error)) (any, error) {
	answer, err := next()
	if err != nil {
		return nil, err
	}
	all, typed := answer.(*protocol.ToolListResponse)
	if raw, ok := answer.(jsontext.Value); ok { // from a plugin that passes messages on
		all = new(protocol.ToolListResponse)
		if err := json.Unmarshal(raw, all); err != nil {
			return nil, err
		}
	} else if !typed {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the list of tools is of a kind that no scope can be "+
			"kept for")
	}
	granted := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	for _, def := range all.Tools {
		if s.tool(def.Name) {
			granted.Tools = append(granted.Tools, def)
		}
	}
	return granted, nil
}

// tool reports whether the agent may use a tool: its name or the capability tools is granted.
func (s *scope) tool(name string) bool {
	return s.agent.Grants(name) || s.agent.Grants(string(protocol.CapTools))
}
