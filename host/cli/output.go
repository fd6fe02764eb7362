package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"
	"golang.org/x/term"
)

// Output is stdout. It notes what hinders the writing, so that no command that printed less
// than it should ends as if it had not.
type Output struct {
	*os.File

	mu  sync.Mutex
	err error // the first one; guarded by mu
}

// NewOutput makes the Output of a file.
func NewOutput(file *os.File) *Output { return &Output{File: file} }

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	return n, o.note(err)
}

// WriteString implements io.StringWriter.
func (o *Output) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// ReadFrom implements io.ReaderFrom, which io.Copy would find in the file.
func (o *Output) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{o}, r) }

// note keeps an error, unless it says that the reader has had enough.
func (o *Output) note(err error) error {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	return err
}

// failed returns the first error; nil = all was written.
func (o *Output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// output writes to a file, which appears only once it is complete, or for "-" to stdout. The
// file must not be another one, such as the store that is read.
func (s *System) output(file, other string, write func(io.Writer) error) error {
	switch {
	case file == "-" && isatty.IsTerminal(s.Out.Fd()):
		return write(&seenWriter{w: s.Out})
	case file == "-":
		return write(s.Out)
	case sameFile(file, other):
		return fail(exitUsage, fmt.Errorf("--output %s: that is the store itself", file))
	}
	return writeWhole(file, write)
}

// sameFile reports whether two names are of one file.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// writeWhole makes or replaces a file of this user's only; it appears once it is
// complete. What is no regular file, such as /dev/null, is written to.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return writeTo(path, write)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".a2e-export-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func writeTo(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

const (
	logLines = 1000 // kept while nobody reads; the oldest are dropped
	// what closing waits for a write that is under way, and between two up to five times that
	logDrain = 100 * time.Millisecond
)

// logOutput tells whether a write is under way.
type logOutput struct {
	io.Writer
	writing atomic.Bool
}

// Write implements io.Writer.
func (o *logOutput) Write(p []byte) (int, error) {
	o.writing.Store(true)
	defer o.writing.Store(false)
	return o.Writer.Write(p)
}

// logRing keeps lines until its goroutine writes them to dst. It is made for the first line: most
// hosts log none, and the start is sooner without.
type logRing struct {
	dst  io.Writer
	once sync.Once
	ring *diode.Writer // nil = no line came
}

// Write implements io.Writer. It drops a line that is the first and comes after the log was closed.
func (r *logRing) Write(p []byte) (int, error) {
	r.once.Do(func() {
		ring := diode.NewWriter(r.dst, logLines, 0, func(int) {})
		r.ring = &ring
	})
	if r.ring == nil {
		return len(p), nil
	}
	return r.ring.Write(p)
}

// Close implements io.Closer; see diode.Writer.
func (r *logRing) Close() error { return r.ring.Close() }

// used reports whether a line came; none is taken afterwards if not.
func (r *logRing) used() bool {
	r.once.Do(func() {})
	return r.ring != nil
}

// openLog opens the log. Writing to it never blocks: parents often pipe stderr
// and never read it, and past the pipe's 64 KiB a blocking write would freeze
// the host. close waits a moment for what is still to be written.
func (c *commands) openLog(sys *System) (log zerolog.Logger, closeLog func(), err error) {
	level, err := zerolog.ParseLevel(c.logLevel())
	if err != nil {
		return zerolog.Nop(), nil, fail(exitUsage, err)
	}
	var dst io.Writer = struct{ io.Writer }{sys.Err} // closing the log leaves stderr open
	var file *os.File
	if c.LogFile != "" {
		if file, err = os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK,
			0o600); err != nil {
			return zerolog.Nop(), nil, fail(exitConfig, fmt.Errorf("--log-file should name a file that can be "+
				"written, or a pipe that is read: %w", err))
		}
		dst = file
	}
	out := &logOutput{Writer: dst}
	dst = sys.secrets.Whole(out)
	if file == nil && isatty.IsTerminal(sys.Err.Fd()) {
		dst = zerolog.ConsoleWriter{
			Out: dst, NoColor: sys.getenv("NO_COLOR") != "" || sys.getenv("TERM") == "dumb", TimeFormat: time.TimeOnly,
			FieldsOrder: []string{"type", "name", "req_id", "ms", "outcome"},
		}
	}
	ring := &logRing{dst: dst}
	closeLog = func() {
		if file != nil {
			defer file.Close()
		}
		if !ring.used() {
			return
		}
		closed := make(chan struct{})
		go func() {
			_ = ring.Close()
			close(closed)
		}()
		for range 5 { // a machine that is busy may not come to write
			select {
			case <-closed:
			case <-time.After(logDrain):
				if !out.writing.Load() {
					continue
				}
			}
			break
		}
	}
	return zerolog.New(ring).Level(level).With().Timestamp().Logger(), closeLog, nil
}

const (
	usualColumns = 80            // of a terminal that does not tell
	unbounded    = math.MaxInt32 // columns of a pipe or a file: there is nothing to fit into
)

// columns is how wide the output may be.
func (s *System) columns() int { return s.columnsOf(s.Out.File) }

// columnsOf is how wide what is written to a file may be: what COLUMNS asks for on a terminal,
// or else its width. What goes elsewhere is read by programs, and never cut.
func (s *System) columnsOf(file *os.File) int {
	if !isatty.IsTerminal(file.Fd()) {
		return unbounded
	}
	if n, err := strconv.Atoi(s.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if wide, _, err := term.GetSize(int(file.Fd())); err == nil && wide > 0 {
		return wide
	}
	return usualColumns
}

// rows is how many lines the terminal has.
func (s *System) rows() int {
	if n, err := strconv.Atoi(s.getenv("LINES")); err == nil && n > 4 {
		return n
	}
	if _, high, err := term.GetSize(int(s.Err.Fd())); err == nil && high > 4 {
		return high
	}
	return liveRows
}

// showsLive reports whether stderr is a terminal that a line can be drawn anew on.
func (s *System) showsLive() bool { return isatty.IsTerminal(s.Err.Fd()) && s.getenv("TERM") != "dumb" }

// colors reports whether what is written to a file may be colored.
func (s *System) colors(file *os.File) bool {
	return isatty.IsTerminal(file.Fd()) && s.getenv("NO_COLOR") == "" && s.getenv("TERM") != "dumb"
}
