package host

import (
	"a2e/protocol"
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
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

// admit gives the call a slot, or queues it when there is none: started tells
// which. The error is the answer to a call that gets neither.
func (h *Host) admit(c *call, t *leader) (started bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // nothing that begins now would be waited for
		return false, errShutdown
	}
	if c.dest.immediate {
		return h.admitAheadLocked(c, t)
	}
	if h.handshakes == 0 { // otherwise that decides, and work asks again
		if err := h.gateLocked(c); err != nil {
			return false, err
		}
	}
	if h.abandoned >= maxAbandoned {
		return false, protocol.Errorf(protocol.CodeOverloaded, "%d requests did not stop when their time was up; restart the host", h.abandoned)
	}
	if h.queue.empty() && h.canStartLocked(c) {
		h.startLocked(c)
		return true, nil
	}
	if !h.queue.fits(c) {
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%d requests run and %d wait, which is all that max_parallel and limits.max_queue allow; send it again later", len(h.running), h.queue.len())
	}
	if err := c.keepLine(t); err != nil {
		return false, err
	}
	h.queue.push(c)
	if c.dest.barrier {
		h.handshakes++
		h.stopReleasedLocked()
	}
	return false, nil
}

// Load returns how many requests have no answer yet, and how many of those wait to begin.
func (h *Host) Load() (open, waiting int) {
	h.mu.Lock()
	waiting = h.queue.len()
	open = len(h.running) + len(h.aside) + waiting
	h.mu.Unlock()
	for _, d := range h.opts.Dialects {
		if l, ok := d.(interface{ Load() (open, waiting int) }); ok {
			more, wait := l.Load()
			open, waiting = open+more, waiting+wait
		}
	}
	return open, waiting
}

// keepLine gives a call that has to wait a copy of its line, which belongs to the reader.
func (c *call) keepLine(t *leader) error {
	c.line = new(protocol.Line)
	if err := c.line.Scan(bytes.Clone(t.line.Raw())); err != nil {
		return err
	}
	c.reader.Store(nil)
	return nil
}

// canStartLocked reports whether there is a slot. A handshake waits until nothing
// of the old session runs, and everything after it waits for it.
func (h *Host) canStartLocked(c *call) bool {
	if c.dest.barrier {
		return len(h.running) == 0 && len(h.aside) == 0
	}
	return !h.barrier && len(h.running) < h.opts.MaxParallel
}

func (h *Host) startLocked(c *call) {
	c.slot = len(h.running)
	h.running = append(h.running, c)
	if c.dest.rwQueue != nil {
		c.dest.rwQueue.joinLocked(c)
	}
	if c.dest.space != "" || c.dest.usesTools {
		h.followLocked(c)
	}
	if c.dest.barrier {
		h.barrier = true
		if h.handshakes == 0 {
			h.handshakes = 1
		}
	}
}

// release frees the slot of a call that has ended, and returns the calls
// that start in its stead.
func (h *Host) release(c *call) (next []*call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.dest.immediate || c.left {
		delete(h.aside, c)
		return append(h.passLocked(c), h.startQueuedLocked()...)
	}
	if c.slot < 0 {
		h.abandoned-- // its slot was given away when it did not stop
		return nil
	}
	h.freeLocked(c)
	return h.startQueuedLocked()
}

func (h *Host) freeLocked(c *call) {
	last := len(h.running) - 1
	moved := h.running[last]
	moved.slot, h.running[c.slot] = c.slot, moved
	h.running[last] = nil
	h.running = h.running[:last]
	c.slot = -1
	if c.passed != nil {
		close(c.passed)
	}
	if c.dest.barrier {
		h.barrier = false
		h.handshakes--
	}
}

func (h *Host) startQueuedLocked() (next []*call) {
	for !h.queue.empty() && h.canStartLocked(h.queue.head()) {
		c := h.queue.pop()
		c.start = h.elapsed() // its time limit is not for waiting
		h.startLocked(c)
		next = append(next, c)
	}
	if h.draining && len(h.running) == 0 && len(h.aside) == 0 && h.queue.empty() {
		h.draining, h.over = false, true
		close(h.idle)
	}
	return next
}

// abandon gives the slot of a call that did not stop in time to the next one.
func (h *Host) abandon(c *call) {
	h.mu.Lock()
	_, aside := h.aside[c]
	if c.dest.immediate {
		var next []*call
		if aside && !c.parked { // those behind it must not wait
			next = h.passLocked(c)
		}
		h.mu.Unlock()
		h.workAll(next)
		return
	}
	switch {
	case c.slot >= 0:
		h.freeLocked(c)
	case aside && c.left: // a handshake would wait for it
		delete(h.aside, c)
		c.left = false
	default:
		h.mu.Unlock()
		return
	}
	h.abandoned++
	next := h.startQueuedLocked()
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
	switch {
	case err != nil:
		h.answerError(c, err)
	case resp != nil:
		return h.answer(c, out, resp)
	}
	return out
}

// invoke calls the handler and turns a panic into an error.
func (h *Host) invoke(c *call) (resp any, err error) {
	returned := false
	defer func() {
		switch v := recover(); {
		case v != nil:
			h.logPanic(string(c.dest.typ), v)
			err = protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it handled %s; the host goes on and its log has the details", c.dest.typ)
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
		if err = c.awaitOrder(); err == nil { // nothing runs that was stopped before it could begin
			resp, err = h.serve(c, c.dest, c.line.Object(), c)
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
	h.opts.Log.Error().Str("where", where).Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a plugin panicked")
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
		h.answerError(c, protocol.Errorf(protocol.CodeRuntimeError, "the plugin panicked while it handled %s", c.dest.typ))
		c.stop(errCancelled)
	case h != nil:
		h.logPanic("a goroutine of no request", v)
	}
}
