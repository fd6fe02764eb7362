package sandbox

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
)

// child is one started tree, as a platform runs it.
type child interface {
	// wait blocks until the whole tree is gone. ok is false when the command's own
	// end is not known.
	wait() (state State, ok bool, err error)
	// reaped blocks until nothing is left of what held the tree either.
	reaped()
	// kill ends the whole tree; it does not wait, and may be called at any time.
	kill()
	// signal sends one signal to the command's process group.
	signal(sig syscall.Signal) error
	pid() int
}

// Process is one command with everything it started.
type Process struct {
	child  child
	places []string // folders that are its own to fill
	kept   string   // its home that stays; "" = none
	killed atomic.Bool
	why    atomic.Pointer[error] // for which it was killed; nil = ErrKilled

	done  chan struct{}
	state State // set before done is closed
	err   error // set before done is closed
}

// PID is the command's, as the host sees it; within the tree it has another. On
// Linux it is that of the launcher if the command ended at once.
func (p *Process) PID() int { return p.child.pid() }

// Kill ends the whole tree with SIGKILL. It does not wait; Done and Wait do.
func (p *Process) Kill() {
	p.killed.Store(true)
	p.child.kill()
}

// fail is Kill with an error for Wait.
func (p *Process) fail(err error) {
	p.why.CompareAndSwap(nil, &err)
	p.Kill()
}

// Signal sends sig to the command's process group. An error says that the tree
// has ended, or that the platform has no such signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.child.signal(sig) }

// Done is closed when the tree is gone and its output was passed on.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for Done. The state is the command's own end, exactly. The error
// is nil if the command ended by itself, else the cause of the context,
// ErrKilled, ErrMemory, ErrDisk, ErrLauncher, or what a Stdout or Stderr writer returned.
func (p *Process) Wait() (State, error) {
	<-p.done
	return p.state, p.err
}

// supervise waits for the end of the tree, then for its output.
func (p *Process) supervise(ctx context.Context, streams *streams) {
	stop := context.AfterFunc(ctx, p.child.kill)
	state, ok, err := p.child.wait()
	stop()
	copyErr := streams.finish()
	asked := ctx.Err() != nil || p.killed.Load()
	if asked && state.Signal == syscall.SIGKILL {
		ok = false // it is our own signal
	}
	switch {
	case ok && err == nil:
		p.state, p.err = state, copyErr
	case ctx.Err() != nil:
		p.state, p.err = killedState(), context.Cause(ctx)
	case p.killed.Load():
		p.state, p.err = killedState(), ErrKilled
		if why := p.why.Load(); why != nil {
			p.err = *why
		}
	case errors.Is(err, ErrMemory):
		p.state, p.err = killedState(), err
	case err == nil:
		p.state, p.err = killedState(), ErrLauncher
	default:
		p.state, p.err = killedState(), errors.Join(ErrLauncher, err)
	}
}

func killedState() State { return State{Code: -1, Signal: syscall.SIGKILL} }
