package audit

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

const (
	firstRetry    = 50 * time.Millisecond
	lastRetry     = time.Second
	lockPatience  = 2 * time.Second
	closePatience = 500 * time.Millisecond
	complainEvery = time.Minute
)

// errClosing ends the wait for a lock when the Log is being closed.
var errClosing = errors.New("closing")

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
			if !errors.Is(err, errClosing) {
				l.complain(w, err)
			}
			return false
		}
		if w.failing {
			w.failing = false
			l.log(fmt.Sprintf("audit: %s is written again", l.file.path))
		}
	}
}

// take gives what is pending, and puts the used buffer in its place. Entries
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
