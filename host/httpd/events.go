package httpd

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
)

// events is the output of a session: lines, numbered from 1. Those that were sent are kept
// until there are max bytes of them, for a client whose connection broke before it had read
// them. Those that were not are never dropped: the host waits once there are max bytes.
type events struct {
	max int

	mu      sync.Mutex
	changed sync.Cond
	lines   [][]byte // without their ends; the first is number first
	first   int
	sent    int    // the number of the last that was sent; 0 = none
	old     int    // bytes of those that were sent
	fresh   int    // bytes of the others
	part    []byte // of a line that has no end yet
	closed  bool   // there will be no more
	lost    bool   // nobody will read any more
	reader  int    // counts the streams: the last one is the reader
}

func newEvents(max int) *events {
	e := &events{max: max, first: 1}
	e.changed.L = &e.mu
	return e
}

// Write implements io.Writer for the host. It waits for room.
func (e *events) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for rest := p; len(rest) > 0; {
		for e.fresh >= e.max && !e.lost {
			e.changed.Wait()
		}
		if e.lost {
			return 0, io.ErrClosedPipe
		}
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		e.part, rest = append(e.part, line...), after
		if whole {
			e.lines = append(e.lines, e.part)
			e.fresh += len(e.part)
			e.part = nil
			e.changed.Broadcast()
		}
	}
	return len(p), nil
}

// close says that the host has ended, and reports whether all of its output was sent.
func (e *events) close() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.changed.Broadcast()
	return e.fresh == 0 || e.lost
}

// giveUp says that nobody reads any more.
func (e *events) giveUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = true
	e.changed.Broadcast()
}

// wake has who waits look again.
func (e *events) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed.Broadcast()
}

// begin makes a new stream the reader, in place of the one before it. after is the number of
// the last event that the client has; -1 = it does not say, and gets what was not sent yet.
func (e *events) begin(after int) (reader, last int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if after < 0 {
		after = e.sent
	}
	if end := e.first + len(e.lines) - 1; after > end {
		return 0, 0, fmt.Errorf("there is no event %d yet: the last one is %d", after, end)
	}
	if after+1 < e.first {
		return 0, 0, fmt.Errorf("the events from %d to %d are not kept any more; begin a new session", after+1, e.first-1)
	}
	e.reader++
	e.changed.Broadcast()
	return e.reader, after, nil
}

// maxBatch is how many events are sent before it is said that they were.
const maxBatch = 512

// next waits for the events after a number, and returns those that there are, with the number
// of the last. None = the stream is over: the host has ended, the reader is another one, or
// stopped says so.
func (e *events) next(reader, after int, stopped func() bool) (lines [][]byte, last int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		end := e.first + len(e.lines) - 1
		switch {
		case reader != e.reader || e.lost || stopped():
			return nil, after
		case after < end:
			end = min(end, after+maxBatch)
			return slices.Clone(e.lines[after+1-e.first : end+1-e.first]), end
		case e.closed:
			return nil, after
		}
		e.changed.Wait()
	}
}

// delivered says that the events up to a number were sent, and forgets the oldest of them. It
// reports whether the output is over with that.
func (e *events) delivered(last int) (over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; e.sent < last; e.sent++ {
		size := len(e.lines[e.sent+1-e.first])
		e.fresh -= size
		e.old += size
	}
	dropped := 0
	for ; e.first+dropped < e.sent && e.old > e.max; dropped++ {
		e.old -= len(e.lines[dropped])
	}
	if dropped > 0 {
		clear(e.lines[:dropped])
		e.lines, e.first = e.lines[dropped:], e.first+dropped
	}
	e.changed.Broadcast()
	return e.closed && e.sent == e.first+len(e.lines)-1
}
