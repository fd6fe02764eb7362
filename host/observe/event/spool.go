package event

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"a2e/host/guard/private"
	"a2e/protocol"
)

// SpoolOptions say what a Spool writes, and where. All fields except Now must be set.
type SpoolOptions struct {
	Name  string        // name of the file, for Warn and for errors
	Max   int           // maximum number of bytes that wait
	Delay time.Duration // how long events are collected to be written together
	// Append appends the text of an event and a newline; the text itself has no newline. If lost > 0, the
	// text says that so many events of this kind were lost. It must be quick, and must not keep the event.
	Append func(dst []byte, e Event, lost int) []byte
	// Write writes texts. n is the number of bytes that need not be written again, even if err is set. It
	// waits for other processes until patience is over, or until quit is closed; see private.ErrGivenUp.
	Write func(texts []byte, quit <-chan struct{}, patience time.Duration) (n int, err error)
	Warn  func(line string) // reports that the file cannot be written, once a minute at most, and when it can again
	Now   func() time.Time  // time of losses that no event follows; nil = time.Now
}

// Spool is the common part of sinks that write a file. Its callers do not wait for the disk:
//
//	Add ─► pending (bounded) ─► batch, every Delay ─► Write
//
// Events that do not fit in memory are dropped, and a separate entry says how many. It is safe for concurrent use.
type Spool struct {
	opts SpoolOptions
	wake chan struct{} // holds a token if pending is not empty
	quit chan struct{} // closed by Close
	done chan struct{} // closed when the writing goroutine has ended

	mu       sync.Mutex // guards the fields below
	pending  []byte
	spare    []byte     // the buffer that take uses next for pending
	inflight int        // bytes taken from pending but not written yet
	underway int        // the number of texts in inflight
	lost     [kinds]int // dropped events since the last entry that reports them, by kind
	dropped  bool       // some of lost is not 0
	started  bool
	closed   bool

	err error // a *LostError; set by the writing goroutine before done is closed
}

const (
	firstRetry    = 50 * time.Millisecond
	lastRetry     = time.Second
	lockPatience  = 2 * time.Second
	closePatience = 500 * time.Millisecond
	hungPatience  = 5 * time.Second // also for a machine that is too busy to run the host
	warnEvery     = time.Minute
	keepBuffer    = 1 << 20 // a larger buffer is freed when nothing waits
)

// NewSpool makes a Spool. Its goroutine starts with the first event.
func NewSpool(o SpoolOptions) *Spool {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Spool{opts: o, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

// Add queues an event. After Close it does nothing.
func (s *Spool) Add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	before := len(s.pending)
	s.pending = s.appendLostLocked(s.pending, e.Time)
	s.pending = s.opts.Append(s.pending, e, 0)
	if waits := before + s.inflight; waits > 0 && len(s.pending)+s.inflight > s.opts.Max {
		s.pending = s.pending[:before]
		s.lost[bits.TrailingZeros(uint(e.Kind))]++
		s.dropped = true
		return
	}
	s.forgetLostLocked()
	if before > 0 {
		return
	}
	if !s.started {
		s.started = true
		go s.run()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Spool) appendLostLocked(dst []byte, at time.Time) []byte {
	if s.dropped {
		for i, n := range s.lost {
			if n > 0 {
				dst = s.opts.Append(dst, Event{Kind: 1 << i, Time: at}, n)
			}
		}
	}
	return dst
}

func (s *Spool) forgetLostLocked() {
	if s.dropped {
		s.lost, s.dropped = [kinds]int{}, false
	}
}

// Waiting returns the number of bytes that wait to be written, and how many events were dropped since
// the last entry that reports them.
func (s *Spool) Waiting() (size, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lost {
		dropped += n
	}
	return len(s.pending) + s.inflight, dropped
}

// LostError says that events were lost when a Spool was closed.
type LostError struct {
	Name   string
	Events int // at least so many
	Err    error
}

// Error implements error.
func (e *LostError) Error() string {
	lost := protocol.Count(e.Events, "entry")
	return fmt.Sprintf("%s cannot be written: lost at least %s at the end: %v", e.Name, lost, e.Err)
}

// Unwrap returns the reason why the events were not written.
func (e *LostError) Unwrap() error { return e.Err }

// Close writes the waiting events and stops the goroutine. It waits half a second if the disk fails or
// another process holds the file, and five seconds if the disk does not respond. Then it returns a
// *LostError with the minimum number of lost events. Close may be called twice.
func (s *Spool) Close() error {
	s.mu.Lock()
	started := s.started
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	if !started {
		return nil
	}
	hung := time.NewTimer(hungPatience) // a write in the kernel cannot be interrupted
	defer hung.Stop()
	select {
	case <-s.done:
		return s.err
	case <-hung.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.lossLocked(s.underway, errors.New("the disk does not answer"))
	}
}

// lossLocked returns the error for all waiting and dropped events, and for n further texts.
func (s *Spool) lossLocked(n int, why error) error {
	for _, lost := range s.lost {
		n += lost
	}
	return &LostError{s.opts.Name, n + bytes.Count(s.pending, []byte{'\n'}), why}
}

// run is the writing goroutine: it waits for an event, collects a batch and writes it.
func (s *Spool) run() {
	defer close(s.done)
	var w writerState
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := func(d time.Duration) (quit bool) {
		timer.Reset(d)
		select {
		case <-timer.C:
			return false
		case <-s.quit:
			return true
		}
	}
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			s.finish(&w)
			return
		}
		if pause(s.opts.Delay) {
			continue
		}
		for retry := firstRetry; !s.writeAll(&w, s.quit, lockPatience); retry = min(2*retry, lastRetry) {
			if pause(retry) {
				break
			}
		}
	}
}

