package proc

import (
	"errors"
	"os"
	"syscall"
)

// signals are those that an agent may send. Windows knows no other way to end a
// process than to kill it, so each of those that ask for an end does.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGTERM": syscall.SIGKILL, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGKILL, "SIGHUP": syscall.SIGKILL,
		"SIGQUIT": syscall.SIGKILL,
	}
}

// errNoTerminal says that this system has no pty.
var errNoTerminal = errors.New("this system has no terminals to give to a process; spawn it without \"pty\"")

func openTerminal() (master, slave *os.File, err error) { return nil, nil, errNoTerminal }

func setSize(uintptr, uint16, uint16) error { return errNoTerminal }
