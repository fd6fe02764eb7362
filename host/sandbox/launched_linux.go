package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stuckDelay is how long a subreaper gets to end its tree before it is killed
// itself; a command under the same user could have stopped it.
const stuckDelay = 5 * time.Second

// launched is the host's view of one launcher.
type launched struct {
	proc      *os.Process
	frame     *frame
	namespace bool
	cgroup    cgroup
	noCgroup  error // why there is none
	reports   *os.File
	command   int       // pid of the command, as the host sees it; 0 if it was gone at once
	once      sync.Once // of collect

	mu      sync.Mutex
	control *net.UnixConn // guarded by mu; nil once closed
	stuck   *time.Timer   // guarded by mu
}

// waits reports whether a launcher that has no spec yet is still there: its end
// would show as the end of its reports.
func (c *launched) waits() (alive bool) {
	conn, err := c.reports.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		alive = n == 0 && err == nil
	})
	return alive && err == nil
}

// discard ends a launcher that was given nothing to do.
func (c *launched) discard() {
	_ = c.proc.Kill() // fails once it is gone
	c.collect()
}

// begin hands over the spec with the command's files, and awaits the first
// report, which says what the machine lacks. On an error nothing is left of the
// launcher.
func (c *launched) begin(ctx context.Context, s *spec, files []*os.File) (missing map[string]string, err error) {
	control := c.control // only kill touches it meanwhile
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	fds := make([]int, len(files))
	for i, file := range files {
		fds[i] = int(file.Fd())
	}
	// A launcher that died meanwhile says so by the end of its reports.
	data, err := encode(s)
	if err != nil {
		c.kill()
		c.collect()
		return nil, err
	}
	if n, _, err := control.WriteMsgUnix(data, unix.UnixRights(fds...), nil); err == nil && n < len(data) {
		_, _ = control.Write(data[n:])
	}
	runtime.KeepAlive(files)
	r, err := readReport(c.reports)
	if err == nil && r.Kind == reportStarted {
		c.command = firstChild(c.proc.Pid)
		return r.Missing, nil
	}
	c.kill()
	c.collect()
	switch {
	case err == nil && r.Kind == reportRefused:
		return r.Missing, &MissingError{Missing: missingRequired(lacking(r.Missing)), Mode: c.frame.Mode}
	case err != nil || r.Kind != reportFailed:
		return nil, errors.Join(ErrLauncher, err)
	}
	if r.Value != 0 {
		return nil, &StartError{Op: r.Text, Path: s.Path, Err: syscall.Errno(r.Value)}
	}
	op, what, _ := strings.Cut(r.Text, ": ")
	return nil, &StartError{Op: op, Path: s.Path, Err: errors.New(what)}
}

// firstChild returns the child of a launcher; 0 when it has none any more, or the
// kernel does not tell. It is the child of one of its threads.
func firstChild(pid int) int {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children") // the one error is a bad pattern
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be gone
		first, _, _ := strings.Cut(string(text), " ")
		if child, err := strconv.Atoi(first); err == nil {
			return child
		}
	}
	return 0
}

// wait implements child. A launcher that reports the end has seen the last of
// its tree go; its own end, which takes the kernel some milliseconds more to
// clear its namespaces away, is left to reaped.
func (c *launched) wait() (State, bool, error) {
	r, err := readReport(c.reports)
	if err == nil && r.Kind == reportMemory {
		err = fmt.Errorf("%w: %d MiB", ErrMemory, r.Value)
	}
	if err == nil && r.Kind == reportCrowd {
		err = fmt.Errorf("%w: %d", ErrProcesses, r.Value)
	}
	if err == nil && r.Kind == reportFailed { // it could not go on, and ended the tree
		err = fmt.Errorf("%s: %w", r.Text, syscall.Errno(r.Value))
	}
	if err != nil {
		c.orphans()
		c.collect()
	} else {
		c.mu.Lock()
		c.closeControlLocked() // nothing is left to signal
		c.mu.Unlock()
	}
	switch {
	case err == io.EOF:
		return State{}, false, nil
	case err != nil:
		return State{}, false, err
	}
	status := syscall.WaitStatus(r.Value)
	if status.Signaled() {
		return State{Code: -1, Signal: status.Signal()}, true, nil
	}
	return State{Code: status.ExitStatus()}, true, nil
}

// orphans ends what a launcher without a namespace left behind when it was killed: its death
// ends the command, but not the command's children, which may be told by their group still.
func (c *launched) orphans() {
	if !c.namespace && c.command > 0 {
		_ = syscall.Kill(-c.command, syscall.SIGKILL) // fails when all are gone
	}
}

// reaped implements child.
func (c *launched) reaped() { c.collect() }

// collect reaps the launcher, which ends last of its tree, and closes the pipes.
func (c *launched) collect() {
	c.once.Do(func() {
		_, _ = c.proc.Wait() // what it says is in the reports
		c.cgroup.remove()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.closeControlLocked()
		if c.stuck != nil {
			c.stuck.Stop()
		}
		c.reports.Close()
	})
}

func (c *launched) closeControlLocked() {
	if c.control != nil {
		c.control.Close()
		c.control = nil
	}
}

// kill implements child. Killing pid 1 of a namespace kills all of it. A
// subreaper is asked, and only killed when it does not answer.
func (c *launched) kill() {
	if c.namespace {
		_ = c.proc.Kill() // fails once it is gone
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control == nil {
		return
	}
	c.closeControlLocked()
	_ = c.proc.Signal(syscall.SIGCONT)
	c.stuck = time.AfterFunc(stuckDelay, func() { _ = c.proc.Kill() })
}

// signal implements child.
func (c *launched) signal(sig syscall.Signal) error {
	if sig <= 0 || sig > 64 {
		return syscall.EINVAL
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control == nil {
		return os.ErrProcessDone
	}
	_, err := c.control.Write([]byte{byte(sig)})
	return err
}

func (c *launched) pid() int {
	if c.command != 0 {
		return c.command
	}
	return c.proc.Pid
}

// stop ends run after what is in the pipe now.
func (p *pump) stop() {
	// The one error is a pipe that run has closed already.
	_ = p.r.SetReadDeadline(time.Unix(1, 0))
}

// readable waits until there is something to read, or the end. A call that blocks is woken some
// 30 µs sooner than one that waits by the runtime's poller.
func readable(r *os.File, until time.Time) (ready bool) {
	conn, err := r.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for err = unix.EINTR; err == unix.EINTR; {
			left := time.Until(until)
			if left <= 0 {
				return
			}
			timeout := unix.NsecToTimespec(int64(left))
			var n int
			n, err = unix.Ppoll(fds, &timeout, nil)
			ready = n > 0
		}
	})
	return err == nil && ready
}

// rest passes on what is in the pipe now, without waiting for more.
func (p *pump) rest(buf []byte) {
	if p.r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	conn, err := p.r.SyscallConn()
	if err != nil {
		return
	}
	left := -1
	for left != 0 {
		n := 0
		readErr := conn.Read(func(fd uintptr) bool {
			if left < 0 {
				left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			}
			if err == nil && left > 0 {
				n, err = unix.Read(int(fd), buf[:min(len(buf), left)])
			}
			return true
		})
		if readErr != nil || err != nil || n <= 0 || !p.pass(buf[:n]) {
			return
		}
		left -= n
	}
}
