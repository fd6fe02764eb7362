package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"a2e/host/guard/redact"
	"a2e/host/observe/event"
)

const (
	maxPending = 32 << 20 // bytes that wait for the disk; more lines are dropped and counted
	batchDelay = 2 * time.Millisecond
	batchBytes = 256 << 10
	keepBuffer = 1 << 20 // a larger buffer is released after writing
)

// Options of a Recorder. Path must be set.
type Options struct {
	Path      string
	Version   string // of the host, for the header
	Workspace string
	MaxLine   int   // longest line that is kept whole, in bytes; 0 = 16 MiB
	MaxBytes  int64 // size at which the record ends, approximately; 0 = 1 GiB
	Secrets   *redact.Set
	Environ   []string
	Warn      func(string) // is called when something is lost
}

// Recorder writes a record of a host: it is an event.Sink for the kinds In and Out. It never makes
// the host wait: lines that do not fit into memory are dropped, and an entry says how many. It is
// safe for concurrent use.
type Recorder struct {
	opts  Options
	file  *os.File
	spool *event.Spool

	// used only by the goroutine of the spool
	enc     *Encoder
	out     []byte // entries that are not written yet
	encoded int    // bytes of the spool's lines whose entries are in out
	written int64
	full    bool
}

// Open creates the file. An existing record is renamed to Path.1. Any other existing file is an
// error, except for an empty one or a device.
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
	r := &Recorder{opts: opts, file: file, enc: NewEncoder(opts.Secrets, opts.Environ)}
	r.spool = event.NewSpool(event.SpoolOptions{
		Name: "the record " + opts.Path, Max: maxPending, Delay: batchDelay, Warn: opts.Warn,
		Append: r.append, Write: r.write,
	})
	r.out, err = r.enc.Header(nil, Header{Format, opts.Version, float64(time.Now().UnixMicro()) / 1e6, opts.Workspace})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	_ = r.flush() // what cannot be written now is written with the first line
	return r, nil
}

// openNew opens a device, or creates a file that only this user can read.
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

// isRecord reports whether a file begins like a record.
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

// headerStart is the beginning of each record.
const headerStart = `{"a2e_record":`

// Take implements event.Sink.
func (r *Recorder) Take(e event.Event) { r.spool.Add(e) }

// append adds a message to the spool, or the number of lost ones, in the form DIR MICROSECONDS LOST
// SIZE LINE. Entries are made later, outside the host's path, because finding secrets takes time.
func (r *Recorder) append(dst []byte, e event.Event, lost int) []byte {
	dir := Out
	if e.Kind == event.In {
		dir = In
	}
	for line := range bytes.SplitSeq(e.Message, []byte{'\n'}) {
		size := len(line)
		if e.Kind == event.In {
			size = max(size, e.InputBytes)
		}
		if len(line) > r.opts.MaxLine {
			line = line[:min(r.opts.MaxLine, headBytes+r.enc.secrets.Longest())]
		}
		dst = append(dst, dir...)
		for _, n := range [...]int64{e.Time.UnixMicro(), int64(lost), int64(size)} {
			dst = strconv.AppendInt(append(dst, ' '), n, 10)
		}
		dst = append(append(append(dst, ' '), line...), '\n')
	}
	return dst
}

// encode adds the entry of a line of the spool to out. It changes the bytes of the line.
func (r *Recorder) encode(spooled []byte) {
	dir, rest, _ := bytes.Cut(spooled, []byte{' '})
	var numbers [3]int64
	for i := range numbers {
		var text []byte
		text, rest, _ = bytes.Cut(rest, []byte{' '})
		numbers[i], _ = strconv.ParseInt(string(text), 10, 64) // append wrote it
	}
	at, lost, size := time.UnixMicro(numbers[0]), numbers[1], numbers[2]
	switch {
	case lost > 0:
		r.out = r.enc.Dropped(r.out, at, Dir(dir), lost)
	case size > int64(len(rest)):
		r.out = r.enc.Long(r.out, at, Dir(dir), rest, size+1)
	default:
		r.out = r.enc.Line(r.out, at, Dir(dir), "", rest)
	}
}

// write writes the entries of lines of the spool. It does not wait for anything but the disk.
func (r *Recorder) write(lines []byte, _ <-chan struct{}, _ time.Duration) (n int, err error) {
	defer r.enc.forget()
	for n < len(lines) {
		for n+r.encoded < len(lines) && len(r.out) < batchBytes {
			at := n + r.encoded
			end := at + bytes.IndexByte(lines[at:], '\n')
			r.encode(lines[at:end:end])
			r.encoded = end + 1 - n
		}
		if err := r.flush(); err != nil {
			return n, err
		}
		n, r.encoded = n+r.encoded, 0
	}
	return n, nil
}

// flush writes the entries in out. What cannot be written now stays in out.
func (r *Recorder) flush() error {
	if r.full {
		r.out = r.out[:0]
		return nil
	}
	n, err := r.file.Write(r.out)
	r.written += int64(n)
	if r.out = append(r.out[:0], r.out[n:]...); len(r.out) == 0 && cap(r.out) > keepBuffer {
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

// Close writes the waiting lines and ends the record. It waits half a second for a disk that fails,
// and five seconds for one that does not answer. It warns of lines that are lost.
func (r *Recorder) Close() {
	if err := r.spool.Close(); err != nil {
		r.opts.Warn(err.Error())
	} else if err := r.flush(); err != nil { // there was no line, and the header is not written yet
		r.warn("%v", err)
	}
	if err := r.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		r.warn("%v", err)
	}
}
