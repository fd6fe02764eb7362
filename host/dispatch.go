package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"a2e/protocol"
)

// dispatch runs a request here if a slot is free, and queues it otherwise. False means that another goroutine is
// the leader.
func (h *Host) dispatch(t *leader, c *call) bool {
	started, err := h.admit(c, t)
	switch {
	case err != nil:
		h.answerError(c, err)
	case started:
		return h.runOn(t, c)
	}
	return !h.out.due() || h.flush(t)
}

// admit begins the call, or queues it when no slot is free. ready reports whether it may run at once. The error is
// the answer to a call that can neither begin nor wait.
func (h *Host) admit(c *call, t *leader) (ready bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // the end would not wait for a call that begins now
		return false, errShutdown
	}
	if h.handshakes == 0 { // otherwise the handshake decides, and invoke asks again
		if err := h.gateLocked(c); err != nil {
			return false, err
		}
	}
	p := h.slotsLocked(c)
	switch {
	case p == h.slots[0] && h.abandoned >= maxAbandoned:
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%s still run after their timeout or cancel; wait until some end, or restart the host",
			protocol.Count(h.abandoned, "request"))
	case p == nil || p.queue.empty() && p.taken < p.max:
		return h.beginLocked(c, t)
	case !p.queue.fits(c):
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%s running and %d waiting, which is all that max_parallel and limits.max_queue allow; "+
				"send it again later", protocol.Count(p.taken, "request"), p.queue.len())
	}
	if err := c.keepLine(t); err != nil {
		return false, err
	}
	p.queue.push(c)
	if c.dest.barrier {
		h.handshakes++
		h.stopReleasedLocked()
	}
	return false, nil
}

// slotsLocked returns the Slots of which a request takes one. It returns nil if the request takes none and does
// not have to wait in their queue behind a handshake.
func (h *Host) slotsLocked(c *call) *Slots {
	switch {
	case c.dest.slots != nil:
		return c.dest.slots
	case c.dest.noSlot && (h.handshakes == 0 || c.work != nil):
		return nil
	}
	return h.slots[0]
}

// gate lets a request pass to the plugins if the session allows it. Otherwise the error says why not.
func (h *Host) gate(c *call) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gateLocked(c)
}

// gateOnce is gate for a request that has not passed it yet, such as one that waited behind a handshake.
func (h *Host) gateOnce(c *call) error {
	if c.sess.Load() != nil {
		return nil
	}
	return h.gate(c)
}

func (h *Host) gateLocked(c *call) error {
	switch {
	case c.dest.barrier:
		return nil
	case c.work != nil:
		return c.work.mayRun(c.dest)
	case h.session == nil || h.over:
		return h.noSessionLocked()
	}
	d := c.dest
	if d.capability != protocol.CapCore && !h.session.Caps[d.capability] {
		return protocol.Errorf(protocol.CodeCapabilityMissing,
			"%s needs the capability %q, which this session did not get; %s", d.typ, d.capability,
			cmp.Or(h.session.why[d.capability], "name it in agent_caps of the handshake"))
	}
	if len(d.routes) == 0 && d.control == nil {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", d.typ)
	}
	c.sess.Store(h.session)
	return nil
}

// beginLocked gives a call its slot and its position in the order. t is the leader that read its line, or nil if the
// call has a copy of the line.
func (h *Host) beginLocked(c *call, t *leader) (ready bool, err error) {
	blockers := h.order.blockersOf(c)
	if len(blockers) > 0 && t != nil {
		if c.dest.noSlot && (h.order.parked >= h.opts.Limits.Queue ||
			h.order.bytes+c.size() > h.opts.Limits.QueueBytes) {
			return false, protocol.Errorf(protocol.CodeOverloaded,
				"%s waiting for an earlier %s or the like, which is all that limits.max_queue allows; "+
					"send it again later", protocol.Count(h.order.parked, "request"), c.dest.typ)
		}
		if err := c.keepLine(t); err != nil {
			return false, err
		}
	}
	if !c.dest.noSlot {
		c.slots = h.slotsLocked(c)
		c.slots.taken++
	}
	if c.dest.barrier && t != nil { // one that was queued is counted already
		h.handshakes++
		h.stopReleasedLocked()
	}
	return h.order.begin(c, blockers), nil
}

