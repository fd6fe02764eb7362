// Package tools is the capability `tools`: it lists, finds and runs the built-in
// tools and those that the config declares as commands.
//
//	tools.go     the plugin; checkpoints        builtin.go   the table of the built-in tools
//	set.go       a set of tools, its routes,    call.go      tool/call: run one; tools that the
//	             tool/list                                   config declares
//	validate.go  do the arguments fit?          spill.go     where long output goes
//	files.go     what the file tools open,     paths.go      paths, URIs, what is wrong with them
//	             and read_file                 lines.go      reads a file by lines
//	write.go  find.go  grep.go  batch.go  run.go  http.go  html.go   the other tools
//
// Other plugins that have tools, such as mcp and toolkits, serve them with a Set too.
//
// Output longer than the limit is cut in its middle. A file of the session keeps the whole output (see
// package spill). read_file and grep take the file by a URI such as spill:///NAME; `data.spilled` of the
// answer has its absolute path, for agents that run on the same machine.
package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/guard/webguard"
	"a2e/host/sandbox"
	"a2e/host/state/checkpoint"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	// Commands are tools that run a program.
	Commands []CommandTool `yaml:"commands"`
	// HTTPAllowPrivate lets http_get reach private, loopback and link-local addresses.
	HTTPAllowPrivate bool `yaml:"http_allow_private"`
	// AllowedCommands are the programs that run_command may start, as bare names;
	// nil = the usual ones that the machine has.
	AllowedCommands []string `yaml:"allowed_commands" doc:"Programs that run_command may start, as bare names; by default the usual ones that this machine has. An entry may have fixed first arguments (python3 tools/run.py). The list is about the first program only: an interpreter or launcher on it, such as sh, env, xargs, python3, git, find or make, starts anything (see exec)."`
	// Exec is sandbox.ExecStrict, or "" to allow every program of AllowedCommands.
	Exec string `yaml:"exec" enum:"allowed,strict" doc:"strict: no interpreter or launcher (sh, python3, env, git, find, make, …) may be among allowed_commands except with the script that it may run; set for one plugin, it holds for tools, proc and mcp."`
	// AllowedTools lists the tools that are on, as names or globs; nil = all.
	AllowedTools []string `yaml:"allowed_tools" doc:"The tools that are on, by names or globs. Default: all."`
	// Deny lists tools, as names or globs, that are refused and not listed.
	Deny []string `yaml:"deny"`
	// ReadOnly leaves only the tools that change nothing.
	ReadOnly bool `yaml:"read_only"`
	// Timeout bounds a call of a tool that has no bound of its own, in seconds; 0 = as the request says.
	Timeout float64 `yaml:"timeout"`
	// MaxOutputBytes bounds the data of one result; 0 = limits.max_output_bytes.
	MaxOutputBytes int `yaml:"max_output_bytes"`
	// NetworkDisabled keeps run_command off the network, and the tools of Commands that do not ask for it.
	NetworkDisabled bool `yaml:"network_disabled" doc:"Whether run_command, and commands without network: true, are kept off the network."`
}

// DefaultOptions are the options of a config that sets none.
func DefaultOptions() Options { return Options{NetworkDisabled: true} }

// AllowList returns pointers to the options allowed_commands and exec.
func (o *Options) AllowList() (names *[]string, exec *string) { return &o.AllowedCommands, &o.Exec }

// ToolPatterns returns the names and globs of tools, by their config key.
func (o *Options) ToolPatterns() map[string][]string {
	return map[string][]string{"allowed_tools": o.AllowedTools, "deny": o.Deny}
}

