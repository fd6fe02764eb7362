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

// selfPath is this executable. It works even after its file was replaced or removed.
const selfPath = "/proc/self/exe"

// level is one way to hold a tree.
type level struct {
	mechanism Mechanism
	sys       syscall.SysProcAttr
}

// agentID is the user and group id that a child of a root host sees as its own.
const agentID = 1000

// levels returns the ways to hold a tree, strongest first. In mode Off a host that runs as root has
// children that are root.
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
		// to mount, and to drop these and all other capabilities; the command does not get them
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP},
	}}
	plain := user // some systems allow the namespace, but no capabilities in it
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

// starter owns the thread that forks all launchers. PR_SET_PDEATHSIG fires when the forking thread
// dies, so this thread must live as long as the Launcher.
type starter struct {
	opts Options
	path []string
	home *homeDir
	net  map[string]string   // variables of children with network
	seen func(Network) *view // what all children with that network see

	groups func() (*cgroups, error)

	levels  []level      // levels to try; nil = levels(); only used by the thread once it runs
	refused error        // why a stronger level failed; only used by the thread once it runs
	found   atomic.Value // Mechanism
	last    atomic.Pointer[[]Finding]

	once     sync.Once
	requests chan forkRequest
	stopped  chan struct{}

	spare chan *launched // holds at most one launcher that waits for its spec
	fills sync.WaitGroup // running forks of spares
}

type forkRequest struct {
	files  []*os.File // the launcher's own 0, 1 and 2
	cgroup cgroup
	reply  chan forkReply
}

type forkReply struct {
	proc      *os.Process
	mechanism Mechanism
	refused   error // why a stronger level failed
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
	// The thread is never unlocked: it ends with the goroutine.
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

// viewOf returns a function that makes, at its first call, the view that children with that network share.
func (s *starter) viewOf(network Network) func() *view {
	return sync.OnceValue(func() *view {
		home, tmp, err := s.home.of(network) // get has made it before, or Command would have failed
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
	s.once.Do(func() {}) // if the thread never began, it need not end
	if s.requests == nil {
		return
	}
	s.forget()
	close(s.requests)
	<-s.stopped
}

// fork starts one launcher on the strongest level that works, and stays on that level: a later failure
// does not lead to a weaker level.
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
			Env:   []string{"GOMAXPROCS=1"}, // the launcher does little work
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

// unavailable reports whether an error means that the machine refuses a namespace, rather than that it lacks resources.
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

// start sends a command to a launcher and waits until the command runs.
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
			strconv.Itoa(int(stdio[0].Fd()))) // only the terminal's name depends on it
	}
	c, err := s.launch(ctx, frame, command, files)
	if err != nil {
		return nil, err
	}
	s.refill(frame)
	return c, nil
}

// prepare makes a spare launcher for commands with this policy. If that fails, the command itself will report why.
func (s *starter) prepare(policy *Policy) {
	if frame, err := s.frame(policy); err == nil {
		s.refill(frame)
	}
}

// frame returns the frame for a command. It is the same for most commands.
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

// firm reports whether the launcher must refuse to run anything if it cannot enforce the walls among the grants.
func (s *starter) firm(grants []grant) bool {
	return !s.opts.Loose && (s.opts.Firm || slices.ContainsFunc(grants,
		func(g grant) bool { return g.Access == accessHide }))
}

// probe sets up a launcher that runs nothing.
func (s *starter) probe(ctx context.Context, limits Limits) ([]Finding, error) {
	s.begin()
	home, tmp, err := s.home.get()
	if err != nil {
		return nil, err
	}
	frame := &frame{HostIsRoot: os.Geteuid() == 0, Mode: BestEffort, Processes: limits.Processes, Home: home}
	// without s.seen, which makes folders
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

// launch sends a command and its files, the streams as 0, 1 and 2, to a launcher.
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

// take returns the spare launcher if it fits, or a new one. The spare has already done the longest part of a start.
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

// keep stores a launcher as the spare and reports true, unless there is a spare already.
func (s *starter) keep(c *launched) bool {
	select {
	case s.spare <- c:
		return true
	default:
		return false
	}
}

// forget drops the spare launcher, which still has old folders mounted. No start may be running.
func (s *starter) forget() {
	s.fills.Wait()
	select {
	case c := <-s.spare:
		c.discard()
	default:
	}
}

// refill makes a spare launcher for the next start, if there is none. The spare gets the frame that most commands need.
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
			return // the next start tries again, and reports the error
		}
		if !s.keep(c) {
			c.discard()
		}
	})
}

// forkOne forks a launcher, which sets up the frame and waits for its command.
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
	// If the launcher has died meanwhile, its reports end.
	_, _ = ours.Write(first)
	return c, nil
}

// socketPair returns two connected sockets that pass bytes and open files.
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

// makeCgroup makes a cgroup for one tree. The error says why there is none.
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
