package sandbox

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
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
	root := level{MechanismPIDNamespace, syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}}
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
	net  map[string]string   // variables of children with network
	seen func(Network) *view // what every child with such a network sees

	groups func() (*cgroups, error)

	levels  []level      // what to try; nil = levels(). Only the thread touches it once it runs
	refused error        // why a stronger level did not work; as above
	found   atomic.Value // Mechanism
	last    atomic.Pointer[[]Finding]

	once     sync.Once
	requests chan forkRequest
	stopped  chan struct{}

	spare chan *launched // at most one that waits for its spec
	fills sync.WaitGroup // forks of spares under way
}

type forkRequest struct {
	files  []*os.File // the launcher's own 0, 1 and 2
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
		s.requests, s.stopped, s.spare = make(chan forkRequest), make(chan struct{}), make(chan *launched, 1)
		s.groups = sync.OnceValues(openCgroups)
		inside, outside := s.viewOf(NetworkNone), s.viewOf(NetworkHost)
		s.seen = func(network Network) *view {
			if network == NetworkNone {
				return inside()
			}
			return outside()
		}
		go s.run()
	})
}

// viewOf makes, once it is asked for, what children with such a network share.
func (s *starter) viewOf(network Network) func() *view {
	return sync.OnceValue(func() *view {
		home, tmp, err := s.home.of(network) // made before, or Command would have failed
		if err != nil {
			return &view{}
		}
		kept := newBarriers(&s.opts)
		kept.make()
		opts := s.opts
		if network != NetworkNone {
			opts.Read = slices.Concat(opts.Read, certificates(s.net))
		}
		return newView(&opts, s.path, home, tmp)
	})
}

