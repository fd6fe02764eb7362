package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"a2e/host/sandbox"
	"a2e/protocol"
)

// A program that ends within soonAfter of its start counts as one that cannot run. From
// the second in a row each start waits, twice as long as the one before.
const (
	soonAfter  = 10 * time.Second
	firstDelay = 500 * time.Millisecond
	maxDelay   = 30 * time.Second
)

// execStart is a start under way.
type execStart struct {
	done  chan struct{} // closed when the fields below are set
	child *execChild
	err   error
}

// running gives the program that runs, and starts one if none does. All who come
// meanwhile wait for the same start, which goes on without them.
func (x *external) running(ctx context.Context) (*execChild, error) {
	x.mu.Lock()
	s := x.start
	if s == nil {
		c, err := x.aliveLocked()
		if c != nil || err != nil {
			x.mu.Unlock()
			return c, err
		}
		s = &execStart{done: make(chan struct{})}
		x.start = s
		x.goes.Go(func() { x.begin(s) })
	}
	x.mu.Unlock()
	select {
	case <-s.done:
		return s.child, s.err
	case <-ctx.Done():
		return nil, execStopped(ctx)
	}
}

// aliveLocked gives the program that runs. Without one and without an error another may
// be started now.
func (x *external) aliveLocked() (*execChild, error) {
	if x.closed {
		return nil, errExecClosed
	}
	if c := x.child; c != nil {
		select {
		case <-c.done:
			x.child = nil
			x.lostLocked(c.end, c.ended.Sub(c.started))
		default:
			return c, nil
		}
	}
	if x.last == nil {
		return nil, nil
	}
	if x.opts.Restart != nil && !*x.opts.Restart {
		return nil, protocol.Errorf(protocol.CodeResetDenied, "the config has restart: false, and %w", x.last)
	}
	if wait := x.ready.Sub(x.env.Now()); wait > 0 {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the program of the environment ended soon after its start %d times in a row; the next start may be in %s. The last time: %w",
			x.early, wait.Round(time.Millisecond), x.last).With("retry_after", wait.Seconds())
	}
	return nil, nil
}

// lostLocked notes how a program ended, or did not start.
func (x *external) lostLocked(err error, lived time.Duration) {
	x.last = err
	if x.early++; lived >= soonAfter {
		x.early = 0
	}
	x.ready = x.env.Now()
	if x.early > 1 {
		x.ready = x.ready.Add(min(firstDelay<<min(x.early-2, 10), maxDelay))
	}
	x.env.Log.Warn().Err(err).Msg("the program of the environment has ended")
}

// begin starts a program and asks it for its space: one that answers is there.
func (x *external) begin(s *execStart) {
	c, err := x.launch()
	var space Space
	if err == nil {
		space, err = c.space(x.ctx, x.opts.EnvName, x.opts.StartTimeout)
		if err != nil {
			c.kill(err)
			<-c.done
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.start = nil; err == nil {
		x.child, s.child = c, c
		if x.space == nil { // it does not change
			x.space = &space
		}
	} else if s.err = err; !x.closed {
		x.lostLocked(err, 0)
	}
	close(s.done)
}

// launch starts the program.
func (x *external) launch() (*execChild, error) {
	policy, err := x.policy()
	if err != nil {
		return nil, err
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	launcher, err := x.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("programs cannot be started: %w", err)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the program of the environment was not started: %w", err)
	}
	defer theirs.Close()
	c := newExecChild(x.env.Log, x.env.Now, ours)
	ctx, stop := context.WithCancelCause(x.ctx)
	c.kill = stop
	policy.Stdin, policy.Stdout, policy.Stderr = theirs, c.stdout, c.stderr
	proc, err := launcher.Command(ctx, policy)
	if err != nil {
		ours.Close()
		stop(err)
		return nil, fmt.Errorf("the program of the environment was not started: %w", err)
	}
	x.goes.Go(func() { c.input.Run(c.done, c.kill, closeGrace) })
	x.goes.Go(func() { c.wait(proc) })
	return c, nil
}

// policy says what to start. Its DirFile, if any, is the caller's to close.
func (x *external) policy() (sandbox.Policy, error) {
	path, read, err := x.program()
	if err != nil {
		return sandbox.Policy{}, err
	}
	for _, name := range x.opts.Read {
		read = append(read, x.absolute(name))
	}
	policy := sandbox.Policy{Path: path, Args: slices.Clone(x.opts.Command), HostEnv: x.opts.Env, Read: read, Home: sandbox.HomeOwn}
	if filepath.Base(policy.Args[0]) != policy.Args[0] {
		policy.Args[0] = path // an interpreter looks for its own folder by this name
	}
	if x.opts.NetworkDisabled != nil && !*x.opts.NetworkDisabled {
		policy.Network = sandbox.NetworkHost
	}
	if filepath.IsAbs(x.opts.Cwd) {
		policy.Dir, policy.Read = filepath.Clean(x.opts.Cwd), append(policy.Read, x.opts.Cwd)
		return policy, nil
	}
	policy.DirFile, policy.Dir, err = sandbox.OpenWorkdir(x.root, x.workspace, x.opts.Cwd)
	if err != nil {
		return policy, fmt.Errorf("cwd of the environment: %w", err)
	}
	return policy, nil
}

// program gives the path of the program, and what it needs to read beyond what the
// sandbox finds out: an interpreter of a virtual environment is a link, and knows by
// the file beside its folder where its libraries are.
func (x *external) program() (path string, read []string, err error) {
	name := x.opts.Command[0]
	if filepath.Base(name) == name {
		path, err = sandbox.LookPath(name, sandbox.SafePath(os.Getenv("PATH"), x.workspace), x.workspace)
		return path, nil, err
	}
	path = x.absolute(name)
	rel, err := filepath.Rel(x.workspace, path)
	if err == nil && filepath.IsLocal(rel) {
		return path, nil, nil // the workspace is there as a whole; what the agent puts there opens no more
	}
	home := filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(home, "pyvenv.cfg")); err == nil {
		read = append(read, home)
	}
	return path, read, nil
}

// absolute gives the path of a name that is relative to the workspace.
func (x *external) absolute(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(x.workspace, name)
}

// execStopped is the error of a request whose context ended before its answer came.
func execStopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "the time of the request was up before the program of the environment answered; a longer \"timeout\" gives it more: %w", cause)
	}
	return cause
}

// execEnd says how a program ended, and its episodes with it: so it is no
// *protocol.Error.
type execEnd struct {
	how   string
	words string // the end of its stderr
}

// Error implements error.
func (e *execEnd) Error() string {
	if e.words = strings.TrimSpace(e.words); e.words == "" {
		return "the program of the environment ended: " + e.how
	}
	return "the program of the environment ended: " + e.how + "; its stderr ends with: " + e.words
}
