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

// MaybeRunLauncher turns this process into a launcher if it was started as one; then it does not
// return. main and TestMain call it before anything else.
func MaybeRunLauncher() {
	if len(os.Args) > 0 && os.Args[0] == LauncherName {
		syscall.Exit(runLauncher()) // at once, because a launcher has no exit hooks
	}
}

// launcherHeap is the heap size of a launcher, in bytes, above which garbage is collected.
const launcherHeap = 8 << 20

// runLauncher reads the frame and the spec, starts the command and stays until its tree is gone. Its
// exit status has no meaning: the host reads the reports.
func runLauncher() int {
	// Namespaces, capabilities, filters, the signal mask and Pdeathsig belong to a thread: the command is
	// forked from the thread that set them.
	runtime.LockOSThread()
	// The launcher allocates little: garbage is collected only above launcherHeap.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(launcherHeap)
	// Descriptors that the host inherited from its own parent are not passed on.
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
		return 1 // the host is gone, or does not need this launcher
	}
	s.frame = f
	if failed := s.prepare(); failed != nil {
		send(*failed)
		return 1
	}
	return s.launch()
}

// launch starts the command, reports the start, and stays until its tree is gone.
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

// newTree makes the tree that watches the command. Only this thread sees the command's /proc, which is
// used only if it shows this PID namespace.
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

// watch tells the tree the limits of this command.
func (s *spec) watch() {
	t := s.tree
	t.addresses = s.Limits.AddressBytes
	if t.proc < 0 || s.Grouped { // the kernel enforces the memory limit of a cgroup
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

// newWarden makes the warden that replaces the mount namespace, or returns nil if there is one or the sandbox is off.
func (f *frame) newWarden(t *tree) *warden {
	if f.Mode == Off || f.ownRoot {
		return nil
	}
	return &warden{tree: t, grants: f.Grants, listener: make(chan int, 1)}
}

// send writes one report. If the host is gone, nobody reads it.
func send(r report) {
	if message, err := encode(r); err == nil {
		_, _ = unix.Write(fdReport, message)
	}
}

// step is one step of the way to a command.
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

// prepare makes this process the holder of the tree and sets up the root.
func (f *frame) prepare() *report {
	return runSteps(step{"become what holds the tree", f.becomeHolder}, step{"make a root", f.confine})
}

// prepare takes all steps for this thread before the limits.
func (s *spec) prepare() *report {
	failed := runSteps(step{"chdir", s.chdir})
	if failed == nil && s.tree == nil {
		failed = s.enclose()
	}
	return failed
}

// early reports whether the walls can be set up before the command is known. Without its own root the granted folders
// could be replaced by then, and without a user namespace a working directory could need the rights of root.
func (f *frame) early() bool { return f.Mode == Off || f.ownRoot && (f.UserNamespace || !f.HostIsRoot) }

// enclose confines this thread and what it starts, in the same way for each command, and starts the
// threads that stay unconfined.
func (f *frame) enclose() *report {
	unix.Umask(unix.Umask(0o077) | 0o022) // the host's umask, and never writable by all
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

// filter applies the seccomp filter to this thread, and passes the filter's questions to the warden.
// No thread of this process has a number above threads.
func (s *frame) filter(w *warden, threads int) {
	calls := &seccompFilter{
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

// unheld reports whether nothing would confine the command's access to the files of the machine.
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
	// Only the command holds the streams now, so that the host sees when it closes them.
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
	if what := strings.TrimSuffix(err.Error(), errno.Error()); what != "" { // the text before the errno
		r.Text += ": " + strings.TrimSuffix(what, ": ")
	}
	return r
}

// chdir enters the working directory by its path in the view. If the host holds the directory open, it must be that
// same directory. If the view includes the host's folders and the path no longer leads to the directory, chdir enters
// it by its descriptor; a command with its own mounts then does not know its path.
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

// chdirTo enters the working directory by its path and checks that it is the given open directory.
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

// becomeHolder makes this process the one from which no descendant escapes. Pid 1 is that already; any
// other process becomes a subreaper, which adopts all orphans.
func (f *frame) becomeHolder() error {
	if f.Namespace {
		return nil
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// confine restricts the command to a part of the machine.
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

// refuses returns the error for a machine without a mount namespace, or nil if the command may run without. In mode
// Required another error names all missing mechanisms. missing is not wrapped, because its number alone says little.
func (s *frame) refuses(missing error) error {
	if !s.Firm || s.Mode == Required {
		return nil
	}
	return errors.New("files of the host itself, such as its state_dir or its config, lie in what programs may see, " +
		"and this machine has no mount namespace to keep them out (" +
		missing.Error() + "); move them out of the workspace, or the workspace out of the folder that holds them; " +
		"`a2e doctor` names them")
}

// errReplaced says that a folder is not the granted one.
var errReplaced = errors.New("it was replaced by another folder")

// privateProc mounts a new /proc in a mount namespace of this thread, so that it shows the process numbers of the PID
// namespace and hides the host's environment. If the machine refuses that, the old /proc stays.
func privateProc() {
	if unix.Unshare(unix.CLONE_NEWNS) != nil {
		return
	}
	if unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, "") != nil {
		return
	}
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// dropPrivileges keeps the command from gaining rights through set-user-ID files, drops the rights
// that only the launcher needed, and hides the launcher's memory from the command.
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

// setLimits sets the limits of the command.
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

// The range of the real-time signals, including those that C libraries reserve.
const (
	firstRealTime = 32
	lastRealTime  = 64
)

// resetSignals undoes what the host's parent may have blocked or ignored. As pid 1 the launcher does
// not receive signals with their default action; a subreaper catches them and ignores them.
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
		// a signal with a Go handler has its default action again after exec
		signal.Notify(make(chan os.Signal, 1), signals...)
	}
	for sig := uintptr(firstRealTime); sig <= lastRealTime; sig++ {
		byDefault(sig) // Go's runtime does not change these; a C library or a parent may have
	}
	return unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
}

// byDefault sets a signal's default action.
func byDefault(sig uintptr) {
	var action [64]byte // struct sigaction, zero on every architecture
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// closeOnExecFrom marks all descriptors from first on, so that the command does not inherit them.
func closeOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // for kernels before 5.11
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd) // the list contains the poller's descriptor for this folder
		}
	}
	return err
}
