// Package plugins is the one explicit list of the plugins of this build.
package plugins

import (
	"context"
	"errors"
	"os"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/plugins/chains"
	"a2e/plugins/env"
	"a2e/plugins/exec"
	"a2e/plugins/learning"
	"a2e/plugins/mcp"
	"a2e/plugins/memory"
	"a2e/plugins/memory/embed"
	"a2e/plugins/multiagent"
	"a2e/plugins/planning"
	"a2e/plugins/proc"
	"a2e/plugins/skill"
	"a2e/plugins/toolkits"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// Deps is what the plugins get from outside beyond the config.
type Deps struct {
	Log    zerolog.Logger
	Shared *Shared // with others of the same host; nil = the plugins share among themselves
}

// Shared is what the plugins of one host, and what else belongs to it, have in common: the
// store and what starts child processes. Each is made when it is first needed.
type Shared struct {
	children, skills *children
	state            *state
	disk             *sandbox.Disk // nil = no bound

	// MCPClient, if not nil, gives what the MCP client that alone is served can be asked, see
	// mcp.Env. It is set before the plugins are made.
	MCPClient func(context.Context) *sdk.ClientCapabilities
}

// NewShared makes what is shared on a host of the config. The caller closes it after the
// plugins.
func NewShared(cfg *config.Config, log zerolog.Logger) *Shared {
	s := newShared(cfg, log)
	s.children.users++
	s.state.users++
	return s
}

func newShared(cfg *config.Config, log zerolog.Logger) *Shared {
	disk := newDisk(cfg)
	return &Shared{children: newChildren(cfg, Mode(cfg), disk, log), skills: newChildren(cfg, skillMode(cfg), disk, log), state: &state{cfg: cfg}, disk: disk}
}

// Store gives the store of the config.
func (s *Shared) Store(ctx context.Context) (store.Store, error) { return s.state.open(ctx) }

// Launcher gives what starts child processes.
func (s *Shared) Launcher() (*sandbox.Launcher, error) { return s.children.launcher() }

// Close ends what no plugin uses any more.
func (s *Shared) Close() error { return errors.Join(s.children.leave(), s.state.leave()) }

// kind is one type of plugin.
type kind struct {
	name    string // as the config says it; that of its capability where it has one
	options any    // the zero value of its option struct, for the config's schema
	make    func(p config.Plugin, b *build) (host.Plugin, error)
}

// build is what the plugins of one host are made from.
type build struct {
	*config.Config
	Deps
	*Shared
	shared allowance // where a plugin does not say
}

// kinds lists the types in the order in which they stand without a config.
func kinds() []kind {
	return []kind{
		{"tools", tools.DefaultOptions(), newTools},
		{"skill", skill.DefaultOptions(), newSkill},
		{"toolkits", toolkits.Options{}, newToolkits},
		{"proc", proc.DefaultOptions(), newProc},
		{"env", env.Options{}, newEnv},
		{"memory", memory.DefaultOptions(), newMemory},
		{"planning", planning.Options{}, newPlanning},
		{"learning", learning.DefaultOptions(), newLearning},
		{"chains", chains.DefaultOptions(), newChains},
		{"mcp", mcp.DefaultOptions(), newMCP},
		{"multi_agent", multiagent.DefaultOptions(), newMultiAgent},
		{"exec", exec.DefaultOptions(), newExec},
	}
}

// Types names the plugin types of this build, as config.Source wants them.
func Types() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// OptionTypes gives the option struct of each type, as config.Schema wants them.
func OptionTypes() map[string]any {
	types := make(map[string]any)
	for _, k := range kinds() {
		types[k.name] = k.options
	}
	return types
}

// New makes the plugins that the config asks for. After an error none is left
// open. The error says which option does not fit.
func New(cfg *config.Config, deps Deps) ([]host.Plugin, error) {
	var made []host.Plugin
	var problems []error
	shared, _ := sharedAllowance(cfg) // the plugin itself says what is wrong with its options
	if deps.Shared == nil {
		deps.Shared = newShared(cfg, deps.Log)
	}
	b := &build{cfg, deps, deps.Shared, shared}
	within := newScope(cfg.Agent)
	for _, p := range cfg.Plugins {
		if !p.Enabled || !within.admits(p.Type) {
			continue
		}
		i := slices.IndexFunc(kinds(), func(k kind) bool { return k.name == p.Type })
		if i < 0 {
			continue // config.Load has warned of it
		}
		plugin, err := kinds()[i].make(p, b)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		made = append(made, within.confine(ranked{plugin, p}))
	}
	if problems != nil {
		for _, p := range made {
			problems = append(problems, p.Close(context.Background()))
		}
		return nil, errors.Join(problems...)
	}
	return made, nil
}

// ranked is a plugin with the place among its like that the config gives it.
type ranked struct {
	host.Plugin
	entry config.Plugin
}

// Info implements host.Plugin.
func (r ranked) Info() host.PluginInfo {
	info := r.Plugin.Info()
	info.Priority, info.Exclusive = r.entry.Priority, r.entry.Exclusive
	return info
}

// Unwrap gives the plugin itself, for what it implements beyond host.Plugin.
func (r ranked) Unwrap() host.Plugin { return r.Plugin }

func newTools(p config.Plugin, b *build) (host.Plugin, error) {
	opts := tools.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	if err := b.allow(p, &opts.AllowedCommands, &opts.Exec); err != nil {
		return nil, err
	}
	if err := b.checkTools(p, "deny", opts.Deny); err != nil {
		return nil, err
	}
	plugin, err := tools.New(p.Name, opts, tools.Env{
		Workspace: b.Workspace, Wall: b.Wall, StateDir: b.StateDir, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Launcher: b.children.launcher,
		Secrets: b.Secrets,
	})
	if err != nil {
		return nil, err
	}
	return b.children.share(plugin), nil
}

func newProc(p config.Plugin, b *build) (host.Plugin, error) {
	opts := proc.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	if err := b.allow(p, &opts.AllowedCommands, &opts.Exec); err != nil {
		return nil, err
	}
	plugin, err := proc.New(p.Name, opts, proc.Env{
		Workspace: b.Workspace, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Launcher: b.children.launcher,
	})
	if err != nil {
		return nil, err
	}
	return b.children.share(plugin), nil
}

func newToolkits(p config.Plugin, b *build) (host.Plugin, error) {
	var opts toolkits.Options
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	return toolkits.New(p.Name, opts, toolkits.Env{
		Workspace: b.Workspace, StateDir: b.StateDir, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Wall: b.Wall,
		Confined: func(folder string, is os.FileInfo) (*sandbox.Launcher, error) {
			return confinedTo(b.Config, b.disk, folder, is)
		},
	})
}

func newSkill(p config.Plugin, b *build) (host.Plugin, error) {
	opts := skill.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := skill.New(p.Name, opts, skill.Env{
		Workspace: b.Workspace, Wall: b.Wall, UserDir: b.UserDir, StateDir: b.StateDir, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Launcher: b.skills.launcher,
	})
	if err != nil {
		return nil, err
	}
	return b.skills.share(plugin), nil
}

func newChains(p config.Plugin, b *build) (host.Plugin, error) {
	opts := chains.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	return chains.New(p.Name, opts, chains.Env{Workspace: b.Workspace, Wall: b.Wall, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log})
}

func newMCP(p config.Plugin, b *build) (host.Plugin, error) {
	opts := mcp.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	if err := b.allow(p, &opts.AllowedCommands, &opts.Exec); err != nil {
		return nil, err
	}
	plugin, err := mcp.New(p.Name, opts, mcp.Env{
		Store: b.state.open, Launcher: b.children.launcher, Workspace: b.Workspace, StateDir: b.StateDir,
		MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Secrets: b.Secrets, Client: b.MCPClient,
	})
	if err != nil {
		return nil, err
	}
	return b.children.share(b.state.share(plugin)), nil
}

func newMultiAgent(p config.Plugin, b *build) (host.Plugin, error) {
	opts := multiagent.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := multiagent.New(p.Name, opts, multiagent.Env{
		Launcher: b.children.launcher, Workspace: b.Workspace, StateDir: b.StateDir, Agent: b.Agent, MaxOutputBytes: b.Limits.MaxOutputBytes, Log: b.Log, Secrets: b.Secrets,
	})
	if err != nil {
		return nil, err
	}
	return b.children.share(plugin), nil
}

func newExec(p config.Plugin, b *build) (host.Plugin, error) {
	opts := exec.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := exec.New(p.Name, opts, exec.Env{
		Workspace: b.Workspace, Launcher: b.children.launcher, Exclusive: p.Exclusive, MaxLineBytes: b.Limits.MaxLineBytes, Log: b.Log, Secrets: b.Secrets,
	})
	if err != nil {
		return nil, err
	}
	return b.children.share(plugin), nil
}

func newEnv(p config.Plugin, b *build) (host.Plugin, error) {
	var opts env.Options
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	if err := b.checkTools(p, "workspace.deny", opts.Workspace.Deny); err != nil {
		return nil, err
	}
	plugin, err := env.New(p.Name, opts, env.Env{
		Wall:  b.Wall,
		Store: b.state.open, Launcher: b.children.launcher, Workspace: b.Workspace, StateDir: b.StateDir, Log: b.Log,
		SyncJournal: b.Config.Store.Synchronous == config.SynchronousFull,
		Apart:       func(folder, hidden string) (*sandbox.Launcher, error) { return apart(b.Config, b.disk, folder, hidden) },
		ToolBox:     func(o env.ToolBoxOptions) (env.ToolBox, error) { return NewToolBox(b.Config, b.disk, b.Log, o) },
		Confined: func(folder string, read ...string) (*sandbox.Launcher, error) {
			return Confined(b.Config, b.disk, folder, read...)
		},
	})
	if err != nil {
		return nil, err
	}
	kept := b.state.share(plugin)
	if opts.Env == "exec" || opts.Env == "workspace" {
		return b.children.share(kept), nil
	}
	return kept, nil
}

func newLearning(p config.Plugin, b *build) (host.Plugin, error) {
	opts := learning.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := learning.New(p.Name, opts, learning.Env{
		Store: b.state.open, Kept: b.state.kept, Launcher: b.children.launcher, Workspace: b.Workspace, Log: b.Log,
	})
	if err != nil {
		return nil, err
	}
	kept := b.state.share(plugin)
	if len(opts.CustomCommand) > 0 {
		return b.children.share(kept), nil
	}
	return kept, nil
}

func newMemory(p config.Plugin, b *build) (host.Plugin, error) {
	opts := memory.DefaultOptions()
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := memory.New(p.Name, opts, memory.Env{Store: b.state.open, Log: b.Log})
	if err != nil {
		return nil, err
	}
	return b.state.share(plugin), nil
}

func newPlanning(p config.Plugin, b *build) (host.Plugin, error) {
	var opts planning.Options
	if err := p.Options.Decode(&opts); err != nil {
		return nil, err
	}
	plugin, err := planning.New(p.Name, opts, planning.Env{Store: b.state.open, Log: b.Log})
	if err != nil {
		return nil, err
	}
	return b.state.share(plugin), nil
}

// MemoryEmbedder gives what makes the vectors of the config's memory: that of its first
// memory plugin, as all share one store.
func MemoryEmbedder(cfg *config.Config) (embed.Embedder, error) {
	opts := memory.DefaultOptions()
	for _, p := range cfg.Plugins {
		if p.Enabled && p.Type == string(protocol.CapMemory) {
			if err := p.Options.Decode(&opts); err != nil {
				return nil, err
			}
			break
		}
	}
	return opts.Embedder()
}
