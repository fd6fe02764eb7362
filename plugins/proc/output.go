package proc

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/protocol"
)

// stream is the Writer of one stream of a process: it puts the output into the backlog as
// it came, in whole lines where their ends come in time.
type stream struct {
	to   *backlog
	name protocol.ProcStream
	max  int           // bytes of a line that go in one event
	wait time.Duration // of silence, until a line goes on without its end; 0 = none

	mu    sync.Mutex // guards the fields below
	begun []byte     // what is held back; at most max bytes between writes
	late  *time.Timer
}

func newStream(to *backlog, name protocol.ProcStream, wait time.Duration) *stream {
	s := &stream{to: to, name: name, max: min(maxLine, max(to.limit, utf8.UTFMax)), wait: wait}
	s.late = time.AfterFunc(wait, s.silence)
	s.late.Stop()
	return s
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := p; len(rest) > 0; {
		n := min(len(rest), s.max)
		s.begun = append(s.begun, rest[:n]...)
		rest = rest[n:]
		s.putLocked(bytes.LastIndexByte(s.begun, '\n') + 1)
		if s.wait == 0 || len(s.begun) >= s.max {
			s.putLocked(wholeRunes(s.begun))
		}
	}
	if len(s.begun) > 0 && s.wait > 0 {
		s.late.Reset(s.wait)
	}
	return len(p), nil
}

// silence passes on a line that got no end for a while.
func (s *stream) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(wholeRunes(s.begun))
}

// putLocked puts the first n bytes that were held back into the backlog, in pieces that end
// with a line where they can, else with a character.
func (s *stream) putLocked(n int) {
	for data := s.begun[:n]; len(data) > 0; {
		end := len(data)
		if end > s.max {
			if end = bytes.LastIndexByte(data[:s.max], '\n') + 1; end == 0 {
				end = runeEnd(data, s.max)
			}
		}
		s.to.put(s.name, data[:end])
		data = data[end:]
	}
	s.begun = s.begun[:copy(s.begun, s.begun[n:])]
}

// end passes on what was held back: nothing more is written.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late.Stop()
	s.putLocked(len(s.begun))
}

// runeEnd gives where to cut text, n bytes on or a little before, so that no
// character is cut. Bytes that are no UTF-8 are cut anywhere.
func runeEnd(text []byte, n int) int {
	for end := n; end > 0 && n-end < utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return end
		}
	}
	return n
}

// wholeRunes gives how much of text comes before a character that is cut off at
// its end.
func wholeRunes(text []byte) int {
	for n := len(text) - 1; n >= 0 && len(text)-n < utf8.UTFMax; n-- {
		if utf8.RuneStart(text[n]) {
			if !utf8.FullRune(text[n:]) {
				return n
			}
			break
		}
	}
	return len(text)
}

// readEvent is a protocol.ProcReadEvent that encodes itself: there may be one for
// each line.
type readEvent struct {
	kind   protocol.EventKind
	seq    int
	procID string
	stream protocol.ProcStream

	text []byte // of an output event
	data string // of any other, as JSON
}

// AppendJSON implements protocol.Appender.
func (e *readEvent) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(append(dst, `{"kind":"`...), e.kind...)
	dst = append(dst, `","data":`...)
	switch {
	case e.kind != protocol.EventLog:
		dst = append(dst, e.data...)
	case utf8.Valid(e.text):
		dst = append(protocol.AppendString(append(dst, `{"text":`...), e.text), '}')
	default:
		dst = append(protocol.AppendBase64(append(dst, `{"base64":`...), e.text), '}')
	}
	dst = strconv.AppendInt(append(dst, `,"seq":`...), int64(e.seq), 10)
	dst = protocol.AppendString(append(dst, `,"proc_id":`...), e.procID)
	dst = append(append(dst, `,"stream_type":"`...), e.stream...)
	return append(dst, `"}`...), nil
}

// sender puts the output of one process into events.
type sender struct {
	send   func(*readEvent) error
	procID string
	seq    int
}

func (s *sender) event(e *readEvent) error {
	e.procID, e.seq = s.procID, s.seq
	s.seq++
	return s.send(e)
}

// run sends what comes through the backlog until it ends. The error says that
// nobody takes events any more.
func (s *sender) run(from *backlog) error {
	for {
		next, lost, ok := from.take()
		if !ok {
			return nil
		}
		if lost.bytes > 0 {
			if err := s.loss(lost); err != nil {
				return err
			}
		}
		if err := s.block(next); err != nil {
			return err
		}
	}
}

func (s *sender) loss(lost loss) error {
	return s.event(&readEvent{kind: protocol.EventStatus, stream: lost.stream, data: fmt.Sprintf(
		`{"message":"%d bytes of output were dropped here: they came faster than they were read","dropped_bytes":%d}`, lost.bytes, lost.bytes)})
}

// block sends one block in one event. Where some of it is no UTF-8 each line is an event, so
// that the others stay text.
func (s *sender) block(b block) error {
	lines := slices.Values([][]byte{b.data})
	if !utf8.Valid(b.data) {
		lines = bytes.Lines(b.data)
	}
	for text := range lines {
		if err := s.event(&readEvent{kind: protocol.EventLog, stream: b.stream, text: text}); err != nil {
			return err
		}
	}
	return nil
}

// exit sends the last event of a process: code is -1 for one that was killed.
func (s *sender) exit(code int) error {
	e := &readEvent{kind: protocol.EventStatus, stream: protocol.StreamStdout, data: fmt.Sprintf(`{"code":%d}`, code)}
	switch {
	case code < 0:
		e.stream, e.data = protocol.StreamKilled, `{}`
	case code > 0:
		e.stream = protocol.StreamStderr
	}
	return s.event(e)
}
