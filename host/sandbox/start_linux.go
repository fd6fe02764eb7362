package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
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

// agentID is the user and group that a child of root sees itself as.
const agentID = 1000

// levels lists what to try, strongest first. In mode Off a host that runs as
// root has children that are root.
func levels(mode Mode) []level {
	uid, gid := os.Geteuid(), os.Getegid()
	inside := func(id int) int {
		if id == 0 && mode != Off {
			return agentID
		}
		return id
	}
	root := level{MechanismPIDNamespace, syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}}
	user := level{MechanismUserPIDNamespace, syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		Pdeathsig:   syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: inside(uid), HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: inside(gid), HostID: gid, Size: 1}},
		// to mount, and to drop these and all others; the command does not get them
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP},
	}}
	plain := user // some systems allow the namespace but no capability in it
	plain.sys.AmbientCaps = nil
	// No Pdeathsig: a subreaper must outlive the host to kill the tree.
	reaper := level{mechanism: MechanismSubreaper}
	switch {
	case uid != 0:
		return []level{user, plain, reaper}
	case mode == Off:
		return []level{root, user, plain, reaper}
	}
	return []level{user, root, plain, reaper}
}

// starter owns one thread that forks all launchers: PR_SET_PDEATHSIG fires when
// the thread that forked dies, so it must live as long as the Launcher.
type starter struct {
	opts Options
	path []string
	home *homeDir
	seen func() *view // what every child sees

	groups func() (*cgroups, error)

	levels  []level      // what to try; nil = levels(). Only the thread touches it once it runs
	refused error        // why a stronger level did not work; as above
	found   atomic.Value // Mechanism
	last    atomic.Pointer[[]Finding]

	once     sync.Once
	requests chan forkRequest
	stopped  chan struct{}
}

type forkRequest struct {
	files  []*os.File
	cgroup cgroup
	reply  chan forkReply
}

type forkReply struct {
	proc      *os.Process
	mechanism Mechanism
	refused   error // why it is not the strongest
	err       error
}

func (s *starter) mechanism() Mechanism {
	m, _ := s.found.Load().(Mechanism)
	return m
}

func (s *starter) findings() []Finding {
	if last := s.last.Load(); last != nil {
		return *last
	}
	return nil
}

func (s *starter) run() {
	defer close(s.stopped)
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	if s.levels == nil {
		s.levels = levels(s.opts.Mode)
	}
	s.refused = errors.New("it was not tried")
	for r := range s.requests {
		r.reply <- s.fork(r.files, r.cgroup)
	}
}

