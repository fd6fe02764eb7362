package host

import (
	"bytes"
	"context"
	"errors"
	"math"
	"time"

	"a2e/protocol"
)

// feedCredit is how many bytes of one feed may wait to be written: what another
// source finds ahead of itself at most.
const feedCredit = 256 << 10

// feedDelay is how long after the answer the first message of a feed goes out: a
// client wakes the caller that waits for the answer, and only then the caller
// can take what the answer names. The public Python client loses what comes
// sooner.
const feedDelay = 5 * time.Millisecond

// ErrFeedClosed is what Send gives when nobody waits for the feed any more: its
// request failed, its session or the host has ended, or Close was called.
var ErrFeedClosed = errors.New("the feed is closed")

// Feed sends messages that belong to a request and go on after its answer, such
// as the output of a process. It is safe for concurrent use.
type Feed struct {
	host  *Host
	sess  *Session
	reqID protocol.Value

	// guarded by host.out.mu, whose condition `room` tells of changes
	open      bool
	closed    bool
	waiting   []mark // what was not yet written when last looked at, in order
	unwritten int    // bytes of these
}

// mark is one message of a feed in the output.
type mark struct{ end, size int }

// OpenFeed makes the feed of the request that ctx belongs to, while its handler
// runs. It must be closed, and closes by itself with the session.
func OpenFeed(ctx context.Context) *Feed {
	c := callFrom(ctx)
	if c == nil {
		return &Feed{closed: true}
	}
	f := &Feed{host: c.host, sess: c.sess.Load(), reqID: bytes.Clone(c.reqID())}
	c.out.Lock()
	f.closed = c.answered // too late, then: the answer was an error
	c.feeds = append(c.feeds, f)
	c.out.Unlock()
	c.host.mu.Lock()
	c.host.feeds[f] = struct{}{}
	c.host.mu.Unlock()
	return f
}

// Session is the session that the feed belongs to.
func (f *Feed) Session() *Session { return f.sess }

// Send sends one message with the req_id of the feed's request, in order, once
// that was answered. It waits while feedCredit bytes of this feed are not yet
// written. The error is ErrFeedClosed, or says why the body does not encode.
func (f *Feed) Send(t protocol.Type, body any) error {
	if f.host == nil {
		return ErrFeedClosed
	}
	msg, err := f.host.message(nil, t, f.reqID, body)
	if err != nil {
		return err
	}
	if !f.host.out.appendFeed(f, msg) {
		return ErrFeedClosed
	}
	f.host.out.flush()
	return nil
}

// Close ends the feed. What was sent goes out.
func (f *Feed) Close() {
	if f.host == nil {
		return
	}
	f.settle(false)
	f.host.mu.Lock()
	delete(f.host.feeds, f)
	f.host.mu.Unlock()
}

// settle opens the feed, or closes it for good.
func (f *Feed) settle(open bool) {
	w := f.host.out
	w.mu.Lock()
	f.open = true
	f.closed = f.closed || !open
	w.room.Broadcast()
	w.mu.Unlock()
}

// begin opens the feed a moment after the answer to its request.
func (f *Feed) begin() { time.AfterFunc(feedDelay, func() { f.settle(true) }) }

// appendFeed adds one line of a feed, once it is its turn; false means that it
// is closed.
func (w *writer) appendFeed(f *Feed, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && !f.closed && (!f.open || w.size >= w.limit || f.unwrittenLocked() >= feedCredit && w.limit != math.MaxInt) {
		w.room.Wait()
	}
	if w.err != nil || f.closed {
		return false
	}
	w.appendLocked(msg)
	f.waiting = append(f.waiting, mark{w.written + w.size, len(msg)})
	f.unwritten += len(msg)
	return true
}

// unwrittenLocked counts the bytes of the feed that are not yet written.
func (f *Feed) unwrittenLocked() int {
	for len(f.waiting) > 0 && f.waiting[0].end <= f.host.out.written {
		f.unwritten -= f.waiting[0].size
		f.waiting = f.waiting[1:]
	}
	return f.unwritten
}

// endSession tells the plugins that a session is over, and closes its feeds.
func (h *Host) endSession(ctx context.Context, sess *Session) {
	if sess == nil {
		return
	}
	h.eachPlugin(ctx, "end of session in plugin ", func(p Plugin) error {
		if e, ok := as[SessionEnder](p); ok {
			e.EndSession(ctx, sess)
		}
		return nil
	})
	h.closeFeeds()
}

// closeFeeds closes what feeds there are: all belong to the session that ends.
func (h *Host) closeFeeds() {
	h.mu.Lock()
	feeds := h.feeds
	h.feeds = make(map[*Feed]struct{})
	h.mu.Unlock()
	for f := range feeds {
		f.settle(false)
	}
}
