package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	rootBytes = "1m"  // size of the root folder's tmpfs, which holds names only
	shmBytes  = "64m" // size of /dev/shm, which uses memory
)

// devices returns the devices that ordinary programs use.
func devices() []string { return []string{"null", "zero", "full", "random", "urandom", "tty"} }

// root is a new root file system under construction: a mount namespace that contains only what the view grants.
type root struct {
	frame *frame
	base  int   // the folder that becomes "/"
	masks []int // mounts that cover hidden folders; writable until closeMasks, for mounts inside
}

// newRoot makes the root of this thread. missing says why the machine does not allow it; err is an
// error on a machine that does.
func (s *frame) newRoot() (missing, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err), nil
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount: %w", err), nil
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{}); err != nil {
		return fmt.Errorf("mount_setattr (Linux 5.12 has it): %w", err), nil
	}
	r := &root{frame: s}
	trees, err := r.open()
	if err == nil {
		err = r.build(trees)
	}
	if err == nil {
		err = r.enter()
	}
	return nil, err
}

// branch is a copy of a part of the old root, to be mounted in the new one.
type branch struct {
	grant
	fd  int // -1 for a link
	dir bool
}

// etc is mounted as a whole if Landlock can hide the parts that are not granted: mounting its many
// parts would take longer than all the rest.
const etc = "/etc"

// open copies the granted parts before anything covers them.
func (r *root) open() ([]branch, error) {
	var trees []branch
	grants := r.frame.Grants
	if _, err := landlockABI(); err == nil {
		r.frame.wholeEtc = true
		// a part of /etc may be the workspace, which stays, with its read-only parts
		grants = slices.DeleteFunc(slices.Clone(grants), func(g grant) bool {
			return g.Access != accessWrite && within(etc, g.Target) && !slices.ContainsFunc(r.frame.Grants,
				func(w grant) bool { return w.Access == accessWrite && within(w.Target, g.Target) })
		})
		grants = slices.Insert(grants, 0, grant{Access: accessRead, Source: etc, Target: etc})
	}
	for _, g := range grants {
		if g.Access == accessLink {
			trees = append(trees, branch{grant: g, fd: -1})
			continue
		}
		t, err := r.tree(g)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue // it was removed after the view was made
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.Target, err)
		}
		trees = append(trees, t)
	}
	return trees, nil
}

func (r *root) tree(g grant) (branch, error) {
	if g.Access != accessHide {
		return cloneTree(g)
	}
	fd, err := newFS("tmpfs", map[string]string{"size": rootBytes, "mode": "755"},
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return branch{}, err
	}
	mask, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, fdFirst)
	r.masks = append(r.masks, mask)
	return branch{g, fd, true}, err
}

// closeMasks makes the mounts that cover hidden folders read-only.
func (r *root) closeMasks() error {
	for _, fd := range r.masks {
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("hide: %w", err)
		}
	}
	return nil
}

