// Package plugins is the explicit list of the plugins of this build. A new type of plugin needs a folder
// and one line in types; see host.Plugin for what such a folder has.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/plugins/chains"
	"a2e/plugins/env"
	"a2e/plugins/exec"
	"a2e/plugins/learning"
	"a2e/plugins/mcp"
	"a2e/plugins/memory"
	"a2e/plugins/multiagent"
	"a2e/plugins/planning"
	"a2e/plugins/proc"
	"a2e/plugins/skill"
	"a2e/plugins/toolkits"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// types lists the plugin types in the order that plugins have without a config. The name of a type is that
// of its capability, if it has one.
var types = sync.OnceValue(func() []pluginType {
	return []pluginType{
		register("tools", tools.DefaultOptions(), tools.New),
		register("skill", skill.DefaultOptions(), skill.New).untrusted(),
		register("toolkits", toolkits.Options{}, toolkits.New),
		register("proc", proc.DefaultOptions(), proc.New),
		register("env", env.Options{}, env.New).keeps(env.Part),
		register("memory", memory.DefaultOptions(), memory.New).keeps(memory.Part),
		register("planning", planning.Options{}, planning.New).keeps(planning.Part),
		register("learning", learning.DefaultOptions(), learning.New).keeps(learning.Part),
		register("chains", chains.DefaultOptions(), chains.New).keeps(chains.Part),
		register("mcp", mcp.DefaultOptions(), mcp.New).keeps(mcp.Part),
		register("multi_agent", multiagent.DefaultOptions(), multiagent.New).keeps(multiagent.Part),
		register("exec", exec.DefaultOptions(), exec.New),
	}
})

// StateParts lists what the plugins and the protocols of this build keep in the store.
func StateParts() []store.Part {
	parts := []store.Part{fleet.Part(), jsonrpc.Part()}
	for _, t := range types() {
		if t.part != nil {
			parts = append(parts, t.part())
		}
	}
	return parts
}

// pluginType is one type of plugin.
type pluginType struct {
	name    string
	options any               // the zero value of its option struct, for the config's schema
	part    func() store.Part // what its plugins keep in the store; nil = nothing
	// strict means that the children of its plugins run code that came with a text: the sandbox must be
	// complete unless the config says otherwise.
	strict bool
	make   func(p config.Plugin, b *build, env host.Env) (host.Plugin, error)
	read   func(p config.Plugin) (any, error) // the options, as a pointer to their struct
}

// register makes the type of plugin called name. defaults are the options where the config sets none; New
// makes a plugin, and its error says which option does not fit.
func register[Options any, P host.Plugin](name string, defaults Options, New func(name string, opts Options,
	env host.Env) (P, error),
) pluginType {
	read := func(p config.Plugin) (*Options, error) {
		opts := defaults
		return &opts, p.Options.Decode(&opts)
	}
	return pluginType{
		name: name, options: defaults,
		read: func(p config.Plugin) (any, error) { return read(p) },
		make: func(p config.Plugin, b *build, env host.Env) (host.Plugin, error) {
			opts, err := read(p)
			if err == nil {
				err = b.complete(p, opts)
			}
			if err != nil {
				return nil, err
			}
			plugin, err := New(p.Name, *opts, env)
			if err != nil {
				return nil, p.Options.Locate(err)
			}
			return plugin, nil
		},
	}
}

// keeps returns a type whose plugins keep something in the store.
func (t pluginType) keeps(part func() store.Part) pluginType {
	t.part = part
	return t
}

// untrusted returns a type whose children run code that nobody has reviewed.
func (t pluginType) untrusted() pluginType {
	t.strict = true
	return t
}

// typeOf returns the type called name; false = this build has none.
func typeOf(name string) (pluginType, bool) {
	all := types()
	i := slices.IndexFunc(all, func(t pluginType) bool { return t.name == name })
	if i < 0 {
		return pluginType{}, false
	}
	return all[i], true
}

// Types returns the names of the plugin types of this build, as config.Source wants them.
func Types() []string {
	var names []string
	for _, t := range types() {
		names = append(names, t.name)
	}
	return names
}

// OptionTypes returns the option struct of each type, as config.Schema wants them.
func OptionTypes() map[string]any {
	all := make(map[string]any)
	for _, t := range types() {
		all[t.name] = t.options
	}
	return all
}

// Deps is what the plugins get beyond the config.
type Deps struct {
	Log    zerolog.Logger
	Shared *Shared // shared with other users in the process; nil = the plugins share among themselves

	MCPClient func(context.Context) jsontext.Value // of host.Env
}

// build is what the plugins of one host are made from.
type build struct {
	*config.Config
	*Shared
	mcpClient func(context.Context) jsontext.Value
	log       zerolog.Logger
	allowance allowance // for plugins that set none themselves
}

