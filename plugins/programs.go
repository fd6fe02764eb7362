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
	Default bool   // the config names none; what this machine lacks is no defect
	List    *sandbox.AllowList
}

// AllowedPrograms returns the programs that each enabled plugin may start when a
// request names them.
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
		switch {
		case one.Default && shared.strict():
			own.names = sandbox.StrictCommands()
		case one.Default:
			own.names = sandbox.DefaultCommands()
		}
		if one.List, err = sandbox.NewAllowList(own.names, dirs, cfg.Workspace, shared.strict()); err != nil {
			return nil, p.Options.Place(config.At(err, "allowed_commands"))
		}
		all = append(all, one)
	}
	return all, nil
}

// allowance is what the options of a plugin say of the programs that requests name.
type allowance struct {
	names []string // allowed_commands; nil = it says nothing
	exec  string
}

func (a allowance) strict() bool { return a.exec == sandbox.ExecStrict }

// sharedAllowance returns the allowed_commands of plugins that have none themselves:
// those of the first that does. A list that is set for processes would be of
// little use if run_command went around it, and the other way round; so it is
// with exec: strict.
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

// programOptions are options with the programs that requests may name.
type programOptions interface {
	// AllowList returns where allowed_commands and exec stand.
	AllowList() (names *[]string, exec *string)
}

// allowanceOf reads the options of a plugin; starts is false for one without such options.
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

// allow puts in place what holds for a plugin that says nothing itself. The
// error names what could be no program, or is none for exec: strict; which of
// them there are is found out later, as that takes a while.
func (b *build) allow(p config.Plugin, opts programOptions) error {
	names, exec := opts.AllowList()
	if b.allowance.strict() {
		*exec = b.allowance.exec
	}
	if _, err := sandbox.NewAllowList(*names, nil, "", b.allowance.strict()); err != nil {
		return p.Options.Place(config.At(err, "allowed_commands"))
	}
	if *names == nil {
		*names = b.allowance.names
	}
	return nil
}

// scope keeps the plugins of a host to what the child agent may use that it was started
// for.
type scope struct {
	agent *fleet.Agent
	steps atomic.Int64 // calls of tools so far
}

// newScope returns the scope of an agent; nil = there is none.
func newScope(agent *fleet.Agent) *scope {
	if agent == nil || agent.ToolScope == protocol.ToolsShared && agent.MaxSteps == 0 {
		return nil
	}
	return &scope{agent: agent}
}

// admits reports whether a kind of plugin is loaded at all: one whose capability is granted,
// or one with tools, of which some may be.
func (s *scope) admits(kind string) bool {
	if s == nil || s.agent.Grants(kind) {
		return true
	}
	return s.agent.ToolScope == protocol.ToolsRestricted &&
		slices.Contains([]string{"tools", "toolkits", "mcp", "exec"}, kind)
}

// confine returns a plugin with the tools that the agent may use and no others.
func (s *scope) confine(p host.Plugin) host.Plugin {
	if s == nil {
		return p
	}
	return &scoped{Plugin: p, scope: s}
}

// scoped is a plugin of a child agent.
type scoped struct {
	host.Plugin
	scope *scope
}

// Unwrap returns the plugin itself, for what it implements beyond host.Plugin.
func (c *scoped) Unwrap() host.Plugin { return c.Plugin }

// Info implements host.Plugin: capabilities beside the first are there as they are granted.
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

// call lets the call of a tool pass that the agent may use, as long as it has steps left.
func (s *scope) call(_ context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
	name := obj.Text("tool_name")
	if !s.tool(name) {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the tool %.64q is not among those of the child agent "+
			"%.64q", name, s.agent.AgentID)
	}
	if n := s.steps.Add(1); s.agent.MaxSteps > 0 && n > int64(s.agent.MaxSteps) {
		s.steps.Add(-1) // it was none
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the child agent %.64q has used its max_steps of %d",
			s.agent.AgentID, s.agent.MaxSteps)
	}
	answer, err := next()
	if host.IsNotOwner(err) {
		s.steps.Add(-1) // the next plugin is asked, or nobody does it
	}
	return answer, err
}

// list leaves the tools out that the agent may not use.
func (s *scope) list(_ context.Context, _ protocol.Object, next func() (any, error)) (any, error) {
	answer, err := next()
	if err != nil {
		return nil, err
	}
	all, typed := answer.(*protocol.ToolListResponse)
	if raw, ok := answer.(jsontext.Value); ok { // of a plugin that passes messages on
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

// tool reports whether the agent may use a tool: one that is named, or any where the
// capability tools is.
func (s *scope) tool(name string) bool {
	return s.agent.Grants(name) || s.agent.Grants(string(protocol.CapTools))
}
