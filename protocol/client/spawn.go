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
	// outputGrace is how long the reader waits for more output of a child that has ended: a
	// grandchild may keep the pipe open.
	outputGrace = time.Second
	// outputMost is how long the output of an ended child is read at most: a grandchild may continue to write.
	// If pipes have no deadlines, as on Windows, outputGrace is used instead.
	outputMost = 10 * time.Second
)

// output reads the output of a child. After the child has ended, the output ends when nothing arrives for
// outputGrace, or after outputMost.
type output struct {
	file *os.File
	over atomic.Bool // the child has ended
}

// Read implements io.Reader.
func (o *output) Read(p []byte) (n int, err error) {
	for range 2 { // the first deadline may pass before Read starts
		if o.over.Load() {
			_ = o.file.SetReadDeadline(time.Now().Add(outputGrace)) // without deadlines, supervise closes the file
		}
		if n, err = o.file.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		err = io.EOF // the client itself caused this error
	}
	return n, err
}

// Spawn starts cmd as a host and attaches to it; its Stdin and Stdout must be nil.
// With a nil Stderr, the output on stderr is discarded. When ctx ends, the child is
// killed at once; the caller must call Close even then.
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
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // fails only if the child has ended
	go c.read()
	go c.supervise(from, stop)
	return c, nil
}

// supervise waits for the child and then for the reader.
func (c *Client) supervise(out *output, stop func() bool) {
	defer close(c.exited)
	if c.exit = c.child.Wait(); errors.Is(c.exit, exec.ErrWaitDelay) {
		c.exit = nil // the child ended without error, but a grandchild keeps its stderr open
	}
	stop()
	out.over.Store(true)
	most := outputMost
	if out.file.SetReadDeadline(time.Now()) != nil { // pipes of Windows have no deadlines
		most = outputGrace
	}
	select {
	case <-c.ended:
	case <-time.After(most):
	}
	out.file.Close()
	<-c.ended
}

// PID returns the process id of a spawned host, or 0 for an attached one.
func (c *Client) PID() int {
	if c.child == nil {
		return 0
	}
	return c.child.Process.Pid
}

// Wait waits until the host has ended by itself. For a spawned host it returns the
// result of exec.Cmd.Wait: nil for exit status 0, an *exec.ExitError for any other.
// For an attached host it returns nil if the output ended without an error.
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

// Close ends the host and returns the result of Wait. It closes the host's stdin, so
// that the host drains and ends; after ExitWait it sends SIGTERM, and after TermWait
// SIGKILL. For an attached host it closes the streams instead. Calls that still run
// end with ErrClosed. A second Close returns the same.
func (c *Client) Close() error {
	_ = c.out.Close() // the error means a second Close or an ended host
	err := c.stop()
	c.tasks.Wait()
	return err
}

func (c *Client) stop() error {
	if c.child == nil {
		return c.detach()
	}
	if !within(c.exited, c.opts.ExitWait) {
		// If SIGTERM cannot be sent, there is nothing to wait for.
		if err := c.child.Process.Signal(syscall.SIGTERM); err != nil || !within(c.exited, c.opts.TermWait) {
			_ = c.child.Process.Kill() // fails only if the child has ended
		}
	}
	return c.Wait()
}

// detach waits for the end of an attached host's output. After ExitWait it closes the reader.
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

// within reports whether done is closed before the time wait is over.
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
