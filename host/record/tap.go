package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"a2e/host/child"
	"a2e/host/redact"
	"a2e/protocol"
)

const (
	maxPending = 32 << 20 // bytes that wait for the disk; more are dropped and counted
	chunkCost  = 64       // bytes that a chunk costs beside its data
	batchBytes = 256 << 10
	keepBuffer = 1 << 20 // a larger buffer is given back once it was written

	firstRetry    = 50 * time.Millisecond
	lastRetry     = time.Second
	batchDelay    = 2 * time.Millisecond
	closePatience = 500 * time.Millisecond
	hungPatience  = 5 * time.Second // also of a machine that has no time for the host
)

// Options of a Recorder. Path must be set.
type Options struct {
	Path      string
	Version   string // of the host, for the header
	Workspace string
	MaxLine   int   // longest line that is kept whole, in bytes; 0 = 16 MiB
	MaxBytes  int64 // the record ends at about this size; 0 = 1 GiB
	Secrets   *redact.Set
	Environ   []string
	Warn      func(string) // hears of what is lost
}

// Recorder writes a record beside a host, which it never makes wait:
//
//	Reader, Writer ─ copy ─► pending (bounded) ─► run: lines, entries ─► file
//
// What does not fit into pending is dropped, and an entry says how many lines were. It is safe
// for concurrent use.
type Recorder struct {
	opts Options
	file *os.File
	wake chan struct{} // holds a token when something is pending
	quit chan struct{} // closed by Close
	done chan struct{} // closed when run has ended

	mu      sync.Mutex // guards the fields below
	pending batch
	lost    map[Dir]*gap // what was dropped since the last chunk of a direction
	closed  bool

	// of run alone
	enc     *Encoder
	at      time.Time // of the chunk in work
	split   map[Dir]*side
	out     []byte // entries that are not written yet
	written int64
	full    bool
	told    bool // of a disk that fails
}

// batch is a run of bytes of both directions.
type batch struct {
	data   []byte
	chunks []chunk
}

// chunk is what one read or write took; its bytes are the next ones of the batch.
type chunk struct {
	dir  Dir
	at   time.Time
	size int
	gap  gap // before it
}

// gap is what was dropped.
type gap struct {
	lines int64 // that had their end in it
	torn  bool  // it ends within a line
}

// side is one direction within run.
type side struct {
	sized
	skip bool // up to the end of the line under way, of which the begin is lost
}

// Open makes the file; one that is a record already is kept as Path.1. Any other file that there
// is, but for a device, is an error.
func Open(opts Options) (*Recorder, error) {
	if opts.MaxLine <= 0 {
		opts.MaxLine = 16 << 20
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 1 << 30
	}
	file, err := openNew(opts.Path)
	if err != nil {
		return nil, fmt.Errorf("the record %s: %w", opts.Path, err)
	}
	r := &Recorder{
		opts: opts, file: file, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		lost: map[Dir]*gap{In: {}, Out: {}}, enc: NewEncoder(opts.Secrets, opts.Environ), split: make(map[Dir]*side),
	}
	for _, dir := range []Dir{In, Out} {
		r.split[dir] = r.newSide(dir)
	}
	r.out, err = r.enc.Header(nil, Header{Format, opts.Version, float64(time.Now().UnixMicro()) / 1e6, opts.Workspace})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	r.wake <- struct{}{}
	go r.run()
	return r, nil
}

// openNew makes a file that nobody else can read.
func openNew(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && info.Mode()&os.ModeCharDevice != 0 {
		return os.OpenFile(path, os.O_WRONLY, 0)
	}
	info, err = os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it exists and is not a regular file; name another file")
	default:
		if info.Size() > 0 && !isRecord(path) {
			return nil, errors.New("it exists and is not a record; name another file, or remove it")
		}
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// isRecord reports whether a file begins as a record does.
func isRecord(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	head := make([]byte, len(headerStart))
	_, err = io.ReadFull(file, head)
	return err == nil && string(head) == headerStart
}

// headerStart is how each record begins.
const headerStart = `{"a2e_record":`

func (r *Recorder) newSide(dir Dir) *side {
	s := &side{}
	s.Splitter = child.Splitter{
		Max: r.opts.MaxLine, Head: headBytes + r.enc.secrets.Longest(),
		Line: func(line []byte) {
			if len(bytes.Trim(line, " \t\r")) > 0 {
				r.out = r.enc.Line(r.out, r.at, dir, "", line)
			}
		},
		Long: func(head []byte) { r.out = r.enc.Long(r.out, r.at, dir, head, s.size) },
	}
	return s
}

// Reader returns src as the host shall read it.
func (r *Recorder) Reader(src io.Reader) io.Reader { return reader{r, src} }

type reader struct {
	to  *Recorder
	src io.Reader
}

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	r.to.take(In, p[:n])
	if err != nil {
		r.to.take(In, []byte{'\n'}) // the last line needs none, and is answered now
	}
	return n, err
}

// Writer returns dst as the host shall write it. What it writes is taken first: what the peer
// answers to it comes later.
func (r *Recorder) Writer(dst io.Writer) io.Writer { return writer{r, dst} }

type writer struct {
	to  *Recorder
	dst io.Writer
}

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	w.to.take(Out, p)
	return w.dst.Write(p)
}

