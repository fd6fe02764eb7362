package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

// selfName is the command that stands for this program where the PATH has no such.
const selfName = "a2e"

// program is what a worker's command stands for, once it was looked up.
type program struct {
	mu   sync.Mutex // guards the fields below
	path string     // "" = not looked up, or gone
	read []string   // what it needs to read beyond what the sandbox finds out
}

// start starts a process of the worker, which is killed when ctx ends. vars come on top of
// the config's variables; agent is whom it works for, nil = nobody in particular.
func (r *runner) start(ctx context.Context, s streams, vars map[string]string, agent *fleet.Agent) (*sandbox.Process, error) {
	policy, err := r.policy()
	if err != nil {
		return nil, err
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	if policy.HostEnv, err = r.environment(vars, agent); err != nil {
		return nil, err
	}
	policy.Stdin, policy.Stdout, policy.Stderr, policy.Silent = s.in, s.out, s.err, s.silent
	launcher, err := r.pool.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("programs cannot be started: %w", err)
	}
	proc, err := launcher.Command(ctx, policy)
	if err != nil {
		r.program.forget()
	}
	return proc, err
}

// policy says what to start. Its DirFile, if any, is the caller's to close.
func (r *runner) policy() (sandbox.Policy, error) {
	path, read, err := r.lookUp()
	if err != nil {
		return sandbox.Policy{}, err
	}
	for _, name := range r.Read {
		read = append(read, r.pool.absolute(name))
	}
	policy := sandbox.Policy{Path: path, Args: slices.Clone(r.Command), Read: read, Home: sandbox.HomeOwn}
	for _, name := range r.Write {
		policy.Write = append(policy.Write, r.pool.absolute(name))
	}
	if policy.Write, err = r.share(policy.Write); err != nil {
		return sandbox.Policy{}, err
	}
	if !r.bare() {
		policy.Args[0] = path // an interpreter looks for its own folder by this name
	}
	if r.Network {
		policy.Network = sandbox.NetworkHost
	}
	if filepath.IsAbs(r.Cwd) {
		if policy.Dir = filepath.Clean(r.Cwd); !slices.ContainsFunc(append(policy.Write, r.pool.workspace), func(dir string) bool { return within(dir, policy.Dir) }) {
			policy.Read = append(policy.Read, policy.Dir)
		}
		return policy, nil
	}
	root, err := os.OpenRoot(r.pool.workspace)
	if err != nil {
		return policy, fmt.Errorf("workspace: %w", err)
	}
	defer root.Close()
	policy.DirFile, policy.Dir, err = sandbox.OpenWorkdir(root, r.pool.workspace, r.Cwd)
	if err != nil {
		return policy, fmt.Errorf("cwd of the worker: %w", err)
	}
	return policy, nil
}

// lookUp gives the path of the program. That of a name is kept until a start fails.
func (r *runner) lookUp() (path string, read []string, err error) {
	g := &r.program
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.path == "" {
		if g.path, g.read, err = r.find(); err != nil {
			return "", nil, err
		}
	}
	return g.path, slices.Clone(g.read), nil
}

// forget has the program looked up anew.
func (g *program) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.path = ""
}

// find looks the program up. An interpreter of a virtual environment is a link, and knows
// by the file beside its folder where its libraries are.
func (r *runner) find() (path string, read []string, err error) {
	name, workspace := r.Command[0], r.pool.workspace
	if r.bare() {
		path, err = sandbox.LookPath(name, r.pool.safePath(), workspace)
		if err == nil || name != selfName {
			return path, nil, err
		}
		path, err = os.Executable()
		return path, nil, err
	}
	path = r.pool.absolute(name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("program %q does not exist", name)
	}
	if within(workspace, path) {
		return path, nil, nil // the workspace is there as a whole
	}
	home := filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(home, "pyvenv.cfg")); err == nil {
		read = append(read, home)
	}
	return path, read, nil
}

// within tells whether a path is dir or lies below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// runs notes that the program could be started.
func (r *runner) runs() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.health.found()
}

// fails notes that it could not.
func (r *runner) fails(err error) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	r.health.lost(p.env.Now(), err, 0, false, false, p.pace.rest)
	if r.Mode == ModeFleet && r.health.condition(p.env.Now()) == conditionDown {
		r.evictLocked()
	}
	p.env.Log.Warn().Err(err).Str("worker", r.Name).Msg("a worker cannot be started")
}