func (s *starter) begin() {
	s.once.Do(func() {
		s.requests, s.stopped = make(chan forkRequest), make(chan struct{})
		s.groups = sync.OnceValues(openCgroups)
		s.seen = sync.OnceValue(func() *view {
			home, tmp, err := s.home.get() // made before, or Command would have failed
			if err != nil {
				return &view{}
			}
			return newView(&s.opts, s.path, home, tmp)
		})
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
func (s *starter) fork(files []*os.File, in cgroup) forkReply {
	for {
		l := s.levels[0]
		sys := l.sys
		sys.Setsid = true
		if in.dir != nil {
			sys.UseCgroupFD, sys.CgroupFD = true, int(in.dir.Fd())
		}
		proc, err := os.StartProcess(selfPath, []string{LauncherName}, &os.ProcAttr{
			Dir:   "/",
			Env:   []string{"GOMAXPROCS=1"}, // it lives off a few system calls
			Files: files,
			Sys:   &sys,
		})
		if err == nil {
			s.found.Store(l.mechanism)
			s.levels = []level{l}
			return forkReply{proc, l.mechanism, s.refused, nil}
		}
		if len(s.levels) == 1 || !unavailable(err) {
			return forkReply{err: err}
		}
		s.refused = err
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
	home, _, err := s.home.get()
	if err != nil {
		return nil, err
	}
	what := &spec{
		hasDirFD: policy.DirFile != nil, terminal: policy.Terminal, mode: s.opts.Mode, network: policy.Network, limits: policy.Limits,
		workspace: s.opts.Workspace, home: home, dir: policy.Dir, path: policy.Path, argv: policy.argv(), env: env,
	}
	if what.mode != Off {
		what.grants = s.seen().with(policy.Path)
	}
	files := stdio[:]
	if policy.DirFile != nil {
		files = append(files, policy.DirFile)
	}
	c, err := s.launch(ctx, what, files)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// probe sets a launcher up that runs nothing.
func (s *starter) probe(ctx context.Context, limits Limits) ([]Finding, error) {
	s.begin()
	home, _, err := s.home.get()
	if err != nil {
		return nil, err
	}
	what := &spec{probe: true, mode: BestEffort, limits: limits, workspace: s.opts.Workspace, home: home, grants: s.seen().with(selfPath)}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	c, err := s.launch(ctx, what, []*os.File{null, null, null})
	if err != nil {
		return nil, err
	}
	c.collect()
	return s.findings(), nil
}

// launch forks a launcher with the files behind its control pipes.
func (s *starter) launch(ctx context.Context, what *spec, files []*os.File) (*launched, error) {
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
	group, noGroup := s.cgroupFor(what)
	request := forkRequest{append([]*os.File{controlR, reportW, reportW}, files...), group, make(chan forkReply)}
	s.requests <- request
	reply := <-request.reply
	if reply.err != nil {
		controlW.Close()
		reportR.Close()
		group.remove()
		return nil, &StartError{Op: "fork", Path: what.path, Err: reply.err}
	}
	c := &launched{proc: reply.proc, reports: reportR, control: controlW, cgroup: group}
	c.namespace = reply.mechanism != MechanismSubreaper
	controlR.Close()
	reportW.Close()
	what.namespace, what.hostIsRoot = c.namespace, os.Geteuid() == 0
	what.userNamespace = reply.mechanism == MechanismUserPIDNamespace
	if !what.userNamespace && what.mode != Off {
		what.miss(findUser, reply.refused)
		if !what.namespace {
			what.miss(findPID, reply.refused)
		}
	}
	lacks, err := c.begin(ctx, what)
	if what.mode != Off && lacks != nil {
		if noGroup != nil {
			lacks[findCgroup] = noGroup.Error()
		}
		all := lacking(lacks)
		s.last.Store(&all)
	}
	return c, err
}

// cgroupFor makes a cgroup for one tree, or tells why there is none.
func (s *starter) cgroupFor(what *spec) (cgroup, error) {
	if what.mode == Off {
		return cgroup{}, nil
	}
	groups, err := s.groups()
	if err != nil {
		return cgroup{}, err
	}
	return groups.make(what.limits)
}

// launched is the host's view of one launcher.
type launched struct {
	proc      *os.Process
	namespace bool
	cgroup    cgroup
	reports   *os.File

	mu      sync.Mutex
	control *os.File    // guarded by mu; nil once closed
	stuck   *time.Timer // guarded by mu
}

// begin hands over the spec and awaits the first report, which says what the
// machine lacks. On an error nothing is left of the launcher.
func (c *launched) begin(ctx context.Context, s *spec) (lacks map[string]string, err error) {
	control := c.control // only kill touches it meanwhile
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	// A launcher that died meanwhile says so by the end of its reports.
	_, _ = control.Write(s.encode())
	r, err := readReport(c.reports)
	if err == nil && (r.kind == reportStarted || r.kind == reportRefused) {
		lacks = parseLacks(r.text)
	}
	if err == nil && r.kind == reportStarted {
		return lacks, nil
	}
	c.kill()
	c.collect()
	switch {
	case err == nil && r.kind == reportRefused:
		return lacks, &MissingError{missingRequired(lacking(lacks))}
	case err != nil || r.kind != reportFailed:
		return nil, errors.Join(ErrLauncher, err)
	}
	if r.value != 0 {
		return nil, &StartError{Op: r.text, Path: s.path, Err: syscall.Errno(r.value)}
	}
	op, what, _ := strings.Cut(r.text, ": ")
	return nil, &StartError{Op: op, Path: s.path, Err: errors.New(what)}
}

// parseLacks reads what spec.lacks wrote.
func parseLacks(text string) map[string]string {
	lacks := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, reason, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			lacks[name] = reason
		}
	}
	return lacks
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
	c.cgroup.remove()
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
