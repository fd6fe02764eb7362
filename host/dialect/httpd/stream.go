package httpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// writeTimeout bounds each write to a client that does not read. The client can connect again.
const writeTimeout = time.Minute

// paced sets the time limit of each write, of answers and of streams.
type paced struct {
	http.ResponseWriter
	to *http.ResponseController
}

func (p paced) Write(b []byte) (int, error) {
	p.extend()
	return p.ResponseWriter.Write(b)
}

// FlushError is what http.ResponseController calls.
func (p paced) FlushError() error {
	p.extend()
	return p.to.Flush()
}

func (p paced) extend() { _ = p.to.SetWriteDeadline(time.Now().Add(writeTimeout)) } // tests may not support it

// Unwrap is for http.ResponseController.
func (p paced) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// flushDelay is how long an event may wait, to be sent together with the next one or with the end of the answer.
const flushDelay = time.Millisecond

// lateWriter writes an answer and sends events that come shortly after each other together. A short answer is one
// write.
type lateWriter struct {
	http.ResponseWriter
	to *http.ResponseController

	mu    sync.Mutex  // guards the fields below, and the answer
	timer *time.Timer // of a planned flush; nil = none is planned
	over  bool
}

func (l *lateWriter) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ResponseWriter.WriteHeader(status)
}

func (l *lateWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ResponseWriter.Write(b)
}

// FlushError is what http.ResponseController calls.
func (l *lateWriter) FlushError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.timer = time.AfterFunc(flushDelay, l.flush)
	}
	return nil
}

func (l *lateWriter) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer = nil; !l.over {
		_ = l.to.Flush() // if the client has gone, the next write fails
	}
}

// end is called when the answer is complete. The server then sends the rest without a flush.
func (l *lateWriter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = true; l.timer != nil {
		l.timer.Stop()
	}
}

// stream sends the output of a session as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *session) {
	if r.Method != http.MethodGet { // HEAD would take the events away from the reader
		w.Header().Set("Allow", http.MethodGet)
		refuse(w, http.StatusMethodNotAllowed, errors.New("should be GET"))
		return
	}
	after := -1
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, errors.New("Last-Event-ID must be the id of an event of this session, "+
				"a number"))
			return
		}
		after = n
	}
	reader, last, err := c.out.begin(after)
	if err != nil {
		refuse(w, http.StatusGone, err)
		return
	}
	defer c.listen()()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	out := &sink{w: w, to: http.NewResponseController(w), beat: s.opts.Beat}
	if out.comment() != nil {
		return
	}
	c.copyEvents(r.Context(), out, reader, last)
}

// copyEvents sends events until the session or the connection ends, or another stream becomes the reader.
func (c *session) copyEvents(ctx context.Context, out *sink, reader, last int) {
	defer context.AfterFunc(ctx, c.out.wake)()
	due := false // whether a comment is due; guarded by events.mu, which next holds when it calls stopped
	for {
		began := time.Now() // before the timer starts, so that a comment is due when the timer wakes next
		beat := time.AfterFunc(out.beat, c.out.wake)
		lines, end := c.out.next(reader, last, func() bool {
			due = time.Since(began) >= out.beat
			return due || ctx.Err() != nil
		})
		beat.Stop()
		switch {
		case ctx.Err() != nil:
			return
		case len(lines) > 0:
			if out.send(lines, last+1) != nil {
				return
			}
			last = end
			if c.out.delivered(last) {
				c.gone()
				return
			}
		case !due || out.comment() != nil:
			return
		}
		due = false
	}
}

// sink writes server-sent events.
type sink struct {
	w    http.ResponseWriter
	to   *http.ResponseController
	beat time.Duration
	buf  []byte
}

func (s *sink) comment() error { return s.flush(append(s.buf[:0], ":\n\n"...)) }

// send writes lines as events. number is the number of the first event.
func (s *sink) send(lines [][]byte, number int) error {
	buf := s.buf[:0]
	for i, line := range lines {
		buf = strconv.AppendInt(append(buf, "id: "...), int64(number+i), 10)
		buf = append(appendLine(append(buf, "\ndata: "...), line), "\n\n"...)
		if len(buf) > 64<<10 {
			if err := s.flush(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return s.flush(buf)
}

func (s *sink) flush(buf []byte) error {
	if s.buf = buf; cap(buf) > 1<<20 {
		s.buf = nil
	}
	if _, err := s.w.Write(buf); err != nil {
		return err
	}
	return s.to.Flush()
}

// appendLine appends JSON text. It escapes U+0085, U+2028 and U+2029, which some clients take for the end of a line,
// such as those that use Python's str.splitlines.
func appendLine(dst, line []byte) []byte {
	if bytes.IndexByte(line, 0xc2) < 0 && bytes.IndexByte(line, 0xe2) < 0 {
		return append(dst, line...)
	}
	for len(line) > 0 {
		i := bytes.IndexAny(line, "\u0085\u2028\u2029")
		if i < 0 {
			break
		}
		dst = append(dst, line[:i]...)
		switch {
		case line[i] == 0xc2:
			dst, line = append(dst, `\u0085`...), line[i+2:]
		case line[i+2] == 0xa8:
			dst, line = append(dst, `\u2028`...), line[i+3:]
		default:
			dst, line = append(dst, `\u2029`...), line[i+3:]
		}
	}
	return append(dst, line...)
}

// events is the output of a session: lines, numbered from 1. Lines that were sent are kept up to max bytes, for a
// client whose connection broke before it had read them. Lines that were not sent are never dropped: the host waits
// when there are max bytes of them.
type events struct {
	max int

	mu      sync.Mutex
	changed sync.Cond
	lines   [][]byte // without their ends; the first is number first
	first   int
	sent    int    // the number of the last line that was sent; 0 = none
	old     int    // bytes of the lines that were sent
	fresh   int    // bytes of the lines that were not sent yet
	part    []byte // the beginning of a line
	closed  bool   // the host has ended
	lost    bool   // nobody will read any more
	reader  int    // number of streams so far; the last one is the reader
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

// close marks the end of the host, and reports whether all of its output was sent or nobody will read it.
func (e *events) close() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.changed.Broadcast()
	return e.fresh == 0 || e.lost
}

// giveUp marks that nobody will read any more.
func (e *events) giveUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = true
	e.changed.Broadcast()
}

// wake makes all waiting goroutines check their conditions again.
func (e *events) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed.Broadcast()
}

// begin makes a new stream the reader, in place of the one before. after is the number of the last event that the
// client has; -1 = not known: the stream begins with the first event that was not sent yet.
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
		return 0, 0, fmt.Errorf("the events from %d to %d are no longer kept; start a new session", after+1, e.first-1)
	}
	e.reader++
	e.changed.Broadcast()
	return e.reader, after, nil
}

// maxBatch is how many events are sent before they are marked as sent.
const maxBatch = 512

// next waits for events after a number. It returns those events, at most maxBatch, and the number of the last one. No
// events = the stream is over: the host has ended, there is another reader, or stopped returns true.
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

// delivered marks the events up to a number as sent, and drops the oldest ones beyond max bytes. It reports whether the
// host has ended and all of its output was sent.
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
