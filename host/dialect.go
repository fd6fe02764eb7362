package host

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"a2e/protocol"
)

// Dialect is another protocol on the same pipe: JSON-RPC sessions, MCP, the fleet
// protocol. The host gives it its lines, in order, and takes its lines for the output.
type Dialect interface {
	// Open begins. ctx names the host, for Call, Find and BeginSession, and ends when the
	// host has ended. It must not wait.
	Open(ctx context.Context, out Output)
	// Mine reports whether a line belongs to the dialect; dialects are asked in the order of
	// Options.Dialects, unless the line has a type of A2E and no member jsonrpc. It must be quick,
	// and is asked for each line once. One that is no JSON object goes to Broken then, not to Take.
	Mine(line *protocol.Line) bool
	// Take takes in one line that is Mine, which is valid until Take returns. It must not
	// wait. It returns a request for the host's scheduler; nil = the dialect sees to the line
	// itself: what takes long is for a goroutine of its own then, and it bounds what it holds.
	Take(line *protocol.Line) *Work
	// Broken answers a line that no protocol understands, when it looks like one of this
	// dialect, or the last good line was one. The line is valid until Broken returns; its Object
	// has what can be told of it (see protocol.Line.Scan).
	Broken(line *protocol.Line, err *protocol.Error)
	// Drain is called when no line comes any more, and Take has returned, once. It returns
	// when all that was taken in is answered, or when ctx has ended, at which it stops and
	// answers the rest; a Take that waits is then not waited for.
	Drain(ctx context.Context)
}

// PushTaker is a Dialect whose agent, too, gets what plugins push.
type PushTaker interface {
	// Pushed takes a message that belongs to no request, as Push got it, at any time after
	// Open. It may wait for the output, and passes over what its agent has no use for.
	Pushed(t protocol.Type, body any)
}

// BatchTaker is a Dialect that may take several messages as one line.
type BatchTaker interface {
	// Batch takes a line that is a JSON array, valid until it returns, in place of Broken. It
	// must not wait. It returns requests for the host's scheduler; false = it does not take it.
	Batch(line []byte) ([]*Work, bool)
}

// Output is where a dialect writes.
type Output interface {
	// Send puts one line, without its end, into the output, and has it written. It waits
	// while the output is full; after the end of the output it does nothing.
	Send(line []byte)
}

// Send implements Output.
func (w *writer) Send(line []byte) {
	msg := make([]byte, 0, len(line)+1)
	w.put(append(append(msg, line...), '\n'))
	w.flush()
}

// routeToDialect gives a line to the dialect that it belongs to. A line with the fault err whose members do not
// tell that, or one of no protocol, goes to the dialect of the last good line, and before there was one to the
// dialect which it looks like; a batch is JSON-RPC's in any case. other is false where it is A2E's;
// mine is false when another goroutine is the leader.
func (h *Host) routeToDialect(t *leader, err error) (mine, other bool) {
	to := h.spoken
	switch d := h.dialectOf(t.line, err); {
	case err == nil && d == nil && h.spoken != nil && !t.line.RPC && len(t.line.Type) == 0:
		err = protocol.Errorf(protocol.CodeInvalidMessage, "%w", errNoProtocol)
	case err == nil || h.opts.Only:
		to, h.spoken, h.heard = d, d, true
	case d != nil || len(t.line.Type) > 0:
		to = d
	}
	if to == nil {
		return true, false
	}
	return h.handLine(t, to, err), true
}

var errNoProtocol = errors.New("the line is an object with neither \"jsonrpc\" nor \"type\", so its protocol is " +
	"unknown")

// dialectOf returns the dialect that a line belongs to, which has the fault err unless that
// is nil; nil = A2E, or one that cannot be told.
func (h *Host) dialectOf(line *protocol.Line, err error) Dialect {
	defer h.guard("a dialect")
	_, isRPC := line.Object().Get("jsonrpc")
	told := err == nil || isRPC || len(line.Type) > 0 || line.RPC && (!h.heard || errors.Is(err, protocol.ErrArray))
	for _, d := range h.opts.Dialects {
		if h.opts.Only || told && d.Mine(line) {
			return d
		}
	}
	return nil
}

// handLine hands a line to a dialect, or what is wrong with it. False means that another
// goroutine is the leader. It waits for room in the output first, which a dialect may have
// to answer on at once: nothing would bound the goroutines that wait there in its place.
func (h *Host) handLine(t *leader, d Dialect, err error) bool {
	h.out.waitRoom()
	number, ok := h.lineSequencer.open()
	if !ok {
		return true // the host ends: the line counts as not read
	}
	if number > maxAhead {
		h.lineSequencer.await(number - maxAhead)
	}
	t.begin(h, nil)
	var ready []*call
	func() {
		defer h.lineSequencer.shut()
		defer h.guard("a dialect")
		h.lineSequencer.await(number) // who was replaced may still be at the line before
		if b, ok := d.(BatchTaker); ok && err != nil && bytes.HasPrefix(bytes.TrimSpace(t.line.Raw()), []byte{'['}) {
			if works, ok := b.Batch(t.line.Raw()); ok {
				ready = h.admitWorks(t, works...)
				return
			}
		}
		if err != nil {
			d.Broken(t.line, wireError(err))
			return
		}
		if w := d.Take(t.line); w != nil {
			ready = h.admitWorks(t, w)
		}
	}()
	mine := t.end()
	if len(ready) == 0 {
		return mine && (!h.out.due() || h.flush(t))
	}
	for _, c := range ready[1:] {
		c.reader.Store(nil)
	}
	h.workAll(ready[1:])
	if mine {
		return h.runOn(t, ready[0])
	}
	ready[0].reader.Store(nil) // another goroutine is the leader
	h.work(ready[0])
	return false
}

