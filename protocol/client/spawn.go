package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// outputGrace is how long more output of a child that has ended is waited for: a
	// grandchild may hold it open for ever.
	outputGrace = time.Second
	// outputMost is how long it is read at most: a grandchild may write to it for ever. Where pipes
	// have no deadlines, as on Windows, it is outputGrace.
	outputMost = 10 * time.Second
)

// output is what a child writes. Once it has ended, the end is where nothing comes for
// outputGrace, or after outputMost.
type output struct {
	file *os.File
	over atomic.Bool // the child has ended
}

// Read implements io.Reader.
func (o *output) Read(p []byte) (n int, err error) {
	for range 2 { // the first deadline may be over before there was time to read
		if o.over.Load() {
			_ = o.file.SetReadDeadline(time.Now().Add(outputGrace)) // where there is none, it is closed
		}
		if n, err = o.file.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		err = io.EOF // that is our own doing
	}
	return n, err
}

// Spawn starts cmd, whose Stdin and Stdout must be nil, as a host and attaches to
// it. A nil Stderr is discarded. When ctx ends the child is killed at once; Close
// is due even then.
func Spawn(ctx context.Context, cmd *exec.Cmd, opts Options) (*Client, error) {
	if cmd.Stdin != nil || cmd.Stdout != nil {
		return nil, errors.New("client: the command's Stdin and Stdout are the client's; leave them nil")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("client: %s was not started: %w", cmd.Path, err)
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: %w", err), childIn.Close(), in.Close())
	}
	cmd.Stdin, cmd.Stdout = childIn, childOut
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = outputGrace
	}
	err = cmd.Start()
	childIn.Close()
	childOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("client: start the host: %w", err)
	}
	from := &output{file: out}
	c := newClient(from, in, opts)
	c.child, c.exited = cmd, make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // fails only when it has ended
	go c.read()
	go c.supervise(from, stop)
	return c, nil
}

// supervise waits for the child and then for the reader.
func (c *Client) supervise(out *output, stop func() bool) {
	defer close(c.exited)
	if c.exit = c.child.Wait(); errors.Is(c.exit, exec.ErrWaitDelay) {
		c.exit = nil // it ended well, but a grandchild holds its stderr open
	}
	stop()
	out.over.Store(true)
	most := outputMost
	if out.file.SetReadDeadline(time.Now()) != nil { // pipes of Windows have none
		most = outputGrace
	}
	select {
	case <-c.ended:
	case <-time.After(most):
	}
	out.file.Close()
	<-c.ended
}

// PID is the process id of a spawned host, 0 of an attached one.
func (c *Client) PID() int {
	if c.child == nil {
		return 0
	}
	return c.child.Process.Pid
}

// Wait waits until the host has ended by itself. A spawned host gives what
// exec.Cmd.Wait gives: nil is exit status 0, and an *exec.ExitError has any other.
// An attached one gives nil if it ended its output in order.
func (c *Client) Wait() error {
	<-c.ended
	if c.child == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failure == ErrClosed {
			return nil
		}
		return c.failure
	}
	<-c.exited
	return c.exit
}

// Close ends the host and gives what Wait gives. It closes the host's stdin, so
// that it drains and ends; after ExitWait it sends SIGTERM, after TermWait more
// SIGKILL. An attached host gets its streams closed instead. Calls that still run
// end with ErrClosed. Closing again gives the same.
func (c *Client) Close() error {
	_ = c.out.Close() // a second close, or a host that is gone: nothing to do about either
	err := c.stop()
	c.tasks.Wait()
	return err
}

func (c *Client) stop() error {
	if c.child == nil {
		return c.detach()
	}
	if !within(c.exited, c.opts.ExitWait) {
		// Where there is no SIGTERM the wait would be for nothing.
		if err := c.child.Process.Signal(syscall.SIGTERM); err != nil || !within(c.exited, c.opts.TermWait) {
			_ = c.child.Process.Kill() // fails only when it has ended
		}
	}
	return c.Wait()
}

// detach waits for the end of an attached host's output, and forces it.
func (c *Client) detach() error {
	if !within(c.ended, c.opts.ExitWait) {
		if closer, ok := c.in.(io.Closer); ok {
			_ = closer.Close() // its error says nothing about the host
		}
		if !within(c.ended, c.opts.TermWait) {
			c.fail(nil)
			return errors.New("client: the host does not end its output, and its reader cannot be closed")
		}
	}
	return c.Wait()
}

// within reports whether done is closed before the time is over.
func within(done <-chan struct{}, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