// Plugin is one `tools` plugin.
type Plugin struct {
	*Set
	env      host.Env
	folder   *wall.Folder
	launcher atomic.Pointer[sandbox.Launcher] // the plugin's own; nil before the first program, or with Env.Launcher
	web      *Web

	ctx  context.Context // ends with the plugin
	stop context.CancelFunc
	goes sync.WaitGroup // the goroutine of prepare
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	env = env.WithDefaults()
	p := &Plugin{env: env}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.Set = NewSet(SetOptions{
		Name: name, MaxOutputBytes: cmp.Or(max(opts.MaxOutputBytes, 0), env.MaxOutputBytes),
		StateDir: env.StateDir, Secrets: env.Secrets, Now: env.Now,
	})
	folder, err := wall.OpenFolder(env.Workspace)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: workspace: %w", name, err)
	}
	p.folder = folder
	if err := p.equip(opts); err != nil {
		return nil, errors.Join(err, p.Close(context.Background()))
	}
	return p, nil
}

// equip fills the set with tools. If the config declares none, the built-in tools are made when a request
// first needs them: making their descriptions takes longer than the rest of New.
func (p *Plugin) equip(opts Options) error {
	builtin, c, err := p.make(opts)
	if err == nil && refusal(&Tool{Def: protocol.ToolDefinition{Name: runCommand}}, opts) == "" {
		p.listed = sync.OnceFunc(func() { p.goes.Go(func() { p.prepare(c) }) })
	}
	var all []Tool
	if err == nil && len(opts.Commands) > 0 {
		all, err = declared(builtin(), opts.Commands, c)
	}
	if err != nil {
		return fmt.Errorf("plugin %q: %w", p.name, err)
	}
	if all != nil {
		return p.fill(all, opts)
	}
	p.Later(func() []Tool { return withOptions(builtin(), opts) })
	return p.checkPatterns(opts)
}

// fill checks the patterns, applies the options to the tools and puts these into the set.
func (p *Plugin) fill(all []Tool, opts Options) error {
	if err := p.checkPatterns(opts); err != nil {
		return err
	}
	return p.Replace(withOptions(all, opts))
}

func (p *Plugin) checkPatterns(opts Options) error {
	for key, patterns := range opts.ToolPatterns() {
		for _, pattern := range patterns {
			if !doublestar.ValidatePattern(pattern) {
				return fmt.Errorf("plugin %q: %s: %q is not a valid pattern; write names or globs such as \"write_*\"",
					p.name, key, pattern)
			}
		}
	}
	return nil
}

// withOptions returns a copy of the tools with the options applied: time limit and refusal.
func withOptions(all []Tool, opts Options) []Tool {
	all = slices.Clone(all)
	for i := range all {
		t := &all[i]
		if t.Timeout == 0 {
			t.Timeout = seconds(opts.Timeout)
		}
		t.Denied = refusal(t, opts)
	}
	return all
}

// refusal returns why the options refuse a tool, or "" if they allow it.
func refusal(t *Tool, opts Options) string {
	if opts.ReadOnly && !t.Detail.ReadOnly {
		return "changes things, and read_only is set in the config"
	}
	matches := func(pattern string) bool { return doublestar.MatchUnvalidated(pattern, t.Def.Name) }
	switch {
	case opts.AllowedTools != nil && !slices.ContainsFunc(opts.AllowedTools, matches):
		return "is not among allowed_tools in the config"
	case slices.ContainsFunc(opts.Deny, matches):
		return "is denied in the config"
	}
	return ""
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapTools, Children: true}
}

// Scheme implements host.FileSource: output that was too long for an answer has the URI spill:///NAME.
func (p *Plugin) Scheme() string { return spill.Scheme }

// OpenFiles implements host.FileSource.
func (p *Plugin) OpenFiles(ctx context.Context, authority string) (*os.Root, error) {
	return p.spill.OpenFiles(ctx, authority)
}

// Close implements host.Plugin. The host ends all calls before it calls Close.
func (p *Plugin) Close(context.Context) error {
	p.stop()
	p.goes.Wait()
	var err error
	if launcher := p.launcher.Load(); launcher != nil {
		err = launcher.Close()
	}
	if p.web != nil {
		p.web.Close()
	}
	return errors.Join(err, p.folder.Close())
}

