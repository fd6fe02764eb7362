package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// selfPath is this executable, also after its file was replaced or removed.
const selfPath = "/proc/self/exe"

// stuckDelay is how long a subreaper gets to end its tree before it is killed
// itself; a command under the same user could have stopped it.
const stuckDelay = 5 * time.Second

// level is one way to hold a tree, as it is tried.
type level struct {
	mechanism Mechanism
	sys       syscall.SysProcAttr
}

// levels lists what to try, strongest first.
func levels() []level {
	root := level{MechanismPIDNamespace, syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}}
	user := level{MechanismUserPIDNamespace, syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		Pdeathsig:   syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, // to mount /proc; the command does not get it
	}}
	plain := user // some systems allow the namespace but no capability in it
	plain.sys.AmbientCaps = nil
	// No Pdeathsig: a subreaper must outlive the host to kill the tree.
	reaper := level{mechanism: MechanismSubreaper}
	if os.Geteuid() == 0 {
		return []level{root, user, plain, reaper}
	}
	return []level{user, plain, reaper}
}

// starter owns one thread that forks all launchers: PR_SET_PDEATHSIG fires when
// the thread that forked dies, so it must live as long as the Launcher.
type starter struct {
	levels []level      // what to try; nil = levels(). Only the thread touches it once it runs
	found  atomic.Value // Mechanism

	once     sync.Once
	requests chan forkRequest
	stopped  chan struct{}
}

type forkRequest struct {
	files []*os.File
	reply chan forkReply
}

type forkReply struct {
	proc      *os.Process
	mechanism Mechanism
	err       error
}

func (s *starter) mechanism() Mechanism {
	m, _ := s.found.Load().(Mechanism)
	return m
}

func (s *starter) run() {
	defer close(s.stopped)
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	if s.levels == nil {
		s.levels = levels()
	}
	for r := range s.requests {
		r.reply <- s.fork(r.files)
	}
}

func (s *starter) begin() {
	s.once.Do(func() {
		s.requests, s.stopped = make(chan forkRequest), make(chan struct{})
		go s.run()
	})
}

func (s *starter) close() {
	s.once.Do(func() {}) // a thread that never began need not end
	if s.requests != nil {
		close(s.requests)
		<-s.stopped
	}
}

// fork starts one launcher on the strongest level that works, and stays there:
// a later failure is a failure, not a reason for less.
func (s *starter) fork(files []*os.File) forkReply {
	for {
		l := s.levels[0]
		sys := l.sys
		sys.Setsid = true
		proc, err := os.StartProcess(selfPath, []string{LauncherName}, &os.ProcAttr{
			Dir:   "/",
			Env:   []string{"GOMAXPROCS=1"}, // it lives off a few system calls
			Files: files,
			Sys:   &sys,
		})
		if err == nil {
			s.found.Store(l.mechanism)
			s.levels = []level{l}
			return forkReply{proc, l.mechanism, nil}
		}
		if len(s.levels) == 1 || !unavailable(err) {
			return forkReply{err: err}
		}
		s.levels = s.levels[1:]
	}
}

// unavailable tells whether a namespace was refused, as opposed to the machine
// being short of something.
func unavailable(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EPERM, syscall.EACCES, syscall.EINVAL, syscall.ENOSYS, syscall.ENOSPC, syscall.EUSERS,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// start forks a launcher, tells it what to run and waits until that runs.
func (s *starter) start(ctx context.Context, policy *Policy, env []string, stdio [3]*os.File) (child, error) {
	s.begin()
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer controlR.Close()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		controlW.Close()
		return nil, err
	}
	defer reportW.Close()
	files := append([]*os.File{controlR, reportW, reportW}, stdio[:]...)
	if policy.DirFile != nil {
		files = append(files, policy.DirFile)
	}
	request := forkRequest{files, make(chan forkReply)}
	s.requests <- request
	reply := <-request.reply
	if reply.err != nil {
		controlW.Close()
		reportR.Close()
		return nil, &StartError{Op: "fork", Path: policy.Path, Err: reply.err}
	}
	c := &launched{proc: reply.proc, reports: reportR, control: controlW}
	c.namespace = reply.mechanism != MechanismSubreaper
	controlR.Close()
	reportW.Close()
	return c, c.begin(ctx, policy, env)
}

// launched is the host's view of one launcher.
type launched struct {
	proc      *os.Process
	namespace bool
	reports   *os.File

	mu      sync.Mutex
	control *os.File    // guarded by mu; nil once closed
	stuck   *time.Timer // guarded by mu
}

// begin hands over the spec and awaits the first report. On an error nothing is
// left of the launcher.
func (c *launched) begin(ctx context.Context, policy *Policy, env []string) error {
	control := c.control // only kill touches it meanwhile
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	s := spec{
		namespace: c.namespace, hasDirFD: policy.DirFile != nil, limits: policy.Limits,
		dir: policy.Dir, path: policy.Path, argv: policy.argv(), env: env,
	}
	// A launcher that died meanwhile says so by the end of its reports.
	_, _ = control.Write(s.encode())
	r, err := readReport(c.reports)
	if err == nil && r.kind == reportStarted {
		return nil
	}
	c.kill()
	c.collect()
	if err != nil || r.kind != reportFailed {
		return errors.Join(ErrLauncher, err)
	}
	failed := &StartError{Op: r.text, Path: policy.Path, Err: errors.New("failed")}
	if r.value != 0 {
		failed.Err = syscall.Errno(r.value)
	}
	return failed
}

// wait implements child.
func (c *launched) wait() (State, bool, error) {
	r, err := readReport(c.reports)
	c.collect()
	switch {
	case err == io.EOF:
		return State{}, false, nil
	case err != nil:
		return State{}, false, err
	}
	status := syscall.WaitStatus(r.value)
	if status.Signaled() {
		return State{Code: -1, Signal: status.Signal()}, true, nil
	}
	return State{Code: status.ExitStatus()}, true, nil
}

// collect reaps the launcher, which ends last of its tree, and closes the pipes.
func (c *launched) collect() {
	_, _ = c.proc.Wait() // what it says is in the reports
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeControlLocked()
	if c.stuck != nil {
		c.stuck.Stop()
	}
	c.reports.Close()
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

func (c *launched) pid() int { return c.proc.Pid }

// stop ends run after what is in the pipe now.
func (p *pump) stop() {
	// The one error is a pipe that run has closed already.
	_ = p.r.SetReadDeadline(time.Unix(1, 0))
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
