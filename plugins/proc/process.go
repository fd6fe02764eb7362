package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// Why a process was stopped; these are causes of its context.
var (
	errTimedOut     = errors.New("its time was up")
	errKilled       = errors.New("killed with SIGKILL")
	errSessionEnded = errors.New("killed at the end of its session")
	errClosed       = protocol.Errorf(protocol.CodeRuntimeError, "the host shuts down; nothing is started any more")
)

// process is one spawned process. It outlives its end, so that it can be asked
// about.
type process struct {
	id      string
	cmd     []string // shortened
	pid     int
	started time.Time
	session *session

	stop context.CancelCauseFunc
	done chan struct{} // closed when the state is final
	sent chan struct{} // closed when the last event is sent, or never will be

	mu      sync.Mutex              // guards the fields below
	state   protocol.ProcState      //
	code    int                     // exit code, once it is not running
	failure string                  // why it is neither running nor completed
	asked   map[syscall.Signal]bool // signals that the agent sent
	live    *live                   // nil once the last event is sent
}

// live is what a process has while it runs.
type live struct {
	child  *sandbox.Process
	feed   *host.Feed
	output *backlog
	ends   []func()  // flush what the writers of output still hold
	input  *stdin    // nil with stdin_mode null
	tty    *terminal // nil without a pty
}

// ended tells whether the process is over.
func (r *process) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state != protocol.ProcRunning
}

// running gives what can be done with a running process. The error says that it
// is over.
func (r *process) running() (*live, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == protocol.ProcRunning {
		return r.live, nil
	}
	reason := ""
	if r.failure != "" {
		reason = ": " + r.failure
	}
	return nil, protocol.Errorf(protocol.CodeProcDead, "the process %s is over (%s%s)", r.id, r.state, reason)
}

// drop gives up what its events still had to say.
func (r *process) drop() {
	r.mu.Lock()
	l := r.live
	r.mu.Unlock()
	if l != nil {
		l.output.close()
		l.feed.Close()
	}
}

// begin starts the goroutines of a process. ctx is the process's own; free is
// called when it is over.
func (p *Plugin) begin(ctx context.Context, r *process, free func()) {
	l := r.live
	hurry := context.AfterFunc(ctx, l.output.hurry)
	p.goes.Go(func() {
		defer hurry()
		defer free()
		p.await(r, l)
	})
	p.goes.Go(func() { r.report(l) })
	if l.input != nil {
		p.goes.Go(l.input.feed)
	}
}

// await waits for the end of a process and settles what became of it.
func (p *Plugin) await(r *process, l *live) {
	state, err := l.child.Wait()
	if l.input != nil {
		l.input.close()
	}
	if l.tty != nil {
		l.tty.finish()
	}
	for _, end := range l.ends {
		end()
	}
	r.settle(state, err)
	if errors.Is(err, sandbox.ErrLauncher) {
		p.env.Log.Warn().Err(err).Str("proc_id", r.id).Msg("a process was lost")
	}
	p.procs.bury(r)
	r.stop(nil)
	close(r.done)
	l.output.end()
}

// settle makes the end of a process its state.
func (r *process) settle(end sandbox.State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.code = end.Code; end.Signal != 0 {
		r.code = 128 + int(end.Signal)
	}
	switch {
	case errors.Is(err, errTimedOut):
		r.state = protocol.ProcTimedOut
		r.failure = "stopped: it ran longer than its timeout"
	case errors.Is(err, sandbox.ErrLauncher), errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrDisk), errors.Is(err, sandbox.ErrProcesses):
		r.state, r.failure = protocol.ProcFailed, err.Error()
	case err != nil:
		r.state, r.failure = protocol.ProcKilled, err.Error()
	case r.askedLocked(end):
		r.state = protocol.ProcKilled
		r.failure = "ended by " + signalName(syscall.Signal(r.code-128)) + ", as was asked"
	case end.Signal != 0:
		r.state = protocol.ProcFailed
		r.failure = "ended by " + signalName(end.Signal)
	case end.Code != 0:
		r.state, r.failure = protocol.ProcFailed, fmt.Sprintf("exit status %d", end.Code)
	default:
		r.state = protocol.ProcCompleted
	}
}

// askedLocked tells whether a process ended by a signal that the agent sent, or
// says so itself in the way of shells.
func (r *process) askedLocked(end sandbox.State) bool {
	return end.Signal != 0 && r.asked[end.Signal] || end.Code > 128 && r.asked[syscall.Signal(end.Code-128)]
}

// report sends the events of a process, the last one included.
func (r *process) report(l *live) {
	defer close(r.sent)
	s := &sender{procID: r.id, send: func(e *readEvent) error { return l.feed.Send(protocol.TypeProcReadEvent, e) }}
	err := s.run(l.output)
	if err != nil { // nobody listens any more: the session is over, or the spawn was answered with an error
		l.output.close()
		r.stop(errSessionEnded)
	}
	<-r.done
	r.mu.Lock()
	code := r.code
	if r.state == protocol.ProcKilled || r.state == protocol.ProcTimedOut {
		code = -1
	}
	r.live = nil
	r.mu.Unlock()
	if err == nil {
		_ = s.exit(code) // the session may end meanwhile; then nobody listens
	}
	l.feed.Close()
}
