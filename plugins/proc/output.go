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

// stream is the Writer of one stream of a process: it puts the output into the backlog as
// it came, without the secrets and in whole lines where their ends come in time.
type stream struct {
	to   *backlog
	name protocol.ProcStream
	max  int           // bytes of a line that go in one event
	wait time.Duration // of silence, until a line goes on without its end; 0 = none

	mu    sync.Mutex // guards the fields below
	shown *redact.Writer
	begun []byte // what is held back for its line; at most max bytes between writes
	late  *time.Timer
	rest  *time.Timer // passes on what may begin a secret
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

// reveal passes on what may have begun a secret and was not gone on with for a while.
func (s *stream) reveal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.shown.Flush() // to lines, which have no error
}

// lines takes the output of a stream, whose lock is held, without the secrets.
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
				end = len(protocol.Head(data, s.max))
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
	_ = s.shown.Close() // to lines, which have no error
	s.late.Stop()
	s.rest.Stop()
	s.putLocked(len(s.begun))
}

// wholeRunes returns how much of text comes before a character that is cut off at
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

// eventRoom is about what an event has beside its text, in bytes.
const eventRoom = 512

// appendLines ends the data of an output event: it says how many ends of lines are in it.
func (e *readEvent) appendLines(dst []byte) []byte {
	n := bytes.Count(e.text, []byte{'\n'})
	return append(strconv.AppendInt(append(dst, `,"lines":`...), int64(n), 10), '}')
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
		`{"message":"%d bytes of output were dropped here: they came faster than they were read","dropped_bytes":%d}`,
		lost.bytes, lost.bytes)})
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

const (
	// maxLine is the longest line that one event carries, in bytes.
	maxLine = 64 << 10
	// blockSize is how much output is kept in one piece of memory.
	blockSize = 32 << 10
	// fullWait is how long a child that prints more than is read is held up at
	// each of its writes, before the oldest output is dropped.
	fullWait = 50 * time.Millisecond
	// lineWait is how long the begin of a line waits for its end.
	lineWait = 50 * time.Millisecond
	// secretWait is how long what may be the begin of a secret waits for the rest of it.
	secretWait = 2 * time.Second
)

// block is output of one stream.
type block struct {
	stream protocol.ProcStream
	data   []byte
}

// backlog is the output of one process on its way to the agent, at most limit
// bytes of it. Whoever puts waits a little when it is full; then the oldest
// output gives way.
type backlog struct {
	limit int

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	blocks  []block    // the oldest first
	size    int        // bytes in blocks
	dropped loss       // what stood before blocks, and was not told yet
	hurried bool       // nobody waits for room any more
	ended   bool       // nothing is put any more
	closed  bool       // nothing is taken any more
}

// loss is output that was dropped.
type loss struct {
	bytes  int
	stream protocol.ProcStream // of the first that was dropped
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

// appendLocked puts data into the last block, or into one of its own.
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

// cut returns how many bytes to drop so that at least n are gone and what is left begins with
// a line, or where there is none with a character.
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

// take waits for output and gives the oldest, with what was dropped before it;
// either may be empty. ok is false when there is nothing left and nothing to come.
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

// hurry ends every wait for room: the process is to end, and must not wait for
// an agent that does not read.
func (b *backlog) hurry() { b.set(func() { b.hurried = true }) }

// end says that nothing more comes.
func (b *backlog) end() { b.set(func() { b.ended = true }) }

// close throws everything away, now and from now on.
func (b *backlog) close() {
	b.set(func() { b.closed, b.hurried, b.blocks, b.size = true, true, nil, 0 })
}

// set changes what others wait for.
func (b *backlog) set(change func()) {
	b.mu.Lock()
	change()
	b.mu.Unlock()
	b.changed.Broadcast()
}
