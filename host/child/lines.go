package child

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/host"
	"a2e/protocol"
)

const (
	keptHead   = 4 << 10 // bytes kept of a line that is too long: its envelope may be there
	keptBuffer = 1 << 20 // the largest buffer that is kept for the next lines
)

// Splitter cuts a stream into lines. Of a line that is longer than Max bytes it keeps only the head. It drops a
// byte order mark before the first line. It is for one goroutine.
type Splitter struct {
	Max  int
	Head int               // bytes kept of a line that is too long; 0 = 4 KiB, where a message has its envelope
	Line func(line []byte) // without its end; valid until it returns
	Long func(head []byte) // the head of a line that was dropped
	Over io.Writer         // takes all of such a line, before Long is called; may be nil

	begun   bool   // the first line was passed on
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
			s.over(line)
		case len(s.part)+len(line) > s.Max:
			s.over(s.part)
			s.over(line)
			head := cmp.Or(s.Head, keptHead)
			s.part = bytes.Clone(append(s.part, line[:min(len(line), head)]...)[:min(head, len(s.part)+len(line))])
			s.dropped = true
		case !whole || len(s.part) > 0:
			s.part = append(s.part, line...)
		default:
			s.pass(line)
			continue
		}
		if whole {
			s.End()
		}
	}
	return len(p), nil
}

// pass passes on a line.
func (s *Splitter) pass(line []byte) {
	if !s.begun {
		line, s.begun = bytes.TrimPrefix(line, []byte("\ufeff")), true
	}
	s.Line(line)
}

// over passes on a piece of a line that is too long.
func (s *Splitter) over(piece []byte) {
	if s.Over != nil {
		_, _ = s.Over.Write(piece) // the line is dropped anyway
	}
}

// End ends the line under way, if there is one.
func (s *Splitter) End() {
	switch {
	case s.dropped:
		s.Long(s.part)
	case len(s.part) > 0:
		s.pass(s.part)
	}
	if s.dropped, s.part = false, s.part[:0]; cap(s.part) > keptBuffer {
		s.part = nil
	}
}

// Limiter bounds how often something is done, such as logged: Burst times at once, and then PerSecond times in each
// second. It is safe for concurrent use.
type Limiter struct {
	Burst, PerSecond float64

	mu     sync.Mutex // guards the fields below
	used   float64    // of Burst
	last   time.Time
	hidden int
}

// Allow reports whether it may be done now. hidden is how often it was not allowed since the last time that it was.
func (l *Limiter) Allow(now time.Time) (hidden int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used, l.last = max(0, l.used-now.Sub(l.last).Seconds()*l.PerSecond), now
	if l.used > l.Burst-1 {
		l.hidden++
		return 0, false
	}
	l.used++
	hidden, l.hidden = l.hidden, 0
	return hidden, true
}

// Tail keeps the end of what was written: at least Size bytes of it, if there were as many.
type Tail struct {
	Size  int
	text  []byte
	total int // bytes so far
}

// Add appends a line and a newline.
func (t *Tail) Add(line []byte) {
	t.text = append(append(t.text, line...), '\n')
	t.added(len(line) + 1)
}

// Write implements io.Writer: it appends text as it is.
func (t *Tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-2*t.Size):]...)
	t.added(len(p))
	return len(p), nil
}

// added counts n more bytes and drops the beginning of a text that is too long.
func (t *Tail) added(n int) {
	t.total += n
	if over := len(t.text) - t.Size; over > t.Size {
		t.text = append(t.text[:0], t.text[over:]...)
	}
}

// Last returns at most the last n bytes, from the beginning of a character on. left is how many bytes came before
// them. The bytes are valid until the next call of Add or Write.
func (t *Tail) Last(n int) (end []byte, left int) {
	end = t.text[max(0, len(t.text)-min(n, t.Size)):]
	for i := 0; i < utf8.UTFMax-1 && len(end) < t.total && len(end) > 0 && !utf8.RuneStart(end[0]); i++ {
		end = end[1:]
	}
	return end, t.total - len(end)
}

// String returns the end as text, without space around it.
func (t *Tail) String() string {
	end, _ := t.Last(t.Size)
	return string(bytes.ToValidUTF8(bytes.TrimSpace(end), []byte("\uFFFD")))
}

// Left returns how many bytes came before the text of String.
func (t *Tail) Left() int {
	_, left := t.Last(t.Size)
	return left
}

// maxOutbox is how many bytes may wait for a child that does not read.
const maxOutbox = 16 << 20

// maxDirect is the longest line, in bytes, that fits into the pipe of a child that has read everything before it:
// the pipe of every system takes as much at once.
const maxDirect = 4096

// maxWait is how long the write of such a line may take.
const maxWait = 10 * time.Millisecond

// The errors that Process.Send returns.
var (
	ErrInputFull   = errors.New("the child does not read its input: 16 MiB wait for it")
	ErrInputClosed = errors.New("the child's input is closed")
)

