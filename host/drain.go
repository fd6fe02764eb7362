package host

import "time"

const (
	// stallCheck is how often the end of the output is looked after.
	stallCheck = 20 * time.Millisecond
	// minStall is the least time that a peer gets to read on at the end.
	minStall = 300 * time.Millisecond
)

// ending is a wish to end the host.
type ending struct {
	timeout time.Duration // that running requests get
	stall   time.Duration // without a byte read, after which the rest of the output is given up
}

// awaitEnding waits for the wish to end. The end of the input is one, but what comes before
// it may wait behind answers that nobody reads: a peer that has gone and reads nothing gets
// no more time than it would have then.
func (h *Host) awaitEnding() ending {
	select {
	case e := <-h.endings:
		return e
	case <-h.silent:
	}
	tick := time.NewTicker(stallCheck)
	defer tick.Stop()
	for last := h.look(); ; {
		select {
		case e := <-h.endings:
			return e
		case <-tick.C:
		}
		if now := h.look(); now.written < 0 || now.written != last.written {
			last = now
		} else if time.Since(last.since) > DrainTimeout {
			h.stopping.Store(true)
			return ending{}
		}
	}
}

// drain lets the requests that run or wait finish, for at most
// e.timeout, and answers those that are cut off. It gives the stall in force.
func (h *Host) drain(e ending) (stall time.Duration) {
	begun := time.Now()
	h.mu.Lock()
	h.draining = true
	h.startQueuedLocked() // nothing to start: this sees whether all is done
	h.mu.Unlock()
	clock := time.NewTimer(e.timeout)
	defer clock.Stop()
	idle := h.idle
	spoken, cutDialects := h.drainDialects()
	defer cutDialects()
	for idle != nil || spoken != nil {
		select {
		case <-idle:
			idle = nil
		case <-spoken:
			spoken = nil
		case <-clock.C:
			h.cutOff()
			return e.stall
		case sooner := <-h.endings:
			e.stall = min(e.stall, sooner.stall)
			if left := e.timeout - time.Since(begun); sooner.timeout < left {
				e.timeout, begun = sooner.timeout, time.Now()
				clock.Reset(e.timeout)
			}
		}
	}
	return e.stall
}

// cutOff answers what has not ended and stops it.
func (h *Host) cutOff() {
	h.mu.Lock()
	h.over = true
	waiting, _ := h.stopWaitingLocked(func(*call) bool { return true }) // nothing is queued now
	running := h.runningLocked()
	h.mu.Unlock()
	h.out.unbound() // a peer that does not read must not hold up the end
	for _, c := range waiting {
		h.answerError(c, errShutdown)
	}
	for _, c := range running {
		std := c.arm() // which fixes its clock, before that is recorded
		h.answerError(c, errShutdown)
		std.cancel(errShutdown)
	}
	h.out.flush()
}

// reading is how far a peer that ought to read had come, and when.
type reading struct {
	written int // bytes; -1 = nothing is left to read
	since   time.Time
}

// look sees how far the peer is now.
func (h *Host) look() reading {
	written, pending := h.out.progress()
	if pending == 0 {
		written = -1
	}
	return reading{written, time.Now()}
}

// lookAgain is the look at the end of a drain, before which the peer had come as far as
// before says: when it has read nothing since, that time counts, but for the last moment.
func (h *Host) lookAgain(before reading, stall time.Duration) reading {
	now := h.look()
	if now.written != before.written {
		return now
	}
	if latest := now.since.Add(minStall - max(stall, minStall)); before.since.Before(latest) {
		before.since = latest
	}
	return before
}

// finishOutput writes the rest of the output, as long as the peer reads: it
// gives up when nothing was read for stall, the time since last included. After
// it nothing is written.
func (h *Host) finishOutput(stall time.Duration, last reading) {
	done := make(chan struct{})
	go func() { // ends with the output
		defer close(done)
		h.out.waitWritten()
	}()
	defer h.out.close()
	tick := time.NewTicker(stallCheck)
	defer tick.Stop()
	for {
		if now := h.look(); now.written < 0 || now.written != last.written {
			last = now
		} else if time.Since(last.since) > max(stall, minStall) {
			_, lost := h.out.progress()
			h.opts.Log.Warn().Int("bytes", lost).Msg("the agent stopped reading; these bytes of answers were lost")
			return
		}
		select {
		case <-tick.C:
		case sooner := <-h.endings:
			stall = min(stall, sooner.stall)
		case <-done:
			return
		}
	}
}

// waitGoroutines waits for the host's goroutines, but not for a handler that
// does not stop, nor for a read that nobody ends.
func (h *Host) waitGoroutines() {
	stop := make(chan struct{})
	clock := time.AfterFunc(grace, func() { close(stop) })
	defer clock.Stop()
	waitOrDone(&h.goes, stop)
}
