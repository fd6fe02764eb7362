//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// takeStdout keeps a private copy of stdout for the protocol and points file descriptor 1 at
// stderr. So nothing that a library prints there can get between two messages.
func takeStdout(sys *System) (*os.File, error) {
	private, err := unix.FcntlInt(sys.Out.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if err := dup2(int(sys.Err.Fd()), int(sys.Out.Fd())); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(private), "stdout"), nil
}

// watchPeer calls gone when the reader of out closes it, and silent when the writer of in does,
// even while nothing is written or read. For files other than pipes and sockets it waits forever.
func watchPeer(in, out *os.File, silent, gone func()) {
	const closed = unix.POLLERR | unix.POLLHUP // these are always reported
	fds := []unix.PollFd{{Fd: int32(out.Fd())}, {Fd: int32(in.Fd()), Events: peerClosed}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return
		case fds[0].Revents != 0:
			if fds[0].Revents&closed != 0 {
				gone()
			}
			return
		case fds[1].Revents != 0:
			if fds[1].Revents&(closed|peerClosed) != 0 {
				silent()
			}
			fds[1].Fd = -1 // poll ignores a negative descriptor
		}
	}
}

// thrownAway reports whether nobody reads what is written to out, because it is the null device,
// opened for reading and writing. Go opens it like this in place of a stdout that was closed at the
// start, which is usually a mistake. But a parent may have done it on purpose, like Python's
// subprocess.DEVNULL, and the two cases look the same. A shell's >/dev/null is write-only and
// intended.
func thrownAway(out *os.File) bool {
	var null, at unix.Stat_t
	if unix.Fstat(int(out.Fd()), &at) != nil || at.Mode&unix.S_IFMT != unix.S_IFCHR {
		return false
	}
	if unix.Stat(os.DevNull, &null) != nil || at.Rdev != null.Rdev {
		return false
	}
	flags, err := unix.FcntlInt(out.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}
