package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/child"
	"a2e/host/cli/record"
	"a2e/host/guard/redact"
)

const (
	maxKept      = 200_000 // entries
	maxKeptBytes = 256 << 20
	sendAtOnce   = 512 // entries that a stream takes while it holds the lock
	stderrBurst  = 200 // lines at once, then the same number each second; further lines are counted
)

// LiveOptions describe the host that runs for the page.
type LiveOptions struct {
	Command func() *exec.Cmd // creates a new command for each start
	Info    Info
	MaxLine int // longest line in bytes that is kept whole
	Secrets *redact.Set
	Environ []string
}

// Live is a host that runs for the page. It keeps the latest entries. It is safe for concurrent use.
type Live struct {
	opts  LiveOptions
	steps sync.Mutex // held during a start or an end of the host

	mu      sync.Mutex // guards the fields below
	enc     *record.Encoder
	proc    *record.Process
	kept    [][]byte // entries, without their line ends
	bytes   int
	dropped int64         // number of entries before kept
	changed chan struct{} // closed when there is a new entry; nil = nobody waits
	noise   child.Limiter
}

// NewLive creates a Live whose host does not run yet.
func NewLive(opts LiveOptions) *Live {
	return &Live{
		opts: opts, enc: record.NewEncoder(opts.Secrets, opts.Environ),
		noise: child.Limiter{Burst: stderrBurst, PerSecond: stderrBurst},
	}
}

// Info implements Source.
func (l *Live) Info() Info { return l.opts.Info }

// Start starts the host. A running host is ended first.
func (l *Live) Start() error {
	l.steps.Lock()
	defer l.steps.Unlock()
	l.end()
	add := func(dir record.Dir) func([]byte) {
		return func(line []byte) {
			l.add(func(dst []byte, at time.Time) []byte { return l.enc.Line(dst, at, dir, "", line) })
		}
	}
	ended := func(code int, err error) {
		why := ""
		if err != nil {
			why = err.Error()
		}
		l.add(func(dst []byte, at time.Time) []byte { return l.enc.Event(dst, at, "ended", &code, why) })
	}
	l.mu.Lock() // a page that reads about the start may send at once
	l.addLocked(l.enc.Event(nil, time.Now(), "started", nil, ""))
	proc, err := record.Start(l.opts.Command(), l.opts.MaxLine, record.Heard{
		Line: add(record.Out), Stderr: l.hear(add(record.Err)), Ended: ended,
		Long: func(head []byte, size int64) {
			l.add(func(dst []byte, at time.Time) []byte { return l.enc.Long(dst, at, record.Out, head, size) })
		},
	})
	if err == nil {
		l.proc = proc
	}
	l.mu.Unlock()
	if err != nil {
		ended(-1, err)
	}
	return err
}

// hear limits how much of stderr is kept.
func (l *Live) hear(add func([]byte)) func([]byte) {
	return func(line []byte) {
		hidden, ok := l.noise.Allow(time.Now())
		if !ok {
			return
		}
		if hidden > 0 {
			add([]byte("(" + strconv.Itoa(hidden) + " lines are left out here)"))
		}
		add(line)
	}
}

// Stop ends the host in less than two seconds.
func (l *Live) Stop() {
	l.steps.Lock()
	defer l.steps.Unlock()
	l.end()
}

// end ends the host if it is running. The caller must hold steps.
func (l *Live) end() {
	l.mu.Lock()
	proc := l.proc
	l.proc = nil
	l.mu.Unlock()
	if proc != nil {
		proc.End()
	}
}

// Send sends a line of the page, which is one JSON value, to the host.
func (l *Live) Send(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proc == nil {
		return record.ErrEnded
	}
	// The entry comes before the host's answer, because the answer waits for the lock.
	if err := l.proc.Send([]byte(line + "\n")); err != nil {
		return err
	}
	l.addLocked(l.enc.Line(nil, time.Now(), record.In, "page", []byte(line)))
	return nil
}

// add keeps an entry.
func (l *Live) add(encode func(dst []byte, at time.Time) []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(encode(nil, time.Now()))
}

