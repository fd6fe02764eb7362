package host

import (
	"bytes"
	"context"
	"errors"
	"time"

	"a2e/protocol"
)

// streamCredit is how many bytes of one stream may wait to be written: what another
// source finds ahead of itself at most.
const streamCredit = 256 << 10

// streamDelay is how long after the answer the first message of a stream goes out: a
// client wakes the caller that waits for the answer, and only then the caller
// can take what the answer names. The public Python client loses what comes
// sooner.
const streamDelay = 5 * time.Millisecond

// ErrStreamClosed is what Send gives when nobody waits for the stream any more: its
// request failed, its session or the host has ended, or Close was called.
var ErrStreamClosed = errors.New("the stream is closed")

// Stream sends messages that belong to a request and go on after its answer, such
// as the output of a process. It is safe for concurrent use.
type Stream struct {
	host  *Host
	sess  *Session
	reqID protocol.Value
	aside *Host // of a dialect's session, whose dialect takes what is sent; host is nil then
	taker Taker // gets what is sent, in place of the agent; nil = it does not

	// guarded by host.out.mu, whose condition `room` tells of changes
	open      bool
	closed    bool
	waiting   []mark // what was not yet written when last looked at, in order
	unwritten int    // bytes of these
}

// mark is one message of a stream in the output.
type mark struct{ end, size int }

// Taker gets a message of a stream: its body, without secrets. It is called by one goroutine at a time for one stream,
// and must not wait.
type Taker func(t protocol.Type, body protocol.Object)

// takerKey finds the Taker of a context.
type takerKey struct{}

// TakeStreams returns a context whose requests send what belongs to their streams to take, and not to the agent.
func TakeStreams(ctx context.Context, take Taker) context.Context {
	return context.WithValue(ctx, takerKey{}, take)
}

// OpenStream makes the stream of the request that ctx belongs to, while its handler
// runs. It must be closed, and closes by itself with the session. It is closed
// from the start when that is over, when the request was answered already, and
// outside of a request. That of a dialect's session goes to the dialects that are a
// PushTaker, until the plugin closes it.
func OpenStream(ctx context.Context) *Stream {
	if take, ok := ctx.Value(takerKey{}).(Taker); ok {
		f := &Stream{sess: SessionFrom(ctx), taker: take}
		f.aside, _ = ctx.Value(hostKey{}).(*Host)
		return f
	}
	c := callFrom(ctx)
	if c == nil || c.work != nil {
		f := &Stream{closed: true}
		if f.sess = SessionFrom(ctx); f.sess != nil {
			f.aside, _ = ctx.Value(hostKey{}).(*Host)
		}
		return f
	}
	f := &Stream{host: c.host, sess: c.sess.Load(), reqID: bytes.Clone(c.reqID())}
	c.out.Lock()
	late := c.answered // with an error, then
	c.streams = append(c.streams, f)
	c.out.Unlock()
	if late || !c.host.addStream(f) {
		f.settle(false)
	}
	return f
}

// addStream notes a stream, to be closed with its session; false means that this is
// over, or has not begun: a plugin that restores its state gets the context of a
// handshake.
func (h *Host) addStream(f *Stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.sess == nil || h.session != f.sess {
		return false
	}
	h.streams[f] = struct{}{}
	return true
}

// Session is the session that the stream belongs to.
func (f *Stream) Session() *Session { return f.sess }

// Send sends one message with the req_id of the stream's request, in order. It
// waits until that was answered, and while streamCredit bytes of this stream are not
// yet written or the output is full; it does not wait until its own message is
// written. The error is ErrStreamClosed, or says why the body does not encode.
func (f *Stream) Send(t protocol.Type, body any) error {
	switch {
	case f.taker != nil:
		return f.take(t, body)
	case f.aside != nil:
		f.aside.pushAside(t, body)
		return nil
	case f.host == nil:
		return ErrStreamClosed
	}
	msg, err := f.host.message(f.host.out.buffer(), t, f.reqID, body)
	if err != nil {
		return err
	}
	if !f.host.out.appendStream(f, msg) {
		return ErrStreamClosed
	}
	return nil
}

// take hands a message to the taker, masked as the lines of the agent are.
func (f *Stream) take(t protocol.Type, body any) error {
	text, err := protocol.AppendJSON(nil, body)
	if err != nil {
		return err
	}
	if f.aside != nil {
		text = f.aside.out.secrets.Line(text)
	}
	obj, err := protocol.ParseObject(text)
	if err == nil {
		f.taker(t, obj)
	}
	return err
}

// Close ends the stream. What was sent goes out.
func (f *Stream) Close() {
	if f.host == nil {
		return
	}
	f.settle(false)
	f.host.mu.Lock()
	delete(f.host.streams, f)
	f.host.mu.Unlock()
}

// settle opens the stream, or closes it for good.
func (f *Stream) settle(open bool) {
	w := f.host.out
	w.mu.Lock()
	f.open = true
	f.closed = f.closed || !open
	w.room.Broadcast()
	w.mu.Unlock()
}

// begin opens the stream a moment after the answer to its request.
func (f *Stream) begin() { time.AfterFunc(streamDelay, func() { f.settle(true) }) }

// appendStream adds one line of a stream, once the ones before are, and has it written;
// false means that the stream is closed. It does not write itself: who sends for
// one stream would be held up by what others send.
func (w *writer) appendStream(f *Stream, msg []byte) bool {
	msg = w.secrets.Line(msg)
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && !f.closed && (!f.open || w.size >= w.limit || f.unwrittenLocked() >= streamCredit) {
		w.room.Wait()
	}
	if w.err != nil || f.closed {
		return false
	}
	size := len(msg)
	if !w.appendLocked(msg) {
		w.giveBack(msg)
	}
	f.waiting = append(f.waiting, mark{w.written + w.size, size})
	f.unwritten += size
	w.flushSoonLocked()
	return true
}

// unwrittenLocked counts the bytes of the stream that are not yet written.
func (f *Stream) unwrittenLocked() int {
	for len(f.waiting) > 0 && f.waiting[0].end <= f.host.out.written {
		f.unwritten -= f.waiting[0].size
		f.waiting = f.waiting[1:]
	}
	return f.unwritten
}

// closeStreams closes what streams there are, for all belong to the session that
// ends. From here on that is over, and no stream of it is opened.
func (h *Host) closeStreams() {
	h.mu.Lock()
	streams, leaving := h.streams, h.leaving
	h.streams = make(map[*Stream]struct{})
	h.session, h.leaving = nil, nil
	h.mu.Unlock()
	for f := range streams {
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
		return ErrStreamClosed
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

// pushes returns the session's stream of messages that belong to no request; nil = there is
// no session, or its agent did not ask for what t belongs to.
func (h *Host) pushes(t protocol.Type) *Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		return nil
	}
	if info, known := protocol.Lookup(t); known && info.Capability != protocol.CapCore &&
		!h.session.Caps[info.Capability] {
		return nil
	}
	return h.pushed
}

// openPushesLocked makes the stream of a session that begins. It opens after the answer to
// the handshake, which agents read as the first line.
func (h *Host) openPushesLocked(c *call) {
	h.pushed = &Stream{host: h, sess: h.session}
	h.streams[h.pushed] = struct{}{}
	c.out.Lock()
	c.streams = append(c.streams, h.pushed)
	c.out.Unlock()
}
