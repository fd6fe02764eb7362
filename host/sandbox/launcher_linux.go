package sandbox

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
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

// runLauncher reads the spec, starts the command and stays until its tree is
// gone. Its exit status means nothing: the host reads the reports.
func runLauncher() int {
	// Namespaces, no_new_privs, the signal mask and Pdeathsig belong to a
	// thread: the command is forked from the one that set them.
	runtime.LockOSThread()
	control := os.NewFile(fdControl, "control")
	s, err := readSpec(control)
	if err != nil {
		return 1 // the host is gone
	}
	pid, failed := s.run()
	if failed != nil {
		send(*failed)
		return 1
	}
	send(report{kind: reportStarted})
	t := &tree{main: pid, namespace: s.namespace}
	go t.obey(control)
	send(report{kind: reportExit, value: uint32(t.reap())})
	return 0
}

// send writes one report. Where the host is gone nobody is left to be told.
func send(r report) { _, _ = unix.Write(fdReport, r.encode()) }

// run prepares this thread and starts the command.
func (s *spec) run() (pid int, failed *report) {
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"close descriptors", func() error { return closeOnExecFrom(fdStdio) }},
		{"chdir", s.chdir},
		{"set limits", s.setLimits},
		{"become what holds the tree", s.hold},
		{"drop privileges", dropPrivileges},
		{"reset signals", resetSignals},
	} {
		if err := step.do(); err != nil {
			return 0, failure(step.name, err)
		}
	}
	unix.Umask(unix.Umask(0o077) | 0o022) // what the host has, and never writable by all
	pid, err := syscall.ForkExec(s.path, s.argv, &syscall.ProcAttr{
		Env:   s.env,
		Files: []uintptr{fdStdio, fdStdio + 1, fdStdio + 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, failure("exec", err)
	}
	// The streams belong to the command alone: its closing them must show.
	for fd := fdStdio; fd < fdDir; fd++ {
		_ = unix.Close(fd)
	}
	if s.hasDirFD {
		_ = unix.Close(fdDir)
	}
	return pid, nil
}

func failure(op string, err error) *report {
	r := &report{kind: reportFailed, text: op}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		r.value = uint32(errno)
	} else {
		r.text += ": " + err.Error()
	}
	return r
}

func (s *spec) chdir() error {
	if s.hasDirFD {
		return unix.Fchdir(fdDir)
	}
	if s.dir != "" {
		return unix.Chdir(s.dir)
	}
	return nil
}

// setLimits bounds this process and so all it starts; the launcher itself
// needs next to nothing.
func (s *spec) setLimits() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	for _, l := range []struct {
		resource int
		value    uint64
	}{
		{unix.RLIMIT_FSIZE, s.limits.FileBytes},
		{unix.RLIMIT_NOFILE, s.limits.OpenFiles},
		{unix.RLIMIT_CPU, s.limits.CPUSeconds},
	} {
		if l.value == 0 {
			continue
		}
		var old unix.Rlimit
		if err := unix.Getrlimit(l.resource, &old); err != nil {
			return err
		}
		value := min(l.value, old.Max) // never raised
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return err
		}
	}
	return nil
}

// hold makes this process the one that no descendant gets away from. As pid 1
// it is that already, and gets a /proc that shows its own namespace only, where
// that is allowed; otherwise it adopts every orphan.
func (s *spec) hold() error {
	if s.namespace {
		privateProc()
		return nil
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

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
func dropPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// The real-time signals, those that C libraries keep for themselves included.
const (
	firstRealTime = 32
	lastRealTime  = 64
)

// resetSignals undoes what the host's parent may have blocked or ignored: a
// signal with a Go handler is back at its default after exec.
func resetSignals() error {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	for sig := uintptr(firstRealTime); sig <= lastRealTime; sig++ {
		// Go's runtime does not touch these; a C library or a parent may have
		var byDefault [64]byte // struct sigaction, zero on every architecture
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
	return unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
}

// closeOnExecFrom marks every descriptor from first on, so that nothing the
// host inherited from its own parent leaks further.
func closeOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	dir, err := os.Open("/proc/self/fd") // kernels before 5.11
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return err
}
