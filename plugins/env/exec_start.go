package env

import (
	"context"
	"errors"
	"time"

	"a2e/host/child"
	"a2e/protocol"
)

// restarts is how a program is started anew. One that ends within 10 seconds counts as one
// that cannot run.
func restarts() child.Backoff {
	return child.Backoff{First: 500 * time.Millisecond, Most: 30 * time.Second, Free: 1, Enough: 10 * time.Second}
}

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
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the program of the environment ended soon after its start %d times in a row; the next start may be in %s. The last time: %w",
			x.down.Failures, wait.Round(time.Millisecond), x.down.Last).With("retry_after", wait.Seconds())
	}
	return nil, nil
}

// lostLocked notes how a program ended, or did not start.
func (x *external) lostLocked(err error, lived time.Duration) {
	x.down.Down(x.env.Now(), err, lived, false)
	x.env.Log.Warn().Err(err).Msg("the program of the environment has ended")
}

// begin starts a program and asks it for its space: one that answers is there.
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
		if x.space == nil { // it does not change
			x.space = &space
		}
	} else if s.err = err; !x.closed {
		x.lostLocked(err, 0)
	}
	close(s.done)
}

// execStopped is the error of a request whose context ended before its answer came.
func execStopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "the time of the request was up before the program of the environment answered; a longer \"timeout\" gives it more: %w", cause)
	}
	return cause
}
