package record

import (
	"bufio"
	"errors"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// Entry is one line of a record.
type Entry struct {
	N       int64          `json:"n"`
	TS      float64        `json:"ts"` // seconds since 1970
	Dir     Dir            `json:"dir"`
	Msg     jsontext.Value `json:"msg"`
	Text    *string        `json:"text"` // a line that is no JSON
	Cut     bool           `json:"cut"`  // Text is the head of a line
	Dropped int64          `json:"dropped"`
}

// Damage says what a record lacks.
type Damage struct {
	Broken  int   // lines that are no entries, such as one that was cut off
	Dropped int64 // lines that were not recorded
}

// Read reads a record and hands each entry to take, which may keep it.
func Read(path string, take func(*Entry)) (h Header, d Damage, err error) {
	file, err := OpenFile(path)
	if err != nil {
		return h, d, err
	}
	defer file.Close()
	lines := NewLines(file, MaxEntry)
	line, _, err := lines.Next()
	if errors.Is(err, io.EOF) {
		line, _ = lines.Rest()
	}
	if h, err = ParseHeader(line); err != nil {
		return h, d, err
	}
	for {
		line, size, err := lines.Next()
		last := errors.Is(err, io.EOF)
		switch {
		case last:
			line, size = lines.Rest()
		case err != nil:
			return h, d, err
		}
		if len(line) > 0 {
			e := &Entry{}
			if size > int64(len(line)) || json.Unmarshal(line, e, jsontext.AllowDuplicateNames(true)) != nil || e.Dir == "" {
				d.Broken++
			} else {
				d.Dropped += e.Dropped
				take(e)
			}
		}
		if last {
			return h, d, nil
		}
	}
}

// OpenFile opens a record. It must be a regular file: another one could have it wait for ever.
func OpenFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}
