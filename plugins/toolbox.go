package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/observe/event"
	"a2e/host/sandbox"
	"a2e/plugins/skill"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// maxBoxOutput bounds the data of one action in an episode, in bytes: they are stored in the observation
// and in the record of experiences.
const maxBoxOutput = 64 << 10

// confined makes a launcher for one folder, with the limits of the config: see host.Env.Confined.
func confined(cfg *config.Config, disk *sandbox.Disk, c host.Confinement) (*sandbox.Launcher, error) {
	workspace, err := filepath.Abs(cfg.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	opts := sandbox.Options{Workspace: c.Folder, WorkspaceInfo: c.Is, Disk: disk, Mode: Mode(cfg), Limits: limits(cfg)}
	opts.Path = sandbox.SafePath(os.Getenv("PATH"), workspace)
	opts.Read = append(slices.Clone(cfg.Children.Read), c.Read...)
	if c.Hidden != "" {
		opts.Read = slices.DeleteFunc(opts.Read, func(dir string) bool { return overlaps(dir, c.Hidden) })
	}
	if c.Counted {
		opts.Counted = []string{c.Folder}
	}
	return sandbox.New(walled(cfg, opts))
}

// limits returns the limits of the config for children.
func limits(cfg *config.Config) sandbox.Limits {
	c := cfg.Children
	return sandbox.Limits{
		MemoryBytes: c.MemoryBytes, AddressBytes: c.AddressBytes, FileBytes: c.FileBytes, OpenFiles: c.OpenFiles,
		Processes: c.Processes, CPUSeconds: c.CPUSeconds,
	}
}

// NewToolBox makes the tools of one folder: the built-in ones, and the commands of the config's first
// tools plugin. disk bounds what children leave on disk; nil = no bound. Output that is too long is cut,
// and the rest is not kept.
func NewToolBox(cfg *config.Config, disk *sandbox.Disk, log zerolog.Logger, o host.ToolBoxOptions) (host.ToolBox,
	error,
) {
	opts := tools.DefaultOptions()
	opts.AllowedTools, opts.Deny = o.AllowedTools, o.Deny
	opts.NetworkDisabled, opts.AllowedCommands = !o.Network, o.AllowedCommands
	shared, err := sharedAllowance(cfg)
	if err != nil {
		return nil, err
	}
	opts.Exec = shared.exec
	if _, err := sandbox.NewAllowList(o.AllowedCommands, nil, "", shared.strict()); err != nil {
		return nil, fmt.Errorf("allowed_commands: %w", err)
	}
	if opts.AllowedCommands == nil {
		opts.AllowedCommands = shared.names
	}
	if opts.Commands, err = commandTools(cfg, o.Network); err != nil {
		return nil, err
	}
	box := &toolBox{}
	box.launcher = sync.OnceValues(func() (*sandbox.Launcher, error) {
		made, err := confined(cfg, disk, host.Confinement{
			Folder: o.Workspace, Read: o.Read, Hidden: o.Hidden,
			Counted: true,
		})
		box.made = made
		return made, err
	})
	plugin, err := tools.New("env", opts, host.Env{
		Workspace: o.Workspace, MaxOutputBytes: min(maxBoxOutput, cfg.Limits.MaxOutputBytes), Log: log,
		Launcher: box.launcher, Wall: cfg.Wall,
	})
	if err != nil {
		return nil, err
	}
	box.Plugin = plugin
	return box, nil
}

// commandTools returns the tools that the config declares as commands. They have network only if network
// is true.
func commandTools(cfg *config.Config, network bool) ([]tools.CommandTool, error) {
	for _, p := range cfg.Plugins {
		if !p.Enabled || p.Type != string(protocol.CapTools) {
			continue
		}
		opts := tools.DefaultOptions()
		err := p.Options.Decode(&opts)
		for i := range opts.Commands {
			opts.Commands[i].Network = opts.Commands[i].Network && network
		}
		return opts.Commands, err
	}
	return nil, nil
}

// overlaps reports whether one of two folders contains the other.
func overlaps(a, b string) bool {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		if rel, err := filepath.Rel(real(pair[0]), real(pair[1])); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// real resolves links where possible.
func real(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// toolBox is a tools plugin that belongs to no host and has its own launcher.
type toolBox struct {
	*tools.Plugin
	launcher func() (*sandbox.Launcher, error) // makes the launcher at the first call
	made     *sandbox.Launcher                 // nil until the first call; set by launcher
}

// Close implements host.ToolBox. No call may be running.
func (b *toolBox) Close(ctx context.Context) error {
	err := b.Plugin.Close(ctx)
	if b.made != nil {
		err = errors.Join(err, b.made.Close())
	}
	return err
}

// NewLauncher makes the launcher for the children of the config's plugins. It starts nothing yet; the
// caller closes it. lacking is sandbox.Options.Lacking.
func NewLauncher(cfg *config.Config, lacking func([]sandbox.Finding)) (*sandbox.Launcher, error) {
	return newLauncher(cfg, sandbox.Options{Mode: Mode(cfg), Lacking: lacking})
}

// newLauncher is NewLauncher with options that the config does not have.
func newLauncher(cfg *config.Config, opts sandbox.Options) (*sandbox.Launcher, error) {
	workspace, err := filepath.Abs(cfg.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	for _, value := range sandbox.NetworkEnv(os.Environ()) { // children with network get these variables
		for _, secret := range sandbox.Credentials(value) {
			cfg.Secrets.AddSecret(secret)
		}
	}
	opts.Path, opts.Workspace, opts.Limits = sandbox.SafePath(os.Getenv("PATH"), workspace), workspace, limits(cfg)
	opts.Read = slices.Concat(cfg.Children.Read, skillFolders(cfg))
	return sandbox.New(walled(cfg, opts))
}

// skillFolders lists the folders of skills outside the workspace, whose scripts programs may run.
func skillFolders(cfg *config.Config) (all []string) {
	for _, p := range cfg.Plugins {
		opts := skill.DefaultOptions()
		if p.Enabled && p.Type == string(protocol.CapSkill) && p.Options.Decode(&opts) == nil {
			all = append(all, skill.Folders(opts, host.Env{
				Workspace: cfg.Workspace, UserDir: cfg.UserDir,
				StateDir: cfg.StateDir, Wall: cfg.Wall,
			})...)
		}
	}
	return all
}

// walled keeps children away from the host's own files.
func walled(cfg *config.Config, opts sandbox.Options) sandbox.Options {
	if w := cfg.Wall; w != nil {
		opts.Hidden, opts.Fixed, opts.Firm, opts.Loose = w.Hidden, w.Fixed, w.Firm, w.Loose
	}
	return opts
}

// newDisk makes the bound on what children leave on disk. Without a sandbox there is one only if the
// config sets it.
func newDisk(cfg *config.Config) *sandbox.Disk {
	if limit := cfg.Children.DiskBytes; limit != 0 || Mode(cfg) != sandbox.Off {
		return sandbox.NewDisk(limit)
	}
	return nil
}

// skillMode returns how the children of skills are confined. They run code that came with a text, so the
// sandbox must be complete unless the config says otherwise.
func skillMode(cfg *config.Config) sandbox.Mode {
	if cfg.Sandbox == "" {
		return sandbox.Required
	}
	return sandbox.Mode(cfg.Sandbox)
}

// Mode returns how the children of other plugins are confined.
func Mode(cfg *config.Config) sandbox.Mode {
	if cfg.Sandbox == "" {
		return sandbox.BestEffort
	}
	return sandbox.Mode(cfg.Sandbox)
}

// children is what plugins that start children have in common: one launcher, so that a file which one of
// them leaves in /tmp is there for those that are not allowed more (see sandbox.Home).
type children struct {
	make     func(is os.FileInfo) (*sandbox.Launcher, error)
	metadata func() map[string]any // of each such plugin, for the handshake
	folder   *wall.Folder          // the workspace; nil = it cannot be opened, so no plugin starts

	mu   sync.Mutex
	is   os.FileInfo         // the folder that last was made for; guarded by mu, as all below
	last *sandbox.Launcher   // nil until it is needed
	err  error               // why last is nil
	all  []*sandbox.Launcher // every launcher made; there is one more each time the workspace was recreated
}

func newChildren(
	cfg *config.Config, mode sandbox.Mode, disk *sandbox.Disk, log zerolog.Logger, events *event.Stream,
) *children {
	c := &children{}
	c.folder, _ = wall.OpenFolder(cfg.Workspace)
	c.make = func(is os.FileInfo) (*sandbox.Launcher, error) {
		return newLauncher(cfg, sandbox.Options{
			WorkspaceInfo: is, Mode: mode, Disk: disk, Events: events, Lacking: func(missing []sandbox.Finding) {
				log.Warn().Strs("missing", reasons(missing)).
					Msg("the sandbox of child processes is incomplete; `a2e doctor` tells what that means")
			},
		})
	}
	c.metadata = sync.OnceValue(func() map[string]any {
		meta := map[string]any{"sandbox": string(mode)}
		if missing := reasons(sandbox.Quick(mode)); len(missing) > 0 {
			meta["sandbox_missing"] = missing
		}
		return meta
	})
	return c
}

// reasons returns one line per finding, such as "landlock: the kernel has none".
func reasons(missing []sandbox.Finding) []string {
	lines := make([]string, len(missing))
	for i, f := range missing {
		lines[i] = f.Name + ": " + f.Reason
	}
	return lines
}

// launcher returns the launcher of the children. It makes one at the first call, and another one after the
// workspace was removed and recreated.
func (c *children) launcher() (*sandbox.Launcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var is os.FileInfo
	if c.folder != nil {
		is, _ = c.folder.Root().Stat(".")
	}
	if (c.last != nil || c.err != nil) && (is == nil || c.is == nil || os.SameFile(is, c.is)) {
		return c.last, c.err
	}
	c.is = is
	if c.last, c.err = c.make(is); c.last != nil {
		c.all = append(c.all, c.last)
	}
	return c.last, c.err
}

func (c *children) running() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.all {
		n += l.Running()
	}
	return n
}

func (c *children) close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.all {
		err = errors.Join(err, l.Close())
	}
	if c.folder != nil {
		err = errors.Join(err, c.folder.Close())
	}
	return err
}
