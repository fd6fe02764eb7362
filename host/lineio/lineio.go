// Package lineio moves lines between the host and a child that speaks a protocol of lines.
package lineio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	keptHead   = 4 << 10 // bytes kept of a line that is too long: its envelope may stand there
	keptBuffer = 1 << 20 // the largest buffer that is kept for the next lines
)

// MaxOutbox is how many bytes may wait for a child that does not read.
const MaxOutbox = 16 << 20

// maxDirect is how long a line may be to fit into the pipe of a child that has read all
// before it: every system's pipe takes as much at once.
const maxDirect = 4096

// maxWait is how long such a line may take all the same.
const maxWait = 10 * time.Millisecond

// What Outbox.Add gives.
var (
	ErrInputFull   = errors.New("the child does not read its input")
	ErrInputClosed = errors.New("the child's input is closed")
)

// Outbox is the input of a child: what comes while one write is under way goes out in
// the next, however many lines it is. It is safe for concurrent use.
type Outbox struct {
	pipe *os.File

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	lines   []byte
	writing bool // Run has lines in hand
	closed  bool
}

// NewOutbox makes the input of a child; pipe is closed by Run.
func NewOutbox(pipe *os.File) *Outbox {
	o := &Outbox{pipe: pipe}
	o.changed.L = &o.mu
	return o
}

// Add puts a line, newline included, behind the others. With alone the child has nothing
// else to read: the line is written right here, which spares a switch of goroutines.
func (o *Outbox) Add(line []byte, alone bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return ErrInputClosed
	case alone && !o.writing && len(o.lines) == 0 && len(line) <= maxDirect:
		n, err := o.direct(line)
		if err == nil {
			return nil
		}
		line = line[n:] // Run finds the same error and deals with it
	case len(o.lines) > 0 && len(o.lines)+len(line) > MaxOutbox:
		return ErrInputFull
	}
	o.lines = append(o.lines, line...)
	o.changed.Signal()
	return nil
}

// direct writes a line at once. A child that answers what it has not read only seems to
// have nothing else to read: its pipe may be full, and the caller shall not wait for it.
func (o *Outbox) direct(line []byte) (int, error) {
	if err := o.pipe.SetWriteDeadline(time.Now().Add(maxWait)); err != nil {
		return 0, err // one that may wait for ever
	}
	n, err := o.pipe.Write(line)
	return n, errors.Join(err, o.pipe.SetWriteDeadline(time.Time{}))
}

// Run writes what comes until close, then ends the input. A child that has closed its
// side and does not end within patience is killed; done tells its end.
func (o *Outbox) Run(done <-chan struct{}, kill context.CancelCauseFunc, patience time.Duration) {
	defer o.pipe.Close()
	var spare []byte
	for {
		o.mu.Lock()
		o.writing = false
		for len(o.lines) == 0 && !o.closed {
			o.changed.Wait()
		}
		lines := o.lines
		o.lines, o.writing = spare[:0], true
		o.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		if _, err := o.pipe.Write(lines); err != nil {
			select {
			case <-done:
			case <-time.After(patience):
				kill(fmt.Errorf("it does not take its input: %w", err))
			}
			return
		}
		if spare = lines; cap(spare) > keptBuffer {
			spare = nil
		}
	}
}

// Close ends the input behind what waits.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Signal()
}

// Splitter cuts a stream into lines. Of one that is longer than Max bytes only the head, 4
// KiB, is kept. It is for one goroutine.
type Splitter struct {
	Max  int
	Line func(line []byte) // without its end; valid until it returns
	Long func(head []byte) // the head of a line that was dropped

	part    []byte // of the line that has no end yet
	dropped bool   // that line was too long
}

// Write implements io.Writer for one goroutine.
func (s *Splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		rest = after
		switch {
		case s.dropped:
		case len(s.part)+len(line) > s.Max:
			s.part = bytes.Clone(append(s.part, line[:min(len(line), keptHead)]...)[:min(keptHead, len(s.part)+len(line))])
			s.dropped = true
		case !whole || len(s.part) > 0:
			s.part = append(s.part, line...)
		default:
			s.Line(line)
			continue
		}
		if whole {
			s.End()
		}
	}
	return len(p), nil
}

// End ends the line under way, if there is one.
func (s *Splitter) End() {
	switch {
	case s.dropped:
		s.Long(s.part)
	case len(s.part) > 0:
		s.Line(s.part)
	}
	if s.dropped, s.part = false, s.part[:0]; cap(s.part) > keptBuffer {
		s.part = nil
	}
}

// Noise bounds how often something is logged: Burst lines a second. It is for one goroutine.
type Noise struct {
	Burst  int
	next   time.Time
	logged int
	hidden int
}

// Loud tells whether to log now, and how much was kept back since the last time.
func (n *Noise) Loud(now time.Time) (hidden int, ok bool) {
	if !now.Before(n.next) {
		n.next, n.logged = now.Add(time.Second), 0
	}
	if n.logged >= n.Burst {
		n.hidden++
		return 0, false
	}
	n.logged++
	hidden, n.hidden = n.hidden, 0
	return hidden, true
}

// Tail keeps the end of what was written: at least Size bytes of it, if there were as many.
type Tail struct {
	Size  int
	text  []byte
	total int // bytes so far
}

// Add puts a line behind the others.
func (t *Tail) Add(line []byte) {
	t.text = append(append(t.text, line...), '\n')
	t.added(len(line) + 1)
}

// Write implements io.Writer: it puts text behind what is there, as it is.
func (t *Tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-2*t.Size):]...)
	t.added(len(p))
	return len(p), nil
}

// added counts n bytes more and drops what is too much.
func (t *Tail) added(n int) {
	t.total += n
	if over := len(t.text) - t.Size; over > t.Size {
		t.text = append(t.text[:0], t.text[over:]...)
	}
}

// end gives what String shows, which begins with a whole character.
func (t *Tail) end() []byte {
	end := t.text[max(0, len(t.text)-t.Size):]
	for i := 0; i < utf8.UTFMax-1 && len(end) < t.total && len(end) > 0 && !utf8.RuneStart(end[0]); i++ {
		end = end[1:]
	}
	return end
}

// String gives the end as text, without space around it.
func (t *Tail) String() string {
	return string(bytes.ToValidUTF8(bytes.TrimSpace(t.end()), []byte("\uFFFD")))
}

// Left tells how many bytes came before those of String.
func (t *Tail) Left() int { return t.total - len(t.end()) }
