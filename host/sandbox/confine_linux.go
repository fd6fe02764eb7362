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

// dropCapabilities takes all capabilities of root permanently from this thread and from the programs that it starts.
func dropCapabilities() error {
	if held, err := holdsCapabilities(); err != nil || !held {
		return err
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL {
			break // past the last capability
		}
		if err != nil {
			return err
		}
	}
	// no exec and no change of user brings a capability back
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

// holdsCapabilities reports whether there are capabilities to drop. A user without any gets none by an
// exec either, because of no_new_privs.
func holdsCapabilities() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData
	err := unix.Capget(&header, &own[0])
	return own != [2]unix.CapUserData{}, err
}

// separate moves this thread into its own network, IPC and UTS namespaces.
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
			_ = unix.Sethostname([]byte(hostName)) // hides the name of the machine
		}
	}
}

// hostName is the name of the machine that a child sees.
const hostName = "a2e"

// pidReserve is how many process numbers the kernel reserves.
const pidReserve = 300

// launcherThreads is how many threads of the launcher have a number that limitPIDs counts.
const launcherThreads = 4

// limitPIDs bounds the number of processes of this PID namespace by bounding their numbers, which also binds root. proc
// is the namespace's /proc. Before Linux 6.14 the bound applies to the whole machine, so it is not changed. The kernel
// skips the reserved numbers only after all numbers were used once, so numbering starts behind them.
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

// ownProcessLimit reports whether the kernel counts the processes of this user namespace alone. Older
// kernels count all processes of the user, and never limit root.
func (s *spec) ownProcessLimit() bool {
	return s.UserNamespace && !s.HostIsRoot && kernelAtLeast(5, 14)
}

// kernelAtLeast reports whether the running Linux has at least this version.
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

// limitResources sets the limits of this process and thus of all that it starts. It comes last,
// because the launcher needs few resources from then on.
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
		value := min(uint64(b.value), old.Max) // a hard limit is never raised
		if err := unix.Setrlimit(b.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return err
		}
	}
	return nil
}

// offerToOOM makes the kernel kill this tree first when the machine runs out of memory. Raising the
// score needs no right, and it does no harm if that fails.
func offerToOOM() {
	const worst = "1000"
	if fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte(worst))
		_ = unix.Close(fd)
	}
}

// machineMemory returns the memory of this machine, in bytes.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}

// This file makes the Landlock system calls itself. A library would restrict all threads, each in its
// own domain, and then the launcher could not signal its command.

// landlockNeeds is the first Landlock ABI that can allow renaming a file from one folder to another.
const landlockNeeds = 2

// What a read grant allows, for files and folders alike.
const (
	readFileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	readRights     = readFileRights | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// fileRights are the rights that apply to a file; the kernel refuses a rule for a file with other rights.
	fileRights = readFileRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// fileAccess returns all file rights that a Landlock ABI knows.
func fileAccess(abi int) uint64 {
	const first = unix.LANDLOCK_ACCESS_FS_REFER - 1 // all rights before it
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

// landlockABI returns the kernel's Landlock version, or an error that says why it is missing or too old.
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

// ruleset is a Landlock ruleset under construction.
type ruleset struct {
	fd     int
	access uint64 // all rights that it controls
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

// allow grants rights to a path; a path that does not exist is skipped.
func (r *ruleset) allow(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	return r.allowOpen(fd, err, path, rights)
}

// allowGrant grants rights to the source of a grant, if it exists, and not to another file that took its place.
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

// enforce applies the rules to this thread and to what it starts. It needs no_new_privs.
func (r *ruleset) enforce() error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); errno != 0 {
		return errno
	}
	return unix.Close(r.fd)
}

// restrictFiles applies Landlock rules for the grants to this thread.
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
			g = grant{Access: g.Access, Source: g.Target} // this root contains no links of others
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

// surelyMissing returns the mechanisms that this machine certainly lacks, with the reasons, after a few cheap checks.
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

// sysctl returns a setting of the system, or "" if it does not exist. It reads 64 bytes at most. The handshake waits
// for it: os.ReadFile would take twice as long, because it registers the file for polling.
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

// userNamespacesOff returns an error that names the system setting that forbids user namespaces to this user, or nil.
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
