package sandbox

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaybeRunLauncher turns this process into a launcher, and never returns, when
// it was started as one. main and TestMain call it before anything else.
func MaybeRunLauncher() {
	if len(os.Args) > 0 && os.Args[0] == LauncherName {
		syscall.Exit(runLauncher()) // at once: no exit hook concerns a launcher
	}
}

// launcherHeap is the heap of a launcher, in bytes, from which on it is collected.
const launcherHeap = 8 << 20

// runLauncher reads the spec, starts the command and stays until its tree is
// gone. Its exit status means nothing: the host reads the reports.
func runLauncher() int {
	// Namespaces, capabilities, filters, the signal mask and Pdeathsig belong to
	// a thread: the command is forked from the one that set them.
	runtime.LockOSThread()
	// It lives off a few system calls: garbage is collected late, but it is.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(launcherHeap)
	// Nothing that the host inherited from its own parent leaks further.
	if err := closeOnExecFrom(fdFirst); err != nil {
		send(*failure("close descriptors", err))
		return 1
	}
	f := &frame{}
	if decode(descriptor(fdControl), maxSpecBytes, f) != nil {
		return 1 // the host is gone
	}
	if failed := f.prepare(); failed != nil {
		send(*failed)
		return 1
	}
	if f.early() {
		if failed := f.enclose(); failed != nil {
			send(*failed)
			return 1
		}
	}
	rehearse()
	s, err := receiveSpec(fdControl)
	if err != nil {
		return 1 // the host is gone, or does not need it
	}
	s.frame = f
	if failed := s.prepare(); failed != nil {
		send(*failed)
		return 1
	}
	return s.launch()
}

// launch starts the command, tells so, and stays until its tree is gone.
func (s *spec) launch() int {
	t := s.tree
	s.watch()
	pid, failed := s.run()
	if failed != nil {
		send(*failed)
		return 1
	}
	if !s.Probe {
		t.main = pid
		if err := t.bound(); err != nil {
			send(*failure("bound the address space", err))
			t.kill()
			t.reap()
			return 1
		}
	}
	started := report{Kind: reportStarted, Missing: s.Missing}
	if unix.Gettid() != unix.Getpid() {
		started.Value = 1
	}
	send(started)
	if s.Probe {
		return 0
	}
	close(t.started)
	send(report{Kind: reportExit, Value: uint32(t.reap())})
	return 0
}

// newTree makes what looks after the command. Only this thread sees the
// command's /proc, which must show this PID namespace to be of use.
func (f *frame) newTree() *tree {
	t := &tree{
		namespace: f.Namespace, forked: make(chan struct{}), bounded: make(chan error, 1),
		started: make(chan struct{}), proc: -1,
	}
	if self, _ := os.Readlink("/proc/self"); self != strconv.Itoa(os.Getpid()) {
		return t
	}
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return t
	}
	t.proc = proc
	t.openSources(f.Mode != Off && !f.misses(findIPC))
	return t
}

// watch tells the tree the bounds of this command.
func (s *spec) watch() {
	t := s.tree
	t.addresses = s.Limits.AddressBytes
	if t.proc < 0 || s.Grouped { // the kernel looks after the memory of a cgroup
		return
	}
	if s.Limits.Processes > 0 && s.Mode != Off && !s.pidsLimited && !s.ownProcessLimit() {
		load, err := unix.Openat(t.proc, "loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			t.crowd.load, t.crowd.limit, s.pidsLimited = load, s.Limits.Processes, true
		}
	}
	if t.memory = s.Limits.MemoryBytes; t.memory > 0 {
		t.sources.begin()
	}
}

// newWarden makes the one who stands in for the mount namespace; nil where there is one.
func (f *frame) newWarden(t *tree) *warden {
	if f.Mode == Off || f.ownRoot {
		return nil
	}
	return &warden{tree: t, grants: f.Grants, listener: make(chan int, 1)}
}

// send writes one report. Where the host is gone nobody is left to be told.
func send(r report) {
	if message, err := encode(r); err == nil {
		_, _ = unix.Write(fdReport, message)
	}
}

// step is one thing to do on the way to a command.
type step struct {
	name string
	do   func() error
}