// New makes the plugins that the config asks for. After an error no plugin is left open. The error says
// which option does not fit.
func New(cfg *config.Config, deps Deps) ([]host.Plugin, error) {
	var made []host.Plugin
	var problems []error
	shared, _ := sharedAllowance(cfg) // an error is reported by the plugin itself
	if deps.Shared == nil {
		deps.Shared = newShared(cfg, deps.Log, nil)
	}
	b := &build{cfg, deps.Shared, deps.MCPClient, deps.Log, shared}
	if err := checkGroups(cfg); err != nil {
		problems = append(problems, err)
	}
	if err := checkGit(cfg); err != nil {
		problems = append(problems, err)
	}
	within := newScope(cfg.Agent)
	for _, p := range cfg.Plugins {
		t, known := typeOf(p.Type) // config.Load has warned of an unknown type
		if !p.Enabled || !known || !within.admits(p.Type) {
			continue
		}
		plugin, err := t.make(p, b, b.env(t, p))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		made = append(made, within.confine(b.join(plugin, p, b.childrenOf(t))))
	}
	if problems != nil {
		for _, p := range made {
			problems = append(problems, p.Close(context.Background()))
		}
		return nil, errors.Join(problems...)
	}
	return made, nil
}

// env returns what a plugin gets from its host.
func (b *build) env(t pluginType, p config.Plugin) host.Env {
	return host.Env{
		Log: b.log, Workspace: b.Workspace, StateDir: b.StateDir, StateURL: b.Config.Postgres(), UserDir: b.UserDir,
		Wall: b.Wall, Secrets: b.Secrets, Agent: b.Agent,
		MaxOutputBytes: b.Limits.MaxOutputBytes, MaxLineBytes: b.Limits.MaxLineBytes, Exclusive: p.Exclusive,
		Launcher: b.childrenOf(t).launcher,
		Confined: func(c host.Confinement) (*sandbox.Launcher, error) { return confined(b.Config, b.disk, c) },
		ToolBox:  func(o host.ToolBoxOptions) (host.ToolBox, error) { return NewToolBox(b.Config, b.disk, b.log, o) },
		Store:    b.Shared.Store, StoreExists: b.state.kept,
		MCPClient: b.mcpClient, Checkpoints: b.Shared.Checkpoints, RestoreCheckpoints: b.Config.Checkpoints.Restore,
	}
}

func (b *build) childrenOf(t pluginType) *children {
	if t.strict {
		return b.skills
	}
	return b.children
}

// complete fills in options that the plugin itself does not set, and checks the tools that its options
// name against the rest of the config.
func (b *build) complete(p config.Plugin, opts any) error {
	if o, ok := opts.(programOptions); ok {
		if err := b.allow(p, o); err != nil {
			return err
		}
	}
	o, ok := opts.(interface{ ToolPatterns() map[string][]string })
	if !ok {
		return nil
	}
	var wrong []error
	for key, patterns := range o.ToolPatterns() {
		wrong = append(wrong, b.checkTools(p, key, patterns))
	}
	return errors.Join(wrong...)
}

// toolNames lists the tools of the plugins of type tools, the denied ones too. The tools of MCP servers,
// toolkits and plugins of type exec are not known before they run.
func toolNames(cfg *config.Config) []string {
	names := tools.BuiltinNames()
	for _, p := range cfg.Plugins {
		opts := tools.DefaultOptions()
		if p.Type != string(protocol.CapTools) || p.Options.Decode(&opts) != nil {
			continue // the plugin itself reports the error
		}
		for _, c := range opts.Commands {
			names = append(names, c.Name)
		}
	}
	return names
}

// checkGroups refuses a group with the name of a tool: a call of that name would be ambiguous.
func checkGroups(cfg *config.Config) error {
	if len(cfg.Groups) == 0 {
		return nil // most configs have no groups, and listing the names of the tools takes time
	}
	names := toolNames(cfg)
	for _, group := range slices.Sorted(maps.Keys(cfg.Groups)) {
		if slices.Contains(names, group) {
			return fmt.Errorf("groups.%s: a tool has that name; give the group another one", group)
		}
	}
	return nil
}

// isTool reports whether a name or glob matches a tool.
func isTool(names []string, pattern string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return doublestar.MatchUnvalidated(pattern, name) })
}

// checkTools refuses names and globs of an option that match no tool.
func (b *build) checkTools(p config.Plugin, key string, patterns []string) error {
	if len(patterns) == 0 {
		return nil
	}
	names := toolNames(b.Config)
	for i, pattern := range patterns {
		if doublestar.ValidatePattern(pattern) && !isTool(names, pattern) {
			err := fmt.Errorf("%.64q matches no built-in tool and none of commands: %s (tools of an MCP server are "+
				"denied in the entry of the server)", pattern, config.SuggestName(pattern, names))
			return p.Options.Locate(config.At(err, append(strings.Split(key, "."), strconv.Itoa(i))...))
		}
	}
	return nil
}
