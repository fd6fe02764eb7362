package host

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"a2e/protocol"
)

// Why a call was stopped; these are causes of its context.
var (
	errCancelled   = protocol.Errorf(protocol.CodeCancelled, "the agent cancelled the request")
	errSessionOver = protocol.Errorf(protocol.CodeCancelled, "another handshake ended the session that the request "+
		"belonged to")
	errShutdown = protocol.Errorf(protocol.CodeTimeout, "the host shut down before the request was done; send it "+
		"again to a new host")
)

// grace is how long a handler whose call was stopped may take to answer for
// itself, before the host answers in its place.
const grace = 250 * time.Millisecond

// call is one request on its way: what it asks, its context and its answer. It
// is a context.Context itself, so that the many calls that end at once never pay
// for a timer and a channel.
type call struct {
	host  *Host
	sess  atomic.Pointer[Session] // nil before the handshake
	dest  *destination
	line  *protocol.Line
	work  *Work         // of a dialect, in place of line; nil = it is of A2E
	start time.Duration // since the host began; fixed once the call is armed
	limit time.Duration // from start; 0 = none

	chosen atomic.Pointer[string] // the tool of a group that ran
	span   context.Context        // with the span of the request; nil = nothing is traced
	reader atomic.Pointer[leader] // whose goroutine it runs on; nil for a worker's
	place  *Places                // of which it has one; nil = none. Guarded by Host.mu, as all up to released

	older, newer *call   // in a callList
	behind       []*call // those that wait for it, each as often as it has a claim that does
	ahead        int     // for how many it waits
	claims       []claim // what it uses, once somebody asked
	claimed      bool    // somebody did
	stage        stage
	released     bool // it released its slot itself

	streaming bool // the flags stand together: one call is allocated for each request
	answered  bool // guarded by out
	ended     bool // the handler has returned; guarded by arming

	out     sync.Mutex // held while a message of this call is put in line
	seq     int        // of the next event; guarded by out
	streams []*Stream  // that begin with the answer; guarded by out

	arming sync.Mutex
	std    atomic.Pointer[stdContext]
}

// stdContext is the ordinary context that a call grows when somebody waits on it.
type stdContext struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// reset makes c the call of the line that t has just scanned.
func (c *call) reset(h *Host, t *leader) {
	c.host, c.line, c.start = h, t.line, h.elapsed()
	c.sess.Store(nil)
	c.chosen.Store(nil)
	c.dest, c.answered = nil, false
	c.reader.Store(t)
}

// elapsed is the time since Serve began, by the monotonic clock alone: it costs
// half of what time.Now does.
func (h *Host) elapsed() time.Duration { return time.Since(h.begun) }

// object is what the request says.
func (c *call) object() protocol.Object {
	if c.work != nil {
		return c.work.Object
	}
	return c.line.Object()
}

// emitter takes the events of the request.
func (c *call) emitter() Emitter {
	switch {
	case c.work == nil:
		return c
	case c.work.Events == nil:
		return Mute{}
	}
	return c.work.Events
}

// reqID is the id of the request as raw JSON, never nil; empty for one of a dialect.
func (c *call) reqID() protocol.Value {
	if c.work != nil || c.line.ID == nil {
		return emptyID
	}
	return c.line.ID
}

var emptyID = protocol.Value(`""`)

type callKey struct{}

// callFrom returns the call that a handler's context belongs to, or nil.
func callFrom(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Deadline implements context.Context.
func (c *call) Deadline() (time.Time, bool) { return c.host.begun.Add(c.start + c.limit), c.limit > 0 }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} { return c.arm().Done() }

// Err implements context.Context.
func (c *call) Err() error {
	if std := c.std.Load(); std != nil {
		return std.Err()
	}
	return c.host.ctx.Err()
}

// Value implements context.Context.
func (c *call) Value(key any) any {
	switch key {
	case callKey{}:
		return c
	case mcpCallKey{}:
		if c.work != nil && c.work.MCP != nil {
			return c.work.MCP
		}
	}
	if c.span != nil {
		if v := c.span.Value(key); v != nil {
			return v
		}
	}
	if std := c.std.Load(); std != nil {
		return std.Value(key) // context.WithCancel finds its parent this way
	}
	return c.host.ctx.Value(key)
}

// begins has the clock of a call that had to wait begin now, unless somebody armed it meanwhile.
func (c *call) begins() {
	c.arming.Lock()
	defer c.arming.Unlock()
	if c.std.Load() == nil {
		c.start = c.host.elapsed()
	}
}

// arm makes the ordinary context and starts the clock of the call's limit.
func (c *call) arm() *stdContext {
	if std := c.std.Load(); std != nil {
		return std
	}
	c.arming.Lock()
	defer c.arming.Unlock()
	if std := c.std.Load(); std != nil {
		return std
	}
	ctx, cancel := context.WithCancelCause(c.host.ctx)
	std := &stdContext{Context: ctx, cancel: cancel}
	switch {
	case c.ended:
		cancel(context.Canceled)
	case c.limit > 0:
		std.timer = time.AfterFunc(c.limit-(c.host.elapsed()-c.start), func() { c.stop(context.DeadlineExceeded) })
	}
	c.std.Store(std)
	return std
}

