package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	fileRights = readFileRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// fileAccess returns all rights to files that an ABI knows.
func fileAccess(abi int) uint64 {
	const first = unix.LANDLOCK_ACCESS_FS_REFER - 1 // all before it
	rights := uint64(first)
	for _, r := range []struct {
		abi   int
		right uint64
	}{
		{2, unix.LANDLOCK_ACCESS_FS_REFER}, {3, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}, {9, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
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
		return int(abi), fmt.Errorf("the kernel's Landlock is version %d, which cannot tell renames from links; Linux 5.19 has version %d", abi, landlockNeeds)
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
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0); errno != 0 {
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
	const device = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
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
		errs = append(errs, rules.allow("/", unix.LANDLOCK_ACCESS_FS_READ_DIR), rules.allow("/etc/passwd", readRights), rules.allow("/etc/group", readRights),
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

// userNamespacesOff tells which switch of the system keeps user namespaces from
// this user.
func userNamespacesOff() error {
	if _, err := os.Stat("/proc/self/ns/user"); errors.Is(err, fs.ErrNotExist) {
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
		text, err := os.ReadFile("/proc/sys/" + sw.name)
		if err == nil && strings.TrimSpace(string(text)) == sw.off {
			return fmt.Errorf("sysctl %s is %s", strings.ReplaceAll(sw.name, "/", "."), sw.off)
		}
	}
	return nil
}
