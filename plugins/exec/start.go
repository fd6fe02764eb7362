package exec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"a2e/host/sandbox"
)

// launch starts a child. It has not shaken hands yet.
func (p *Plugin) launch() (*child, error) {
	policy, err := p.policy()
	if err != nil {
		return nil, err
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	launcher, err := p.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("programs cannot be started: %w", err)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the child was not started: %w", err)
	}
	defer theirs.Close()
	c := newChild(p, ours)
	c.ctx, c.kill = context.WithCancelCause(p.ctx)
	policy.Stdin, policy.Stdout, policy.Stderr = theirs, c.stdout, c.stderr
	proc, err := launcher.Command(c.ctx, policy)
	if err != nil {
		ours.Close()
		c.kill(err)
		return nil, fmt.Errorf("the child was not started: %w", err)
	}
	c.pid = proc.PID()
	p.goes.Go(func() { c.input.Run(c.done, c.kill, p.times.farewell) })
	p.goes.Go(func() { c.wait(proc) })
	return c, nil
}

// policy says what to start. Its DirFile, if any, is the caller's to close.
func (p *Plugin) policy() (sandbox.Policy, error) {
	path, read, err := p.program()
	if err != nil {
		return sandbox.Policy{}, err
	}
	for _, name := range p.opts.Read {
		read = append(read, p.absolute(name))
	}
	policy := sandbox.Policy{Path: path, Args: slices.Clone(p.opts.Command), HostEnv: p.opts.Env, Read: read, Home: sandbox.HomeOwn}
	if filepath.Base(policy.Args[0]) != policy.Args[0] {
		policy.Args[0] = path // an interpreter looks for its own folder by this name
	}
	if p.opts.Network {
		policy.Network = sandbox.NetworkHost
	}
	if filepath.IsAbs(p.opts.Cwd) {
		policy.Dir, policy.Read = filepath.Clean(p.opts.Cwd), append(policy.Read, p.opts.Cwd)
		return policy, nil
	}
	policy.DirFile, policy.Dir, err = sandbox.OpenWorkdir(p.root, p.workspace, p.opts.Cwd)
	if err != nil {
		return policy, fmt.Errorf("cwd: %w", err)
	}
	return policy, nil
}

// program gives the path of the program, and what it needs to read beyond what the
// sandbox finds out: an interpreter of a virtual environment is a link, and knows by the
// file beside its folder where its libraries are.
func (p *Plugin) program() (path string, read []string, err error) {
	name := p.opts.Command[0]
	if filepath.Base(name) == name {
		path, err = sandbox.LookPath(name, sandbox.SafePath(os.Getenv("PATH"), p.workspace), p.workspace)
		return path, nil, err
	}
	path = p.absolute(name)
	if rel, err := filepath.Rel(p.workspace, path); err == nil && filepath.IsLocal(rel) {
		return path, nil, nil // the workspace is there as a whole; what the agent puts there opens no more
	}
	home := filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(home, "pyvenv.cfg")); err == nil {
		read = append(read, home)
	}
	return path, read, nil
}

// absolute gives the path of a name that is relative to the workspace.
func (p *Plugin) absolute(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(p.workspace, name)
}
