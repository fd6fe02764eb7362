package proc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"a2e/host/sandbox"
)

// refusal is an error that a spawn answers with ok false, in these words.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// policy says what to start: cmd in the folder cwd of the workspace. release
// gives back what it holds. The error is a refusal.
func (p *Plugin) policy(cmd []string, cwd string, env map[string]string) (policy sandbox.Policy, release func(), err error) {
	if len(cmd) == 0 {
		return policy, nil, refuse("cmd is empty; it needs at least the bare name of a program")
	}
	for i, word := range cmd {
		if strings.ContainsRune(word, 0) {
			return policy, nil, refuse("word %d of cmd has a NUL character in it", i)
		}
	}
	allowed, err := p.allow()
	if err != nil {
		return policy, nil, refusal{err}
	}
	path, err := allowed.Resolve(cwd, cmd...)
	if err != nil {
		return policy, nil, refusal{err}
	}
	if err := p.checkEnv(env); err != nil {
		return policy, nil, refusal{err}
	}
	dir, abs, err := sandbox.OpenWorkdir(p.root, p.workspace, cwd)
	if err != nil {
		return policy, nil, refuse("cwd: %w", err)
	}
	policy = sandbox.Policy{Path: path, Args: cmd, Dir: abs, DirFile: dir, Env: env, Home: sandbox.HomeShared}
	if !p.opts.NetworkDisabled {
		policy.Network = sandbox.NetworkHost
	}
	return policy, func() { dir.Close() }, nil
}

// checkEnv tells which variable of a request may not be set.
func (p *Plugin) checkEnv(env map[string]string) error {
	for name, value := range env {
		if err := sandbox.CheckEnv(name, value); err != nil {
			return err
		}
		if p.opts.EnvAllow != nil && !slices.Contains(p.opts.EnvAllow, name) {
			return &sandbox.EnvError{Name: name, Reason: "it is not in env_allow of the config, which has: " + strings.Join(p.opts.EnvAllow, ", ")}
		}
	}
	return nil
}

// command starts a child, unless ctx, the request's, ends first. It lives as
// long as own. The error is a refusal when the child cannot be started.
func (p *Plugin) command(ctx, own context.Context, policy sandbox.Policy) (*sandbox.Process, error) {
	launcher, err := p.env.Launcher()
	if err != nil {
		return nil, refuse("processes cannot be started: %w", err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	child, err := launcher.Command(own, policy)
	switch {
	case err == nil:
		return child, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case own.Err() != nil:
		return nil, context.Cause(own)
	}
	return nil, refuse("the process was not started: %w", err)
}