// take copies what went over the pipe.
func (r *Recorder) take(dir Dir, p []byte) {
	if len(p) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	b, lost := &r.pending, r.lost[dir]
	if waits := len(b.data) + chunkCost*len(b.chunks); waits > 0 && waits+len(p) > maxPending {
		lost.lines += int64(bytes.Count(p, []byte{'\n'}))
		lost.torn = p[len(p)-1] != '\n'
		return
	}
	b.chunks = append(b.chunks, chunk{dir, time.Now(), len(p), *lost})
	b.data = append(b.data, p...)
	*lost = gap{}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// takeAll returns what is pending and puts a used batch in its place.
func (r *Recorder) takeAll(used batch) batch {
	if cap(used.data) > keepBuffer {
		used.data = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.pending
	r.pending = batch{used.data[:0], used.chunks[:0]}
	return b
}

// run writes until Close.
func (r *Recorder) run() {
	defer close(r.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := func(d time.Duration) (more bool) {
		timer.Reset(d)
		select {
		case <-timer.C:
			return true
		case <-r.quit:
			return false
		}
	}
	var b batch
	for more := true; more; {
		select {
		case <-r.wake:
			more = pause(batchDelay) // let some gather
		case <-r.quit:
			more = false
		}
		b = r.takeAll(b)
		r.encode(b, pause)
		r.write(0, pause)
	}
	r.end()
}

// encode makes entries of a batch and writes whenever there are enough.
func (r *Recorder) encode(b batch, pause func(time.Duration) bool) {
	data := b.data
	for _, c := range b.chunks {
		r.at = c.at
		r.jump(c.dir, c.gap)
		s := r.split[c.dir]
		part := data[:c.size]
		data = data[c.size:]
		if s.skip {
			_, part, s.skip = cutLine(part)
		}
		_, _ = s.Write(part) // a Splitter has no error
		r.write(batchBytes, pause)
	}
}

// sized is a Splitter that knows how long a line is.
type sized struct {
	child.Splitter
	size int64 // bytes of the line under way, its end included
}

// Write implements io.Writer.
func (s *sized) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, part := cutLine(rest)
		s.size += int64(len(line))
		if _, err := s.Splitter.Write(line); err != nil {
			return 0, err
		}
		if rest = after; !part {
			s.size = 0
		}
	}
	return len(p), nil
}

// cutLine returns the first line of a text with its end, and what is behind it; part is true
// where it has no end yet.
func cutLine(text []byte) (line, rest []byte, part bool) {
	at := bytes.IndexByte(text, '\n') + 1
	if at == 0 {
		return text, nil, true
	}
	return text[:at], text[at:], false
}

// jump leaves out what was dropped: the line that it began in, and the one that it ends in.
func (r *Recorder) jump(dir Dir, g gap) {
	if g == (gap{}) {
		return
	}
	if g.torn {
		g.lines++
	}
	r.split[dir] = r.newSide(dir)
	r.split[dir].skip = g.torn
	r.out = r.enc.Dropped(r.out, r.at, dir, g.lines)
}

// write writes the entries once there are least bytes of them, however long the disk takes,
// but not longer than to Close.
func (r *Recorder) write(least int, pause func(time.Duration) bool) {
	for wait := firstRetry; len(r.out) > least; wait = min(2*wait, lastRetry) {
		if r.tryWrite() == nil {
			return
		}
		if !pause(wait) {
			return
		}
	}
}

// tryWrite writes the entries that there are. What cannot be written now stays.
func (r *Recorder) tryWrite() error {
	if r.full {
		r.out = r.out[:0]
		return nil
	}
	n, err := r.file.Write(r.out)
	r.written += int64(n)
	r.out = append(r.out[:0], r.out[n:]...)
	switch {
	case err != nil && !r.told:
		r.told = true
		r.warn("%v; the host goes on, and up to %d MiB wait for it to be written, more are dropped and counted", err, maxPending>>20)
	case err == nil && r.told:
		r.told = false
		r.warn("it can be written again")
	}
	if cap(r.out) > keepBuffer && len(r.out) == 0 {
		r.out = nil
	}
	if err == nil && r.written >= r.opts.MaxBytes {
		_, err = r.file.Write(r.enc.full(nil, time.Now(), r.written))
		r.full = true
		r.warn("it has %d MiB and ends here; the host goes on", r.written>>20)
	}
	return err
}

func (r *Recorder) warn(format string, args ...any) {
	r.opts.Warn("the record " + r.opts.Path + ": " + fmt.Sprintf(format, args...))
}

// end writes what is left, for a while, and says what could not be written.
func (r *Recorder) end() {
	noPause := func(time.Duration) bool { return false }
	rest := r.takeAll(batch{})
	if r.told && r.tryWrite() != nil { // what cannot be written need not be made
		r.warn("could not write at least %s at the end", protocol.Count(bytes.Count(r.out,
			[]byte{'\n'})+bytes.Count(rest.data, []byte{'\n'}), "entry"))
		return
	}
	r.encode(rest, noPause)
	r.mu.Lock()
	lost := map[Dir]gap{In: *r.lost[In], Out: *r.lost[Out]}
	r.mu.Unlock()
	for _, dir := range []Dir{In, Out} {
		r.jump(dir, lost[dir])
		if s := r.split[dir]; !s.skip {
			s.End()
		}
	}
	for deadline := time.Now().Add(closePatience); len(r.out) > 0 && r.tryWrite() != nil && time.Now().Before(deadline); {
		time.Sleep(firstRetry)
	}
	if left := bytes.Count(r.out, []byte{'\n'}); left > 0 {
		r.warn("could not write at least %s at the end", protocol.Count(left, "entry"))
	}
}

// Close writes what waits and ends the record. A disk that fails gets half a second, one that does not answer five.
func (r *Recorder) Close() {
	r.mu.Lock()
	was := r.closed
	r.closed = true
	r.mu.Unlock()
	if was {
		return
	}
	close(r.quit)
	select { // a write that hangs in the kernel cannot be interrupted
	case <-r.done:
		if err := r.file.Close(); err != nil {
			r.warn("%v", err)
		}
	case <-time.After(hungPatience):
		r.warn("the disk does not answer; its last entries are lost")
	}
}
