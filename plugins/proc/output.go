package proc

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"a2e/protocol"
)

// lines is the Writer of one stream: it puts whole lines into the backlog.
type lines struct {
	to     *backlog
	stream protocol.ProcStream
	max    int    // bytes of a line that go in one event
	begun  []byte // of the line that has no end yet; at most max bytes
}

func newLines(to *backlog, stream protocol.ProcStream) *lines {
	return &lines{to: to, stream: stream, max: min(maxLine, max(to.limit, utf8.UTFMax))}
}

// Write implements io.Writer for one goroutine.
func (l *lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), l.max) // so that only a line begun before can be too long
		l.add(rest[:n])
		rest = rest[n:]
	}
	return len(p), nil
}

func (l *lines) add(part []byte) {
	if len(l.begun) > 0 {
		end := bytes.IndexByte(part, '\n') + 1
		if end == 0 {
			end = len(part)
		}
		l.begun = append(l.begun, part[:end]...)
		part = part[end:]
		l.split()
		if l.begun[len(l.begun)-1] == '\n' {
			l.to.put(l.stream, wholeLines, l.begun)
			l.begun = l.begun[:0]
		}
	}
	if end := bytes.LastIndexByte(part, '\n') + 1; end > 0 {
		l.to.put(l.stream, wholeLines, part[:end])
		part = part[end:]
	}
	l.begun = append(l.begun, part...)
}

// split puts the front of a line that is too long into the backlog.
func (l *lines) split() {
	for len(bytes.TrimSuffix(l.begun, []byte("\n"))) > l.max {
		n := runeEnd(l.begun, l.max)
		l.to.put(l.stream, linePiece, l.begun[:n])
		l.begun = l.begun[:copy(l.begun, l.begun[n:])]
	}
}

// end puts a last line without newline into the backlog.
func (l *lines) end() {
	if len(l.begun) > 0 {
		l.to.put(l.stream, wholeLines, append(l.begun, '\n'))
	}
	l.begun = nil
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

// chunks is the Writer of a terminal: what comes goes on as it is, be it a
// prompt without a newline. Only a character is kept whole.
type chunks struct {
	to    *backlog
	begun []byte // of a character; less than utf8.UTFMax bytes
}

// Write implements io.Writer for one goroutine.
func (c *chunks) Write(p []byte) (int, error) {
	all := p
	if len(c.begun) > 0 {
		all = append(c.begun, p...)
	}
	whole := wholeRunes(all)
	c.put(all[:whole])
	c.begun = bytes.Clone(all[whole:])
	return len(p), nil
}

func (c *chunks) put(data []byte) {
	for len(data) > 0 {
		n := len(data)
		if n > blockSize {
			n = runeEnd(data, blockSize)
		}
		kind := chunkText
		if !utf8.Valid(data[:n]) {
			kind = chunkBytes
		}
		c.to.put(protocol.StreamStdout, kind, data[:n])
		data = data[n:]
	}
}

func (c *chunks) end() { c.put(c.begun) }

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

// readEvent is a protocol.ProcReadEvent that encodes itself: there is one for
// each line.
type readEvent struct {
	kind   protocol.EventKind
	seq    int
	procID string
	stream protocol.ProcStream

	text    []byte // of an output event
	partial bool   // the line goes on in the next event
	data    string // of any other, as JSON
}

// AppendJSON implements protocol.Appender.
func (e *readEvent) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(append(dst, `{"kind":"`...), e.kind...)
	dst = append(dst, `","data":`...)
	switch {
	case e.kind != protocol.EventLog:
		dst = append(dst, e.data...)
	case utf8.Valid(e.text):
		dst = protocol.AppendString(append(dst, `{"text":`...), e.text)
	default:
		dst = protocol.AppendBase64(append(dst, `{"base64":`...), e.text)
	}
	if e.kind == protocol.EventLog {
		if e.partial {
			dst = append(dst, `,"partial":true`...)
		}
		dst = append(dst, '}')
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

func (s *sender) block(b block) error {
	e := readEvent{kind: protocol.EventLog, stream: b.stream}
	for len(b.data) > 0 {
		e.text, e.partial = b.data, b.kind == linePiece
		b.data = b.data[len(b.data):]
		if b.kind == wholeLines {
			e.text, b.data, _ = bytes.Cut(e.text, []byte{'\n'})
		}
		if err := s.event(&e); err != nil {
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
