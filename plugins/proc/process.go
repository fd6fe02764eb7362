package proc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"a2e/host"
	"a2e/host/guard/redact"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// The reasons why a process was stopped; they are causes of its context.
var (
	errTimedOut     = errors.New("its time was up")
	errKilled       = errors.New("killed with SIGKILL")
	errSessionEnded = errors.New("killed at the end of its session")
	errClosed       = protocol.Errorf(protocol.CodeRuntimeError, "the host shuts down; nothing is started any more")
)

// process is one spawned process. It is kept after its end, so that the agent can ask for its
// status.
type process struct {
	id      string
	cmd     []string // shortened
	pid     int
	started time.Time
	session *sessionProcs

	stop context.CancelCauseFunc
	done chan struct{} // closed when the state is final
	sent chan struct{} // closed when the last event is sent, or never will be

	mu      sync.Mutex              // guards the fields below
	state   protocol.ProcState      //
	code    int                     // exit code, once it is not running
	failure string                  // why its state is neither running nor completed
	asked   map[syscall.Signal]bool // signals that the agent sent
	live    *live                   // nil once the last event is sent
}

// live is what a process has while it runs.
type live struct {
	child  *sandbox.Process
	feed   *host.Stream
	output *backlog
	ends   []func()  // flush output that the writers still hold
	input  *stdin    // nil with stdin_mode null
	tty    *terminal // nil without a pty

	secrets *redact.Set // masked in the output
}

// ended reports whether the process is over.
func (r *process) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state != protocol.ProcRunning
}

// running returns the live part of a process, or an error if the process has
// ended.
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

// drop drops the events that are not sent yet.
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
// called after its end.
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

// await waits for the end of a process and stores its final state.
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

// settle sets the final state of a process.
func (r *process) settle(end sandbox.State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code = exitCode(end)
	by := syscall.Signal(r.code - 128) // the signal that ended it, or that it reports by its exit code, as shells do
	switch {
	case errors.Is(err, errTimedOut):
		r.state = protocol.ProcTimedOut
		r.failure = "stopped: it ran longer than its timeout"
	case errors.Is(err, sandbox.ErrLauncher), errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrDisk),
		errors.Is(err, sandbox.ErrProcesses):
		r.state, r.failure = protocol.ProcFailed, err.Error()
	case err != nil:
		r.state, r.failure = protocol.ProcKilled, err.Error()
	case r.asked[by]:
		r.state, r.failure = protocol.ProcKilled, "ended by "+signalName(by)+", as was asked"
	case end.Signal != 0:
		r.state = protocol.ProcFailed
		r.failure = "ended by " + signalName(end.Signal)
	case end.Code != 0:
		r.state, r.failure = protocol.ProcFailed, fmt.Sprintf("exit status %d", end.Code)
	default:
		r.state = protocol.ProcCompleted
	}
}

// exitCode returns the exit code of a process as shells report it.
func exitCode(end sandbox.State) int {
	if end.Signal != 0 {
		return 128 + int(end.Signal)
	}
	return end.Code
}

// report sends the events of a process, the last one included.
func (r *process) report(l *live) {
	defer close(r.sent)
	s := &sender{procID: r.id, send: func(e *readEvent) error { return l.feed.Send(protocol.TypeProcReadEvent, e) }}
	err := s.run(l.output)
	if err != nil { // nobody reads events any more: the session has ended, or the spawn was answered with an error
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
		_ = s.exit(code) // after an error the session has ended, and nobody reads events
	}
	l.feed.Close()
}

// maxRemembered is the number of ended processes that each session keeps.
const maxRemembered = 1000

// registry has the processes of each session.
type registry struct {
	plugin string
	limit  int // processes at once

	mu       sync.Mutex // guards the fields below
	closed   bool
	busy     int // number of processes that run or are being started
	last     int // number in the last id
	sessions map[*host.Session]*sessionProcs
}

// sessionProcs has the processes of one session. Its fields are guarded by registry.mu.
type sessionProcs struct {
	ended  bool
	procs  map[string]*process
	order  []*process // in the order of their start
	buried int        // how many of procs have ended
}

func (g *registry) init(plugin string, limit int) {
	g.plugin, g.limit, g.sessions = plugin, limit, make(map[*host.Session]*sessionProcs)
}

// enter takes one of the slots for running processes, which leave or bury frees, and counts
// the caller as one of the plugin's goroutines.
func (p *Plugin) enter() error {
	g := &p.procs
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return errClosed
	case g.busy >= g.limit:
		return protocol.Errorf(protocol.CodeProcLimit,
			"%s running, which is all that max_procs of the plugin %q allows; kill one or wait for its "+
				"end", protocol.Count(g.busy, "process"), g.plugin)
	}
	g.busy++
	p.goes.Add(1)
	return nil
}

// leave frees a place.
func (g *registry) leave() {
	g.mu.Lock()
	g.busy--
	g.mu.Unlock()
}

// newID returns an id that no other process of this host has or had: it contains the
// plugin's name, which is unique in a host.
func (g *registry) newID() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	return fmt.Sprintf("p%d-%s", g.last, g.plugin)
}

// add adds a process to its session; false = the session or the plugin has
// ended meanwhile.
func (g *registry) add(r *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := r.session
	if g.closed || in.ended {
		return false
	}
	in.procs[r.id] = r
	in.order = append(in.order, r)
	return true
}

// of returns the processes of a session, and makes the set if the session has none.
func (g *registry) of(s *host.Session) *sessionProcs {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.sessions[s]
	if in == nil {
		in = &sessionProcs{procs: make(map[string]*process)}
		g.sessions[s] = in
	}
	return in
}

// bury notes that a process has ended and frees its slot. If the session has too many
// ended processes, it forgets the oldest.
func (g *registry) bury(r *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy--
	in := r.session
	if in.procs[r.id] == nil {
		return
	}
	if in.buried++; in.buried <= maxRemembered {
		return
	}
	oldest := slices.IndexFunc(in.order, (*process).ended)
	if oldest >= 0 {
		delete(in.procs, in.order[oldest].id)
		in.order = slices.Delete(in.order, oldest, oldest+1)
		in.buried--
	}
}

// find returns a process of a session, or the error for an unknown process.
func (g *registry) find(s *host.Session, id string) (*process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := g.sessions[s]; in != nil && in.procs[id] != nil {
		return in.procs[id], nil
	}
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeUnknownProc,
		"unknown process %.64q; proc/spawn/req starts one and gives its proc_id, proc/status/req without a proc_id "+
			"lists those there are", id))
}

// list returns the processes of a session in the order of their start.
func (g *registry) list(s *host.Session) []*process {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := g.sessions[s]; in != nil {
		return slices.Clone(in.order)
	}
	return nil
}

// end forgets a session and returns its processes. For processes that are being
// started, add returns false.
func (g *registry) end(s *host.Session) []*process {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.sessions[s]
	if in == nil {
		return nil
	}
	delete(g.sessions, s)
	in.ended = true
	all := in.order
	in.procs, in.order = nil, nil
	return all
}

// close makes enter and add refuse further processes.
func (g *registry) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// all returns the processes of every session.
func (g *registry) all() (all []*process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, in := range g.sessions {
		all = append(all, in.order...)
	}
	return all
}