// outbox is the input of a child. All lines that are added during one write go out in the next write. It is safe
// for concurrent use.
type outbox struct {
	mu      sync.Mutex // guards the fields below
	pipe    *os.File   // nil = the child has not started
	changed sync.Cond  // on mu
	lines   []byte
	writing bool // run is writing lines
	closed  bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// open sets the child's stdin, which run closes.
func (o *outbox) open(pipe *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pipe = pipe
}

// add appends a line, newline included. alone says that the child has nothing else to read: then the line is
// written right here, which saves a switch of goroutines.
func (o *outbox) add(line []byte, alone bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return ErrInputClosed
	case alone && o.pipe != nil && !o.writing && len(o.lines) == 0 && len(line) <= maxDirect:
		n, err := o.direct(line)
		if err == nil {
			return nil
		}
		line = line[n:] // run finds the same error and deals with it
	case len(o.lines) > 0 && len(o.lines)+len(line) > maxOutbox:
		return ErrInputFull
	}
	o.lines = append(o.lines, line...)
	o.changed.Signal()
	return nil
}

// direct writes a line at once. A child may answer requests that it has not read, so that it only seems to have
// nothing else to read. Its pipe may be full then, and the caller must not wait for it.
func (o *outbox) direct(line []byte) (int, error) {
	if err := o.pipe.SetWriteDeadline(time.Now().Add(maxWait)); err != nil {
		return 0, err // without a deadline the write may wait for ever
	}
	n, err := o.pipe.Write(line)
	return n, errors.Join(err, o.pipe.SetWriteDeadline(time.Time{}))
}

// run writes the lines until close, and then closes the input. A child that has closed its side and does not end
// within patience is killed; done is closed when it has ended.
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

// close closes the input after the lines that wait.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Signal()
}

// Emit passes on an event of a child, if it is of a kind that every protocol of the host knows. known is false for
// other kinds. The error says that the data does not fit its kind.
func Emit(to host.Emitter, kind protocol.EventKind, data protocol.Value) (known bool, err error) {
	read := func(dst any) bool {
		var obj protocol.Object
		if obj, err = protocol.ParseObject(data); err == nil {
			err = obj.Decode(dst)
		}
		return err == nil
	}
	switch kind {
	case protocol.EventProgress:
		if e := new(protocol.Progress); read(e) {
			to.Progress(e.Pct, e.Message)
		}
	case protocol.EventStatus:
		if e := new(protocol.Status); read(e) {
			to.Status(e.Message)
		}
	case protocol.EventLog:
		if e := new(protocol.Log); read(e) {
			to.Log(e.Level, e.Message, e.Stream)
		}
	case protocol.EventArtifact:
		if e := new(protocol.Artifact); read(e) {
			to.Artifact(e.Name, e.Mime, e.Chunk, e.Final)
		}
	default:
		return false, nil
	}
	return true, err
}

// Pending has the requests that a process has not answered, by the ids that the process knows. Each request is
// taken out once: when it is answered, when it is given up, or when the process ends. The zero value is empty; it
// is safe for concurrent use.
type Pending[ID comparable, Req any] struct {
	mu       sync.Mutex // guards the fields below
	open     map[ID]*numbered[Req]
	ended    bool
	sent     uint64 // requests so far
	answered uint64 // the highest number of an answered request
	mark     uint64 // requests from this number on are read after all messages without an answer
}

// numbered is a request with its number.
type numbered[Req any] struct {
	req    Req
	number uint64
}

// Add adds a request, right before it is sent. alone says that the process has read everything that was sent
// before; ok is false if the process has ended.
func (p *Pending[ID, Req]) Add(id ID, req Req) (alone, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false, false
	}
	if p.open == nil {
		p.open = make(map[ID]*numbered[Req])
	}
	alone = len(p.open) == 0 && p.answered >= p.mark
	p.sent++
	p.open[id] = &numbered[Req]{req, p.sent}
	return alone, true
}

// Told notes that a message without an answer was sent.
func (p *Pending[ID, Req]) Told() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark = p.sent + 1
}

// Get returns a request that is not answered yet.
func (p *Pending[ID, Req]) Get(id ID) (req Req, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.open[id]; n != nil {
		return n.req, true
	}
	return req, false
}

// Take takes out the request that an answer is for.
func (p *Pending[ID, Req]) Take(id ID) (req Req, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.open[id]
	if n == nil {
		return req, false
	}
	delete(p.open, id)
	p.answered = max(p.answered, n.number)
	return n.req, true
}

// Drop takes out a request that is given up; the process may not have read it. False means that it was taken out
// before.
func (p *Pending[ID, Req]) Drop(id ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.open[id]
	if n == nil {
		return false
	}
	delete(p.open, id)
	p.mark = max(p.mark, n.number+1)
	return true
}

// Len returns how many requests there are.
func (p *Pending[ID, Req]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// Idle reports whether there is no request.
func (p *Pending[ID, Req]) Idle() bool { return p.Len() == 0 }

// Requests returns the requests, in no particular order.
func (p *Pending[ID, Req]) Requests() []Req {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestsLocked()
}

func (p *Pending[ID, Req]) requestsLocked() []Req {
	all := make([]Req, 0, len(p.open))
	for _, n := range p.open {
		all = append(all, n.req)
	}
	return all
}

// End takes out and returns all requests, and refuses further ones: the process has ended.
func (p *Pending[ID, Req]) End() []Req {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requestsLocked()
	p.open, p.ended = nil, true
	return all
}
