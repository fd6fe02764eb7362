package host

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"a2e/protocol"
)

// Work is a request of a dialect for the host's scheduler: it keeps its place in the order, and is
// bounded, stopped and drained like a request of A2E. Dialect.Take returns it.
type Work struct {
	// Either it is a request of A2E, which the plugins serve,
	Type    protocol.Type
	Object  protocol.Object // its members, in memory of their own
	Session *Session        // of BeginSession
	// or Run does it, and returns what Answer gets. It claims what a request of Type does, too, if it
	// has one. A Run that returns its own Work has changed it: that waits and runs once more as it says then,
	// ahead of what waits for the end of this Run.
	Run    func(ctx context.Context) (any, error)
	Name   string           // of what Run does, for errors
	Claims []protocol.Claim // of Run, without fields
	Ahead  bool             // Run takes no slot; see protocol.Info
	Size   int              // bytes that Run holds in memory while it waits
	// Places are those of which Run takes one, in place of max_parallel; nil = those. Run keeps it until it
	// returns, and is called also when it was stopped just before. The higher Priority gets one first.
	Places   *Places
	Priority int

	Limit  time.Duration   // for its whole run; 0 = none
	Grace  time.Duration   // for Run to return when it is stopped, before Answer gets why; 0 = 250 ms
	Events Emitter         // takes its events; nil = nobody does
	MCP    *MCPCall        // what MCPCallOf returns; nil = nothing
	Span   context.Context // what Trace has made
	// Answer is called once and returns the line of the answer, with its end; nil = there is none. resp is
	// what the plugin answered, unless err is not nil.
	Answer func(resp any, err error) []byte
	// Answered is called once after that, with the line in the output; nil = nothing follows it.
	Answered func()

	call    atomic.Pointer[call]
	stopped atomic.Pointer[error] // why StopAll stopped it; nil = it did not
}

// ErrCancelled and ErrShutdown say why a Work was stopped.
var (
	ErrCancelled error = errCancelled
	ErrShutdown  error = errShutdown
)

// Stop stops a work, whether it runs or waits; one that is done stays as it is. cause is the error of its Answer.
func (w *Work) Stop(cause error) { StopAll(cause, w) }

// StopAll stops works of one host, first those that wait, and returns how many it stopped.
func StopAll(cause error, works ...*Work) (stopped int) {
	var h *Host
	all := make(map[*call]bool, len(works))
	for _, w := range works {
		w.stopped.CompareAndSwap(nil, &cause) // for admitAgain
		if c := w.call.Load(); c != nil {
			h, all[c] = c.host, true
		}
	}
	if h == nil {
		return 0
	}
	h.mu.Lock()
	waiting, next := h.stopWaitingLocked(func(c *call) bool { return all[c] })
	running := slices.DeleteFunc(h.runningLocked(), func(c *call) bool { return !all[c] })
	h.mu.Unlock()
	h.workAll(next)
	for _, c := range waiting {
		h.answerError(c, cause)
	}
	for _, c := range running {
		c.stop(cause)
	}
	return len(waiting) + len(running)
}

// Bounds returns how many requests run at once, and what else bounds them.
func (s *Services) Bounds() (parallel int, limits Limits) {
	return s.host.opts.MaxParallel, s.host.opts.Limits
}

// newWork makes the call of a work that the leader t took; nil = nobody reads meanwhile.
func (h *Host) newWork(t *leader, w *Work) *call {
	c := &call{work: w, host: h, start: h.elapsed()}
	c.reader.Store(t)
	if c.dest = h.router.at(w.Type); w.Run != nil {
		own := &row{typ: protocol.Type(w.Name), order: w.Claims, ahead: w.Ahead}
		if c.dest != nil {
			own.order = append(own.order, c.dest.claimsOf(w.Object)...)
		}
		c.dest = &destination{row: own, places: w.Places}
	}
	c.limit, c.span = w.Limit, w.Span
	c.sess.Store(w.Session)
	w.call.Store(c)
	return c
}

// admitAgain puts a work into the order that goes on after its run c.
func (h *Host) admitAgain(c *call, w *Work) {
	c.out.Lock()
	over := c.answered
	c.answered = true // the further run is
	c.out.Unlock()
	if over {
		return
	}
	h.workAll(h.admitWorks(nil, w))
	if cause := w.stopped.Load(); cause != nil { // after c had ended, but before the further run was known
		StopAll(*cause, w)
	}
}

// mayRun says why a work cannot be done at all.
func (w *Work) mayRun(d *destination) error {
	if len(d.routes) == 0 && w.Run == nil {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", d.typ)
	}
	return nil
}