// make returns a function that makes the built-in tools, and what the tools that start programs share.
func (p *Plugin) make(opts Options) (all func() []Tool, c *children, err error) {
	workspace, err := filepath.Abs(p.env.Workspace)
	if err != nil {
		return nil, nil, fmt.Errorf("workspace: %w", err)
	}
	files := newFiles(p.folder.Root(), p.maxOutput, p.env.Wall, p.Services)
	files.folder = p.folder
	files.secrets = p.env.Secrets
	c = &children{
		files: files, workspace: workspace, maxOutput: p.maxOutput, spill: p.spill,
		launcher: p.env.Launcher, secrets: p.env.Secrets,
	}
	if !opts.NetworkDisabled {
		c.network = sandbox.NetworkHost
	}
	// folders, launcher and programs are looked up at their first use: that takes
	// longer than the rest of the start
	c.dirs = sync.OnceValue(func() []string { return sandbox.SafePath(os.Getenv("PATH"), workspace) })
	if c.launcher == nil {
		c.launcher = sync.OnceValues(func() (*sandbox.Launcher, error) {
			launcher, err := sandbox.New(sandbox.Options{Path: c.dirs(), Workspace: workspace})
			p.launcher.Store(launcher)
			return launcher, err
		})
	}
	c.allow = sync.OnceValues(func() (*sandbox.AllowList, error) {
		return sandbox.NewAllowList(opts.AllowedCommands, c.dirs(), workspace, opts.Exec == sandbox.ExecStrict)
	})
	p.web = NewWeb(webguard.Options{AllowPrivate: opts.HTTPAllowPrivate}, p.maxOutput, nil)
	return func() []Tool {
		all := builtin(files, p.web, c)
		if p.env.Checkpoints != nil {
			all = append(all, (&checkpoints{p.env.Checkpoints}).tools(p.env.RestoreCheckpoints)...)
		}
		return all
	}, c, nil
}

// declared returns all with the tools that the config declares appended.
func declared(all []Tool, commands []CommandTool, c *children) ([]Tool, error) {
	var problems []error
	for i, cfg := range commands {
		t, err := newCommandTool(cfg, c)
		if slices.ContainsFunc(all, func(other Tool) bool { return other.Def.Name == cfg.Name }) {
			err = errors.New("another tool has this name already")
		}
		if err != nil {
			problems = append(problems, config.At(fmt.Errorf("tool %q: %w", cfg.Name, err), "commands",
				strconv.Itoa(i)))
		}
		all = append(all, t)
	}
	return all, errors.Join(problems...)
}

// checkpoints are the tools for the checkpoints of the workspace.
type checkpoints struct{ keeper *checkpoint.Keeper }

func (c *checkpoints) tools(restore bool) []Tool {
	all := []Tool{
		Typed[checkpointListArgs, checkpointList](protocol.ToolDefinition{
			Name: "checkpoint_list", Idempotent: true, Tags: []string{"checkpoint", "undo"},
			Description: "List the latest checkpoints of the workspace, the newest first: what its files were " +
				"before each request that may have changed them.",
		}, host.ToolDetail{ReadOnly: true}, c.list),
		Typed[checkpointDiffArgs, checkpointDiff](protocol.ToolDefinition{
			Name: "checkpoint_diff", Idempotent: true, Tags: []string{"checkpoint", "undo"},
			Description: "Show what changed in the workspace since a checkpoint, or between two. Without from: " +
				"since the last state that differs.",
		}, host.ToolDetail{ReadOnly: true}, c.diff),
	}
	if restore {
		all = append(all, Typed[checkpointRestoreArgs, checkpointRestored](protocol.ToolDefinition{
			Name: "checkpoint_restore", Tags: []string{"checkpoint", "undo"},
			Description: "Restore the workspace, or some of it, to a checkpoint. The state before becomes a " +
				"checkpoint first (from in the answer), so that this can be undone too.",
		}, host.ToolDetail{Destructive: true, Idempotent: true}, c.restore))
		all[len(all)-1].Files = func(protocol.Object) []File { return []File{{".", protocol.Exclusive}} }
	}
	return all
}

