package sandbox

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// selfPath is this executable, also after its file was replaced or removed.
const selfPath = "/proc/self/exe"

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
	what.pidsLimited = group.dir != nil && what.limits.Processes > 0
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
