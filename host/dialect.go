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

// Dialect is another protocol on the same pipe: JSON-RPC sessions, MCP, the fleet protocol. The host passes its
// lines to it, in order, and writes the lines that it sends.
type Dialect interface {
	// Open starts the dialect. ctx names the host, for Call, Find and BeginSession, and ends when the host has
	// ended. Open must not wait.
	Open(ctx context.Context, out Output)
	// Mine reports whether a line belongs to the dialect. The host asks the dialects in the order of
	// Options.Dialects, unless the line has a type of A2E and no member jsonrpc. Mine must be quick, and is called
	// at most once for each line. A line that is Mine but no JSON object goes to Broken, not to Take.
	Mine(line *protocol.Line) bool
	// Take takes in one line that is Mine. The line is valid until Take returns. Take must not wait. It returns a
	// request for the host's scheduler, or nil if the dialect handles the line itself: then slow work needs a
	// goroutine of its own, and the dialect bounds what it holds.
	Take(line *protocol.Line) *Work
	// Broken answers a line that no protocol understands, if it looks like a line of this dialect or the last good
	// line was one. The line is valid until Broken returns. Its Object has the members that could be read (see
	// protocol.Line.Scan).
	Broken(line *protocol.Line, err *protocol.Error)
	// Drain is called once, when no more lines come and Take has returned. It returns when everything that was
	// taken in is answered. When ctx ends, it stops and answers the rest; it does not wait for a Take that still
	// waits then.
	Drain(ctx context.Context)
}

// PushTaker is a Dialect whose agent also receives what plugins push.
type PushTaker interface {
	// Pushed takes a message that belongs to no request, as it was passed to Push, at any time after Open. It may
	// wait for the output. It ignores messages that its agent cannot use.
	Pushed(t protocol.Type, body any)
}

// BatchTaker is a Dialect that may take several messages as one line.
type BatchTaker interface {
	// Batch takes a line that is a JSON array, in place of Broken. The line is valid until Batch returns. Batch
	// must not wait. It returns requests for the host's scheduler; false = it does not take the line.
	Batch(line []byte) ([]*Work, bool)
}

// Output is where a dialect writes.
type Output interface {
	// Send adds one line, without its newline, to the output and writes it. It waits while the output is full.
	// After the end of the output it does nothing.
	Send(line []byte)
}

// Send implements Output.
func (w *writer) Send(line []byte) {
	msg := make([]byte, 0, len(line)+1)
	w.put(append(append(msg, line...), '\n'))
	w.flush()
}

// routeToDialect passes a line to the dialect that it belongs to. err is the fault of the line; nil = none. A
// faulty line whose members do not show its protocol, or a line of no protocol, goes to the dialect of the last
// good line; before the first good line, it goes to the dialect that it looks like. A batch always goes to
// JSON-RPC. other is false if the line belongs to A2E; mine is false if another goroutine is the leader.
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

// dialectOf returns the dialect that a line belongs to, or nil if the line belongs to A2E or its protocol is not
// known. err is the fault of the line; nil = none.
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

// handLine passes a line, or its fault, to a dialect. False means that another goroutine is the leader. handLine
// first waits for room in the output, because a dialect may have to answer at once: otherwise nothing would bound
// the goroutines that wait for that room.
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
		h.lineSequencer.await(number) // a replaced leader may still be at the line before
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
	h.startAll(ready[1:])
	if mine {
		return h.runOn(t, ready[0])
	}
	ready[0].reader.Store(nil) // another goroutine is the leader
	h.runCalls(ready[0])
	return false
}

// admitWorks admits works of a dialect, and returns the calls that may run now.
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

// maxAhead is how many further lines are read while a dialect is slow with one. Each of them holds a goroutine.
const maxAhead = 8

// lineSequencer makes dialects take in the lines one after the other, in order.
type lineSequencer struct {
	mu     sync.Mutex    // guards the fields below
	moved  sync.Cond     // on mu: taken has changed
	begun  uint64        // lines that were opened
	taken  uint64        // lines that were taken in
	closed bool          // no further line is taken in
	quiet  chan struct{} // closed when closed and all lines are taken in
}

// open begins a line and returns its number. False means that no more lines are taken in.
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

// shut marks the current line as taken in.
func (e *lineSequencer) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken++
	e.moved.Broadcast()
	if e.taken == e.begun && e.closed {
		close(e.quiet)
	}
}

// close refuses further lines. The channel is closed when the lines before are taken in.
func (e *lineSequencer) close() (quiet <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed, e.quiet = true, make(chan struct{})
	if e.taken == e.begun {
		close(e.quiet)
	}
	return e.quiet
}

// Asker sends a request of a plugin to the agent of a session and decodes its answer into resp, as Services.Ask
// does. The error is a *protocol.Error, or that of ctx.
type Asker func(ctx context.Context, t protocol.Type, req, resp any) error

// BeginSession begins a session beside that of the handshake, for a dialect. All capabilities are open to it. ctx
// is that of Dialect.Open or one made from it. The requests of the session are made by Call with the context
// inSession. ask asks the agent on behalf of plugins; nil = nobody answers. end tells the plugins that the session
// is over; it must be called once, and waits for 200 ms at most.
func BeginSession(ctx context.Context, agentID string, ask Asker) (inSession context.Context, sess *Session,
	end func(),
) {
	h, _ := ctx.Value(hostKey{}).(*Host)
	sess = h.newSession(cmp.Or(h.opts.AgentID, agentID))
	sess.ask, sess.ofDialect, sess.Pushes = ask, true, true
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

// Shutdown ends the host that ctx belongs to, as the message shutdown does: running requests get at most timeout to
// finish. It is for a dialect that has a shutdown request of its own.
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

// InSession returns a context for work that belongs to a session but to no request, such as a plugin's own work:
// Ask then asks the agent of that session.
func InSession(ctx context.Context, sess *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, sess)
}

// sessionKey is the context key of the session that BeginSession or InSession set.
type sessionKey struct{}

// Readier is a plugin that learns only after its start what it serves. The answer to a handshake waits for it, for
// maxReady at most.
type Readier interface {
	// Ready returns when the plugin's Info is final, or when ctx has ended.
	Ready(ctx context.Context)
}

// maxReady is how long a handshake waits for plugins that do not know yet what they serve.
const maxReady = 10 * time.Second

// awaitPlugins waits until each plugin knows what it serves, for maxReady at most.
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
