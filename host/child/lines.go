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
	keptHead   = 4 << 10 // bytes kept of a line that is too long: its envelope may stand there
	keptBuffer = 1 << 20 // the largest buffer that is kept for the next lines
)

// Splitter cuts a stream into lines. Of one that is longer than Max bytes only the head is
// kept. A byte order mark before the first one is left out. It is for one goroutine.
type Splitter struct {
	Max  int
	Head int               // bytes kept of a line that is too long; 0 = 4 KiB, where a message has its envelope
	Line func(line []byte) // without its end; valid until it returns
	Long func(head []byte) // the head of a line that was dropped
	Over io.Writer         // takes all of such a line, before Long is called; nil = nobody does

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

// Limiter bounds how often something is done, such as logged: Burst times at once, and
// PerSecond more often in each second. It is safe for concurrent use.
type Limiter struct {
	Burst, PerSecond float64

	mu     sync.Mutex // guards the fields below
	used   float64    // of Burst
	last   time.Time
	hidden int
}

// Allow reports whether it may be done now, and how often it was not since the last time.
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

// Last returns at most the last n bytes, from the begin of a character on, and how many
// came before them. They are good until the next call of Add or Write.
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

// Left is how many bytes came before those of String.
func (t *Tail) Left() int {
	_, left := t.Last(t.Size)
	return left
}

// maxOutbox is how many bytes may wait for a child that does not read.
const maxOutbox = 16 << 20

// maxDirect is how long a line may be to fit into the pipe of a child that has read all
// before it: every system's pipe takes as much at once.
const maxDirect = 4096

// maxWait is how long such a line may take all the same.
const maxWait = 10 * time.Millisecond

// What Process.Send returns.
var (
	ErrInputFull   = errors.New("the child does not read its input: 16 MiB wait for it")
	ErrInputClosed = errors.New("the child's input is closed")
)

// outbox is the input of a child: what comes while one write is under way goes out in
// the next, however many lines it is. It is safe for concurrent use.
type outbox struct {
	mu      sync.Mutex // guards the fields below
	pipe    *os.File   // nil = the child has not started
	changed sync.Cond  // on mu
	lines   []byte
	writing bool // run has lines in hand
	closed  bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// open gives the outbox the child's stdin, which run closes.
func (o *outbox) open(pipe *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pipe = pipe
}

// add puts a line, newline included, behind the others. With alone the child has nothing
// else to read: the line is written right here, which spares a switch of goroutines.
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

// direct writes a line at once. A child that answers what it has not read only seems to
// have nothing else to read: its pipe may be full, and the caller shall not wait for it.
func (o *outbox) direct(line []byte) (int, error) {
	if err := o.pipe.SetWriteDeadline(time.Now().Add(maxWait)); err != nil {
		return 0, err // one that may wait for ever
	}
	n, err := o.pipe.Write(line)
	return n, errors.Join(err, o.pipe.SetWriteDeadline(time.Time{}))
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

// Emit passes on what a child says while it works, if it is of a kind that every protocol
// of the host knows. known is false for other kinds; the error says that the data is not
// what its kind has.
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

// Pending is the requests that a process has not answered, by the ids that it knows them by.
// Each is taken out once: by its answer, by who gives it up, or by the end of the process.
// The zero value is empty; it is safe for concurrent use.
type Pending[ID comparable, Req any] struct {
	mu       sync.Mutex // guards the fields below
	open     map[ID]*numbered[Req]
	ended    bool
	sent     uint64 // requests so far
	answered uint64 // the last of them that was answered, by its number
	mark     uint64 // one with this number or a later one was read after all that has no answer
}

// numbered is a request with its number.
type numbered[Req any] struct {
	req    Req
	number uint64
}

// Add puts a request in, right before it is sent. alone says that the process has read
// everything that was sent before; ok is false once it has ended.
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

// Told notes that something was sent that has no answer.
func (p *Pending[ID, Req]) Told() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark = p.sent + 1
}

// Get returns a request that waits.
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

// Drop takes out a request that is given up; what was sent of it may not have been read.
// False means that it was out.
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

// Len is how many there are.
func (p *Pending[ID, Req]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// Idle reports whether there is none.
func (p *Pending[ID, Req]) Idle() bool { return p.Len() == 0 }

// Requests returns those there are, in no order.
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

// End takes out all requests, and takes none any more: the process has ended.
func (p *Pending[ID, Req]) End() []Req {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requestsLocked()
	p.open, p.ended = nil, true
	return all
}
