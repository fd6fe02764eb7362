package sandbox

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// warden changes the mode, owner or times of files for a command without a mount namespace. Landlock does not know
// these calls, so from the command they would reach every file. The filter passes them to the warden, which allows them
// only for files that the command may change. It copies the arguments and acts on the file that it has opened, so that
// files and memory that the command swaps meanwhile do not matter.
type warden struct {
	tree     *tree
	grants   []grant
	listener chan int // sends fd once; -1 if nothing can be passed on
	fd       int
}

// notice is the kernel's struct seccomp_notif.
type notice struct {
	id   uint64
	pid  uint32
	_    uint32
	call int32
	_    uint32
	_    uint64
	args [6]uint64
}

// verdict is the kernel's struct seccomp_notif_resp.
type verdict struct {
	id    uint64
	_     int64
	errno int32
	flags uint32
}

// ioctlNoticeValid asks whether the waiting thread still exists; x/sys does not define it.
const ioctlNoticeValid = 0x40082102

// changingCalls returns the calls that change a file's metadata and that the warden makes instead.
func changingCalls() []uint32 {
	return append(archChangingCalls(), unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN,
		unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT)
}

// serve answers calls until the launcher ends. It first drops the capabilities of root, so that it can
// only do what the command's user may do.
func (w *warden) serve() {
	w.fd = <-w.listener
	if w.fd < 0 {
		return
	}
	if dropCapabilities() != nil {
		_ = unix.Close(w.fd) // the command then gets ENOSYS for these calls
		return
	}
	for {
		var q notice
		switch errno := ioctl(w.fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); errno {
		case 0:
		case unix.EINTR, unix.ENOENT: // the calling thread is gone
			continue
		default:
			_ = unix.Close(w.fd)
			return
		}
		a := verdict{id: q.id, errno: -int32(w.change(&q))}
		_ = ioctl(w.fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)) // ENOENT: as above
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// fileChange is a change of one file: of a path, relative to a folder, or of a descriptor if path is 0.
type fileChange struct {
	dir    int
	path   uint64 // its address in the memory of the caller
	follow bool
	empty  bool // an empty path means the descriptor dir
	do     func(file string, fd int) error
}

// change makes one change for the command.
func (w *warden) change(q *notice) unix.Errno {
	task := strconv.FormatUint(uint64(q.pid), 10)
	r, err := w.understand(q, task)
	if err != nil {
		return asErrno(err)
	}
	fd, err := w.open(r, task)
	if err != nil {
		return asErrno(err)
	}
	defer unix.Close(fd)
	id := q.id
	if errno := ioctl(w.fd, ioctlNoticeValid, unsafe.Pointer(&id)); errno != 0 {
		return errno // the caller's number may belong to another process now
	}
	file := "/proc/self/fd/" + strconv.Itoa(fd)
	if !w.mayChange(file) {
		return unix.EPERM
	}
	return asErrno(r.do(file, fd))
}

func asErrno(err error) unix.Errno {
	if errno, ok := err.(unix.Errno); ok || err == nil {
		return errno
	}
	return unix.EPERM
}

// understand reads the arguments of a call. An old call in q is replaced by the call that every architecture has.
func (w *warden) understand(q *notice, task string) (*fileChange, error) {
	clock := archModernCall(q)
	r := &fileChange{dir: int(int32(q.args[0])), path: q.args[1], follow: true}
	flags := func(arg int) {
		r.follow, r.empty = q.args[arg]&unix.AT_SYMLINK_NOFOLLOW == 0, q.args[arg]&unix.AT_EMPTY_PATH != 0
	}
	mode, uid, gid := uint32(q.args[2])&0o7777, int(int32(q.args[2])), int(int32(q.args[3]))
	switch q.call {
	case unix.SYS_FCHMOD:
		r.path, mode = 0, uint32(q.args[1])&0o7777
	case unix.SYS_FCHMODAT2:
		flags(3)
	case unix.SYS_FCHOWN:
		r.path, uid, gid = 0, int(int32(q.args[1])), int(int32(q.args[2]))
	case unix.SYS_FCHOWNAT:
		flags(4)
	case unix.SYS_UTIMENSAT:
		flags(3)
		times, err := w.times(task, q.args[2], clock)
		r.do = func(file string, _ int) error { return unix.UtimesNanoAt(unix.AT_FDCWD, file, times, 0) }
		return r, err
	}
	if q.call == unix.SYS_FCHOWN || q.call == unix.SYS_FCHOWNAT {
		r.do = func(_ string, fd int) error { return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH) }
		return r, nil
	}
	r.do = func(file string, fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return unix.EOPNOTSUPP // a link has no mode of its own
		}
		return unix.Chmod(file, mode)
	}
	return r, nil
}

