//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// takeStdout keeps a private copy of stdout for the protocol and points file
// descriptor 1 at stderr, so that whatever a library prints there can never
// stand between two messages.
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

// watchReader calls closed when the reader of a pipe goes away, also while
// nothing is written. For other files it waits forever.
func watchReader(out *os.File, closed func()) {
	fds := []unix.PollFd{{Fd: int32(out.Fd())}} // errors are always reported
	for {
		n, err := unix.Poll(fds, -1)
		if err == unix.EINTR || err == nil && n == 0 {
			continue
		}
		if err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
			closed()
		}
		return
	}
}
