package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/child"
	"a2e/protocol"
)

// ExecOptions are the options of the environment `exec`: a program that speaks the env/* messages on its
// stdin and stdout. One process serves all episodes.
//
//	external.go        the environment, its starts   external_child.go  one process: requests and answers
//	external_world.go  one episode, its space
//
// The way of a request and its answer:
//
//	call ── outbox ── one write for all that waits ──► program
//	call ◄── by req_id, in any order ── splitter ◄──── program
type ExecOptions struct {
	Command         []string          `yaml:"command" doc:"The program and its arguments. A bare name is looked up on the PATH, one with a slash is relative to the workspace."`
	EnvName         string            `yaml:"env_name" doc:"What env_name calls the environment, also towards the program; default: exec."`
	Cwd             string            `yaml:"cwd" doc:"The folder it runs in, relative to the workspace or absolute; default: the workspace."`
	Env             map[string]string `yaml:"env" secret:"yes" doc:"Further environment variables of the program."`
	Read            []string          `yaml:"read" doc:"Further files and folders that it may read, relative to the workspace or absolute."`
	Timeout         time.Duration     `yaml:"timeout" doc:"Seconds that one request may take; 0 = 30."`
	StartTimeout    time.Duration     `yaml:"start_timeout" doc:"Seconds until the program must have answered its first request; 0 = 60."`
	NetworkDisabled *bool             `yaml:"network_disabled" doc:"Keep the network from the program; default: true."`
	Restart         *bool             `yaml:"restart" doc:"Start the program anew for the next episode after it ended; default: true."`
}

// closeGrace is how long the program may take to end by itself after its input was closed.
const closeGrace = time.Second

// errExecClosed is the reason why a program is stopped when the host closes.
var errExecClosed = errors.New("the host closes the environment")

// external is the environment `exec`.
type external struct {
	opts      ExecOptions
	env       host.Env
	workspace string        // absolute
	grace     time.Duration // closeGrace; tests set more

	ctx  context.Context // context of the programs
	stop context.CancelCauseFunc
	goes sync.WaitGroup // all goroutines; Go is called under mu, while closed is false

	mu     sync.Mutex    // guards the fields below
	child  *execChild    // the last one that was started; it may have ended; nil = none
	start  *execStart    // the start that is running; nil = none
	space  *Space        // nil until the first program has sent it
	down   child.Backoff // how the last program ended, and when the next one may start
	closed bool
}

// newExec makes the environment `exec`, without starting the program. The error says which option does not
// fit.
func newExec(opts ExecOptions, e host.Env) (Environment, error) {
	if err := child.CheckCommand(opts.Command, "the program that serves the environment, such as [python3, "+
		"gym_env.py, CartPole-v1]"); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	switch {
	case opts.Timeout < 0 || opts.StartTimeout < 0:
		return nil, errors.New("exec: timeout and start_timeout should be 0 or more seconds")
	case e.Launcher == nil:
		return nil, errors.New("exec: it needs a launcher to start the program with")
	}
	opts.EnvName = cmp.Or(opts.EnvName, "exec")
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	opts.StartTimeout = cmp.Or(opts.StartTimeout, time.Minute)
	e = e.WithDefaults()
	workspace, err := filepath.Abs(e.Workspace)
	if err != nil {
		return nil, fmt.Errorf("exec: workspace: %w", err)
	}
	if _, err := os.Stat(workspace); err != nil {
		return nil, fmt.Errorf("exec: workspace: %w", err)
	}
	e.Log = e.Log.With().Str("environment", opts.EnvName).Logger()
	x := &external{opts: opts, env: e, workspace: workspace, grace: closeGrace}
	x.down = child.Backoff{First: 500 * time.Millisecond, Most: 30 * time.Second, Free: 1, Enough: 10 * time.Second}
	x.ctx, x.stop = context.WithCancelCause(context.Background())
	return x, nil
}

// Name implements Environment.
func (x *external) Name() string { return x.opts.EnvName }

// Reset implements Environment. It starts the program if none runs.
func (x *external) Reset(ctx context.Context, r Reset) (World, error) {
	c, err := x.running(ctx)
	if err != nil {
		return nil, err
	}
	w := &execWorld{child: c, push: r.Push, within: x.opts.Timeout}
	err = w.look(ctx, protocol.TypeEnvResetReq, &protocol.EnvResetRequest{
		EnvName: x.opts.EnvName, Seed: &r.Seed, Options: r.Options,
	}, nil)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Close implements Environment. It closes the program's input, and kills the program if it does not end
// then.
func (x *external) Close(ctx context.Context) error {
	x.mu.Lock()
	x.closed = true
	c := x.child
	x.mu.Unlock()
	if c != nil {
		c.Close()
		c.Await(ctx, x.grace)
	}
	x.stop(errExecClosed)
	x.goes.Wait()
	return nil
}

// execStart is one start of the program.
type execStart struct {
	done  chan struct{} // closed when the fields below are set
	child *execChild
	err   error
}

// running returns the running program, and starts one if there is none. Requests that come meanwhile wait
// for the same start, which goes on even if they end.
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

// aliveLocked returns the running program. If it returns neither a program nor an error, another one may
// be started now.
func (x *external) aliveLocked() (*execChild, error) {
	if x.closed {
		return nil, errExecClosed
	}
	if c := x.child; c != nil {
		select {
		case <-c.Done():
			x.child = nil
			x.lostLocked(c.End(), c.End().Lived)
		default:
			return c, nil
		}
	}
	if x.down.Last == nil {
		return nil, nil
	}
	if x.opts.Restart != nil && !*x.opts.Restart {
		return nil, protocol.Errorf(protocol.CodeResetDenied, "the config has restart: false, and %w", x.down.Last)
	}
	if wait := x.down.Wait(x.env.Now()); wait > 0 {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the program of the environment ended soon after its "+
			"start %d times in a row; the next start may be in %s. The last time: %w",
			x.down.Failures, wait.Round(time.Millisecond), x.down.Last).With("retry_after", wait.Seconds())
	}
	return nil, nil
}

// lostLocked records that a program ended or did not start.
func (x *external) lostLocked(err error, lived time.Duration) {
	x.down.Down(x.env.Now(), err, lived, false)
	x.env.Log.Warn().Err(err).Msg("the program of the environment has ended")
}

// begin starts a program and asks it for its space; a program that answers counts as running.
func (x *external) begin(s *execStart) {
	c, err := x.launch()
	var space Space
	if err == nil {
		space, err = c.space(x.ctx, x.opts.EnvName, x.opts.StartTimeout)
		if err != nil {
			c.Kill(err)
			<-c.Done()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.start = nil; err == nil {
		x.child, s.child = c, c
		if x.space == nil { // the space does not change
			x.space = &space
		}
	} else if s.err = err; !x.closed {
		x.lostLocked(err, 0)
	}
	close(s.done)
}

// execStopped returns the error of a request whose context ended before the answer came.
func execStopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "the time of the request was up before the program of the "+
			"environment answered; a longer \"timeout\" gives it more: %w", cause)
	}
	return cause
}