// admitWorks puts works of a dialect into the order, and returns those that may run now.
func (h *Host) admitWorks(t *leader, works ...*Work) (ready []*call) {
	for _, w := range works {
		c := h.newWork(t, w)
		runs, err := h.admit(c, t)
		switch {
		case err != nil:
			h.answerError(c, err)
		case runs:
			ready = append(ready, c)
		}
	}
	return ready
}

// maxAhead is how many lines are read on while a dialect is slow with one: each of them
// holds a goroutine.
const maxAhead = 8

// lineSequencer has dialects take lines in one after the other, in order.
type lineSequencer struct {
	mu     sync.Mutex    // guards the fields below
	moved  sync.Cond     // on mu: taken has changed
	begun  uint64        // lines that were opened
	taken  uint64        // of those, the ones that are taken in
	closed bool          // no further line is taken in
	quiet  chan struct{} // closed when closed and all lines are taken in
}

// open begins a line and gives its number; false means that none is taken in any more.
func (e *lineSequencer) open() (number uint64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, false
	}
	e.moved.L = &e.mu
	number = e.begun
	e.begun++
	return number, true
}

// await waits until the lines before this one are taken in.
func (e *lineSequencer) await(number uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.taken < number {
		e.moved.Wait()
	}
}

// shut ends a line.
func (e *lineSequencer) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken++
	e.moved.Broadcast()
	if e.taken == e.begun && e.closed {
		close(e.quiet)
	}
}

// close takes no further line in; the channel is closed when those before are.
func (e *lineSequencer) close() (quiet <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed, e.quiet = true, make(chan struct{})
	if e.taken == e.begun {
		close(e.quiet)
	}
	return e.quiet
}

// Asker sends a request of a plugin to the agent of a session and decodes its answer into
// resp, as Ask does. The error is a *protocol.Error, or that of ctx.
type Asker func(ctx context.Context, t protocol.Type, req, resp any) error

// BeginSession begins a session beside that of the handshake, for a dialect: all
// capabilities are open to it. ctx is that of Dialect.Open or one made from it; requests
// of the session are made by Call with the context that it gives. Plugins that ask the
// agent something ask ask; nil = nobody answers. end tells the plugins that the session
// is over; it is called once, and does not wait longer than a moment.
func BeginSession(ctx context.Context, agentID string, ask Asker) (inSession context.Context, sess *Session,
	end func(),
) {
	h, _ := ctx.Value(hostKey{}).(*Host)
	sess = h.newSession(cmp.Or(h.opts.AgentID, agentID))
	sess.ask, sess.aside, sess.Pushes = ask, true, true
	for _, name := range capabilities() {
		sess.Caps[name] = h.loaded(name)
	}
	h.opts.Checkpoints.Prepare()
	inSession, cancel := context.WithCancel(context.WithValue(ctx, sessionKey{}, sess))
	return inSession, sess, func() {
		cancel()
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout/2)
		defer stop()
		h.tellEnd(ctx, sess)
	}
}

// Shutdown ends the host that ctx belongs to as the message shutdown does, for a dialect
// with such a request of its own: what runs gets at most timeout to finish.
func Shutdown(ctx context.Context, timeout time.Duration) {
	if h, ok := ctx.Value(hostKey{}).(*Host); ok {
		h.Shutdown(min(max(timeout, 0), maxShutdown))
	}
}

// tellEnd tells the plugins that a session is over.
func (h *Host) tellEnd(ctx context.Context, sess *Session) {
	h.eachPlugin(ctx, "end of session in plugin ", func(p Plugin) error {
		if e, ok := As[SessionEnder](p); ok {
			e.EndSession(ctx, sess)
		}
		return nil
	})
}

// InSession returns a context, such as that of a plugin's own work, for what belongs to a
// session but to no request of it: Ask then asks its agent.
func InSession(ctx context.Context, sess *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, sess)
}

// sessionKey finds the session of a dialect, or of InSession, in a context.
type sessionKey struct{}

// Readier is a plugin that learns after its start what it serves. The answer to a
// handshake waits for it, at most maxReady.
type Readier interface {
	// Ready returns when the plugin's Info is what it will be, or ctx has ended.
	Ready(ctx context.Context)
}

// maxReady is how long a handshake waits for plugins that do not know yet what they serve.
const maxReady = 10 * time.Second

// awaitPlugins waits until each plugin knows what it serves.
func (h *Host) awaitPlugins(c *call) {
	ctx, cancel := context.WithTimeout(h.ctx, maxReady)
	defer cancel()
	for _, p := range h.opts.Plugins {
		if r, ok := As[Readier](p); ok {
			HandOff(c)
			r.Ready(ctx)
		}
	}
}
