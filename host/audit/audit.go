// Package audit keeps the host's trail: one JSON line for each handled request,
// every line carrying the SHA-256 of the line before it (`prev`), so that a
// changed, removed or moved entry is found by [Verify].
//
// [Log.Record] sits on the host's hot path. It encodes into memory under a
// mutex and returns; one goroutine owned by the Log adds the links and writes:
//
//	Record ─► pending (≤ 4 MiB) ─► batch, every 5 ms ─► lock FILE.lock ─► FILE
//
// A disk that fails costs entries, never requests: what does not fit in memory
// is counted and the count becomes an entry of its own (`audit/dropped`).
// Several hosts may share one file. Entries survive the death of the process
// from the moment they are written; nothing is synced, so the last ones may be
// lost when the machine itself goes down.
package audit

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"a2e/host/private"
	"a2e/protocol"
)

const (
	maxPending = 4 << 20
	batchDelay = 5 * time.Millisecond
)

// Options says where a Log writes.
type Options struct {
	// Path is the file. It may be moved or removed at any time: the next entries go into a new one,
	// whose first entry has the link of the last. Path.lock lies beside it. Missing folders are made
	// (mode 0700) when the first entry is written.
	Path string
	// Key signs the entries.
	Key Key
	// Logger gets one line for a person, without a newline, when the disk fails
	// (at most once a minute), when it works again and when a half line was cut
	// off. It must not block. nil keeps quiet.
	Logger func(line string)
	// Now is the clock of entries without a time; nil means time.Now.
	Now func() time.Time
}

// Entry is one handled request.
type Entry struct {
	Time          time.Time // when it was answered; zero means now
	SessionID     string
	ReqID         string // the request's id: any string; past 1 KiB it is cut
	CorrelationID string
	Success       bool
	Duration      time.Duration // written as whole milliseconds
	ErrorCode     string        // written as null when Success is set or it is ""
	InputBytes    int
	OutputBytes   int
	Type          string
	Capability    string
	Name          string // of the tool, skill, environment, … that was asked for; "" is left out
}

// Log takes entries and writes them in the background. It is safe for
// concurrent use.
type Log struct {
	file  *file
	log   func(string)
	now   func() time.Time
	limit int           // bound of pending + inflight, in bytes
	wake  chan struct{} // holds a token when pending is not empty
	quit  chan struct{} // closed by Close
	done  chan struct{} // closed when the writing goroutine has ended

	mu       sync.Mutex // guards the fields below
	pending  []byte     // encoded entries without their link, each ended by a newline
	spare    []byte     // the buffer that the next take puts in pending's place
	inflight int        // bytes taken from pending and not yet on disk
	underway int        // entries in them
	dropped  int        // entries refused since the last audit/dropped entry
	started  bool
	closed   bool

	lost error // a *LostError; set by the writing goroutine before done is closed
}

