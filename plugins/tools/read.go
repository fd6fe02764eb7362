package tools

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"a2e/protocol"
)

type readArgs struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Limit  int64  `json:"limit"`
}

type readData struct {
	Content    string `json:"content"`
	Lines      int64  `json:"lines"`                 // in content; a last line without its end counts
	Size       int64  `json:"size"`                  // of the whole file, in bytes
	NextOffset int64  `json:"next_offset,omitempty"` // first line not in content; 0 = none is left
}

func (f *files) readFile(ctx context.Context, a *readArgs) (*Outcome, error) {
	if a.Offset < 0 || a.Limit < 0 {
		return nil, protocol.Errorf(protocol.CodeToolError, "offset and limit count lines, from 1; they may not be negative (offset %d, limit %d)", a.Offset, a.Limit)
	}
	return f.reading(ctx, a.Path, func(in *files, name string) (*Outcome, error) {
		file, info, err := in.open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		r := &lineReader{ctx: ctx, r: bufio.NewReaderSize(file, 64<<10), line: 1, text: make([]byte, 0, min(max(info.Size(), 0), 64<<10))}
		first := max(a.Offset, 1)
		if err := r.skipTo(first); err != nil {
			return nil, err
		}
		if r.line < first {
			return nil, protocol.Errorf(protocol.CodeToolError, "offset %d is past the end of %s, whose last line is %d", a.Offset, quotePath(a.Path), r.last())
		}
		if err := r.read(cmp.Or(a.Limit, math.MaxInt64), in.room); err != nil {
			return nil, err
		}
		if !utf8.Valid(r.text) {
			return nil, protocol.Errorf(protocol.CodeToolError,
				"%s is not UTF-8 text (%d bytes); read_file gives text only: use a command that fits the format, such as file, xxd or base64", quotePath(a.Path), info.Size())
		}
		return r.outcome(first, info.Size()), nil
	})
}

// outcome makes the answer of what was read from line first on.
func (r *lineReader) outcome(first, size int64) *Outcome {
	out := &Outcome{Truncated: r.full}
	data := readData{Content: string(r.text), Lines: r.line - first, Size: size}
	if r.partial {
		data.Lines++
	}
	if r.more {
		data.NextOffset = r.line
		out.Summary = fmt.Sprintf("lines %d to %d; go on with offset %d", first, r.line-1, r.line)
	}
	if r.cutLine {
		out.Summary = fmt.Sprintf("line %d is longer than an answer may be and was cut", first)
	}
	out.Data = data
	return out
}

// lineReader takes lines from a file of any size in bounded memory.
type lineReader struct {
	ctx     context.Context
	r       *bufio.Reader
	line    int64 // the line that comes next, from 1
	partial bool  // the file's last line was read and has no line end
	text    []byte
	full    bool // text ends where it does for want of room
	cutLine bool // text is the start of one line that is too long
	more    bool // the file goes on after text
}

// last is the number of the last line, once the end was reached.
func (r *lineReader) last() int64 {
	if r.partial {
		return r.line
	}
	return r.line - 1
}

// next reads on to the end of a line, or a part of a long one.
func (r *lineReader) next() (part []byte, ended bool, err error) {
	if err := r.ctx.Err(); err != nil {
		return nil, false, err
	}
	part, err = r.r.ReadSlice('\n')
	switch {
	case err == nil:
		r.line++
		r.partial = false
		return part, true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		r.partial = true
		return part, false, nil
	case errors.Is(err, io.EOF) && len(part) > 0:
		r.partial = true
		return part, false, nil
	}
	return nil, false, err
}

// skipTo reads over the lines before first. The end of the file comes before
// that when r.line is smaller afterwards.
func (r *lineReader) skipTo(first int64) error {
	for r.line < first {
		if _, _, err := r.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// read takes whole lines as long as they fit into room bytes of JSON. A first
// line that does not fit by itself is cut, and the rest of it left out.
func (r *lineReader) read(limit int64, room int) error {
	first, start := r.line, 0
	for r.line-first < limit {
		before := r.line
		part, ended, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		fitting, size := textFits(part, room)
		room -= size
		r.text = append(r.text, part[:fitting]...)
		if fitting < len(part) {
			r.full, r.more = true, true
			if start > 0 {
				r.text, r.line, r.partial = r.text[:start], before, false
				return nil
			}
			r.cutLine = true
			return r.finishLine(ended)
		}
		if ended {
			start = len(r.text)
		}
	}
	return r.lookAhead()
}

// finishLine reads over the rest of the line that was cut.
func (r *lineReader) finishLine(ended bool) error {
	for !ended {
		var err error
		if _, ended, err = r.next(); errors.Is(err, io.EOF) {
			r.more = false
			return nil
		} else if err != nil {
			return err
		}
	}
	return r.lookAhead()
}

// lookAhead sees whether the file goes on.
func (r *lineReader) lookAhead() error {
	_, err := r.r.Peek(1)
	r.more = err == nil
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
