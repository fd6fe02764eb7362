package host

import (
	"sync/atomic"
	"time"

	"a2e/protocol"
)

// leader is the goroutine that reads the input. There is one at a time: it
// reads a line, runs the request right there and reads on, which saves a switch
// of goroutines for each request. When a handler (or a write) drags on, the
// watcher promotes a new goroutine, with the bytes not yet read; the slow one
// keeps its buffer, answers when it is done and ends.
//
//	reading ─ begin ─ busy ─ end ─ reading …
//	                    └─ watcher or HandOff ─ replaced ─► a new leader reads on
type leader struct {
	lines   *lines
	line    *protocol.Line
	out     []byte        // where the next answer is built
	control call          // of a request that the host answers itself
	call    *call         // under way while busy, nil for a write
	state   atomic.Uint64 // number of the current work, and the flags below in the low bits
}

const (
	leaderBusy     = 1 // a handler or a write is under way: it may be replaced
	leaderReplaced = 2 // another goroutine reads
	leaderStep     = 4
)

// watchEvery is how often the watcher looks: work that it sees twice has taken
// at least this long.
const watchEvery = 500 * time.Microsecond

// watchIdle is the number of looks without any work after which the watcher
// sleeps until there is some.
const watchIdle = 40

// begin marks the start of work that may drag on: a call, or a write (nil).
func (t *leader) begin(h *Host, c *call) {
	t.call = c
	t.state.Store(t.state.Load() + leaderStep + leaderBusy)
	if h.watcherAsleep.Load() && h.watcherAsleep.CompareAndSwap(true, false) {
		h.wakeWatcher <- struct{}{}
	}
}

// end marks the end of that work and reports whether this goroutine is still the leader.
func (t *leader) end() bool {
	s := t.state.Load()
	return s&leaderReplaced == 0 && t.state.CompareAndSwap(s, s&^leaderBusy)
}

// promote makes a new goroutine the leader, if t is still at the work that state names.
func (h *Host) promote(t *leader, state uint64) {
	if state&leaderBusy == 0 || state&leaderReplaced != 0 || !t.state.CompareAndSwap(state, state|leaderReplaced) {
		return
	}
	next := &leader{lines: t.lines.fork(), line: new(protocol.Line)}
	slow := t.call
	h.leader.Store(next)
	h.goes.Go(func() { h.read(next) })
	if slow != nil {
		slow.arm() // from now on its time limit needs a timer
	}
}

// watch replaces a leader whose work drags on, until done is closed. It sleeps while nothing is under way.
func (h *Host) watch(done <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var last *leader
	var lastState uint64
	for idle := 0; ; {
		t := h.leader.Load()
		state := t.state.Load()
		switch {
		case state&leaderBusy != 0 && t == last && state == lastState:
			h.promote(t, state)
		case t == last && state == lastState:
			idle++
		default:
			idle = 0
		}
		last, lastState = t, state
		if idle > watchIdle {
			idle, last = 0, nil // last would keep the buffers of its leader
			tick.Stop()
			if !h.sleepWatcher(t, state, done) {
				return
			}
			tick.Reset(watchEvery)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// sleepWatcher waits for the next work; false means that the host ends.
func (h *Host) sleepWatcher(t *leader, state uint64, done <-chan struct{}) bool {
	h.watcherAsleep.Store(true)
	if h.leader.Load() != t || t.state.Load() != state { // work began before the flag could be seen
		if h.watcherAsleep.CompareAndSwap(true, false) {
			return true
		}
	}
	select {
	case <-h.wakeWatcher:
		return true
	case <-done:
		return false
	}
}
