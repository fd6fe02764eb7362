package plugins

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins/skill"
	"a2e/protocol"
)

// NewLauncher makes what starts the children of the config's plugins. It starts
// nothing yet; the caller closes it. lacking is sandbox.Options.Lacking.
func NewLauncher(cfg *config.Config, lacking func([]sandbox.Finding)) (*sandbox.Launcher, error) {
	return newLauncher(cfg, nil, Mode(cfg), nil, lacking)
}

// newLauncher is NewLauncher; is tells which folder the workspace must be, nil = whatever
// has its name.
func newLauncher(cfg *config.Config, is os.FileInfo, mode sandbox.Mode, disk *sandbox.Disk, lacking func([]sandbox.Finding)) (*sandbox.Launcher, error) {
	workspace, err := filepath.Abs(cfg.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	for _, value := range sandbox.NetworkEnv(os.Environ()) { // children with network get it
		for _, secret := range sandbox.Credentials(value) {
			cfg.Secrets.AddSecret(secret)
		}
	}
	return sandbox.New(walled(cfg, sandbox.Options{
		Path: sandbox.SafePath(os.Getenv("PATH"), workspace), Workspace: workspace, WorkspaceInfo: is, Mode: mode, Lacking: lacking,
		Read:   slices.Concat(cfg.Children.Read, skillFolders(cfg)),
		Limits: limits(cfg), Disk: disk,
	}))
}

// skillFolders lists the folders of skills beside the workspace, whose scripts programs may run.
func skillFolders(cfg *config.Config) (all []string) {
	for _, p := range cfg.Plugins {
		opts := skill.DefaultOptions()
		if p.Enabled && p.Type == string(protocol.CapSkill) && p.Options.Decode(&opts) == nil {
			all = append(all, skill.Folders(opts, host.Env{Workspace: cfg.Workspace, UserDir: cfg.UserDir, StateDir: cfg.StateDir, Wall: cfg.Wall})...)
		}
	}
	return all
}

// walled keeps children from the host's own files.
func walled(cfg *config.Config, opts sandbox.Options) sandbox.Options {
	if w := cfg.Wall; w != nil {
		opts.Hidden, opts.Fixed, opts.Firm, opts.Loose = w.Hidden, w.Fixed, w.Firm, w.Loose
	}
	return opts
}

// newDisk makes the bound on what children leave on disk. Without a sandbox there is one
// only where the config sets it.
func newDisk(cfg *config.Config) *sandbox.Disk {
	if limit := cfg.Children.DiskBytes; limit != 0 || Mode(cfg) != sandbox.Off {
		return sandbox.NewDisk(limit)
	}
	return nil
}

// skillMode is how the children of skills are confined: they run code that came with a
// text, so nothing of the sandbox may be missing unless the config says so.
func skillMode(cfg *config.Config) sandbox.Mode {
	if cfg.Sandbox == "" {
		return sandbox.Required
	}
	return sandbox.Mode(cfg.Sandbox)
}

// Mode is how the children of other plugins are confined.
func Mode(cfg *config.Config) sandbox.Mode {
	if cfg.Sandbox == "" {
		return sandbox.BestEffort
	}
	return sandbox.Mode(cfg.Sandbox)
}

// children is what the plugins that start children have in common: one
// launcher, so that a file which one of them leaves in /tmp is there for the
// others that may do no more (see sandbox.Home).
type children struct {
	launcher func() (*sandbox.Launcher, error) // makes it at the first call
	metadata func() map[string]any             // of each such plugin, for the handshake

	mu   sync.Mutex
	made *sandbox.Launcher // nil until it is needed; guarded by mu
}

func newChildren(cfg *config.Config, mode sandbox.Mode, disk *sandbox.Disk, log zerolog.Logger) *children {
	c := &children{}
	is, _ := os.Stat(cfg.Workspace) // one that is not there lets no plugin begin
	c.launcher = sync.OnceValues(func() (*sandbox.Launcher, error) {
		made, err := newLauncher(cfg, is, mode, disk, func(missing []sandbox.Finding) {
			log.Warn().Strs("missing", reasons(missing)).Msg("the sandbox of child processes is incomplete; `a2e doctor` tells what that means")
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.made = made
		return made, err
	})
	c.metadata = sync.OnceValue(func() map[string]any {
		meta := map[string]any{"sandbox": string(mode)}
		if missing := reasons(sandbox.Quick(mode)); len(missing) > 0 {
			meta["sandbox_missing"] = missing
		}
		return meta
	})
	return c
}

// reasons returns a line such as "landlock: the kernel has none" for each.
func reasons(missing []sandbox.Finding) []string {
	lines := make([]string, len(missing))
	for i, f := range missing {
		lines[i] = f.Name + ": " + f.Reason
	}
	return lines
}

func (c *children) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		return nil
	}
	return c.made.Close()
}
