package env

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// maxOutbox is how many bytes may wait for a program that does not read, and keptBuffer
// how large a buffer is that is kept for the next lines.
const (
	maxOutbox  = 16 << 20
	keptBuffer = 1 << 20
)

// maxDirect is how long a line may be to fit into the pipe of a program that has read
// all before it: every system's pipe takes as much at once.
const maxDirect = 4096

// outbox is the input of a program: what comes while one write is under way goes out
// in the next, however many lines it is.
type outbox struct {
	pipe *os.File

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	lines   []byte
	closed  bool
}

func newOutbox(pipe *os.File) *outbox {
	o := &outbox{pipe: pipe}
	o.changed.L = &o.mu
	return o
}

// add puts a line, newline included, behind the others. False means that too much waits
// already. With alone the program has nothing else to read: the line is written right
// here, which cannot block and spares a switch of goroutines.
func (o *outbox) add(line []byte, alone bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if alone && len(o.lines) == 0 && len(line) <= maxDirect && !o.closed {
		if _, err := o.pipe.Write(line); err == nil {
			return true
		} // run finds the same error and deals with it
	}
	if len(o.lines) > 0 && len(o.lines)+len(line) > maxOutbox {
		return false
	}
	o.lines = append(o.lines, line...)
	o.changed.Signal()
	return true
}

// run writes what comes until close, then ends the input. A program that has closed its
// side and does not end is killed; done tells its end.
func (o *outbox) run(done <-chan struct{}, kill context.CancelCauseFunc) {
	defer o.pipe.Close()
	var spare []byte
	for {
		o.mu.Lock()
		for len(o.lines) == 0 && !o.closed {
			o.changed.Wait()
		}
		lines := o.lines
		o.lines = spare[:0]
		o.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		if _, err := o.pipe.Write(lines); err != nil {
			select {
			case <-done:
			case <-time.After(closeGrace):
				kill(fmt.Errorf("it does not take its input: %w", err))
			}
			return
		}
		if spare = lines; cap(spare) > keptBuffer {
			spare = nil
		}
	}
}

// close ends the input behind what waits.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Signal()
}

// splitter cuts a stream into lines. One that is longer than max bytes is dropped.
type splitter struct {
	max  int
	line func(line []byte) // without its end; valid until it returns
	long func()            // a line was dropped

	part    []byte // of the line that has no end yet
	dropped bool   // that line was too long
}

// Write implements io.Writer for one goroutine.
func (s *splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		rest = after
		switch {
		case s.dropped || len(s.part)+len(line) > s.max:
			s.dropped, s.part = true, nil
		case !whole || len(s.part) > 0:
			s.part = append(s.part, line...)
		default:
			s.line(line)
			continue
		}
		if whole {
			s.end()
		}
	}
	return len(p), nil
}

// end ends the line under way, if there is one.
func (s *splitter) end() {
	switch {
	case s.dropped:
		s.long()
	case len(s.part) > 0:
		s.line(s.part)
	}
	if s.dropped, s.part = false, s.part[:0]; cap(s.part) > keptBuffer {
		s.part = nil
	}
}

// noise bounds how often something is logged.
type noise struct {
	next   time.Time
	hidden int
}

// loud tells whether to log now, and how much was kept back since the last time.
func (n *noise) loud(now time.Time) (hidden int, ok bool) {
	if now.Before(n.next) {
		n.hidden++
		return 0, false
	}
	hidden, n.hidden, n.next = n.hidden, 0, now.Add(time.Second)
	return hidden, true
}
