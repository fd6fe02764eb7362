package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// maxOutbox is how many bytes may wait for a child that does not read.
const maxOutbox = 16 << 20

// maxDirect is how long a line may be to fit into the pipe of a child that has read all
// before it: every system's pipe takes as much at once.
const maxDirect = 4096

// maxWait is how long such a line may take all the same.
const maxWait = 10 * time.Millisecond

// What Process.Send returns.
var (
	ErrInputFull   = errors.New("the child does not read its input: 16 MiB wait for it")
	ErrInputClosed = errors.New("the child's input is closed")
)

// outbox is the input of a child: what comes while one write is under way goes out in
// the next, however many lines it is. It is safe for concurrent use.
type outbox struct {
	mu      sync.Mutex // guards the fields below
	pipe    *os.File   // nil = the child has not started
	changed sync.Cond  // on mu
	lines   []byte
	writing bool // run has lines in hand
	closed  bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// open gives the outbox the child's stdin, which run closes.
func (o *outbox) open(pipe *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pipe = pipe
}

// add puts a line, newline included, behind the others. With alone the child has nothing
// else to read: the line is written right here, which spares a switch of goroutines.
func (o *outbox) add(line []byte, alone bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return ErrInputClosed
	case alone && o.pipe != nil && !o.writing && len(o.lines) == 0 && len(line) <= maxDirect:
		n, err := o.direct(line)
		if err == nil {
			return nil
		}
		line = line[n:] // run finds the same error and deals with it
	case len(o.lines) > 0 && len(o.lines)+len(line) > maxOutbox:
		return ErrInputFull
	}
	o.lines = append(o.lines, line...)
	o.changed.Signal()
	return nil
}

// direct writes a line at once. A child that answers what it has not read only seems to
// have nothing else to read: its pipe may be full, and the caller shall not wait for it.
func (o *outbox) direct(line []byte) (int, error) {
	if err := o.pipe.SetWriteDeadline(time.Now().Add(maxWait)); err != nil {
		return 0, err // one that may wait for ever
	}
	n, err := o.pipe.Write(line)
	return n, errors.Join(err, o.pipe.SetWriteDeadline(time.Time{}))
}

// run writes what comes until close, then ends the input. A child that has closed its
// side and does not end within patience is killed; done tells its end.
func (o *outbox) run(done <-chan struct{}, kill context.CancelCauseFunc, patience time.Duration) {
	defer o.pipe.Close()
	var spare []byte
	for {
		o.mu.Lock()
		o.writing = false
		for len(o.lines) == 0 && !o.closed {
			o.changed.Wait()
		}
		lines := o.lines
		o.lines, o.writing = spare[:0], true
		o.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		if _, err := o.pipe.Write(lines); err != nil {
			select {
			case <-done:
			case <-time.After(patience):
				kill(fmt.Errorf("it does not take its input: %w", err))
			}
			return
		}
		if spare = lines; cap(spare) > keptBuffer {
			spare = nil
		}
	}
}

// close ends the input behind what waits.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Signal()
}
