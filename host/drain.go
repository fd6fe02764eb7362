package host

import (
	"context"
	"sync"
	"time"
)

// The end of a host has two deadlines in one tree of contexts. Each wish to end moves them nearer, and everything
// that waits at the end waits for one of them:
//
//	endBy: everything is over ──── a signal: 1.4 s
//	  ├─ drainBy: running requests are cut off ──── end of the input: 10 s; shutdown: its timeout; a signal: 0.8 s;
//	  │                                             output closed, or not read for as long: now
//	  └─ ctx: of all calls, until they have ended or are cut off
//
//	a wish ─► drain (drainBy) ─► plugins end the session and close ─► the rest of the output ─► goroutines (endBy)

const (
	// DrainTimeout is how long running requests may go on after the end of input.
	DrainTimeout = 10 * time.Second
	// signalDrain is how long running requests may go on after a signal. The host has to end within 1.5 seconds
	// then.
	signalDrain = 800 * time.Millisecond
	// signalClose is how long everything else may take after that; the process needs the rest of the 1.5 seconds
	// for its stores. The output is never given up before the peer has read nothing for this long.
	signalClose = 600 * time.Millisecond
)

// endGrace is how long a work that has a slot of its dialect may take to return when it is cut off.
const endGrace = 100 * time.Millisecond

// deadline is a context whose end can only be moved nearer. At first it has no end.
type deadline struct {
	context.Context
	cancel context.CancelFunc

	mu sync.Mutex
	at time.Time // guarded by mu
}

func newDeadline(parent context.Context) *deadline {
	ctx, cancel := context.WithCancel(parent)
	return &deadline{Context: ctx, cancel: cancel}
}

// within makes the context end after d, unless it ends sooner.
func (l *deadline) within(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now().Add(d)
	if !l.at.IsZero() && !at.Before(l.at) {
		return
	}
	l.at = at
	timer := time.AfterFunc(d, l.cancel)
	context.AfterFunc(l, func() { timer.Stop() })
}

// Deadline implements context.Context.
func (l *deadline) Deadline() (at time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at, !l.at.IsZero()
}

// share returns a context for one part of the end. It ends after most, or after half of the time that ctx has left
// if that is less.
func share(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	if at, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(at)/2)
	}
	return context.WithTimeout(ctx, most)
}

// awaitWish waits for the first wish to end. Once there is one, or the peer writes no more, it starts watchReader.
func (h *Host) awaitWish(done <-chan struct{}) {
	select {
	case <-h.wished:
	case <-h.silent:
	}
	h.goes.Go(func() { h.watchReader(done) })
	<-h.wished
}

// watchReader drops the output when the peer has read nothing for as long as running requests may go on, or when
// everything must be over. It returns when done is closed.
func (h *Host) watchReader(done <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	begun, read := time.Now(), time.Now()
	for last := -1; ; {
		select {
		case <-tick.C:
		case <-h.endBy.Done():
			h.loseOutput()
			return
		case <-done:
			return
		}
		now, patience := time.Now(), DrainTimeout
		if at, ok := h.drainBy.Deadline(); ok {
			patience = max(at.Sub(begun), signalClose)
		} else {
			begun = now
		}
		if written, pending := h.out.progress(); pending == 0 || written != last {
			last, read = written, now
		} else if now.Sub(read) > patience {
			h.loseOutput()
			h.Shutdown(0)
			return
		}
	}
}

// loseOutput drops the output that nobody reads, and logs its size.
func (h *Host) loseOutput() {
	if _, lost := h.out.progress(); lost > 0 {
		h.opts.Log.Warn().Int("bytes", lost).Msg("the agent stopped reading; these bytes of answers were lost")
	}
	h.out.close()
}

// drain lets the requests that run or wait finish until drainBy, and then answers the rest.
func (h *Host) drain() {
	h.awaitLines()
	h.mu.Lock()
	h.draining = true
	h.startQueuedLocked() // it starts nothing here, but closes h.idle if all is done
	h.mu.Unlock()
	spoken := h.drainDialects()
	for _, done := range []<-chan struct{}{h.idle, spoken} {
		select {
		case <-done:
		case <-h.drainBy.Done():
			h.cutOff()
			ctx, cancel := share(h.endBy, SaveTime)
			defer cancel()
			select {
			case <-spoken: // the dialects answer their requests
			case <-ctx.Done():
			}
			return
		}
	}
}

// awaitLines waits until the dialects have taken in all lines that were read. The reader does not wait for a slow
// dialect, but the end of the host has to.
func (h *Host) awaitLines() {
	quiet := h.lineSequencer.close()
	select {
	case <-quiet:
	case <-h.drainBy.Done():
		select {
		case <-quiet:
		case <-time.After(grace): // a Take waits, although it must not
		}
	}
}

// drainDialects lets the dialects finish. When drainBy ends, they answer the rest. done is closed when all have
// returned.
func (h *Host) drainDialects() (done <-chan struct{}) {
	ended := make(chan struct{})
	h.goes.Go(func() {
		defer close(ended)
		var all sync.WaitGroup
		for _, d := range h.opts.Dialects {
			all.Go(func() {
				defer h.guard("the end of a dialect")
				d.Drain(h.drainBy)
			})
		}
		all.Wait()
	})
	return ended
}

// cutOff answers the requests that have not ended, and stops them.
func (h *Host) cutOff() {
	h.mu.Lock()
	h.over = true
	waiting, _ := h.stopWaitingLocked(func(*call) bool { return true }) // the queues are empty now, so no call may run
	running := h.runningLocked()
	h.mu.Unlock()
	h.out.unbound() // a peer that does not read must not hold up the end
	for _, c := range waiting {
		h.answerError(c, errShutdown)
	}
	for _, c := range running {
		// arm fixes the start of the call before the call is recorded.
		std := c.arm()
		if c.dest.slots != nil {
			time.AfterFunc(endGrace, func() { h.answerError(c, errShutdown) })
		} else {
			h.answerError(c, errShutdown)
		}
		std.cancel(errShutdown)
	}
	h.out.flush()
}

// closePlugins ends the session, and then closes the plugins. If many hosts of a process end at once, each waits
// for its turn (see Options.Closing) until drainBy ends.
func (h *Host) closePlugins() {
	select {
	case h.opts.Closing <- struct{}{}:
		defer func() { <-h.opts.Closing }()
	case <-h.drainBy.Done():
	}
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	ctx, cancel := share(h.endBy, closeTimeout)
	defer cancel()
	h.endSession(ctx)
	limit := closeTimeout
	for _, p := range h.opts.Plugins {
		limit = max(limit, timeToClose(p))
	}
	ctx, cancel = share(h.endBy, limit)
	defer cancel()
	h.eachPlugin(ctx, "close of plugin ", func(p Plugin) error {
		own, cancel := context.WithTimeout(ctx, timeToClose(p))
		defer cancel()
		return p.Close(own)
	})
	h.closeStreams()
}

func timeToClose(p Plugin) time.Duration {
	if s, ok := As[SlowCloser](p); ok {
		return s.CloseTimeout()
	}
	return closeTimeout
}

// waitGoroutines waits for the host's goroutines, for at most 250 ms: a handler may not stop, and a read may not
// end.
func (h *Host) waitGoroutines() {
	h.endBy.within(grace)
	waitOrDone(&h.goes, h.endBy.Done())
}