// addLocked keeps an entry and drops the oldest ones if there are too many.
func (l *Live) addLocked(entry []byte) {
	entry = entry[:len(entry)-1]
	l.kept = append(l.kept, entry)
	l.bytes += len(entry)
	for len(l.kept) > maxKept || l.bytes > maxKeptBytes && len(l.kept) > 1 {
		l.bytes -= len(l.kept[0])
		l.kept[0] = nil
		l.kept = l.kept[1:]
		l.dropped++
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// next returns some entries after the number after. lost is the number of entries before them that
// are no longer kept. If there are no entries, changed is closed when there are new ones.
func (l *Live) next(after int64) (entries [][]byte, lost int64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = max(0, l.dropped-after)
	from := after + lost - l.dropped
	if from < int64(len(l.kept)) {
		return append(entries, l.kept[from:min(from+sendAtOnce, int64(len(l.kept)))]...), lost, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return nil, lost, l.changed
}

// stream implements Source.
func (l *Live) stream(ctx context.Context, after int64, to *stream) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	tell := to.beat // first a beat: the page then has all older entries
	for {
		entries, lost, changed := l.next(after)
		if lost > 0 {
			after += lost
			_ = to.line(missing(after, lost)) // flush reports the error
		}
		for _, entry := range entries {
			if err := to.line(entry); err != nil {
				return err
			}
		}
		if after += int64(len(entries)); changed == nil {
			continue
		}
		if err := tell(); err != nil {
			return err
		}
		tell = to.flush
		select {
		case <-changed:
		case <-beat.C:
			if err := to.beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// missing returns an entry in place of n entries that are not kept. last is the number of the last one.
func missing(last, n int64) []byte {
	line := strconv.AppendInt([]byte(`{"n":`), last, 10)
	return append(strconv.AppendInt(append(line, `,"dir":"host","dropped":`...), n, 10), '}')
}

// lookEvery is how often to check a record that grows.
const lookEvery = 100 * time.Millisecond

// maxBroken is how many bytes of a broken line are shown.
const maxBroken = 4 << 10

// File is the Source of a record.
type File struct {
	path   string
	follow bool
}

// OpenFile opens a record. With follow, the record may be created later, may grow, and may be
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
	h, _ := f.header() // stream reports the error
	i.Version, i.Workspace = h.Version, h.Workspace
	return i
}

// header reads the first line. The error is io.EOF if follow is set and the line is not complete yet.
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
			_ = to.line([]byte(`{"reset":true}`)) // flush reports the error
		}
		if err := f.watch(ctx, after, to); err != nil {
			return err
		}
	}
	return nil
}

// watch sends the entries of the file at the path, until another file replaces it.
func (f *File) watch(ctx context.Context, after int64, to *stream) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var file *os.File
	var read *counted
	var t tail
	defer func() { file.Close() }() // closing a nil file only returns an error
	for {
		if file == nil {
			if file, _ = record.OpenFile(f.path); file != nil { // it may be created later
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

// replaced reports whether the path now has another file, or the file was truncated.
func replaced(path string, file *os.File, read int64) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false // it may be created soon
	}
	was, err := file.Stat()
	return err == nil && (!os.SameFile(was, now) || was.Size() < read)
}

// counted counts the bytes that were read.
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

// tail sends the lines of a file unchanged.
type tail struct {
	lines *record.Lines
	after int64 // number of entries to leave out
	to    *stream
	n     int64 // lines so far, including the header
}

// entries returns the number of entries so far.
func (t *tail) entries() int64 { return max(0, t.n-1) }

// all sends the lines up to the end of the file.
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

// take sends one line. A line that cannot be an entry is sent as the text of an entry.
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

// broken returns an entry with a line that is not an entry.
func broken(n int64, line []byte, size int64) []byte {
	entry := strconv.AppendInt([]byte(`{"n":`), n, 10)
	entry, _ = jsontext.AppendQuote(append(entry, `,"broken":true,"text":`...),
		line[:min(len(line), maxBroken)]) // its error only means that there is U+FFFD
	if size > maxBroken {
		entry = strconv.AppendInt(append(entry, `,"cut":true,"size":`...), size, 10)
	}
	return append(entry, '}')
}
