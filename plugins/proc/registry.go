package proc

import (
	"fmt"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// maxRemembered is how many ended processes a session can still ask about.
const maxRemembered = 1000

// registry knows the processes of each session.
type registry struct {
	plugin string
	limit  int // processes at once

	mu       sync.Mutex // guards the fields below
	closed   bool
	busy     int // running, or being started
	last     int // number of the last id given out
	sessions map[*host.Session]*session
}

// session is the processes of one session. Its fields are guarded by registry.mu.
type session struct {
	ended  bool
	procs  map[string]*process
	order  []*process // as they were started
	buried int        // how many of procs have ended
}

func (g *registry) init(plugin string, limit int) {
	g.plugin, g.limit, g.sessions = plugin, limit, make(map[*host.Session]*session)
}

// enter takes one of the places for running processes, which leave gives back.
// begun, if not nil, is called with the registry locked.
func (g *registry) enter(begun func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return errClosed
	case g.busy >= g.limit:
		return protocol.Errorf(protocol.CodeProcLimit,
			"%d processes run, which is all that max_procs of the plugin %q allows; kill one or wait for its end", g.busy, g.plugin)
	}
	g.busy++
	begun()
	return nil
}

// leave gives a place back.
func (g *registry) leave() {
	g.mu.Lock()
	g.busy--
	g.mu.Unlock()
}

// newID gives an id that no other process of this host has or had: the plugin's
// name, which is unique in a host, tells those of several plugins apart.
func (g *registry) newID() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	return fmt.Sprintf("p%d-%s", g.last, g.plugin)
}

// add makes a process known to its session; false means that the session has
// ended meanwhile.
func (g *registry) add(s *host.Session, r *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := r.session
	if g.closed || in.ended {
		return false
	}
	g.sessions[s] = in
	in.procs[r.id] = r
	in.order = append(in.order, r)
	return true
}

// of gives what is known of a session, which need not have a process yet.
func (g *registry) of(s *host.Session) *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.sessions[s]
	if in == nil {
		in = &session{procs: make(map[string]*process)}
		g.sessions[s] = in
	}
	return in
}

// bury notes that a process has ended, gives back its place and forgets the
// oldest of too many.
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
	oldest := slices.IndexFunc(in.order, func(r *process) bool { return r.ended() })
	if oldest >= 0 {
		delete(in.procs, in.order[oldest].id)
		in.order = slices.Delete(in.order, oldest, oldest+1)
		in.buried--
	}
}

// find gives a process of a session. The error is that of an unknown one.
func (g *registry) find(s *host.Session, id string) (*process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := g.sessions[s]; in != nil && in.procs[id] != nil {
		return in.procs[id], nil
	}
	return nil, host.NotMine(protocol.Errorf(protocol.CodeUnknownProc,
		"unknown process %.64q; proc/spawn/req starts one and gives its proc_id, proc/status/req without a proc_id lists those there are", id))
}

// list gives the processes of a session in the order of their start.
func (g *registry) list(s *host.Session) []*process {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := g.sessions[s]; in != nil {
		return slices.Clone(in.order)
	}
	return nil
}

// end forgets a session and gives the processes it had. Those being started for
// it will find out.
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

// close lets nothing start any more.
func (g *registry) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// all gives the processes of every session.
func (g *registry) all() (all []*process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, in := range g.sessions {
		all = append(all, in.order...)
	}
	return all
}
