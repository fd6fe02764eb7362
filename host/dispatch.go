package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"a2e/protocol"
)

// dispatch runs a request here if a slot is free, and queues it otherwise.
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

// admit begins the call, or queues it when there is no slot: ready says that it may run at once.
// The error is the answer to a call that can do neither.
func (h *Host) admit(c *call, t *leader) (ready bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // nothing that begins now would be waited for
		return false, errShutdown
	}
	if h.handshakes == 0 { // otherwise that decides, and work asks again
		if err := h.gateLocked(c); err != nil {
			return false, err
		}
	}
	p := h.placesLocked(c)
	switch {
	case p == h.places[0] && h.abandoned >= maxAbandoned:
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%s did not stop after the timeout; restart the host", protocol.Count(h.abandoned, "request"))
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

// placesLocked returns those of which a request takes one; nil = it takes none, nor waits for one behind a handshake.
func (h *Host) placesLocked(c *call) *Places {
	switch {
	case c.dest.places != nil:
		return c.dest.places
	case c.dest.ahead && (h.handshakes == 0 || c.work != nil):
		return nil
	}
	return h.places[0]
}

// gate lets a request pass to the plugins if the session allows it.
func (h *Host) gate(c *call) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gateLocked(c)
}

// gateOnce is gate for a request that has not passed it yet: one that waited behind a
// handshake, or that needs no slot.
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

// beginLocked gives a call its slot and its place in the order. t is the leader whose line it
// is; nil = the line is its own.
func (h *Host) beginLocked(c *call, t *leader) (ready bool, err error) {
	ahead := h.order.aheadOf(c)
	if len(ahead) > 0 && t != nil {
		if c.dest.ahead && (h.order.parked >= h.opts.Limits.Queue ||
			h.order.bytes+c.size() > h.opts.Limits.QueueBytes) {
			return false, protocol.Errorf(protocol.CodeOverloaded,
				"%s waiting for an earlier %s or the like, which is all that limits.max_queue allows; "+
					"send it again later", protocol.Count(h.order.parked, "request"), c.dest.typ)
		}
		if err := c.keepLine(t); err != nil {
			return false, err
		}
	}
	if !c.dest.ahead {
		c.place = h.placesLocked(c)
		c.place.taken++
	}
	if c.dest.barrier && t != nil { // one that was queued is counted already
		h.handshakes++
		h.stopReleasedLocked()
	}
	return h.order.begin(c, ahead), nil
}

// Load returns how many requests have no answer yet, and how many of those wait to begin.
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

// keepLine gives a call that has to wait a copy of its line, which belongs to the reader.
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

// release ends a call, and returns the calls that run in its stead.
func (h *Host) release(c *call) (next []*call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.stage == ended {
		h.abandoned-- // what it had was given away when it did not stop
		return nil
	}
	return h.endLocked(c)
}

// endLocked takes from a call what it has, and returns the calls that run in its stead.
func (h *Host) endLocked(c *call) (next []*call) {
	h.freeSlotLocked(c)
	if c.dest.barrier {
		h.handshakes--
	}
	next = h.order.pass(c, true)
	return append(next, h.startQueuedLocked()...)
}

func (h *Host) freeSlotLocked(c *call) {
	if c.place != nil {
		c.place.taken--
		c.place = nil
	}
}

func (h *Host) startQueuedLocked() (next []*call) {
	for _, p := range h.places {
		for !p.queue.empty() && p.taken < p.max {
			c := p.queue.pop()
			c.begins() // its time limit is not for waiting
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
	for _, p := range h.places {
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

// stopWaitingLocked takes the calls that match out of those that wait, and returns them.
func (h *Host) stopWaitingLocked(match func(*call) bool) (taken, next []*call) {
	for _, p := range h.places {
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

// abandon gives what a call has that did not stop in time to the next one. A work keeps its place of a dialect, which
// bounds what runs.
func (h *Host) abandon(c *call) {
	h.mu.Lock()
	if c.stage != runs && c.stage != passed || c.dest.places != nil {
		h.mu.Unlock()
		return
	}
	h.abandoned++
	next := h.endLocked(c)
	h.mu.Unlock()
	h.workAll(next)
}

// runOn runs a call on the goroutine that reads, and gives back its slot.
func (h *Host) runOn(t *leader, c *call) bool {
	t.begin(h, c)
	t.out = h.run(c, t.out)
	h.workAll(h.release(c))
	if !t.end() {
		return false
	}
	return !h.out.due() || h.flush(t)
}

// work runs a call on a goroutine of its own, and then those that waited for
// its slot.
func (h *Host) work(c *call) {
	var out []byte
	for c != nil {
		out = h.run(c, out)
		next := h.release(c)
		c = nil
		if len(next) > 0 {
			c = next[0]
			h.workAll(next[1:])
		}
	}
}

// workAll has calls run, each on a goroutine of its own.
func (h *Host) workAll(calls []*call) {
	for _, c := range calls {
		h.goes.Go(func() { h.work(c) })
	}
}

// run calls the handler and answers with what it gives. out is a buffer to build
// the answer in; it gives back one for the next.
func (h *Host) run(c *call, out []byte) []byte {
	resp, err := h.invoke(c)
	if cause := c.finish(); cause != nil {
		err = c.stoppedBy(cause, err)
	}
	next := h.leavePlace(c)
	again, _ := resp.(*Work)
	switch {
	case err != nil:
		h.answerError(c, err)
	case again != nil:
		h.admitAgain(c, again)
	case resp != nil:
		out = h.answer(c, out, resp, nil)
	}
	h.workAll(next) // behind the answer, so that one place answers in order
	return out
}

// leavePlace gives back the place of a work that has run, and returns the calls that get it: who reads the answer
// finds it free.
func (h *Host) leavePlace(c *call) (next []*call) {
	if c.dest.places == nil {
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
			c.arm() // no watcher looks after a worker
		}
		std := c.std.Load()
		// One that was stopped before it could begin is not served, unless it has a place of a dialect.
		if std != nil && std.Err() != nil && c.dest.places == nil {
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

// brokenOff answers for a handler that ended its goroutine (runtime.Goexit),
// which is about to end.
func (h *Host) brokenOff(c *call) {
	h.logPanic(string(c.dest.typ), "the handler ended its goroutine")
	_ = c.finish()
	h.answerError(c, protocol.Errorf(protocol.CodeRuntimeError, "the plugin broke off %s", c.dest.typ))
	h.workAll(h.release(c))
}

func (h *Host) logPanic(where string, v any) {
	h.opts.Log.Error().Str("where", where).Str("panic", fmt.Sprint(v)).Bytes("stack",
		debug.Stack()).Msg("a plugin panicked")
}

// Go runs f on a goroutine of its own for the request that ctx belongs to: a
// panic of f is logged and answers the request instead of ending the host.
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

// panicked ends the request whose goroutine panicked; its handler may wait for that.
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