// Open makes a Log. The file is first opened when there is an entry to write: a half line
// that a killed host left at its end is cut off then; trouble with the disk is told to the
// Logger and tried again later. The error is for Options that cannot work.
func Open(o Options) (*Log, error) {
	if o.Path == "" {
		return nil, errors.New("audit: no path given: name the file to write to")
	}
	l := &Log{
		log: o.Logger, now: o.Now, limit: maxPending,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if l.log == nil {
		l.log = func(string) {}
	}
	if l.now == nil {
		l.now = time.Now
	}
	l.file = &file{path: o.Path, note: l.log, key: o.Key}
	return l, nil
}

// Record takes one entry. It does no input or output and keeps none of the
// strings. When 4 MiB wait to be written the entry is dropped and counted;
// after Close it is ignored.
func (l *Log) Record(e Entry) {
	if e.Time.IsZero() {
		e.Time = l.now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	before := len(l.pending)
	if l.dropped > 0 {
		l.pending = appendDropped(l.pending, e.Time, l.dropped)
	}
	l.pending = appendEntry(l.pending, &e)
	if len(l.pending)+l.inflight > l.limit {
		l.pending = l.pending[:before]
		l.dropped++
		return
	}
	l.dropped = 0
	if before > 0 {
		return
	}
	if !l.started {
		l.started = true
		go l.run()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// LostError says that entries were lost at the end of a Log.
type LostError struct {
	Path    string
	Entries int // at least so many
	Err     error
}

// Error implements error.
func (e *LostError) Error() string {
	return fmt.Sprintf("audit: %s cannot be written: lost at least %s at the end: %v", e.Path, protocol.Count(e.Entries,
		"entry"), e.Err)
}

// Unwrap returns what kept the entries from being written.
func (e *LostError) Unwrap() error { return e.Err }

// Close writes what is waiting and stops the goroutine. It gives a failing disk
// or a file held by another process half a second, and a disk that does not answer
// five, then returns a *LostError that says how many entries were lost at least. Closing twice is fine.
func (l *Log) Close() error {
	l.mu.Lock()
	started := l.started
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	if !started {
		return nil
	}
	hung := time.NewTimer(hungPatience) // the kernel's writing cannot be interrupted
	defer hung.Stop()
	select {
	case <-l.done:
		return l.lost
	case <-hung.C:
		l.mu.Lock()
		defer l.mu.Unlock()
		n := l.underway + bytes.Count(l.pending, []byte{'\n'}) + l.dropped
		return &LostError{l.file.path, n, errors.New("the disk does not answer")}
	}
}

const (
	firstRetry    = 50 * time.Millisecond
	lastRetry     = time.Second
	lockPatience  = 2 * time.Second
	closePatience = 500 * time.Millisecond
	hungPatience  = 5 * time.Second // also of a machine that has no time for the host
	complainEvery = time.Minute
)

// run is the writing goroutine: wait for an entry, let a batch gather, write it.
func (l *Log) run() {
	defer close(l.done)
	var w worker
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := func(d time.Duration) (quit bool) {
		timer.Reset(d)
		select {
		case <-timer.C:
			return false
		case <-l.quit:
			return true
		}
	}
	for {
		select {
		case <-l.wake:
		case <-l.quit:
			l.finish(&w)
			return
		}
		if pause(batchDelay) {
			continue
		}
		for retry := firstRetry; !l.writeAll(&w, l.quit, lockPatience); retry = min(2*retry, lastRetry) {
			if pause(retry) {
				break
			}
		}
	}
}

// worker is what the writing goroutine alone knows.
type worker struct {
	batch []byte // all of the taken buffer, to be given back
	rest  []byte // the part of it that is not on disk yet

	why        error     // of the last write that failed
	failing    bool      // the Logger heard of a failing disk and of no recovery
	complained time.Time // when it last heard
}

// writeAll writes until nothing waits. It is false when the disk failed; what
// is not written stays in w.rest.
func (l *Log) writeAll(w *worker, quit <-chan struct{}, patience time.Duration) bool {
	for {
		if len(w.rest) == 0 {
			if w.batch = l.take(w.batch); len(w.batch) == 0 {
				return true
			}
			w.rest = w.batch
		}
		n, err := l.file.write(w.rest, quit, patience)
		w.rest = w.rest[n:]
		l.mu.Lock()
		l.inflight, l.underway = len(w.rest), bytes.Count(w.rest, []byte{'\n'})
		l.mu.Unlock()
		if err != nil {
			w.why = err
			if !errors.Is(err, private.ErrGivenUp) {
				l.complain(w, err)
			}
			return false
		}
		if w.failing {
			w.failing = false
			l.log(fmt.Sprintf("audit: %s can be written again", l.file.path))
		}
	}
}

// take returns what is pending, and puts the used buffer in its place. Entries
// dropped meanwhile are counted right behind it.
func (l *Log) take(used []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if used != nil {
		l.spare = used[:0]
	}
	if l.dropped > 0 {
		l.pending = appendDropped(l.pending, l.now(), l.dropped)
		l.dropped = 0
	}
	taken := l.pending
	l.pending, l.spare = l.spare, nil
	l.inflight, l.underway = len(taken), bytes.Count(taken, []byte{'\n'})
	return taken
}

// complain tells the Logger about a failing disk, once a minute at most.
func (l *Log) complain(w *worker, err error) {
	now := l.now()
	if !w.complained.IsZero() && now.Sub(w.complained) < complainEvery {
		return
	}
	w.failing, w.complained = true, now
	l.log(fmt.Sprintf("audit: %s cannot be written: %v (requests go on; up to %d KiB of entries wait in memory, more are dropped and counted)",
		l.file.path, err, l.limit>>10))
}

// finish writes what waits before the Log ends, and counts what it cannot write.
func (l *Log) finish(w *worker) {
	deadline := time.Now().Add(closePatience)
	for {
		left := time.Until(deadline)
		if l.writeAll(w, nil, max(left, firstRetry)) {
			return
		}
		if left <= 0 {
			break
		}
		time.Sleep(min(firstRetry, max(0, left)))
	}
	l.mu.Lock()
	n := bytes.Count(w.rest, []byte{'\n'}) + bytes.Count(l.pending, []byte{'\n'}) + l.dropped
	l.mu.Unlock()
	l.lost = &LostError{l.file.path, n, w.why}
}
