package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/record"
)

// lookEvery is how often a record that grows is looked at.
const lookEvery = 100 * time.Millisecond

// maxBroken is how many bytes are shown of a line that is no entry.
const maxBroken = 4 << 10

// File is a record.
type File struct {
	path   string
	follow bool
}

// OpenFile makes the Source of a record. With follow it may come to be later, grow, and be
// replaced by another one.
func OpenFile(path string, follow bool) (*File, error) {
	f := &File{path, follow}
	if _, err := f.header(); err != nil && !(follow && (errors.Is(err, os.ErrNotExist) || errors.Is(err, io.EOF))) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Info implements Source.
func (f *File) Info() Info {
	i := Info{Mode: ModeRecord, File: f.path}
	if f.follow {
		i.Mode = ModeFollow
	}
	h, _ := f.header() // stream tells what is wrong
	i.Version, i.Workspace = h.Version, h.Workspace
	return i
}

// header reads the first line; the error is io.EOF where it is not whole yet.
func (f *File) header() (record.Header, error) {
	file, err := record.OpenFile(f.path)
	if err != nil {
		return record.Header{}, err
	}
	defer file.Close()
	lines := record.NewLines(file, 64<<10)
	line, _, err := lines.Next()
	if err != nil {
		if errors.Is(err, io.EOF) && !f.follow {
			err = record.ErrNoRecord
		}
		return record.Header{}, err
	}
	return record.ParseHeader(line)
}

// stream implements Source.
func (f *File) stream(ctx context.Context, after int64, to *stream) error {
	if !f.follow {
		file, err := record.OpenFile(f.path)
		if err != nil {
			return err
		}
		defer file.Close()
		t := tail{lines: record.NewLines(file, record.MaxEntry), after: after, to: to}
		if err := t.all(ctx); err != nil {
			return err
		}
		if line, size := t.lines.Rest(); size > 0 {
			if err := t.take(line, size); err != nil {
				return err
			}
		}
		return to.end(t.entries())
	}
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			after = 0
			_ = to.line([]byte(`{"reset":true}`)) // flush tells
		}
		if err := f.watch(ctx, after, to); err != nil {
			return err
		}
	}
	return nil
}

// watch sends the entries of the file that has the name now, until another one has it.
func (f *File) watch(ctx context.Context, after int64, to *stream) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var file *os.File
	var read *counted
	var t tail
	defer func() { file.Close() }() // of nil it is an error, and nothing else
	for {
		if file == nil {
			if file, _ = record.OpenFile(f.path); file != nil { // it may come to be
				read = &counted{src: file}
				t = tail{lines: record.NewLines(read, record.MaxEntry), after: after, to: to}
			}
		}
		if file != nil {
			if err := t.all(ctx); err != nil {
				return err
			}
			if t.entries() < after || replaced(f.path, file, read.n) {
				return nil
			}
		}
		if err := to.flush(); err != nil {
			return err
		}
		select {
		case <-look.C:
		case <-beat.C:
			if err := to.beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// replaced reports whether the name is another file's now, or the file was cut down.
func replaced(path string, file *os.File, read int64) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false // it may be on its way
	}
	was, err := file.Stat()
	return err == nil && (!os.SameFile(was, now) || was.Size() < read)
}

// counted counts what was read.
type counted struct {
	src io.Reader
	n   int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.src.Read(p)
	c.n += int64(n)
	return n, err
}

// tail sends the lines of a file as they are.
type tail struct {
	lines *record.Lines
	after int64 // entries to leave out
	to    *stream
	n     int64 // lines so far
}

// entries is how many entries there were.
func (t *tail) entries() int64 { return max(0, t.n-1) }

// all sends what there is.
func (t *tail) all(ctx context.Context) error {
	for {
		line, size, err := t.lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case t.n%1024 == 0 && ctx.Err() != nil:
			return ctx.Err()
		}
		if err := t.take(line, size); err != nil {
			return err
		}
	}
}

// take sends one line. What cannot be an entry is sent as the text of one.
func (t *tail) take(line []byte, size int64) error {
	t.n++
	switch {
	case t.n == 1: // the header
		_, err := record.ParseHeader(line)
		return err
	case t.entries() <= t.after:
		return nil
	case size > int64(len(line)) || len(line) == 0 || line[0] != '{' || line[len(line)-1] != '}':
		return t.to.line(broken(t.entries(), line, size))
	}
	return t.to.line(line)
}

// broken is the entry of a line that is none.
func broken(n int64, line []byte, size int64) []byte {
	entry := strconv.AppendInt([]byte(`{"n":`), n, 10)
	entry, _ = jsontext.AppendQuote(append(entry, `,"broken":true,"text":`...), line[:min(len(line), maxBroken)]) // its error only tells of U+FFFD
	if size > maxBroken {
		entry = strconv.AppendInt(append(entry, `,"cut":true,"size":`...), size, 10)
	}
	return append(entry, '}')
}
