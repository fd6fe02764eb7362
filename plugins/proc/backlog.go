package proc

import (
	"bytes"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/protocol"
)

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
	timer := time.AfterFunc(fullWait, func() {
		b.mu.Lock()
		late = true
		b.mu.Unlock()
		b.changed.Broadcast()
	})
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

// cut gives how many bytes to drop so that at least n are gone and what is left begins with
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
func (b *backlog) hurry() {
	b.mu.Lock()
	b.hurried = true
	b.mu.Unlock()
	b.changed.Broadcast()
}

// end says that nothing more comes.
func (b *backlog) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.changed.Broadcast()
}

// close throws everything away, now and from now on.
func (b *backlog) close() {
	b.mu.Lock()
	b.closed, b.hurried, b.blocks, b.size = true, true, nil, 0
	b.mu.Unlock()
	b.changed.Broadcast()
}