func cloneTree(g grant) (branch, error) {
	at, err := g.open()
	if err != nil {
		return branch{}, err
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return branch{}, err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if g.Access != accessDevice {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if g.Access != accessWrite { // a device stays writable, but its mode and times cannot be changed
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return branch{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return branch{}, err
	}
	return branch{g, fd, st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// build mounts the trees in the base, with /dev, /proc and the accounts.
func (r *root) build(trees []branch) error {
	nodes := r.cloneDevices()
	proc, err := r.openProc()
	if err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if r.base, err = newFS("tmpfs", map[string]string{"size": rootBytes, "mode": "755"},
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return fmt.Errorf("tmpfs: %w", err)
	}
	// The base is mounted over the old /proc, from which the view takes nothing.
	if err := unix.MoveMount(r.base, "", unix.AT_FDCWD, "/proc", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	if err := r.attach(append(trees, proc)); err != nil {
		return err
	}
	for _, step := range []func() error{
		r.closeMasks, func() error { return r.makeDev(nodes) }, r.maskProc,
		r.makeAccounts,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) attach(trees []branch) error {
	for _, t := range trees {
		var err error
		if t.Access == accessLink {
			err = r.link(t.Source, t.Target)
		} else {
			err = r.hang(t)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.Target, err)
		}
	}
	return nil
}

// hang mounts a tree at its target, and makes the target if it is missing.
func (r *root) hang(t branch) error {
	parent, name, err := r.parent(t.Target)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	at, err := below(parent, name, unix.O_PATH)
	if err == unix.ENOENT {
		if t.dir {
			err = unix.Mkdirat(parent, name, 0o755)
		} else {
			err = makeFile(parent, name, "")
		}
		if err == nil || err == unix.EEXIST { // another child that starts at the same time may share the folder
			at, err = below(parent, name, unix.O_PATH)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	err = unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	return errors.Join(err, unix.Close(t.fd))
}

// parent opens the folder that contains the target, and makes it if it is missing. It follows no
// links: another child could have placed one in the temporary folder.
func (r *root) parent(target string) (dir int, name string, err error) {
	names := strings.Split(target[1:], "/")
	if dir, err = unix.Dup(r.base); err != nil {
		return -1, "", err
	}
	for _, name := range names[:len(names)-1] {
		next, err := below(dir, name, unix.O_PATH|unix.O_DIRECTORY)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(dir, name, 0o755); err == nil || err == unix.EEXIST {
				next, err = below(dir, name, unix.O_PATH|unix.O_DIRECTORY)
			}
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, "", fmt.Errorf("%s: %w", name, err)
		}
		dir = next
	}
	return dir, names[len(names)-1], nil
}

// below opens one name in a folder, unless it is a link.
func below(dir int, name string, flags uint64) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

func makeFile(dir int, name, text string) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(text))
	return errors.Join(err, unix.Close(fd))
}

// link makes a symbolic link, unless something else exists there.
func (r *root) link(text, target string) error {
	parent, name, err := r.parent(target)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	err = unix.Symlinkat(text, parent, name)
	if err == unix.EEXIST || err == unix.EROFS {
		return nil
	}
	return err
}

// makeDev fills /dev with the harmless devices, its own terminals and shared memory.
func (r *root) makeDev(nodes []branch) error {
	if err := r.attach(nodes); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := r.link(text, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, fs := range []struct {
		kind, target string
		options      map[string]string
		attr         int
	}{
		{
			"devpts", "/dev/pts",
			map[string]string{"newinstance": "", "ptmxmode": "0666", "mode": "620"},
			unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC,
		},
		{
			"tmpfs", "/dev/shm",
			map[string]string{"size": shmBytes, "mode": "1777"},
			unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		},
	} {
		fd, err := newFS(fs.kind, fs.options, fs.attr)
		if err == nil {
			err = r.hang(branch{grant{Access: accessWrite, Source: fs.kind, Target: fs.target}, fd, true})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", fs.target, err)
		}
	}
	return nil
}

// cloneDevices copies the device files for the new /dev.
func (r *root) cloneDevices() (nodes []branch) {
	for _, name := range devices() {
		if t, err := cloneTree(grant{
			Access: accessDevice, Source: "/dev/" + name,
			Target: "/dev/" + name,
		}); err == nil {
			nodes = append(nodes, t)
		}
	}
	if name := r.frame.Console; name != "" {
		// The console comes from outside: programs that look for its name search /dev.
		if t, err := cloneTree(grant{Access: accessDevice, Source: name, Target: "/dev/console"}); err == nil {
			nodes = append(nodes, t)
		}
	}
	return nodes
}

// openProc returns a read-only /proc, because some of its files belong to the user of the host, who may be root. It
// shows this PID namespace if the machine allows that, otherwise the /proc of the host.
func (r *root) openProc() (branch, error) {
	g := grant{Access: accessRead, Source: "/proc", Target: "/proc"}
	if !r.frame.Namespace {
		return cloneTree(g)
	}
	fd, err := newFS("proc", nil, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		r.frame.miss(findPrivateProc, err)
		return cloneTree(g)
	}
	r.frame.limitPIDs(fd)
	return branch{g, fd, true}, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// maskedProc returns the files of /proc that reveal the machine's keys, memory and other processes,
// and that a child of a host running as root could read.
func maskedProc() []string {
	return []string{"kcore", "keys", "kpagecgroup", "kpagecount", "kpageflags", "sched_debug", "timer_list"}
}

// maskProc covers the files of maskedProc. Files that the machine lacks need no cover.
func (r *root) maskProc() error {
	if !r.frame.HostIsRoot {
		return nil // for other users the modes of these files are enough
	}
	for _, name := range maskedProc() {
		t, err := cloneTree(grant{Access: accessDevice, Source: "/dev/null", Target: "/proc/" + name})
		if err != nil {
			return err
		}
		if err := r.hang(t); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("/proc/%s: %w", name, err)
		}
	}
	return nil
}

// makeAccounts shows a child the few accounts that it needs, instead of the accounts of the machine.
func (r *root) makeAccounts() error {
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	passwd := "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
	group := "root:x:0:\nnogroup:x:65534:\n"
	if uid != "0" {
		passwd += "agent:x:" + uid + ":" + gid + ":agent:" + r.frame.Home + ":/bin/sh\n"
	}
	if gid != "0" {
		group += "agent:x:" + gid + ":\n"
	}
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := makeFile(r.base, name, text); err != nil {
			return err
		}
		fd, err := unix.OpenTree(r.base, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == nil {
			err = r.hang(branch{grant{Access: accessRead, Source: name, Target: etc + "/" + name}, fd, false})
		}
		if err := errors.Join(err, unix.Unlinkat(r.base, name, 0)); err != nil {
			return fmt.Errorf("%s/%s: %w", etc, name, err)
		}
	}
	return nil
}

// enter makes the base the root and unmounts the old one.
func (r *root) enter() error {
	if err := unix.MountSetattr(r.base, "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return err
	}
	old, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(old)
	if err := unix.Fchdir(r.base); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	// The old root is now mounted on top of the new one, at the same path.
	if err := unix.Fchdir(old); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return errors.Join(unix.Chdir("/"), unix.Close(r.base))
}

// newFS makes a new file system that is not mounted yet.
func newFS(kind string, options map[string]string, attr int) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for key, value := range options {
		if value == "" {
			err = unix.FsconfigSetFlag(fs, key)
		} else {
			err = unix.FsconfigSetString(fs, key, value)
		}
		if err != nil {
			return -1, fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
}
