package httpd

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// writeTimeout bounds the wait for a client that does not read; it can connect anew.
const writeTimeout = time.Minute

// paced bounds the wait of each write, of answers and of streams.
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

func (p paced) extend() { _ = p.to.SetWriteDeadline(time.Now().Add(writeTimeout)) } // a test's writer may have none

// Unwrap is for http.ResponseController.
func (p paced) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// stream sends the output of a session as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *session) {
	if r.Method != http.MethodGet { // HEAD would take the events of the one that reads them
		w.Header().Set("Allow", http.MethodGet)
		refuse(w, http.StatusMethodNotAllowed, errors.New("should be GET"))
		return
	}
	after := -1
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, errors.New("Last-Event-ID must be the id of an event of this session, a number"))
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

// copyEvents sends events until the session or the connection ends, or the reader is another.
func (c *session) copyEvents(ctx context.Context, out *sink, reader, last int) {
	defer context.AfterFunc(ctx, c.out.wake)()
	due := false // a comment; guarded by the lock of the events, under which next asks
	for {
		began := time.Now() // before the timer begins, so that it is due when that wakes next
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

// send writes lines as events, of which the first has a number.
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

// appendLine adds JSON text with those characters escaped that some clients take for the end of
// a line, such as all that split text by Python's str.splitlines.
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