func runSteps(steps ...step) *report {
	for _, step := range steps {
		if err := step.do(); err != nil {
			return failure(step.name, err)
		}
	}
	return nil
}

// prepare makes the frame around this thread.
func (f *frame) prepare() *report {
	return runSteps(step{"become what holds the tree", f.becomeHolder}, step{"make a root", f.confine})
}

// prepare brings this thread to where the command shall begin, the limits aside.
func (s *spec) prepare() *report {
	failed := runSteps(step{"chdir", s.chdir})
	if failed == nil && s.tree == nil {
		failed = s.enclose()
	}
	return failed
}

// early reports whether the walls can stand before the command is known. Without a root of
// its own the folders that are granted now might be others by then, and a working directory
// could need the rights that root has without a user namespace.
func (f *frame) early() bool { return f.Mode == Off || f.ownRoot && (f.UserNamespace || !f.HostIsRoot) }

// enclose puts this thread, and what it starts, behind the walls, which are the same for each
// command, and makes the threads that stay outside.
func (f *frame) enclose() *report {
	unix.Umask(unix.Umask(0o077) | 0o022) // what the host has, and never writable by all
	failed := runSteps(
		step{"drop privileges", f.dropPrivileges},
		step{"restrict files", f.landlock},
		step{"reset signals", f.resetSignals},
	)
	if failed != nil {
		return failed
	}
	f.tree = f.newTree()
	w := f.newWarden(f.tree)
	threads := f.tree.await(w)
	if f.Mode != Off {
		f.filter(w, threads)
	}
	return nil
}

// filter puts this thread under the filter, and lets the warden answer for it. No thread of
// this process has a number above threads.
func (s *frame) filter(w *warden, threads int) {
	calls := &walls{
		network: s.Network, launcher: uint32(threads), among: !s.Namespace, bare: !s.ownRoot,
		ownIPC: !s.misses(findIPC),
	}
	if w != nil {
		calls.asked = changingCalls()
	}
	listener, err := calls.enforce()
	if err != nil {
		s.miss(findSeccomp, err)
	}
	if w != nil {
		w.listener <- listener
	}
}

// unheld reports whether nothing would keep the command from the files of the machine.
func (s *spec) unheld() bool {
	return s.Mode == BestEffort && !s.ownRoot && (s.misses(findLandlock) || s.misses(findSeccomp))
}

