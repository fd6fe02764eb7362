package tools

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"a2e/host/sandbox"
	"a2e/host/webguard"
)

// make makes the tools that the options ask for.
func (p *Plugin) make(opts Options) ([]Tool, error) {
	workspace, err := filepath.Abs(p.env.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	files := newFiles(p.root, p.set.maxOutput, p.env.Wall, p.set.Services)
	c := &children{files: files, workspace: workspace, maxOutput: p.set.maxOutput, spill: p.set.spill, launcher: p.env.Launcher, secrets: p.env.Secrets}
	if !opts.NetworkDisabled {
		c.network = sandbox.NetworkHost
	}
	// all of this waits for the first use: looking up folders and programs takes
	// longer than the rest of the start
	c.dirs = sync.OnceValue(func() []string { return sandbox.SafePath(os.Getenv("PATH"), workspace) })
	if c.launcher == nil {
		c.launcher = sync.OnceValues(func() (*sandbox.Launcher, error) {
			launcher, err := sandbox.New(sandbox.Options{Path: c.dirs(), Workspace: workspace})
			p.launcher.Store(launcher)
			return launcher, err
		})
	}
	names := opts.AllowedCommands
	if names == nil {
		names = sandbox.DefaultCommands()
		if opts.Exec == sandbox.ExecStrict {
			names = sandbox.StrictCommands()
		}
	}
	c.allow = sync.OnceValues(func() (*sandbox.AllowList, error) {
		return sandbox.NewAllowList(names, c.dirs(), workspace, opts.Exec == sandbox.ExecStrict)
	})
	p.http = newHTTPGet(httpConfig{Options: webguard.Options{AllowPrivate: opts.HTTPAllowPrivate}, maxOutput: p.set.maxOutput})
	all := builtin(files, p.http, c)
	var problems []error
	for _, cfg := range opts.Commands {
		t, err := newCommandTool(cfg, c)
		if err != nil {
			problems = append(problems, fmt.Errorf("commands: tool %q: %w", cfg.Name, err))
		}
		all = append(all, t)
	}
	return all, errors.Join(problems...)
}

func builtin(f *files, h *httpGet, c *children) []Tool {
	return append(f.tools(), newEcho(), h.tool(), newRunCommand(c))
}

// BuiltinNames lists the tools that every plugin has.
func BuiltinNames() []string {
	var names []string
	for _, t := range builtin(new(files), new(httpGet), new(children)) {
		names = append(names, t.Def.Name)
	}
	return names
}
