package record

import (
	"bufio"
	"errors"
	"io"
)

// MaxEntry is how many bytes of a line of a record are read at most.
const MaxEntry = 64 << 20

// Lines reads the lines of a record in bounded memory. It is for one goroutine.
type Lines struct {
	src  *bufio.Reader
	max  int
	part []byte // of the line that has no end yet, up to max bytes
	size int64  // bytes of that line
}

// NewLines reads the lines of src, of each at most max bytes.
func NewLines(src io.Reader, max int) *Lines {
	return &Lines{src: bufio.NewReaderSize(src, 256<<10), max: max}
}

// Next returns the next line without its end, which is valid until the next call, and its size.
// Where that is larger than the line, the line is its head. At the end of the input the error is io.EOF, and a line
// that has no end yet waits for more to come; see Rest.
func (l *Lines) Next() (line []byte, size int64, err error) {
	for {
		piece, err := l.src.ReadSlice('\n')
		whole := err == nil
		if whole {
			piece = piece[:len(piece)-1]
			if l.size == 0 && len(piece) <= l.max {
				return piece, int64(len(piece)), nil
			}
		}
		l.size += int64(len(piece))
		l.part = append(l.part, piece[:max(0, min(len(piece), l.max-len(l.part)))]...)
		switch {
		case whole:
			line, size := l.Rest()
			return line, size, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, 0, err
		}
	}
}

// Rest returns what there is of a line that has no end.
func (l *Lines) Rest() (line []byte, size int64) {
	line, size = l.part, l.size
	l.size = 0
	if l.part = l.part[:0]; cap(l.part) > keepBuffer {
		l.part = nil
	}
	return line, size
}
