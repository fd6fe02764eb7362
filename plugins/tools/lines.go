package tools

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
)

// outcome makes the answer from the text that was read from line first on.
func (r *lineReader) outcome(first, size int64, hash string) *Outcome {
	out := &Outcome{Truncated: r.full}
	data := readData{Content: string(r.text), Lines: r.line - first, Size: size, Hash: hash}
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
	full    bool // text was cut because it did not fit
	cutLine bool // text is the start of one line that is too long
	more    bool // the file goes on after text
}

// last returns the number of the last line, once the end was reached.
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

// skipTo skips the lines before first. If r.line is smaller than first
// afterwards, the file ends before first.
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

// read reads whole lines as long as they fit into room bytes of JSON. If already the
// first line does not fit, it is cut.
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

// finishLine skips the rest of the line that was cut.
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

// lookAhead sets r.more if the file goes on.
func (r *lineReader) lookAhead() error {
	_, err := r.r.Peek(1)
	r.more = err == nil
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