// stop ends a running call early. A handler that does not answer within the
// grace period is answered for, and loses its slot to the next request.
func (c *call) stop(cause error) {
	std := c.arm()
	if std.Err() != nil {
		return
	}
	std.cancel(cause)
	patience := grace
	if c.work != nil {
		patience = cmp.Or(c.work.Grace, grace)
	}
	time.AfterFunc(patience, func() {
		c.host.answerError(c, c.stopError(cause))
		c.host.abandon(c)
	})
}

// stopError is the answer to a call that was stopped.
func (c *call) stopError(cause error) error {
	switch {
	case errors.Is(cause, context.Canceled):
		return errShutdown
	case errors.Is(cause, context.DeadlineExceeded) && c.work != nil:
		return protocol.Errorf(protocol.CodeTimeout, "%s did not end within its timeout of %s", c.dest.typ, c.limit)
	case errors.Is(cause, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "%s did not end within its timeout of %s; a longer \"timeout\" "+
			"gives it more", c.dest.typ, c.limit)
	}
	return cause
}

// finish ends the call's context once its handler has returned, and gives the
// cause if it was stopped before.
func (c *call) finish() (stopped error) {
	c.arming.Lock()
	c.ended = true
	std := c.std.Load()
	c.arming.Unlock()
	if std == nil {
		return nil
	}
	if std.timer != nil {
		std.timer.Stop()
	}
	stopped = context.Cause(std)
	std.cancel(context.Canceled)
	return stopped
}

// stoppedBy returns the error to answer a stopped call with, when its handler
// returned err: a cancelled call is always answered as such; one whose time was
// up may still bring its result, or say more of what it did.
func (c *call) stoppedBy(cause, err error) error {
	var own *protocol.Error
	if !errors.Is(cause, errCancelled) && (err == nil || errors.As(err, &own)) {
		return err
	}
	return c.stopError(cause)
}

// HandOff says that the handler is about to wait for something slow: from here
// on the host reads the next requests on another goroutine. It is cheap and may
// be called more than once; without it the host finds out by itself after a
// millisecond.
func HandOff(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		if t := c.reader.Load(); t != nil {
			c.host.promote(t, t.state.Load())
		}
	}
}

// AwaitSoon is HandOff for what mostly comes within a millisecond, such as the answer of a
// child: where no further request was read yet the host waits for it right here, which spares
// a switch of goroutines, and finds out by itself when it takes longer. It is for the
// goroutine that the handler was called on.
func AwaitSoon(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		if t := c.reader.Load(); t != nil && t.state.Load()&leaderReplaced == 0 && t.lines.r < t.lines.w {
			HandOff(ctx)
		}
	}
}

// ReleaseSlot releases the slot of max_parallel that the handler's request has, and its place
// among those that keep an order: for one that waits for what other requests bring about, or
// has done its work and waits for what comes of it.
// Another handshake does not wait for it but ends it. ReleaseSlot may be called more than once, and
// does nothing within a Call, whose caller has the slot.
func ReleaseSlot(ctx context.Context) {
	c := callFrom(ctx)
	if c == nil || nestedFrom(ctx) != nil {
		return
	}
	HandOff(ctx)
	h := c.host
	h.mu.Lock()
	var next []*call
	if c.stage == runs || c.stage == passed && !c.released {
		next = h.passLocked(c)
		c.released = true
		h.freeSlotLocked(c)
		if h.handshakes > 0 {
			h.stopReleasedLocked()
		}
		next = append(next, h.startQueuedLocked()...)
	}
	h.mu.Unlock()
	h.workAll(next)
}

// ReleaseOrder releases the place among the requests that keep an order, and keeps the slot:
// for a handler whose work keeps the order by itself from here on.
func ReleaseOrder(ctx context.Context) {
	c := callFrom(ctx)
	if c == nil || nestedFrom(ctx) != nil {
		return
	}
	c.host.mu.Lock()
	next := c.host.passLocked(c)
	c.host.mu.Unlock()
	c.host.workAll(next)
}

// passLocked has those that wait for a call that runs go on.
func (h *Host) passLocked(c *call) (next []*call) {
	if c.stage == runs {
		next = h.order.pass(c, false)
	}
	return next
}

// stopReleasedLocked ends the requests that released their slot when another handshake comes, which
// waits for their answers: nobody knows how long they wait, and their session is over.
func (h *Host) stopReleasedLocked() {
	for c := h.order.passed.last; c != nil; c = c.older {
		if c.released && c.work == nil {
			c.stop(errSessionOver)
		}
	}
}

// CutShort reports whether the agent or the end of the host stopped a call, which says
// nothing of what was called. One whose time was up has failed: the cause says so of a
// request, the error of a call within one.
func CutShort(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) &&
		!errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// SessionFrom returns the session that a handler's request belongs to, or nil
// outside of a request.
func SessionFrom(ctx context.Context) *Session {
	if sess, ok := ctx.Value(sessionKey{}).(*Session); ok {
		return sess
	}
	if c := callFrom(ctx); c != nil {
		return c.sess.Load()
	}
	return nil
}
