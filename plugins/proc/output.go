package proc

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

// stream is the Writer of one stream of a process. It puts the output into the backlog, with secrets
// masked, and in whole lines if the end of a line follows in time.
type stream struct {
	to   *backlog
	name protocol.ProcStream
	max  int           // most bytes of a line in one event
	wait time.Duration // time after which a line is passed on without its end; 0 = at once

	mu    sync.Mutex // guards the fields below
	shown *redact.Writer
	begun []byte // a line that has no end yet; at most max bytes between writes
	late  *time.Timer
	rest  *time.Timer // passes on text that may be the start of a secret
}

func newStream(to *backlog, name protocol.ProcStream, wait time.Duration, secrets *redact.Set) *stream {
	s := &stream{to: to, name: name, max: min(maxLine, max(to.limit, utf8.UTFMax)), wait: wait}
	s.shown = secrets.Writer((*lines)(s))
	s.late, s.rest = time.AfterFunc(wait, s.silence), time.AfterFunc(secretWait, s.reveal)
	s.late.Stop()
	s.rest.Stop()
	return s
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.shown.Write(p) // to lines, which have no error
	if s.rest.Stop(); s.shown.Holds() {
		s.rest.Reset(secretWait)
	}
	return len(p), nil
}

// reveal passes on text that may be the start of a secret, because nothing followed it for secretWait.
func (s *stream) reveal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.shown.Flush() // to lines, which have no error
}

// lines writes the output of a stream after secrets are masked. The lock of the stream is held.
type lines stream

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	s := (*stream)(l)
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

// silence passes on a line whose end did not follow in time.
func (s *stream) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(wholeRunes(s.begun))
}

// putLocked moves the first n bytes of begun into the backlog, in pieces that end
// with a line if possible, else with a whole character.
func (s *stream) putLocked(n int) {
	for data := s.begun[:n]; len(data) > 0; {
		end := len(data)
		if end > s.max {
			if end = bytes.LastIndexByte(data[:s.max], '\n') + 1; end == 0 {
				end = len(protocol.Head(data, s.max))
			}
		}
		s.to.put(s.name, data[:end])
		data = data[end:]
	}
	s.begun = s.begun[:copy(s.begun, s.begun[n:])]
}

// end passes on all that is held back. Nothing more is written afterwards.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.shown.Close() // to lines, which have no error
	s.late.Stop()
	s.rest.Stop()
	s.putLocked(len(s.begun))
}

// wholeRunes returns the length of text without an incomplete character at
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

// readEvent is a protocol.ProcReadEvent that encodes itself, for speed: there may be one for
// each line.
type readEvent struct {
	kind   protocol.EventKind
	seq    int
	procID string
	stream protocol.ProcStream

	text []byte // of an output event
	data string // of any other event, as JSON
}

// AppendJSON implements protocol.Appender.
func (e *readEvent) AppendJSON(dst []byte) ([]byte, error) {
	dst = slices.Grow(dst, len(e.text)+len(e.text)/8+eventRoom)
	dst = append(append(dst, `{"kind":"`...), e.kind...)
	dst = append(dst, `","data":`...)
	switch {
	case e.kind != protocol.EventLog:
		dst = append(dst, e.data...)
	case utf8.Valid(e.text):
		dst = e.appendLines(protocol.AppendString(append(dst, `{"text":`...), e.text))
	default:
		dst = e.appendLines(protocol.AppendBase64(append(dst, `{"base64":`...), e.text))
	}
	dst = strconv.AppendInt(append(dst, `,"seq":`...), int64(e.seq), 10)
	dst = protocol.AppendString(append(dst, `,"proc_id":`...), e.procID)
	dst = append(append(dst, `,"stream_type":"`...), e.stream...)
	return append(dst, `"}`...), nil
}

// eventRoom is about the size of an event without its text, in bytes.
const eventRoom = 512

// appendLines ends the data of an output event with the number of line ends in its text.
func (e *readEvent) appendLines(dst []byte) []byte {
	n := bytes.Count(e.text, []byte{'\n'})
	return append(strconv.AppendInt(append(dst, `,"lines":`...), int64(n), 10), '}')
}

// sender sends the output of one process as events.
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

// run sends the output from the backlog until the backlog ends. An error means that
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
		`{"message":"%d bytes of output were dropped here: they came faster than they were read","dropped_bytes":%d}`,
		lost.bytes, lost.bytes)})
}

// block sends one block in one event. If the block is not valid UTF-8, it sends each line as an event, so
// that valid lines stay text.
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

// exit sends the last event of a process. code is -1 for a process that was killed.
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