// run takes the last steps and starts the command.
func (s *spec) run() (pid int, failed *report) {
	if err := s.setLimits(); err != nil {
		return 0, failure("set limits", err)
	}
	if s.Mode == Required && len(s.Missing) > 0 || s.unheld() && !s.Probe {
		return 0, &report{Kind: reportRefused, Missing: s.Missing}
	}
	if s.Probe {
		return 0, nil
	}
	pid, err := syscall.ForkExec(s.Path, s.Argv, &syscall.ProcAttr{
		Env:   s.Env,
		Files: []uintptr{uintptr(s.files[0]), uintptr(s.files[1]), uintptr(s.files[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: s.Terminal, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, failure("exec", err)
	}
	// The streams belong to the command alone: its closing them must show.
	for _, fd := range s.files {
		_ = unix.Close(fd)
	}
	return pid, nil
}

func failure(op string, err error) *report {
	r := &report{Kind: reportFailed, Text: op}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		r.Text += ": " + err.Error()
		return r
	}
	r.Value = uint32(errno)
	if what := strings.TrimSuffix(err.Error(), errno.Error()); what != "" { // what it was about
		r.Text += ": " + strings.TrimSuffix(what, ": ")
	}
	return r
}

// chdir enters the working directory by its name, as the view shows it. Where
// the host has it open, it must be that very folder. Where the host's folders are
// in view as well, that is entered by its descriptor if the name no longer leads
// there; a command with mounts of its own then does not learn its name.
func (s *spec) chdir() error {
	switch {
	case s.Dir == "":
		return nil
	case len(s.files) <= dirFile:
		return unix.Chdir(s.Dir)
	}
	err := s.chdirTo(s.files[dirFile])
	if err != nil && !s.ownRoot {
		return unix.Fchdir(s.files[dirFile])
	}
	return err
}

// chdirTo enters the working directory by its name, if it is that open folder.
func (s *spec) chdirTo(open int) error {
	if err := unix.Chdir(s.Dir); err != nil {
		return err
	}
	var here, want unix.Stat_t
	if err := errors.Join(unix.Stat(".", &here), unix.Fstat(open, &want)); err != nil {
		return err
	}
	if here.Dev != want.Dev || here.Ino != want.Ino {
		return errReplaced
	}
	return nil
}

// becomeHolder makes this process the one that no descendant gets away from. As pid 1
// it is that already; otherwise it adopts every orphan.
func (f *frame) becomeHolder() error {
	if f.Namespace {
		return nil
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// confine returns the command a part of the machine only.
func (s *frame) confine() error {
	if s.Mode == Off {
		if s.Namespace {
			privateProc()
		}
		return nil
	}
	offerToOOM()
	s.separate()
	missing, err := s.newRoot()
	if missing != nil {
		s.miss(findMount, missing)
		s.miss(findPrivateProc, errors.New("it needs the mount namespace"))
	}
	s.ownRoot = missing == nil
	if missing != nil {
		return s.refuses(missing)
	}
	return err
}

// refuses tells why nothing may run without a mount namespace. Mode Required says so itself,
// with all else that is missing. Nothing is wrapped: the reason's number alone says little.
func (s *frame) refuses(missing error) error {
	if !s.Firm || s.Mode == Required {
		return nil
	}
	return errors.New("files of the host itself, such as its state_dir or its config, lie in what programs may see, " +
		"and this machine has no mount namespace to keep them out (" +
		missing.Error() + "); move them out of the workspace, or the workspace out of the folder that holds them; " +
		"`a2e doctor` names them")
}

// errReplaced says that a folder is not the one that was granted.
var errReplaced = errors.New("it was replaced by another folder")

// privateProc mounts a fresh /proc in a mount namespace of this thread: the
// numbers in it fit, and the host's environment is out of sight. A machine that
// refuses it keeps the /proc it has.
func privateProc() {
	if unix.Unshare(unix.CLONE_NEWNS) != nil {
		return
	}
	if unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, "") != nil {
		return
	}
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// dropPrivileges keeps the command from gaining rights by a set-user-id file,
// takes back those that only the launcher needed, and hides the launcher's
// memory from its own child.
func (s *frame) dropPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if s.Mode != Off {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

func (s *frame) landlock() error {
	if s.Mode == Off {
		return nil
	}
	err := s.restrictFiles()
	if err != nil && !s.wholeEtc && !errors.Is(err, errReplaced) {
		s.miss(findLandlock, err)
		return nil
	}
	return err
}

// setLimits bounds what the command may use.
func (s *spec) setLimits() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	if err := s.limitResources(); err != nil {
		return err
	}
	if s.Mode != Off && s.Limits.Processes > 0 && !s.pidsLimited && !s.Grouped {
		s.miss(findProcesses, errors.New("root is bound by it from Linux 6.14 on, others from 5.14 on with user and "+
			"PID namespaces"))
	}
	return nil
}

// The real-time signals, those that C libraries keep for themselves included.
const (
	firstRealTime = 32
	lastRealTime  = 64
)

// resetSignals undoes what the host's parent may have blocked or ignored. As
// pid 1 the launcher is out of reach for signals that have their default action;
// a subreaper must take them, and forget them.
func (s *frame) resetSignals() error {
	signals := []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGPIPE,
	}
	if s.Namespace {
		for _, sig := range signals {
			byDefault(uintptr(sig.(syscall.Signal)))
		}
	} else {
		// one with a Go handler is back at its default after exec
		signal.Notify(make(chan os.Signal, 1), signals...)
	}
	for sig := uintptr(firstRealTime); sig <= lastRealTime; sig++ {
		byDefault(sig) // Go's runtime does not touch these; a C library or a parent may have
	}
	return unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
}

// byDefault gives a signal its default action.
func byDefault(sig uintptr) {
	var action [64]byte // struct sigaction, zero on every architecture
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// closeOnExecFrom keeps every descriptor from first on from the command.
func closeOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // kernels before 5.11
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd) // the poller of reading this folder is among them
		}
	}
	return err
}
