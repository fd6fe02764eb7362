package host

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"a2e/protocol"
)

// Work is a request of a dialect for the host's scheduler: it has its position in the order, and is
// bounded, stopped and drained like a request of A2E. Dialect.Take returns it.
type Work struct {
	// Either the work is a request of A2E, which the plugins serve,
	Type    protocol.Type
	Object  protocol.Object // its members, in memory of their own
	Session *Session        // the one that BeginSession returned
	// or Run does the work, and returns the resp of Answer. Then it also has the claims of a request of Type, if
	// Type is set. Run may change its own Work and return it: that Work then waits and runs once more, before
	// what waits for the end of this Run.
	Run    func(ctx context.Context) (any, error)
	Name   string           // of what Run does; errors show it
	Claims []protocol.Claim // of Run, without fields
	NoSlot bool             // Run takes no slot; see protocol.Info
	Size   int              // bytes that Run holds in memory while it waits
	// Slots are the slots of which Run takes one; nil = those of max_parallel. Run keeps the slot until it
	// returns, and is called even if the work was stopped just before. The work with the higher Priority gets a
	// slot first.
	Slots    *Slots
	Priority int

	Limit  time.Duration   // for its whole run; 0 = none
	Grace  time.Duration   // for Run to return when it is stopped, before Answer gets the cause; 0 = 250 ms
	Events Emitter         // takes its events; nil = they are dropped
	Values Valuer          // further values of its context; nil = none
	Span   context.Context // the result of Trace
	// Answer is called once and returns the line of the answer, newline included; nil = there is no answer. resp is
	// what the plugin answered, unless err is not nil.
	Answer func(resp any, err error) []byte
	// Answered is called once after that, when the line is in the output; nil = nobody needs that.
	Answered func()

	call    atomic.Pointer[call]
	stopped atomic.Pointer[error] // why StopAll stopped it; nil = it did not
}

// Valuer has values by key, like a context.
type Valuer interface{ Value(key any) any }

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
	h.startAll(next)
	for _, c := range waiting {
		h.answerError(c, cause)
	}
	for _, c := range running {
		c.stop(cause)
	}
	return len(waiting) + len(running)
}

// Bounds returns how many requests run at once, and the limits of the host.
func (s *Services) Bounds() (parallel int, limits Limits) {
	return s.host.opts.MaxParallel, s.host.opts.Limits
}

// newWork makes the call of a work. t is the leader that took its line; nil = there is no such line.
func (h *Host) newWork(t *leader, w *Work) *call {
	c := &call{work: w, host: h, start: h.elapsed()}
	c.reader.Store(t)
	if c.dest = h.router.at(w.Type); w.Run != nil {
		own := &row{typ: protocol.Type(w.Name), order: w.Claims, noSlot: w.NoSlot}
		if c.dest != nil {
			own.order = append(own.order, c.dest.claimsOf(w.Object)...)
		}
		c.dest = &destination{row: own, slots: w.Slots}
	}
	c.limit, c.span = w.Limit, w.Span
	c.sess.Store(w.Session)
	w.call.Store(c)
	return c
}

// admitAgain admits a work that runs once more after its run c.
func (h *Host) admitAgain(c *call, w *Work) {
	c.out.Lock()
	over := c.answered
	c.answered = true // the further run is answered instead
	c.out.Unlock()
	if over {
		return
	}
	h.startAll(h.admitWorks(nil, w))
	if cause := w.stopped.Load(); cause != nil { // after c had ended, but before the further run was known
		StopAll(*cause, w)
	}
}

// mayRun returns an error if no plugin and no Run can do the work.
func (w *Work) mayRun(d *destination) error {
	if len(d.routes) == 0 && w.Run == nil {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", d.typ)
	}
	return nil
}
