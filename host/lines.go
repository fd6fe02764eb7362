package host

import (
	"bytes"
	"io"
)

const (
	keptHead   = 16 << 10 // bytes kept of a line that is too long, for its event
	firstRead  = 4 << 10  // the room for the first reads; sessions over HTTP need no more
	readSize   = 64 << 10 // the room for one read of a stream that has filled less
	keepBuffer = 4 << 20  // a larger buffer is dropped once it is empty
)

// lines splits a stream into lines, whatever the sizes of the reads are. A line that is longer than max is dropped
// up to its newline in constant memory. The slices it returns are valid until the next call of fill.
type lines struct {
	src  io.Reader
	buf  []byte
	r, w int // buf[r:w] is unread
	seen int // buf[r:seen] has no newline
	max  int
	room int // the least room for one read

	started bool   // past the first line: no byte order mark here
	drop    bool   // within a line that was too long
	head    []byte // of that line
	size    int    // bytes of that line so far
	eof     bool
	err     error // of the stream, io.EOF included; set with eof
}

// lineKind says what next found.
type lineKind int

const (
	lineNone    lineKind = iota // no whole line is buffered: fill, then ask again
	lineText                    // a line, without its newline; not blank
	lineLong                    // the head of a line that is too long
	lineLongEnd                 // nothing: that line has ended; its head and size are known
	lineEnd                     // the stream has ended and all lines were returned
)

// next returns the next line that is buffered already.
func (l *lines) next() ([]byte, lineKind) {
	for {
		line, kind := l.cut()
		first := !l.started
		l.started = l.started || kind != lineNone
		if kind != lineText {
			return line, kind
		}
		if first {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(bytes.Trim(line, " \t\r")) > 0 {
			return line, lineText
		}
	}
}

// cut takes one line off the buffer.
func (l *lines) cut() ([]byte, lineKind) {
	start := max(l.seen, l.r)
	end := bytes.IndexByte(l.buf[start:l.w], '\n')
	if end >= 0 {
		end += start
		line := l.buf[l.r:end:end]
		l.r, l.seen = end+1, end+1
		switch {
		case l.drop:
			l.drop, l.size = false, l.size+len(line)
			return nil, lineLongEnd
		case len(line) > l.max:
			l.r, l.seen = end, end // its end comes next
			return l.begunLong(line), lineLong
		}
		return line, lineText
	}
	l.seen = l.w
	unread := l.buf[l.r:l.w:l.w]
	switch {
	case l.drop:
		l.r, l.size = l.w, l.size+len(unread)
		if l.eof {
			l.drop = false
			return nil, lineLongEnd
		}
	case len(unread) > l.max:
		l.r = l.w
		return l.begunLong(unread), lineLong
	case l.eof && len(unread) > 0: // the last line needs no newline
		l.r = l.w
		return unread, lineText
	}
	if l.eof {
		return nil, lineEnd
	}
	return nil, lineNone
}

// begunLong begins a line that is too long: it keeps the size and the head of line, and returns line.
func (l *lines) begunLong(line []byte) []byte {
	l.drop, l.size, l.head = true, len(line), bytes.Clone(line[:min(len(line), keptHead)])
	return line
}

// fill reads once more. After an error the stream has ended.
func (l *lines) fill() {
	l.makeRoom()
	n, err := l.src.Read(l.buf[l.w:])
	if l.w += n; l.w == len(l.buf) {
		l.room = min(4*l.room, readSize)
	}
	if err != nil {
		l.eof, l.err = true, err
	}
}

// makeRoom moves the unread bytes to the front and grows the buffer when a long
// line fills it.
func (l *lines) makeRoom() {
	l.room = max(l.room, firstRead)
	if l.r == l.w {
		l.r, l.w, l.seen = 0, 0, 0
		if cap(l.buf) > keepBuffer {
			l.buf = nil
		}
	}
	if len(l.buf)-l.w >= l.room/2 {
		return
	}
	unread := l.w - l.r
	dst := l.buf
	if len(dst)-unread < l.room/2 {
		dst = make([]byte, max(min(2*len(l.buf), l.max+l.room), unread+l.room))
	}
	copy(dst, l.buf[l.r:l.w])
	l.buf, l.seen, l.r, l.w = dst, l.seen-l.r, 0, unread
}

// fork returns a reader that continues where l stands, with a buffer of its own. l keeps its bytes, because its
// last line may still be in use, and must not be used any more.
func (l *lines) fork() *lines {
	next := *l
	next.buf = append(make([]byte, 0, max(l.room, l.w-l.r)), l.buf[l.r:l.w]...)
	next.r, next.w, next.seen = 0, len(next.buf), l.seen-l.r
	next.buf = next.buf[:cap(next.buf)]
	return &next
}
