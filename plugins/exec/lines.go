package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	defaultMaxLine = 16 << 20 // longest line of the child's stdout, in bytes
	maxStderrLine  = 8 << 10  // of its stderr; the rest of a longer one is dropped
	keptHead       = 4 << 10  // bytes kept of a line that is too long: its envelope may stand there
	maxOutbox      = 16 << 20 // bytes that may wait for a child that does not read
	keptBuffer     = 1 << 20  // the largest buffer that is kept for the next lines
)

// maxDirect is how long a line may be to fit into the pipe of a child that has read all
// before it: every system's pipe takes as much at once.
const maxDirect = 4096

var (
	errInputFull   = errors.New("the child does not read its input")
	errInputClosed = errors.New("the child's input is closed")
)

// outbox is the input of a child: what comes while one write is under way goes out in
// the next, however many lines it is.
type outbox struct {
	pipe *os.File

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	lines   []byte
	writing bool // run has lines in hand
	closed  bool
}

func newOutbox(pipe *os.File) *outbox {
	o := &outbox{pipe: pipe}
	o.changed.L = &o.mu
	return o
}

// add puts a line, newline included, behind the others. With alone the child has nothing
// else to read: the line is written right here, which cannot block and spares a switch of
// goroutines.
func (o *outbox) add(line []byte, alone bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return errInputClosed
	case alone && !o.writing && len(o.lines) == 0 && len(line) <= maxDirect:
		if _, err := o.pipe.Write(line); err == nil {
			return nil
		} // run finds the same error and deals with it
	case len(o.lines) > 0 && len(o.lines)+len(line) > maxOutbox:
		return errInputFull
	}
	o.lines = append(o.lines, line...)
	o.changed.Signal()
	return nil
}

// run writes what comes until close, then ends the input. A child that has closed its
// side and does not end within patience is killed; done tells its end.
func (o *outbox) run(done <-chan struct{}, kill context.CancelCauseFunc, patience time.Duration) {
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

// close ends the input behind what waits.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Signal()
}

// splitter cuts a stream into lines. Of one that is longer than max bytes only the head
// is kept.
type splitter struct {
	max  int
	line func(line []byte) // without its end; valid until it returns
	long func(head []byte) // the head of a line that was dropped

	part    []byte // of the line that has no end yet
	dropped bool   // that line was too long
}

// Write implements io.Writer for one goroutine.
func (s *splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		rest = after
		switch {
		case s.dropped:
		case len(s.part)+len(line) > s.max:
			s.part = bytes.Clone(append(s.part, line[:min(len(line), keptHead)]...)[:min(keptHead, len(s.part)+len(line))])
			s.dropped = true
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
		s.long(s.part)
	case len(s.part) > 0:
		s.line(s.part)
	}
	if s.dropped, s.part = false, s.part[:0]; cap(s.part) > keptBuffer {
		s.part = nil
	}
}

// noise bounds how often something is logged: burst lines a second.
type noise struct {
	burst  int
	next   time.Time
	logged int
	hidden int
}

// loud tells whether to log now, and how much was kept back since the last time.
func (n *noise) loud(now time.Time) (hidden int, ok bool) {
	if !now.Before(n.next) {
		n.next, n.logged = now.Add(time.Second), 0
	}
	if n.logged >= n.burst {
		n.hidden++
		return 0, false
	}
	n.logged++
	hidden, n.hidden = n.hidden, 0
	return hidden, true
}

// tail keeps the end of what was written: at least size bytes of it, if there were as many.
type tail struct {
	size int
	text []byte
}

func (t *tail) add(line []byte) {
	t.text = append(append(t.text, line...), '\n')
	if over := len(t.text) - t.size; over > t.size {
		t.text = append(t.text[:0], t.text[over:]...)
	}
}

// String gives the end as text.
func (t *tail) String() string {
	text := bytes.TrimSpace(t.text[max(0, len(t.text)-t.size):])
	return string(bytes.ToValidUTF8(text, []byte("\uFFFD")))
}

// short gives what the log shows of a line.
func short(text []byte) []byte { return text[:min(len(text), 200)] }

// gauge counts what is under way, up to a bound.
type gauge struct {
	mu sync.Mutex
	n  int
}

func (g *gauge) enter(most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n >= most {
		return false
	}
	g.n++
	return true
}

func (g *gauge) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
}