// Load returns how many requests have no answer yet, and how many of those wait in a queue.
func (h *Host) Load() (open, waiting int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting = h.waitingLocked()
	open = waiting
	for c := range h.order.underWay {
		if c.stage != stopped {
			open++
		}
	}
	return open, waiting
}

// keepLine copies the line of a call that has to wait, because the line belongs to the reader.
func (c *call) keepLine(t *leader) error {
	c.reader.Store(nil)
	if c.work != nil {
		return nil
	}
	c.line = new(protocol.Line)
	if err := c.line.Scan(bytes.Clone(t.line.Raw())); err != nil {
		return err
	}
	return nil
}

// release ends a call, and returns the calls that may run now.
func (h *Host) release(c *call) (next []*call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.stage == ended {
		h.abandoned-- // abandon freed its slot before
		return nil
	}
	return h.endLocked(c)
}

// endLocked frees the slot of a call and takes it out of the order. It returns the calls that may run now.
func (h *Host) endLocked(c *call) (next []*call) {
	h.freeSlotLocked(c)
	if c.dest.barrier {
		h.handshakes--
	}
	next = h.order.pass(c, true)
	return append(next, h.startQueuedLocked()...)
}

func (h *Host) freeSlotLocked(c *call) {
	if c.slots != nil {
		c.slots.taken--
		c.slots = nil
	}
}

func (h *Host) startQueuedLocked() (next []*call) {
	for _, p := range h.slots {
		for !p.queue.empty() && p.taken < p.max {
			c := p.queue.pop()
			c.begins() // the wait does not count for its time limit
			if ready, _ := h.beginLocked(c, nil); ready {
				next = append(next, c)
			}
		}
	}
	if h.draining && h.order.empty() && h.waitingLocked() == 0 {
		h.draining, h.over = false, true
		close(h.idle)
	}
	return next
}

// waitingLocked returns how many requests wait in queues.
func (h *Host) waitingLocked() (waiting int) {
	for _, p := range h.slots {
		waiting += p.queue.len()
	}
	return waiting
}

// runningLocked lists the calls that run.
func (h *Host) runningLocked() (all []*call) {
	for c := range h.order.underWay {
		if c.stage == runs || c.stage == passed {
			all = append(all, c)
		}
	}
	return all
}

// stopWaitingLocked stops the waiting calls that match. It returns these calls, and those that may run now.
func (h *Host) stopWaitingLocked(match func(*call) bool) (taken, next []*call) {
	for _, p := range h.slots {
		taken = append(taken, p.queue.remove(match)...)
	}
	for c := range h.order.underWay {
		if c.stage == parked && match(c) {
			h.order.unpark(c, stopped)
			h.freeSlotLocked(c)
			taken = append(taken, c)
		}
	}
	return taken, h.startQueuedLocked()
}

// abandon ends a call that did not stop in time and gives its slot to the next call. A work with Slots of its
// dialect keeps its slot, because these bound what runs.
func (h *Host) abandon(c *call) {
	h.mu.Lock()
	if c.stage != runs && c.stage != passed || c.dest.slots != nil {
		h.mu.Unlock()
		return
	}
	h.abandoned++
	next := h.endLocked(c)
	h.mu.Unlock()
	h.startAll(next)
}

// runOn runs a call on the goroutine that reads, and frees its slot. False means that another goroutine is the
// leader.
func (h *Host) runOn(t *leader, c *call) bool {
	t.begin(h, c)
	t.out = h.run(c, t.out)
	h.startAll(h.release(c))
	if !t.end() {
		return false
	}
	return !h.out.due() || h.flush(t)
}

// runCalls runs a call, and then one of those that waited for its slot. The others get goroutines of their own.
func (h *Host) runCalls(c *call) {
	var out []byte
	for c != nil {
		out = h.run(c, out)
		next := h.release(c)
		c = nil
		if len(next) > 0 {
			c = next[0]
			h.startAll(next[1:])
		}
	}
}