func (s *starter) close() {
	s.once.Do(func() {}) // a thread that never began need not end
	if s.requests == nil {
		return
	}
	s.forget()
	close(s.requests)
	<-s.stopped
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
		proc, err := os.StartProcess(cmp.Or(s.opts.Launcher, selfPath), []string{LauncherName}, &os.ProcAttr{
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

// unavailable reports whether a namespace was refused, as opposed to the machine
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

// start tells a launcher what to run and waits until that runs.
func (s *starter) start(ctx context.Context, policy *Policy, env []string, stdio [3]*os.File) (child, error) {
	frame, err := s.frame(policy)
	if err != nil {
		return nil, err
	}
	command := &spec{Limits: policy.Limits, Dir: policy.Dir, Path: policy.Path, Argv: policy.argv(), Env: env}
	files := stdio[:]
	if policy.DirFile != nil {
		files = append(files, policy.DirFile)
	}
	if policy.Terminal {
		command.Terminal = true
		frame.Console, _ = os.Readlink("/proc/self/fd/" +
			strconv.Itoa(int(stdio[0].Fd()))) // only its name depends on it
	}
	c, err := s.launch(ctx, frame, command, files)
	if err != nil {
		return nil, err
	}
	s.refill(frame)
	return c, nil
}

// prepare makes a spare launcher for a command with such a policy. Where that fails, the command says why.
func (s *starter) prepare(policy *Policy) {
	if frame, err := s.frame(policy); err == nil {
		s.refill(frame)
	}
}

// frame says what surrounds a command: it is the same for most.
func (s *starter) frame(policy *Policy) (*frame, error) {
	s.begin()
	home, _, err := s.home.of(policy.Network)
	if err != nil {
		return nil, err
	}
	if policy.Scratch != "" {
		home = cmp.Or(policy.HomeDir, policy.Scratch)
	}
	f := &frame{
		HostIsRoot: os.Geteuid() == 0, Mode: s.opts.Mode, Network: policy.Network,
		Processes: policy.Limits.Processes, Home: home, alone: policy.Scratch != "", lost: s.home.losses(),
	}
	if f.Mode != Off {
		f.Grants = s.seen(policy.Network).with(policy)
		f.Firm = s.firm(f.Grants)
	}
	return f, nil
}

// firm reports whether what is walled off among the grants must be held.
func (s *starter) firm(grants []grant) bool {
	return !s.opts.Loose && (s.opts.Firm || slices.ContainsFunc(grants,
		func(g grant) bool { return g.Access == accessHide }))
}

// probe sets a launcher up that runs nothing.
func (s *starter) probe(ctx context.Context, limits Limits) ([]Finding, error) {
	s.begin()
	home, tmp, err := s.home.get()
	if err != nil {
		return nil, err
	}
	frame := &frame{HostIsRoot: os.Geteuid() == 0, Mode: BestEffort, Processes: limits.Processes, Home: home}
	// not seen, for which folders are made
	frame.Grants = newView(&s.opts, s.path, home, tmp).with(&Policy{Path: selfPath})
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	c, err := s.launch(ctx, frame, &spec{Probe: true, Limits: limits}, []*os.File{null, null, null})
	if err != nil {
		return nil, err
	}
	c.collect()
	return s.findings(), nil
}

// launch returns a launcher its command, and what that gets as 0, 1 and 2.
func (s *starter) launch(ctx context.Context, frame *frame, command *spec, files []*os.File) (*launched, error) {
	c, err := s.take(frame)
	if err != nil {
		return nil, &StartError{Op: "fork", Path: command.Path, Err: err}
	}
	if c.noCgroup == nil {
		c.noCgroup = c.cgroup.bind(command.Limits)
	}
	command.Grouped = c.noCgroup == nil
	lacks, err := c.begin(ctx, command, files)
	if frame.Mode != Off && lacks != nil {
		if c.noCgroup != nil {
			lacks[findCgroup] = c.noCgroup.Error()
		}
		all := lacking(lacks)
		s.last.Store(&all)
	}
	return c, err
}

// take returns the spare launcher if it fits, or a new one. A spare has the
// longest part of a start behind it.
func (s *starter) take(want *frame) (*launched, error) {
	select {
	case c := <-s.spare:
		waits := c.waits()
		if waits && c.frame.fits(want) {
			return c, nil
		}
		if !waits || !want.alone || !s.keep(c) {
			c.discard()
		}
	default:
	}
	return s.forkOne(want)
}

// keep makes a launcher the spare, if there is none.
func (s *starter) keep(c *launched) bool {
	select {
	case s.spare <- c:
		return true
	default:
		return false
	}
}

// forget drops the spare launcher, which has the folders mounted that there were. No start
// is under way.
func (s *starter) forget() {
	s.fills.Wait()
	select {
	case c := <-s.spare:
		c.discard()
	default:
	}
}

// refill makes a spare launcher for the next start, if there is none. It gets
// what most commands need.
func (s *starter) refill(last *frame) {
	usual := *last
	usual.Console, usual.alone = "", false
	if last.alone {
		usual.Network = NetworkNone
	}
	if home, _, err := s.home.of(usual.Network); err == nil {
		usual.Home = home
	}
	if usual.Mode != Off {
		usual.Grants = s.seen(usual.Network).walled
		usual.Firm = s.firm(usual.Grants)
	}
	s.fills.Go(func() {
		if len(s.spare) > 0 {
			return
		}
		c, err := s.forkOne(&usual)
		if err != nil {
			return // the next start tries again, and says why it fails
		}
		if !s.keep(c) {
			c.discard()
		}
	})
}

// forkOne forks a launcher that makes the frame and waits for its command.
func (s *starter) forkOne(frame *frame) (*launched, error) {
	theirs, ours, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer reportW.Close()
	group, noCgroup := s.makeCgroup()
	request := forkRequest{[]*os.File{theirs, reportW, reportW}, group, make(chan forkReply)}
	s.requests <- request
	reply := <-request.reply
	if reply.err != nil {
		ours.Close()
		reportR.Close()
		group.remove()
		return nil, reply.err
	}
	frame.hold(reply.mechanism, reply.refused)
	c := &launched{
		proc: reply.proc, frame: frame, namespace: frame.Namespace, cgroup: group, noCgroup: noCgroup, reports: reportR,
		control: ours,
	}
	first, err := encode(frame)
	if err != nil {
		c.discard()
		return nil, err
	}
	// A launcher that died meanwhile says so by the end of its reports.
	_, _ = ours.Write(first)
	return c, nil
}

// socketPair returns two ends that pass bytes and open files.
func socketPair() (theirs *os.File, ours *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[0]), "control")
	mine := os.NewFile(uintptr(fds[1]), "control")
	defer mine.Close() // the connection has a descriptor of its own
	conn, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return theirs, conn.(*net.UnixConn), nil
}

// makeCgroup makes a cgroup for one tree, or tells why there is none.
func (s *starter) makeCgroup() (cgroup, error) {
	if s.opts.Mode == Off {
		return cgroup{}, errors.New("the sandbox is off")
	}
	groups, err := s.groups()
	if err != nil {
		return cgroup{}, err
	}
	return groups.make()
}
