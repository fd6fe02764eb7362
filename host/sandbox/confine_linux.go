package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unsafe"

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
	s.pidsLimited = errors.Join(set("ns_last_pid", pidReserve-1), set("pid_max",
		s.Processes+launcherThreads+pidReserve)) == nil
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
	bounds := []bound{
		{unix.RLIMIT_FSIZE, s.Limits.FileBytes},
		{unix.RLIMIT_NOFILE, s.Limits.OpenFiles},
		{unix.RLIMIT_CPU, s.Limits.CPUSeconds},
	}
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

// The system calls are made here, not by a library: those restrict all threads,
// each into a domain of its own, and the launcher could not signal its command
// any more.

// landlockNeeds is the first Landlock ABI that lets a file be renamed from one
// folder to another.
const landlockNeeds = 2

// What a read grant allows, for files and folders alike.
const (
	readFileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	readRights     = readFileRights | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// fileRights are those that fit a file; the kernel refuses others for one.
	fileRights = readFileRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// fileAccess returns all rights to files that an ABI knows.
func fileAccess(abi int) uint64 {
	const first = unix.LANDLOCK_ACCESS_FS_REFER - 1 // all before it
	rights := uint64(first)
	for _, r := range []struct {
		abi   int
		right uint64
	}{
		{2, unix.LANDLOCK_ACCESS_FS_REFER},
		{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{9, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	} {
		if abi >= r.abi {
			rights |= r.right
		}
	}
	return rights
}

// landlockABI returns the kernel's Landlock version, or why there is none.
func landlockABI() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno != 0:
		return 0, errors.New("the kernel has no Landlock, or it is switched off at boot")
	case abi < landlockNeeds:
		return int(abi), fmt.Errorf("the kernel's Landlock is version %d, which cannot tell renames from links; "+
			"Linux 5.19 has version %d", abi, landlockNeeds)
	}
	return int(abi), nil
}

// ruleset is a Landlock domain under construction.
type ruleset struct {
	fd     int
	access uint64 // all rights that it governs
}

func newRuleset(abi int, network Network) (*ruleset, error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: fileAccess(abi)}
	size := unsafe.Sizeof(attr.Handled_access_fs)
	if abi >= 4 {
		size += unsafe.Sizeof(attr.Handled_access_net)
	}
	if abi >= 4 && network == NetworkNone {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 10 && network == NetworkNone {
		attr.Handled_access_net |= unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP
	}
	if abi >= 6 {
		size += unsafe.Sizeof(attr.Scoped)
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return nil, errno
	}
	return &ruleset{int(fd), attr.Handled_access_fs}, nil
}

// allow grants rights to a path, if it exists.
func (r *ruleset) allow(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	return r.allowOpen(fd, err, path, rights)
}

// allowGrant grants rights to what is granted, if it exists, and to nothing else in its
// place.
func (r *ruleset) allowGrant(g grant, rights uint64) error {
	fd, err := g.open()
	return r.allowOpen(fd, err, g.Source, rights)
}

func (r *ruleset) allowOpen(fd int, err error, path string, rights uint64) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if rights &= r.access; st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", path, errno)
	}
	return nil
}

// enforce puts this thread, and what it starts, under the rules. It needs
// no_new_privs.
func (r *ruleset) enforce() error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); errno != 0 {
		return errno
	}
	return unix.Close(r.fd)
}

// restrictFiles puts this thread under Landlock.
func (s *frame) restrictFiles() error {
	abi, err := landlockABI()
	if err != nil {
		return err
	}
	rules, err := newRuleset(abi, s.Network)
	if err != nil {
		return err
	}
	const device = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	all := rules.access &^ unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	errs := []error{rules.allow("/proc", readRights)}
	for _, g := range s.Grants {
		if s.ownRoot {
			g = grant{Access: g.Access, Source: g.Target} // nobody else has put links into this root
		}
		switch g.Access {
		case accessWrite:
			errs = append(errs, rules.allowGrant(g, all))
		case accessRead:
			errs = append(errs, rules.allowGrant(g, readRights))
		}
	}
	for _, name := range append(devices(), "ptmx", "console") {
		errs = append(errs, rules.allow("/dev/"+name, device))
	}
	if s.ownRoot {
		errs = append(errs, rules.allow("/", unix.LANDLOCK_ACCESS_FS_READ_DIR), rules.allow("/etc/passwd", readRights),
			rules.allow("/etc/group", readRights),
			rules.allow("/dev/pts", device|unix.LANDLOCK_ACCESS_FS_READ_DIR), rules.allow("/dev/shm", all))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return rules.enforce()
}

// surelyMissing finds out by a few cheap questions what cannot be had here.
func surelyMissing() map[string]string {
	missing := make(map[string]string)
	if _, err := landlockABI(); err != nil {
		missing[findLandlock] = err.Error()
	}
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		missing[findSeccomp] = "the kernel has no seccomp"
	} else if auditArch() == 0 {
		missing[findSeccomp] = "there is no filter for this processor"
	}
	if err := userNamespacesOff(); err != nil {
		missing[findUser] = err.Error()
	}
	return missing
}

// sysctl returns a switch of the system; "" where it is not there or has more than a line. The
// handshake waits for this: os.ReadFile would take twice as long, as it registers the file for polling.
func sysctl(name string) string {
	fd, err := unix.Open("/proc/sys/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var text [64]byte
	n, _ := unix.Read(fd, text[:])
	return strings.TrimSpace(string(text[:max(n, 0)]))
}

// userNamespacesOff tells which switch of the system keeps user namespaces from
// this user.
func userNamespacesOff() error {
	if _, err := os.Lstat("/proc/self/ns/user"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no user namespaces")
	}
	for _, sw := range []struct{ name, off string }{
		{"user/max_user_namespaces", "0"},
		{"kernel/unprivileged_userns_clone", "0"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1"},
	} {
		if os.Geteuid() == 0 && strings.HasPrefix(sw.name, "kernel/") {
			continue // root may
		}
		if sysctl(sw.name) == sw.off {
			return fmt.Errorf("sysctl %s is %s", strings.ReplaceAll(sw.name, "/", "."), sw.off)
		}
	}
	return nil
}