// writerState is the state of the writing goroutine.
type writerState struct {
	batch []byte // the whole buffer of take, to be reused
	rest  []byte // the part of batch that is not written yet

	why     error     // error of the last failed write
	failing bool      // Warn has reported a failing disk, and no recovery since
	warned  time.Time // time of that report
}

// writeAll writes until nothing waits. It returns false if the disk failed; the unwritten part stays in w.rest.
func (s *Spool) writeAll(w *writerState, quit <-chan struct{}, patience time.Duration) bool {
	for {
		if len(w.rest) == 0 {
			if w.batch = s.take(w.batch); len(w.batch) == 0 {
				if cap(w.batch) > keepBuffer {
					w.batch = nil
				}
				return true
			}
			w.rest = w.batch
		}
		n, err := s.opts.Write(w.rest, quit, patience)
		w.rest = w.rest[n:]
		s.mu.Lock()
		s.inflight, s.underway = len(w.rest), bytes.Count(w.rest, []byte{'\n'})
		s.mu.Unlock()
		if err != nil {
			w.why = err
			if !errors.Is(err, private.ErrGivenUp) {
				s.warn(w, err)
			}
			return false
		}
		if w.failing {
			w.failing = false
			s.opts.Warn(s.opts.Name + " can be written again")
		}
	}
}

// take returns the pending texts and reuses the buffer used. An entry for events that were dropped
// meanwhile is appended.
func (s *Spool) take(used []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used != nil && (cap(used) <= keepBuffer || len(s.pending) > 0) {
		s.spare = used[:0]
	}
	s.pending = s.appendLostLocked(s.pending, s.opts.Now())
	s.forgetLostLocked()
	taken := s.pending
	s.pending, s.spare = s.spare, nil
	s.inflight, s.underway = len(taken), bytes.Count(taken, []byte{'\n'})
	return taken
}

// warn reports a failing disk, at most once a minute.
func (s *Spool) warn(w *writerState, err error) {
	now := s.opts.Now()
	if !w.warned.IsZero() && now.Sub(w.warned) < warnEvery {
		return
	}
	w.failing, w.warned = true, now
	s.opts.Warn(fmt.Sprintf("%s cannot be written: %v; the host goes on, and up to %d MiB wait for it to be written, "+
		"more are dropped and counted", s.opts.Name, err, s.opts.Max>>20))
}

// finish writes the waiting texts before the Spool ends, and counts those that it cannot write.
func (s *Spool) finish(w *writerState) {
	deadline := time.Now().Add(closePatience)
	for {
		left := time.Until(deadline)
		if s.writeAll(w, nil, max(left, firstRetry)) {
			return
		}
		if left <= 0 {
			break
		}
		time.Sleep(min(firstRetry, max(0, left)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = s.lossLocked(bytes.Count(w.rest, []byte{'\n'}), w.why)
}
