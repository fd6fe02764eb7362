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

// Output is stdout. It keeps the first write error, so that a command whose output is incomplete
// does not exit with success.
type Output struct {
	*os.File

	mu  sync.Mutex
	err error // the first one; guarded by mu
}

// NewOutput returns the Output of a file.
func NewOutput(file *os.File) *Output { return &Output{File: file} }

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	return n, o.note(err)
}

// WriteString implements io.StringWriter.
func (o *Output) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// ReadFrom implements io.ReaderFrom, as io.Copy would otherwise use the method of the file.
func (o *Output) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{o}, r) }

// note keeps the first error and returns err. EPIPE is not kept: the reader has closed the pipe.
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

// failed returns the first error, or nil if everything was written.
func (o *Output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// output writes to a file, which appears only once it is complete, or to stdout if file is "-".
// file must not be the same as other, such as the store that is read.
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

// sameFile reports whether two names mean the same file.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// writeWhole creates or replaces a file that only this user can read. The file appears once it is
// complete. A path that is not a regular file, such as /dev/null, is opened and written to.
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
	logLines = 1000 // lines kept while nobody reads; the oldest lines are dropped
	// closing waits this long for a write that is under way, and up to five times as long if none is
	logDrain = 100 * time.Millisecond
)

// logOutput records whether a write is under way.
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

// logRing keeps lines until its goroutine writes them to dst. The ring is created at the first
// line: most hosts log nothing and start faster without it.
type logRing struct {
	dst  io.Writer
	once sync.Once
	ring *diode.Writer // nil = no line was written
}

// Write implements io.Writer. It drops all lines if the first one comes after the log was closed.
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

// used reports whether a line was written. If not, later lines are dropped.
func (r *logRing) used() bool {
	r.once.Do(func() {})
	return r.ring != nil
}

// openLog opens the log. Writing to it never blocks: parents often pipe stderr and never read it,
// and past the pipe's 64 KiB a blocking write would freeze the host. closeLog waits a moment for
// lines that are not written yet.
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
		for range 5 { // on a busy machine the writer may not have started yet
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
	usualColumns = 80            // of a terminal whose width is unknown
	unbounded    = math.MaxInt32 // columns of a pipe or a file, which have no width
)

// columns returns the maximal width of the output.
func (s *System) columns() int { return s.columnsOf(s.Out.File) }

// columnsOf returns the maximal width of the text for a file: on a terminal the value of COLUMNS,
// or else the width of the terminal. Other output is for programs and is never cut.
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

// rows returns the number of lines of the terminal.
func (s *System) rows() int {
	if n, err := strconv.Atoi(s.getenv("LINES")); err == nil && n > 4 {
		return n
	}
	if _, high, err := term.GetSize(int(s.Err.Fd())); err == nil && high > 4 {
		return high
	}
	return liveRows
}

// showsLive reports whether stderr is a terminal that can redraw a line.
func (s *System) showsLive() bool { return isatty.IsTerminal(s.Err.Fd()) && s.getenv("TERM") != "dumb" }

// colors reports whether text for a file may be colored.
func (s *System) colors(file *os.File) bool {
	return isatty.IsTerminal(file.Fd()) && s.getenv("NO_COLOR") == "" && s.getenv("TERM") != "dumb"
}
