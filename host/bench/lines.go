package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
)

// lines cuts what a host says into lines. The buffer is small enough to stay in
// the processor's cache, so of a very long line only the start is kept.
type lines struct {
	file     *os.File
	buf      []byte
	from, to int  // buf[from:to] is read and not yet taken
	seen     int  // buf[from:seen] holds no newline
	whole    bool // keep long lines whole, however long
	dropped  int  // bytes left out of the line that is being read
	cut      int  // bytes left out of the line that was taken last
}

const (
	readSize = 256 << 10
	keepSize = 32 << 10 // of a longer line, as long as whole is off
)

func newLines(f *os.File) *lines {
	return &lines{file: f, buf: make([]byte, readSize), whole: true}
}

// fill reads once.
func (l *lines) fill() error {
	if l.from == l.to {
		l.from, l.to, l.seen = 0, 0, 0
	}
	if have := l.to - l.from; !l.whole && have > keepSize {
		l.dropped += have - keepSize
		l.to = l.from + keepSize
		l.seen = l.to
	}
	if len(l.buf)-l.to < readSize/2 {
		n := copy(l.buf, l.buf[l.from:l.to])
		l.from, l.to, l.seen = 0, n, l.seen-l.from
		if len(l.buf)-n < readSize/2 {
			l.buf = append(l.buf, make([]byte, len(l.buf))...)
		}
	}
	n, err := l.file.Read(l.buf[l.to:min(len(l.buf), l.to+readSize)])
	l.to += n
	return err
}

// next gives the next line that is there, without its newline, or nil. It stays
// valid until fill is called.
func (l *lines) next() []byte {
	i := bytes.IndexByte(l.buf[l.seen:l.to], '\n')
	if i < 0 {
		l.seen = l.to
		return nil
	}
	line := l.buf[l.from : l.seen+i : l.seen+i]
	l.from = l.seen + i + 1
	l.seen = l.from
	l.cut, l.dropped = l.dropped, 0
	return line
}

// batch holds encoded requests side by side, so that many go out in one write.
type batch struct {
	buf   []byte
	size  int // of one request with its newline
	slots int
	idAt  int
	id    uint32 // of the next request
}

// batchSize bounds a batch of several requests, in bytes.
const batchSize = 256 << 10

func newBatch(q request, window int) *batch {
	one := q.before + "00000000" + q.after + "\n"
	slots := max(1, min(window, batchSize/len(one)))
	return &batch{buf: bytes.Repeat([]byte(one), slots), size: len(one), slots: slots, idAt: len(q.before), id: 1}
}

// take gives up to n requests with ids of their own, and how many. They stay
// valid until the next call.
func (b *batch) take(n int) ([]byte, int) {
	n = min(n, b.slots)
	var id [4]byte
	for at := b.idAt; at < n*b.size; at += b.size {
		binary.BigEndian.PutUint32(id[:], b.id)
		hex.Encode(b.buf[at:at+idLen], id[:])
		b.id++
	}
	return b.buf[:n*b.size], n
}

// checker holds every answer of a load against the first one, which was
// verified in full.
type checker struct {
	marker []byte
	at     int // where the first answer had it
	least  int // no answer is shorter
}

// slack is by how many bytes an answer may be shorter than the first: numbers
// such as times have more or fewer digits.
const slack = 32

func newChecker(q request, first []byte) (*checker, error) {
	at := bytes.Index(first, []byte(q.marker))
	if at < 0 || !bytes.Contains(first, []byte(q.text)) {
		return nil, fmt.Errorf("the text did not come back: %s", clip(first))
	}
	return &checker{marker: []byte(q.marker), at: at, least: len(first) - slack}, nil
}

// count takes the lines that are there and gives the number of answers among
// them.
func (k *checker) count(l *lines) (int, error) {
	n := 0
	for line := l.next(); line != nil; line = l.next() {
		end := k.at + len(k.marker)
		if len(line) < end || string(line[k.at:end]) != string(k.marker) {
			if !bytes.Contains(line, k.marker) {
				if bytes.Contains(line, []byte(`"method"`)) {
					continue // a JSON-RPC notification
				}
				return n, fmt.Errorf("not an answer: %s", clip(line))
			}
		}
		if len(line)+l.cut < k.least {
			return n, fmt.Errorf("cut short: %s", clip(line))
		}
		n++
	}
	return n, nil
}
