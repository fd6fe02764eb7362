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

// Why a call was stopped. These errors are causes of its context.
var (
	errCancelled   = protocol.Errorf(protocol.CodeCancelled, "the agent cancelled the request")
	errSessionOver = protocol.Errorf(protocol.CodeCancelled, "another handshake ended the session that the request "+
		"belonged to")
	errShutdown = protocol.Errorf(protocol.CodeTimeout, "the host shut down before the request was done; send it "+
		"again to a new host")
)

// grace is how long a handler may take to answer after its call was stopped. Then the host answers instead.
const grace = 250 * time.Millisecond

// call is one request on its way: its members, its context and its answer. It is a context.Context itself, so that
// the many calls that end at once need no timer and no channel.
type call struct {
	host  *Host
	sess  atomic.Pointer[Session] // nil before the handshake
	dest  *destination
	line  *protocol.Line
	work  *Work         // of a dialect, in place of line; nil = a request of A2E
	start time.Duration // since the host began; fixed once the call is armed
	limit time.Duration // from start; 0 = none

	chosen atomic.Pointer[string] // the tool of a group that ran
	span   context.Context        // with the span of the request; nil = nothing is traced
	reader atomic.Pointer[leader] // the leader that runs it; nil = another goroutine does
	slots  *Slots                 // of which it has one; nil = none. Host.mu guards slots to released

	older, newer *call   // in a callList
	waiters      []*call // calls that wait for this one, once for each claim that waits
	blockers     int     // how many calls it waits for
	claims       []claim // see claimsLocked; set if claimed
	claimed      bool    // claims was read
	stage        stage
	released     bool // its handler released its slot

	streaming bool // the flags stand together to save memory: each request has a call
	answered  bool // guarded by out
	ended     bool // the handler has returned; guarded by arming

	out     sync.Mutex // held while a message of this call is added to the output
	seq     int        // number of the next event; guarded by out
	streams []*Stream  // they open after the answer; guarded by out

	arming sync.Mutex
	std    atomic.Pointer[stdContext]
}

// stdContext is the ordinary context that a call makes when somebody waits for its end.
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

// elapsed returns the time since Serve began. It reads only the monotonic clock, which takes half the time of
// time.Now.
func (h *Host) elapsed() time.Duration { return time.Since(h.begun) }

// object returns the members of the request.
func (c *call) object() protocol.Object {
	if c.work != nil {
		return c.work.Object
	}
	return c.line.Object()
}

// emitter returns the Emitter for the events of the request.
func (c *call) emitter() Emitter {
	switch {
	case c.work == nil:
		return c
	case c.work.Events == nil:
		return Mute{}
	}
	return c.work.Events
}

// reqID returns the id of the request as raw JSON, never nil. It is an empty string if the request has none or is
// of a dialect.
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
	if key == (callKey{}) {
		return c
	}
	if c.work != nil && c.work.Values != nil {
		if v := c.work.Values.Value(key); v != nil {
			return v
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

// begins starts the clock of a call that had to wait, unless somebody armed the call meanwhile.
func (c *call) begins() {
	c.arming.Lock()
	defer c.arming.Unlock()
	if c.std.Load() == nil {
		c.start = c.host.elapsed()
	}
}

// arm makes the ordinary context, if there is none, and starts the timer for the call's limit.
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

// stop ends a running call early. If the handler does not answer within the grace period, the host answers in its
// place, and the next request gets its slot.
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

// stopError returns the error that answers a stopped call.
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

// finish ends the call's context once its handler has returned, and returns the cause if the call was stopped
// before.
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

// stoppedBy returns the error that answers a stopped call whose handler returned err. A cancelled call is always
// answered as cancelled. A call whose time was up may still answer with its result, or with its own error, which
// may say more.
func (c *call) stoppedBy(cause, err error) error {
	var own *protocol.Error
	if !errors.Is(cause, errCancelled) && (err == nil || errors.As(err, &own)) {
		return err
	}
	return c.stopError(cause)
}

// HandOff says that the handler is about to wait for something slow: from here on the host reads the next requests
// on another goroutine. It is cheap and may be called more than once. Without it the host does the same after about
// a millisecond.
func HandOff(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		if t := c.reader.Load(); t != nil {
			c.host.promote(t, t.state.Load())
		}
	}
}

// AwaitSoon is HandOff for something that mostly comes within a millisecond, such as the answer of a child. If no
// further request was read yet, the handler waits on the reading goroutine, which saves a switch of goroutines; if
// this takes longer, the host hands off by itself. AwaitSoon must be called on the goroutine on which the handler
// was called.
func AwaitSoon(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		if t := c.reader.Load(); t != nil && t.state.Load()&leaderReplaced == 0 && t.lines.r < t.lines.w {
			HandOff(ctx)
		}
	}
}

// ReleaseSlot releases the slot of max_parallel that the handler's request has, and its position in the order. It is
// for a handler that waits for the effect of other requests, or that has done its work and waits for the outcome.
// Another handshake does not wait for such a request but ends it. ReleaseSlot may be called more than once. It does
// nothing within a Call, because the slot belongs to the caller.
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
	h.startAll(next)
}

// ReleaseOrder releases the position of the handler's request in the order, and keeps its slot. It is for a handler
// that keeps the order of its work itself from here on.
func ReleaseOrder(ctx context.Context) {
	c := callFrom(ctx)
	if c == nil || nestedFrom(ctx) != nil {
		return
	}
	c.host.mu.Lock()
	next := c.host.passLocked(c)
	c.host.mu.Unlock()
	c.host.startAll(next)
}

// passLocked takes the claims away from a running call, and returns the calls that may run now.
func (h *Host) passLocked(c *call) (next []*call) {
	if c.stage == runs {
		next = h.order.pass(c, false)
	}
	return next
}

// stopReleasedLocked stops the requests that released their slot, when another handshake comes. The handshake waits
// for their answers, nobody knows how long these requests would wait, and their session is over.
func (h *Host) stopReleasedLocked() {
	for c := h.order.passed.last; c != nil; c = c.older {
		if c.released && c.work == nil {
			c.stop(errSessionOver)
		}
	}
}

// CutShort reports whether the agent or the end of the host stopped a call, which says nothing about the component
// that was called. It is false if the time was up, because that is a failure. For a request the cause of ctx shows
// that, for a Call within a request the error of ctx.
func CutShort(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) &&
		!errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// SessionFrom returns the session that a context belongs to: that of the handler's request, or one that InSession
// or BeginSession set. It returns nil if there is none.
func SessionFrom(ctx context.Context) *Session {
	if sess, ok := ctx.Value(sessionKey{}).(*Session); ok {
		return sess
	}
	if c := callFrom(ctx); c != nil {
		return c.sess.Load()
	}
	return nil
}
