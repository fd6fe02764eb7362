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

// stuckDelay is how long a subreaper may take to end its tree. After that the host ends the tree and the subreaper: the
// machine may be busy, or a command of the same user may have stopped the subreaper.
const stuckDelay = 5 * time.Second

// launched is the host's view of one launcher.
type launched struct {
	proc      *os.Process
	frame     *frame
	namespace bool
	cgroup    cgroup
	noCgroup  error // why it has no cgroup
	reports   *os.File
	command   int       // pid of the command as the host sees it; 0 = it ended at once
	once      sync.Once // for collect

	mu      sync.Mutex
	control *net.UnixConn // guarded by mu; nil once closed
	stuck   *time.Timer   // guarded by mu
}

// waits reports whether a launcher that has no spec yet is alive: its death would show as the end of its reports.
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

// discard ends a launcher that has no command.
func (c *launched) discard() {
	_ = c.proc.Kill() // fails once it is gone
	c.collect()
}

// begin sends the spec and the command's files to the launcher, and waits for its first report. missing is what the
// machine lacks according to that report. After an error nothing is left of the launcher.
func (c *launched) begin(ctx context.Context, s *spec, files []*os.File) (missing map[string]string, err error) {
	control := c.control // only kill uses it meanwhile
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	fds := make([]int, len(files))
	for i, file := range files {
		fds[i] = int(file.Fd())
	}
	// If the launcher has died meanwhile, its reports end.
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
		c.command = childOf(c.proc.Pid, r.Value == 0)
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

// childOf returns the child of a launcher. It returns 0 if the launcher has no child any more, or if the kernel does
// not say. If first is set, it is the child of the first thread, otherwise of any thread.
func childOf(launcher int, first bool) int {
	pid := strconv.Itoa(launcher)
	files := []string{"/proc/" + pid + "/task/" + pid + "/children"}
	if !first {
		files, _ = filepath.Glob("/proc/" + pid + "/task/*/children") // the only possible error is a bad pattern
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be gone
		first, _, _ := strings.Cut(string(text), " ")
		if child, err := strconv.Atoi(first); err == nil {
			return child
		}
	}
	return 0
}

// wait implements child. When a launcher reports the end, its tree is gone. The launcher's own end
// takes some milliseconds longer, because the kernel removes its namespaces; reaped waits for that.
func (c *launched) wait() (State, bool, error) {
	r, err := readReport(c.reports)
	if err == nil && r.Kind == reportMemory {
		err = fmt.Errorf("%w: %d MiB", ErrMemory, r.Value)
	}
	if err == nil && r.Kind == reportCrowd {
		err = fmt.Errorf("%w: %d", ErrProcesses, r.Value)
	}
	if err == nil && r.Kind == reportFailed { // the launcher could not continue and ended the tree
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

// orphans kills what a launcher without a namespace left behind when it was killed. Its death ends the
// command, but not the command's children, which can still be found by their process group.
func (c *launched) orphans() {
	if !c.namespace && c.command > 0 {
		_ = syscall.Kill(-c.command, syscall.SIGKILL) // fails when all are gone
	}
}

// reaped implements child.
func (c *launched) reaped() { c.collect() }

// collect reaps the launcher, which ends as the last process of its tree, and closes the pipes.
func (c *launched) collect() {
	c.once.Do(func() {
		_, _ = c.proc.Wait() // the reports have said how it ended
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

// kill implements child. Killing pid 1 of a namespace kills the whole namespace. A subreaper is asked
// to end its tree; it is killed only if it does not end within stuckDelay.
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
	c.stuck = time.AfterFunc(stuckDelay, func() {
		endDescendants(c.proc) // once the launcher is dead, its descendants cannot be found
		_ = c.proc.Kill()
	})
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

// direct makes a pipe with a blocking reader, and returns its write end. A blocked thread wakes up
// about 30 µs sooner than a goroutine that waits in the runtime's poller. The poller must not know the
// pipe, or it would wake up as well each time.
func (p *pump) direct(idle func() bool) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	halt, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(err, unix.Close(ends[0]), unix.Close(ends[1]))
	}
	p.r, p.halt, p.idle = os.NewFile(uintptr(ends[0]), "stdout"), os.NewFile(uintptr(halt), "halt"), idle
	return os.NewFile(uintptr(ends[1]), "stdout"), nil
}

// stop ends run once it has passed on what is in the pipe now.
func (p *pump) stop() {
	// An error only means that run has already closed the pipe.
	if p.halt != nil {
		_, _ = p.halt.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	} else {
		_ = p.r.SetReadDeadline(time.Unix(1, 0))
	}
}

// next waits for data and reads it into buf.
func (p *pump) next() (int, error) {
	if p.halt != nil && !p.ready(-1) {
		return 0, os.ErrDeadlineExceeded
	}
	return p.r.Read(p.buf)
}

// ready waits until there is something to read or the stream ends. within < 0 = no time limit. It
// reports false after stop.
func (p *pump) ready(within time.Duration) (ready bool) {
	until := time.Now().Add(within)
	err := control(p.r, func(r int32) error {
		return control(p.halt, func(halt int32) error {
			for {
				fds := []unix.PollFd{{Fd: r, Events: unix.POLLIN}, {Fd: halt, Events: unix.POLLIN}}
				var timeout *unix.Timespec
				if within >= 0 {
					left := unix.NsecToTimespec(max(0, int64(time.Until(until))))
					timeout = &left
				}
				_, err := unix.Ppoll(fds, timeout, nil)
				if err != unix.EINTR {
					ready = fds[0].Revents != 0 && fds[1].Revents == 0
					return err
				}
			}
		})
	})
	return err == nil && ready
}

// control calls f with the descriptor of a file, which stays open during the call.
func control(file *os.File, f func(fd int32) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(conn.Control(func(fd uintptr) { err = f(int32(fd)) }), err)
}

// rest passes on what is in the pipe now, without waiting for more.
func (p *pump) rest(buf []byte) {
	if p.halt == nil && p.r.SetReadDeadline(time.Time{}) != nil {
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
