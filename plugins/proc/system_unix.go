//go:build unix

package proc

import (
	"errors"
	"os"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// openTerminal opens a pty. Reads and writes of the master can have a deadline.
// Those of the file that pty.Open returns cannot: a call of its Fd has made the file
// blocking.
func openTerminal() (master, slave *os.File, err error) {
	opened, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	fd, err := unix.FcntlInt(opened.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	opened.Close()
	if err != nil {
		return nil, nil, errors.Join(err, slave.Close())
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd), slave.Close())
	}
	return os.NewFile(uintptr(fd), "pty"), slave, nil
}

// setSize changes the size of a terminal, and so notifies the processes in it; 0 leaves a
// side unchanged.
func setSize(fd uintptr, cols, rows uint16) error {
	size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return err
	}
	if cols > 0 {
		size.Col = cols
	}
	if rows > 0 {
		size.Row = rows
	}
	return unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size)
}

// signals returns the signals that an agent may send, by name.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP,
		"SIGQUIT": syscall.SIGQUIT, "SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2,
	}
}
