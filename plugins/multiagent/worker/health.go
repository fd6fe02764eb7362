package worker

import (
	"fmt"
	"time"

	"a2e/protocol/fleet"
)

// A child that ends within soonAfter of its start without a result counts as one that may
// not be able to work. From the second in a row each start waits, twice as long as the
// one before. After triesBeforeDown starts in a row at which it said nothing at all, tasks
// do not wait for it either.
const (
	soonAfter       = 10 * time.Second
	firstRest       = 500 * time.Millisecond
	longestRest     = 30 * time.Second
	triesBeforeDown = 3
)

// condition is how a worker is; smaller is better.
type condition int

const (
	conditionGood condition = iota
	conditionRests
	conditionDown
)

// health is whether a worker runs. It is guarded by Pool.mu.
type health struct {
	early int       // ends in a row soon after the start
	mute  int       // starts in a row that came to nothing
	last  error     // how it ended the last time, or did not start; nil = it runs
	ready time.Time // when it may start again

	announced *fleet.Announce // the last one; nil = none yet
}

// rest is how long the worker must not start yet; 0 or less = it may.
func (h *health) rest(now time.Time) time.Duration {
	if h.last == nil {
		return 0
	}
	return h.ready.Sub(now)
}

// condition tells how the worker is.
func (h *health) condition(now time.Time) condition {
	switch {
	case h.rest(now) <= 0:
		return conditionGood
	case h.mute >= triesBeforeDown:
		return conditionDown
	}
	return conditionRests
}

// reason tells why the worker is not healthy; "" = it is.
func (h *health) reason(now time.Time) string {
	if rest := h.rest(now); rest > 0 {
		return fmt.Sprintf("%v; the next start is in %s", h.last, rest.Round(time.Millisecond))
	}
	return ""
}

// lost notes how a worker ended, or why it did not start; then it lived 0. spoke tells
// whether it said anything, gave whether it had a result. first is the shortest rest.
func (h *health) lost(now time.Time, err error, lived time.Duration, spoke, gave bool, first time.Duration) {
	h.last = err
	if h.mute++; spoke {
		h.mute = 0
	}
	if h.early++; gave || lived >= soonAfter {
		h.early = 0
	}
	grows := h.early - 2 // the first end may be an accident
	if lived == 0 {
		grows++ // it did not even start
	}
	if h.ready = now; grows >= 0 {
		h.ready = now.Add(min(first<<min(grows, 10), longestRest))
	}
}

// found notes that the worker runs.
func (h *health) found() { h.early, h.mute, h.last = 0, 0, nil }
