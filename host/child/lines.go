package child

import (
	"bytes"
	"cmp"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	keptHead   = 4 << 10 // bytes kept of a line that is too long: its envelope may stand there
	keptBuffer = 1 << 20 // the largest buffer that is kept for the next lines
)

// Splitter cuts a stream into lines. Of one that is longer than Max bytes only the head is
// kept. It is for one goroutine.
type Splitter struct {
	Max  int
	Head int               // bytes kept of a line that is too long; 0 = 4 KiB, where a message has its envelope
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
			head := cmp.Or(s.Head, keptHead)
			s.part = bytes.Clone(append(s.part, line[:min(len(line), head)]...)[:min(head, len(s.part)+len(line))])
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

// end returns what String shows, which begins with a whole character.
func (t *Tail) end() []byte {
	end := t.text[max(0, len(t.text)-t.Size):]
	for i := 0; i < utf8.UTFMax-1 && len(end) < t.total && len(end) > 0 && !utf8.RuneStart(end[0]); i++ {
		end = end[1:]
	}
	return end
}

// String returns the end as text, without space around it.
func (t *Tail) String() string {
	return string(bytes.ToValidUTF8(bytes.TrimSpace(t.end()), []byte("\uFFFD")))
}

// Left is how many bytes came before those of String.
func (t *Tail) Left() int { return t.total - len(t.end()) }
