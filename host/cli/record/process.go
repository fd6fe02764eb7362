package record

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"

	"a2e/host/child"
)

const (
	maxSend   = 32 << 20 // bytes that wait for a host that does not read
	maxStderr = 8 << 10  // longest line of stderr, in bytes
	// A host that ends in a hurry needs up to 1.5 seconds.
	signalAfter = 50 * time.Millisecond
	killAfter   = 1800 * time.Millisecond
)

// Errors of Send.
var (
	ErrEnded = errors.New("the host has ended")
	ErrFull  = errors.New("the host does not read its input: 32 MiB wait for it")
)

// Heard has the functions that get the output of a host. Each one is called by one goroutine at a
// time and must not block.
type Heard struct {
	Line   func(line []byte)             // a line of stdout, without its line end
	Long   func(head []byte, size int64) // the head of a line of stdout that is longer than maxLine
	Stderr func(line []byte)             // a line of stderr, or the head of a longer one
	Ended  func(code int, err error)     // called once all output is read
}

// Process is a host that runs as a child process. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	in   *os.File
	done chan struct{} // closed when the host has ended and all output is read

	mu     sync.Mutex // guards the fields below
	room   sync.Cond  // uses mu; signals a change
	queue  []byte
	closed bool
}

// Start starts a host. Lines of its stdout that are longer than maxLine bytes are cut.
func Start(cmd *exec.Cmd, maxLine int, to Heard) (*Process, error) {
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var size counter
	out := &child.Splitter{Max: maxLine, Head: headBytes * 4, Line: to.Line, Over: &size}
	out.Long = func(head []byte) {
		to.Long(head, int64(size)+1)
		size = 0
	}
	words := &child.Splitter{Max: maxStderr, Head: maxStderr, Line: to.Stderr, Long: to.Stderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = theirs, out, words, time.Second
	ownGroup(cmd)
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		in.Close()
		return nil, err
	}
	p := &Process{cmd: cmd, in: in, done: make(chan struct{})}
	p.room.L = &p.mu
	go p.feed()
	go func() {
		err := cmd.Wait()
		out.End()
		words.End()
		p.Close()
		code := cmd.ProcessState.ExitCode()
		if _, exited := errors.AsType[*exec.ExitError](err); exited && code >= 0 || errors.Is(err, exec.ErrWaitDelay) {
			err = nil
		}
		to.Ended(code, err)
		close(p.done)
	}()
	return p, nil
}

// counter counts the bytes that are written to it.
type counter int64

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// Send queues a line for the host, newline included. It returns ErrEnded or ErrFull.
func (p *Process) Send(line []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrEnded
	case len(p.queue) > 0 && len(p.queue)+len(line) > maxSend:
		return ErrFull
	}
	p.queue = append(p.queue, line...)
	p.room.Signal()
	return nil
}

// feed writes the queued lines to the host, and finally closes its input.
func (p *Process) feed() {
	defer p.in.Close()
	for {
		p.mu.Lock()
		for len(p.queue) == 0 && !p.closed {
			p.room.Wait()
		}
		lines := p.queue
		p.queue = nil
		p.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		if _, err := p.in.Write(lines); err != nil {
			p.Close()
			return
		}
	}
}

// Close closes the input of the host after the queued lines, which makes the host end.
func (p *Process) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.room.Signal()
}

// Done returns a channel that is closed when the host has ended and all its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// End ends the host in less than two seconds: it closes the input, then sends a signal, then kills the host.
func (p *Process) End() {
	p.Close()
	for _, step := range []struct {
		after time.Duration
		do    func(*exec.Cmd)
	}{{signalAfter, terminate}, {killAfter, killGroup}} {
		select {
		case <-p.done:
			return
		case <-time.After(step.after):
			step.do(p.cmd)
		}
	}
	<-p.done
}

// PID returns the process id of the host.
func (p *Process) PID() int { return p.cmd.Process.Pid }
