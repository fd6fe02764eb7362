package link

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// event is a server-sent event.
type event struct {
	name  string
	id    string
	retry time.Duration // 0 = it names none
	data  []byte        // with a line break behind each line
	over  *envelope     // of the data, if the event is too long; nil = data is complete
	size  int
}

// field handles one line of an event.
func (ev *event) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		ev.data = append(append(ev.data, value...), '\n')
	case "event":
		ev.name = string(value)
	case "id":
		ev.id = string(value)
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 32); err == nil {
			ev.retry = max(time.Duration(ms)*time.Millisecond, minRetry)
		}
	}
}

// eventReader reads a stream of server-sent events.
type eventReader struct {
	src   *bufio.Reader
	line  []byte // the current line
	begun bool   // the start, maybe with a byte order mark, was read
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{src: bufio.NewReaderSize(r, 64<<10)}
}

// next returns the next event. An event without its end is dropped.
func (r *eventReader) next() (ev event, err error) {
	for {
		line, blank, err := r.read(&ev)
		switch {
		case err != nil:
			return event{}, err
		case blank:
			return ev, nil
		case line != nil:
			ev.field(line)
		}
	}
}

// read reads the next line of an event. It returns no line if the event is too long: then the data goes to
// ev.over.
func (r *eventReader) read(ev *event) (line []byte, blank bool, err error) {
	r.line = r.line[:0]
	data := false // the line is one of data
	for start := true; ; start = false {
		piece, err := r.src.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, false, err
		}
		if !r.begun {
			piece, r.begun = bytes.TrimPrefix(piece, []byte("\ufeff")), true
		}
		if ev.size += len(piece); ev.size <= maxLine {
			r.line = append(r.line, piece...)
			if line := bytes.TrimRight(r.line, "\r\n"); err == nil {
				return line, len(line) == 0, nil
			}
			continue
		}
		if ev.over == nil {
			ev.over = new(envelope)
			ev.over.take(ev.data)
			ev.data = nil
		}
		if len(r.line) > 0 {
			piece, r.line, start = append(r.line, piece...), nil, true
		}
		if start {
			blank = len(bytes.TrimRight(piece, "\r\n")) == 0
			piece, data = bytes.CutPrefix(piece, []byte("data:"))
		}
		if data {
			ev.over.take(piece)
		}
		if err == nil {
			return nil, blank, nil
		}
	}
}