// startAll runs the calls, each on a goroutine of its own.
func (h *Host) startAll(calls []*call) {
	for _, c := range calls {
		h.goes.Go(func() { h.runCalls(c) })
	}
}

// run calls the handler and sends its answer. out is a buffer for the answer; run returns a buffer for the next
// one.
func (h *Host) run(c *call, out []byte) []byte {
	resp, err := h.invoke(c)
	if cause := c.finish(); cause != nil {
		err = c.stoppedBy(cause, err)
	}
	next := h.freeSlotBeforeAnswer(c)
	again, _ := resp.(*Work)
	switch {
	case err != nil:
		h.answerError(c, err)
	case again != nil:
		h.admitAgain(c, again)
	case resp != nil:
		out = h.answer(c, out, resp, nil)
	}
	h.startAll(next) // after the answer, so that the answers of one slot are in order
	return out
}

// freeSlotBeforeAnswer frees the slot of a work with Slots of its dialect, and returns the calls that get it, so that
// whoever reads the answer finds the slot free.
func (h *Host) freeSlotBeforeAnswer(c *call) (next []*call) {
	if c.dest.slots == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freeSlotLocked(c)
	return h.startQueuedLocked()
}

// invoke calls the handler and turns a panic into an error.
func (h *Host) invoke(c *call) (resp any, err error) {
	returned := false
	defer func() {
		switch v := recover(); {
		case v != nil:
			h.logPanic(string(c.dest.typ), v)
			err = protocol.Errorf(protocol.CodeRuntimeError,
				"the plugin panicked while it handled %s; the host goes on and its log has the details", c.dest.typ)
		case !returned:
			h.brokenOff(c)
		}
	}()
	if c.dest.control != nil {
		resp, err = c.dest.control(h, c)
	} else if err = h.gateOnce(c); err == nil {
		if c.limit > 0 && c.reader.Load() == nil {
			c.arm() // the watcher sees only the leader, not other goroutines
		}
		std := c.std.Load()
		// A call that was stopped before it could begin is not served, unless it has a slot of its dialect.
		if std != nil && std.Err() != nil && c.dest.slots == nil {
			err = context.Cause(std)
		} else if c.work != nil && c.work.Run != nil {
			resp, err = c.work.Run(c)
		} else {
			resp, err = c.dest.handler(c, c.object(), c.emitter())
		}
	}
	returned = true
	return resp, err
}

// brokenOff answers a call whose handler is ending its goroutine (runtime.Goexit).
func (h *Host) brokenOff(c *call) {
	h.logPanic(string(c.dest.typ), "the handler ended its goroutine")
	_ = c.finish()
	h.answerError(c, protocol.Errorf(protocol.CodeRuntimeError, "the plugin broke off %s", c.dest.typ))
	h.startAll(h.release(c))
}

func (h *Host) logPanic(where string, v any) {
	h.opts.Log.Error().Str("where", where).Str("panic", fmt.Sprint(v)).Bytes("stack",
		debug.Stack()).Msg("a plugin panicked")
}

// Go runs f on a goroutine of its own for the request that ctx belongs to. A panic of f is logged and answers the
// request instead of ending the host.
func Go(ctx context.Context, f func()) {
	HandOff(ctx) // the line that the request came in must outlive f
	go func() {
		defer func() {
			if v := recover(); v != nil {
				panicked(ctx, v)
			}
		}()
		f()
	}()
}

// panicked ends the request whose goroutine panicked, because its handler may wait for that goroutine.
func panicked(ctx context.Context, v any) {
	c, n := callFrom(ctx), nestedFrom(ctx)
	h, _ := ctx.Value(hostKey{}).(*Host)
	switch {
	case n != nil:
		h.logPanic("goroutine of "+string(n.typ), v)
		n.stop(protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it handled %s", n.typ))
	case c != nil:
		h.logPanic("goroutine of "+string(c.dest.typ), v)
		h.answerError(c, protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it handled %s",
			c.dest.typ))
		c.stop(errCancelled)
	case h != nil:
		h.logPanic("a goroutine of no request", v)
	}
}