// clock says how two times lie in memory: each has a fraction of a second if unit, which is in nanoseconds, is not 0.
type clock struct{ unit int64 }

// times reads two times; address 0 means the current time.
func (w *warden) times(task string, address uint64, c clock) ([]unix.Timespec, error) {
	if address == 0 {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		return []unix.Timespec{now, now}, nil
	}
	var words [4]int64
	n := len(words)
	if c.unit == 0 {
		n = 2
	}
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&words)), 8*n)
	if got, err := w.read(task, address, buf); err != nil || got < len(buf) {
		return nil, unix.EFAULT
	}
	if c.unit == 0 {
		return []unix.Timespec{{Sec: words[0]}, {Sec: words[1]}}, nil
	}
	return []unix.Timespec{{Sec: words[0], Nsec: words[1] * c.unit}, {Sec: words[2], Nsec: words[3] * c.unit}}, nil
}

// read copies memory of the calling process.
func (w *warden) read(task string, address uint64, buf []byte) (int, error) {
	fd, err := unix.Openat(w.tree.proc, task+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, unix.EPERM // its memory cannot be read
	}
	defer unix.Close(fd)
	return unix.Pread(fd, buf, int64(address))
}

// open opens the file that the caller means.
func (w *warden) open(r *fileChange, task string) (int, error) {
	path := ""
	if r.path != 0 {
		var buf [unix.PathMax]byte
		n, err := w.read(task, r.path, buf[:])
		end := bytes.IndexByte(buf[:max(n, 0)], 0)
		switch {
		case err != nil:
			return -1, unix.EFAULT
		case end < 0:
			return -1, unix.ENAMETOOLONG
		case end == 0 && !r.empty:
			return -1, unix.ENOENT
		}
		path = string(buf[:end])
	}
	if name, ok := ownDescriptor(path, task); ok {
		path, r.dir = "", name
	}
	from := task + "/fd/" + strconv.Itoa(r.dir)
	if r.dir == unix.AT_FDCWD {
		from = task + "/cwd"
	}
	base, err := unix.Openat(w.tree.proc, from, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil && r.dir != unix.AT_FDCWD && !strings.HasPrefix(path, "/") {
		return -1, unix.EBADF
	}
	if path == "" || err != nil && !strings.HasPrefix(path, "/") {
		return base, err
	}
	defer unix.Close(base)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if !r.follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	return unix.Openat2(base, path, how)
}

// ownDescriptor returns the number of the caller's descriptor if a path is another name for it. Such
// links of /proc would lead to the warden's own descriptors.
func ownDescriptor(path, task string) (int, bool) {
	for _, dir := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/", "/proc/" + task + "/fd/"} {
		if name, ok := strings.CutPrefix(path, dir); ok {
			n, err := strconv.Atoi(name)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// mayChange reports whether the narrowest grant that contains a file allows the command to change it.
// The path of a deleted file is still known.
func (w *warden) mayChange(file string) bool {
	path, err := os.Readlink(file)
	if err != nil {
		return false
	}
	path = strings.TrimSuffix(path, " (deleted)")
	depth, may := -1, false
	for _, g := range w.grants {
		if (g.Access == accessRead || g.Access == accessWrite) && len(g.Source) > depth && within(g.Source, path) {
			depth, may = len(g.Source), g.Access == accessWrite
		}
	}
	return may
}

// listen installs the filter and returns the descriptor from which the warden reads its calls.
func listen(prog *unix.SockFprog) (int, error) {
	for _, killable := range []uintptr{unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0} { // the flag is of Linux 5.19
		fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|killable, uintptr(unsafe.Pointer(prog)))
		runtime.KeepAlive(prog)
		if errno != unix.EINVAL || killable == 0 {
			if errno != 0 {
				return -1, errno
			}
			return int(fd), nil
		}
	}
	return -1, unix.EINVAL
}
