package host

import (
	"a2e/protocol"
	"bytes"
	"context"
	"errors"
	"time"
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
	aside *Host // of a dialect's session, whose dialect takes what is sent; host is nil then

	// guarded by host.out.mu, whose condition `room` tells of changes
	open      bool
	closed    bool
	waiting   []mark // what was not yet written when last looked at, in order
	unwritten int    // bytes of these
}

// mark is one message of a feed in the output.
type mark struct{ end, size int }

// endTimeout is how long the plugins may take to end the session at the end of
// the host: Close needs some of closeTimeout as well.
const endTimeout = closeTimeout * 3 / 4

// OpenFeed makes the feed of the request that ctx belongs to, while its handler
// runs. It must be closed, and closes by itself with the session. It is closed
// from the start when that is over, when the request was answered already, and
// outside of a request. That of a dialect's session goes to the dialects that are a
// PushTaker, until the plugin closes it.
func OpenFeed(ctx context.Context) *Feed {
	c := callFrom(ctx)
	if c == nil {
		f := &Feed{closed: true}
		if f.sess = SessionFrom(ctx); f.sess != nil {
			f.aside, _ = ctx.Value(hostKey{}).(*Host)
		}
		return f
	}
	f := &Feed{host: c.host, sess: c.sess.Load(), reqID: bytes.Clone(c.reqID())}
	c.out.Lock()
	late := c.answered // with an error, then
	c.feeds = append(c.feeds, f)
	c.out.Unlock()
	if late || !c.host.addFeed(f) {
		f.settle(false)
	}
	return f
}

// addFeed notes a feed, to be closed with its session; false means that this is
// over, or has not begun: a plugin that restores its state gets the context of a
// handshake.
func (h *Host) addFeed(f *Feed) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.sess == nil || h.session != f.sess {
		return false
	}
	h.feeds[f] = struct{}{}
	return true
}

// Session is the session that the feed belongs to.
func (f *Feed) Session() *Session { return f.sess }

// Send sends one message with the req_id of the feed's request, in order. It
// waits until that was answered, and while feedCredit bytes of this feed are not
// yet written or the output is full; it does not wait until its own message is
// written. The error is ErrFeedClosed, or says why the body does not encode.
func (f *Feed) Send(t protocol.Type, body any) error {
	switch {
	case f.aside != nil:
		f.aside.pushAside(t, body)
		return nil
	case f.host == nil:
		return ErrFeedClosed
	}
	msg, err := f.host.message(nil, t, f.reqID, body)
	if err != nil {
		return err
	}
	if !f.host.out.appendFeed(f, msg) {
		return ErrFeedClosed
	}
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

// appendFeed adds one line of a feed, once the ones before are, and has it written;
// false means that the feed is closed. It does not write itself: who sends for
// one feed would be held up by what others send.
func (w *writer) appendFeed(f *Feed, msg []byte) bool {
	msg = w.secrets.Line(msg)
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && !f.closed && (!f.open || w.size >= w.limit || f.unwrittenLocked() >= feedCredit) {
		w.room.Wait()
	}
	if w.err != nil || f.closed {
		return false
	}
	w.appendLocked(msg)
	f.waiting = append(f.waiting, mark{w.written + w.size, len(msg)})
	f.unwritten += len(msg)
	w.flushSoonLocked()
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

// closeFeeds closes what feeds there are, for all belong to the session that
// ends. From here on that is over, and no feed of it is opened.
func (h *Host) closeFeeds() {
	h.mu.Lock()
	feeds, leaving := h.feeds, h.leaving
	h.feeds = make(map[*Feed]struct{})
	h.session, h.leaving = nil, nil
	h.mu.Unlock()
	for f := range feeds {
		f.settle(false)
	}
	if leaving != nil {
		close(leaving)
	}
}

// push sends a message of Services.Push.
func (h *Host) push(t protocol.Type, body any) error {
	h.pushAside(t, body)
	f := h.pushes(t)
	if f == nil {
		return ErrFeedClosed
	}
	return f.Send(t, body)
}

// pushAside returns a message to the dialects that take such.
func (h *Host) pushAside(t protocol.Type, body any) {
	for _, d := range h.opts.Dialects {
		if p, ok := d.(PushTaker); ok {
			p.Pushed(t, body)
		}
	}
}

// pushes returns the session's feed of messages that belong to no request; nil = there is
// no session, or its agent did not ask for what t belongs to.
func (h *Host) pushes(t protocol.Type) *Feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		return nil
	}
	if info, known := protocol.Lookup(t); known && info.Capability != protocol.CapCore && !h.session.Caps[info.Capability] {
		return nil
	}
	return h.pushed
}

// openPushesLocked makes the feed of a session that begins. It opens after the answer to
// the handshake, which agents read as the first line.
func (h *Host) openPushesLocked(c *call) {
	h.pushed = &Feed{host: h, sess: h.session}
	h.feeds[h.pushed] = struct{}{}
	c.out.Lock()
	c.feeds = append(c.feeds, h.pushed)
	c.out.Unlock()
}
