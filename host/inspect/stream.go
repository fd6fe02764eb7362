package inspect

import (
	"net/http"
	"strconv"
	"time"
)

const (
	batchBytes = 64 << 10
	beatEvery  = 10 * time.Second
	// patience is how long a page may read nothing. It asks again when it is back.
	patience = 30 * time.Second
)

// stream sends lines to one page.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     []byte
}

// line adds a line without its end.
func (s *stream) line(line []byte) error {
	s.buf = append(append(s.buf, line...), '\n')
	if len(s.buf) < batchBytes {
		return nil
	}
	return s.write()
}

// write writes what was added.
func (s *stream) write() error {
	if len(s.buf) == 0 {
		return nil
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := s.w.Write(s.buf)
	if s.buf = s.buf[:0]; cap(s.buf) > 4*batchBytes {
		s.buf = nil
	}
	return err
}

// flush has the page see all that was added.
func (s *stream) flush() error {
	if err := s.write(); err != nil {
		return err
	}
	return s.control.Flush()
}

// beat says that the stream is open, and brings nothing new.
func (s *stream) beat() error {
	_ = s.line([]byte(`{"beat":true}`)) // flush tells
	return s.flush()
}

// end says that all is sent, n entries in all.
func (s *stream) end(n int64) error {
	_ = s.line(append(strconv.AppendInt([]byte(`{"end":true,"entries":`), n, 10), '}')) // likewise
	return s.flush()
}
