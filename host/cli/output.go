package cli

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
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
func (o *Output) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{o}, r)
}

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

// failed gives the first error; nil = all was written.
func (o *Output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