type checkpointListArgs struct {
	Limit int `json:"limit" may:"How many at most (default 20)."`
}

type checkpointList struct {
	Checkpoints []checkpoint.Info `json:"checkpoints" need:"Each with id, made, before (what came after it), changed (paths that differ from the one before it), files, left_out."`
}

func (c *checkpoints) list(ctx context.Context, a *checkpointListArgs) (*Outcome, error) {
	all, err := c.keeper.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.Reverse(all)
	limit := 20
	if a.Limit > 0 {
		limit = a.Limit
	}
	shown := append([]checkpoint.Info{}, all[:min(limit, len(all))]...)
	return &Outcome{Data: &checkpointList{shown}, Truncated: len(shown) < len(all)}, nil
}

type checkpointDiffArgs struct {
	From  uint64 `json:"from" may:"Id of the earlier checkpoint."`
	To    uint64 `json:"to" may:"Id of the later one (default: the workspace as it is now)."`
	Path  string `json:"path" may:"Only this file or folder."`
	Patch bool   `json:"patch" may:"With the lines of text files (default false)."`
}

type checkpointDiff struct {
	Changes []checkpoint.Change `json:"changes" need:"With path, kind (added, removed, changed, mode), what, bytes."`
}

func (c *checkpoints) diff(ctx context.Context, a *checkpointDiffArgs) (*Outcome, error) {
	o := checkpoint.DiffOptions{From: a.From, To: a.To, Patch: a.Patch}
	if a.Path != "" {
		o.Paths = []string{a.Path}
	}
	all, err := c.keeper.Diff(ctx, o)
	if err != nil {
		return nil, checkpointError(err)
	}
	return &Outcome{Data: &checkpointDiff{append([]checkpoint.Change{}, all...)}}, nil
}

type checkpointRestoreArgs struct {
	ID     uint64   `json:"id" need:"The checkpoint."`
	Paths  []string `json:"paths" may:"Only these files and folders (default: all)."`
	DryRun bool     `json:"dry_run" may:"Only say what would be done (default false)."`
}

// checkpointRestored describes a checkpoint.Restored.
type checkpointRestored struct {
	To       uint64 `json:"to" need:"The checkpoint that was restored."`
	From     uint64 `json:"from" need:"The checkpoint of the state before."`
	Now      uint64 `json:"now" need:"The checkpoint of the state afterwards."`
	Changes  []any  `json:"changes" need:"What was done, as checkpoint_diff has it."`
	Problems []any  `json:"problems" need:"What could not be restored: path and why."`
}

func (c *checkpoints) restore(ctx context.Context, a *checkpointRestoreArgs) (*Outcome, error) {
	if a.ID == 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/id", Message: "must be the id of a " +
			"checkpoint; checkpoint_list shows them"})
	}
	done, err := c.keeper.Restore(ctx, checkpoint.RestoreOptions{To: a.ID, Paths: a.Paths, DryRun: a.DryRun})
	if err != nil {
		return nil, checkpointError(err)
	}
	out := &Outcome{Data: done, Failed: len(done.Problems) > 0}
	if out.Failed {
		out.Failure = "not all could be restored; see problems"
	}
	return out, nil
}

// checkpointError turns an error that the user caused into an answer; it returns other errors as they are.
func checkpointError(err error) error {
	if errors.Is(err, checkpoint.ErrUnknown) || errors.Is(err, checkpoint.ErrNone) {
		return protocol.Errorf(protocol.CodeToolError, "%v; checkpoint_list shows those there are", err)
	}
	return err
}
