package sandbox

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropCapabilities takes every right of root from this thread and from what it
// starts, for good.
func dropCapabilities() error {
	if held, err := holdsCapabilities(); err != nil || !held {
		return err
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL {
			break // past the last one
		}
		if err != nil {
			return err
		}
	}
	// no exec and no change of user brings one back
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, securebits, 0, 0, 0); err != nil {
		return err
	}
	return clearCapabilities()
}

// securebits are, from linux/securebits.h, NOROOT, NO_SETUID_FIXUP and
// NO_CAP_AMBIENT_RAISE, each locked, and KEEP_CAPS locked as off.
const securebits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7

func clearCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// holdsCapabilities reports whether there is anything to drop: a user without
// rights gets none by an exec either, by no_new_privs.
func holdsCapabilities() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData
	err := unix.Capget(&header, &own[0])
	return own != [2]unix.CapUserData{}, err
}

// separate returns this thread namespaces of its own beside PID and user.
func (s *frame) separate() {
	for _, ns := range []struct {
		name string
		flag int
	}{
		{findNetwork, unix.CLONE_NEWNET}, {findIPC, unix.CLONE_NEWIPC}, {findUTS, unix.CLONE_NEWUTS},
	} {
		if ns.flag == unix.CLONE_NEWNET && s.Network == NetworkHost {
			continue
		}
		if err := unix.Unshare(ns.flag); err != nil {
			s.miss(ns.name, err)
		} else if ns.flag == unix.CLONE_NEWUTS {
			_ = unix.Sethostname([]byte(hostName)) // the name of the machine is no secret
		}
	}
}

// hostName is what a child takes for the name of its machine.
const hostName = "a2e"

// pidReserve is what the kernel keeps of the numbers for processes.
const pidReserve = 300

// launcherThreads is how many threads of the launcher have a number among those that
// limitPIDs counts.
const launcherThreads = 4

// limitPIDs bounds the processes of this PID namespace by the numbers there are
// for them, which also binds root. proc is its /proc. Before Linux 6.14 that
// bound is the whole machine's, and is left alone. The kernel keeps its reserve only once
// the numbers have gone round, so they begin behind it.
func (s *frame) limitPIDs(proc int) {
	if s.Processes <= 0 || !kernelAtLeast(6, 14) {
		return
	}
	set := func(name string, value int64) error {
		fd, err := unix.Openat(proc, "sys/kernel/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.Write(fd, strconv.AppendInt(nil, value, 10))
		return errors.Join(err, unix.Close(fd))
	}
	s.pidsLimited = errors.Join(set("ns_last_pid", pidReserve-1), set("pid_max", s.Processes+launcherThreads+pidReserve)) == nil
}

// ownProcessLimit reports whether the kernel counts the processes of this user namespace
// alone: older ones count what the user runs anywhere, and root is never bound.
func (s *spec) ownProcessLimit() bool {
	return s.UserNamespace && !s.HostIsRoot && kernelAtLeast(5, 14)
}

// kernelAtLeast compares with the running Linux.
func kernelAtLeast(major, minor int) bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	first, rest, _ := strings.Cut(unix.ByteSliceToString(name.Release[:]), ".")
	second, _, _ := strings.Cut(rest, ".")
	second, _, _ = strings.Cut(second, "-")
	a, err1 := strconv.Atoi(first)
	b, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// limitResources bounds this process and so all it starts. It comes last: the
// launcher needs next to nothing from here on.
func (s *spec) limitResources() error {
	type bound struct {
		resource int
		value    int64
	}
	bounds := []bound{{unix.RLIMIT_FSIZE, s.Limits.FileBytes}, {unix.RLIMIT_NOFILE, s.Limits.OpenFiles}, {unix.RLIMIT_CPU, s.Limits.CPUSeconds}}
	if s.Limits.Processes > 0 && s.ownProcessLimit() {
		bounds = append(bounds, bound{unix.RLIMIT_NPROC, s.Limits.Processes})
		s.pidsLimited = true
	}
	for _, b := range bounds {
		if b.value <= 0 {
			continue
		}
		var old unix.Rlimit
		if err := unix.Getrlimit(b.resource, &old); err != nil {
			return err
		}
		value := min(uint64(b.value), old.Max) // never raised
		if err := unix.Setrlimit(b.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return err
		}
	}
	return nil
}

// offerToOOM makes this tree the first to go when the machine runs out of
// memory. Raising the score needs no right, and failing to costs no safety.
func offerToOOM() {
	const worst = "1000"
	if fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte(worst))
		_ = unix.Close(fd)
	}
}

// machineMemory is the memory of this machine, in bytes.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}