const (
	// maxLine is the longest line that one event carries, in bytes.
	maxLine = 64 << 10
	// blockSize is how much output is kept in one piece of memory.
	blockSize = 32 << 10
	// fullWait bounds how long each write of a child waits for room in a full
	// backlog, before the oldest output is dropped.
	fullWait = 50 * time.Millisecond
	// lineWait is how long the start of a line waits for its end.
	lineWait = 50 * time.Millisecond
	// secretWait is how long text that may be the start of a secret waits for the rest.
	secretWait = 2 * time.Second
)

// block is a piece of output of one stream.
type block struct {
	stream protocol.ProcStream
	data   []byte
}

// backlog has the output of one process that is not sent yet, at most limit
// bytes. When it is full, put waits a little and then drops the oldest
// output.
type backlog struct {
	limit int

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	blocks  []block    // the oldest first
	size    int        // bytes in blocks
	dropped loss       // output before blocks that was dropped and not reported yet
	hurried bool       // put does not wait for room any more
	ended   bool       // no further output will be put
	closed  bool       // all output is thrown away
}

// loss is output that was dropped.
type loss struct {
	bytes  int
	stream protocol.ProcStream // of the first output that was dropped
}

func newBacklog(limit int) *backlog {
	b := &backlog{limit: limit}
	b.changed.L = &b.mu
	return b
}

// put adds a copy of data.
func (b *backlog) put(stream protocol.ProcStream, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size+len(data) > b.limit {
		b.waitRoomLocked(len(data))
	}
	if b.closed {
		return
	}
	b.appendLocked(stream, data)
	b.trimLocked()
	b.changed.Broadcast()
}

// waitRoomLocked waits until n more bytes fit, for at most fullWait.
func (b *backlog) waitRoomLocked(n int) {
	late := false
	timer := time.AfterFunc(fullWait, func() { b.set(func() { late = true }) })
	defer timer.Stop()
	for b.size > 0 && b.size+n > b.limit && !late && !b.hurried {
		b.changed.Wait()
	}
}

// appendLocked appends data to the last block, or adds a new block.
func (b *backlog) appendLocked(stream protocol.ProcStream, data []byte) {
	b.size += len(data)
	if n := len(b.blocks); n > 0 {
		if last := &b.blocks[n-1]; last.stream == stream && len(last.data)+len(data) <= blockSize {
			last.data = append(last.data, data...)
			return
		}
	}
	b.blocks = append(b.blocks, block{stream, bytes.Clone(data)})
}

// trimLocked drops the oldest output beyond the limit.
func (b *backlog) trimLocked() {
	for b.size > b.limit {
		first := &b.blocks[0]
		n := first.cut(b.size - b.limit)
		if b.dropped.bytes == 0 {
			b.dropped.stream = first.stream
		}
		b.dropped.bytes += n
		b.size -= n
		if first.data = first.data[n:]; len(first.data) == 0 {
			b.popLocked()
		}
	}
}

// cut returns how many bytes to drop, at least n, so that the rest begins with a line, or, if no further
// line begins, with a whole character.
func (f *block) cut(n int) int {
	if n >= len(f.data) {
		return len(f.data)
	}
	if end := bytes.IndexByte(f.data[n-1:], '\n'); end >= 0 {
		return n + end
	}
	for n < len(f.data) && !utf8.RuneStart(f.data[n]) {
		n++
	}
	return n
}

func (b *backlog) popLocked() block {
	first := b.blocks[0]
	b.blocks[0] = block{}
	b.blocks = b.blocks[1:]
	return first
}

// take waits for output and returns the oldest block, and the loss before it;
// either may be empty. ok is false when the backlog is closed, or has ended and is empty.
func (b *backlog) take() (next block, lost loss, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.blocks) == 0 && b.dropped.bytes == 0 && !b.ended && !b.closed {
		b.changed.Wait()
	}
	if b.closed || len(b.blocks) == 0 && b.dropped.bytes == 0 {
		return block{}, loss{}, false
	}
	lost, b.dropped = b.dropped, loss{}
	if len(b.blocks) > 0 {
		next = b.popLocked()
		b.size -= len(next.data)
		b.changed.Broadcast()
	}
	return next, lost, true
}

// hurry ends all waiting for room: the process is being stopped, and must not wait for
// an agent that does not read.
func (b *backlog) hurry() { b.set(func() { b.hurried = true }) }

// end notes that no further output follows.
func (b *backlog) end() { b.set(func() { b.ended = true }) }

// close throws away all output, also output that is put later.
func (b *backlog) close() {
	b.set(func() { b.closed, b.hurried, b.blocks, b.size = true, true, nil, 0 })
}

// set runs change under the lock and wakes all that wait.
func (b *backlog) set(change func()) {
	b.mu.Lock()
	change()
	b.mu.Unlock()
	b.changed.Broadcast()
}
