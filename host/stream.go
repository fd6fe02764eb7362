package host

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"a2e/protocol"
)

// streamCredit is how many bytes of one stream may wait to be written: other sources wait for this much of it at
// most.
const streamCredit = 256 << 10

// streamDelay is how long after the answer the first message of a stream goes out. A client wakes the caller that
// waits for the answer, and only then the caller can take what the answer names. The public Python client loses
// messages that come sooner.
const streamDelay = 5 * time.Millisecond

// ErrStreamClosed is the error of Send when nobody waits for the stream any more: its request failed, its session
// or the host has ended, or Close was called.
var ErrStreamClosed = errors.New("the stream is closed")

// Stream sends messages that belong to a request and go on after its answer, such
// as the output of a process. It is safe for concurrent use.
type Stream struct {
	host     *Host
	sess     *Session
	reqID    protocol.Value
	dialects *Host       // of a dialect's session: its dialects take what is sent; host is nil then
	taker    Taker       // gets what is sent, in place of the agent; nil = none
	ended    atomic.Bool // Close was called; of a stream without a host

	// guarded by host.out.mu; the condition `room` signals changes
	open      bool
	closed    bool
	waiting   []mark // messages that were not yet written at the last look, in order
	unwritten int    // bytes of these
}

// mark is one message of a stream in the output: the position of its end, and its size in bytes.
type mark struct{ end, size int }

// Taker gets a message of a stream: its body, without secrets. It is called by one goroutine at a time for one stream,
// and must not wait.
type Taker func(t protocol.Type, body protocol.Object)

// takerKey is the context key of the Taker.
type takerKey struct{}

// TakeStreams returns a context for requests whose streams send to take instead of the agent.
func TakeStreams(ctx context.Context, take Taker) context.Context {
	return context.WithValue(ctx, takerKey{}, take)
}

// OpenStream makes the stream of the request that ctx belongs to, while its handler runs. The plugin must close it;
// it is closed with the session in any case. It is closed from the start if the session is over, if the request was
// answered already, or outside of a request. In a dialect's session its messages go to the dialects that are a
// PushTaker until the plugin closes it.
func OpenStream(ctx context.Context) *Stream {
	if take, ok := ctx.Value(takerKey{}).(Taker); ok {
		f := &Stream{sess: SessionFrom(ctx), taker: take}
		f.dialects, _ = ctx.Value(hostKey{}).(*Host)
		return f
	}
	c := callFrom(ctx)
	if c == nil || c.work != nil {
		f := &Stream{closed: true}
		if f.sess = SessionFrom(ctx); f.sess != nil {
			f.dialects, _ = ctx.Value(hostKey{}).(*Host)
		}
		return f
	}
	f := &Stream{host: c.host, sess: c.sess.Load(), reqID: bytes.Clone(c.reqID())}
	c.out.Lock()
	late := c.answered // it can only be an error
	c.streams = append(c.streams, f)
	c.out.Unlock()
	if late || !c.host.addStream(f) {
		f.settle(false)
	}
	return f
}

// addStream registers a stream, which is then closed with its session. False means that the session is over or has
// not begun: a plugin that restores its state gets the context of a handshake.
func (h *Host) addStream(f *Stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.sess == nil || h.session != f.sess {
		return false
	}
	h.streams[f] = struct{}{}
	return true
}

// Session returns the session that the stream belongs to.
func (f *Stream) Session() *Session { return f.sess }

// Send sends one message with the req_id of the stream's request, in order. It waits until that request is
// answered, and while streamCredit bytes of this stream are not yet written or the output is full. It does not wait
// until its own message is written. The error is ErrStreamClosed, or says why the body does not encode.
func (f *Stream) Send(t protocol.Type, body any) error {
	switch {
	case f.ended.Load():
		return ErrStreamClosed
	case f.taker != nil:
		return f.take(t, body)
	case f.dialects != nil:
		f.dialects.pushToDialects(t, body)
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

// take passes a message to the taker, with secrets masked like those in the lines to the agent.
func (f *Stream) take(t protocol.Type, body any) error {
	text, err := protocol.AppendJSON(nil, body)
	if err != nil {
		return err
	}
	if f.dialects != nil {
		text = f.dialects.out.secrets.Line(text)
	}
	obj, err := protocol.ParseObject(text)
	if err == nil {
		f.taker(t, obj)
	}
	return err
}

// Close ends the stream. Messages that were sent before still go out.
func (f *Stream) Close() {
	if f.host == nil {
		f.ended.Store(true)
		return
	}
	f.settle(false)
	f.host.mu.Lock()
	delete(f.host.streams, f)
	f.host.mu.Unlock()
}

// settle opens the stream, or closes it. A closed stream stays closed.
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

// appendStream adds one line of a stream when there is room for it, and lets another goroutine write it. False
// means that the stream is closed. It does not write itself, because the sender would have to wait for what others
// send.
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

// closeStreams closes all streams, because they belong to the session that ends. From here on the session is over,
// and no stream of it is opened.
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

// push sends a message of Services.Push to the dialects and to the agent.
func (h *Host) push(t protocol.Type, body any) error {
	h.pushToDialects(t, body)
	f := h.pushes(t)
	if f == nil {
		return ErrStreamClosed
	}
	return f.Send(t, body)
}

// pushToDialects passes a message to the dialects that are a PushTaker.
func (h *Host) pushToDialects(t protocol.Type, body any) {
	for _, d := range h.opts.Dialects {
		if p, ok := d.(PushTaker); ok {
			p.Pushed(t, body)
		}
	}
}

// pushes returns the session's stream of messages that belong to no request. It returns nil if there is no session,
// or if its agent did not ask for the capability that t belongs to.
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

// openPushesLocked makes the stream for pushes of a session that begins. It opens after the answer to the
// handshake, which agents read as the first line.
func (h *Host) openPushesLocked(c *call) {
	h.pushed = &Stream{host: h, sess: h.session}
	h.streams[h.pushed] = struct{}{}
	c.out.Lock()
	c.streams = append(c.streams, h.pushed)
	c.out.Unlock()
}
