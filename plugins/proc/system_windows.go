package proc

import (
	"errors"
	"os"
	"syscall"
)

// signals returns the signals that an agent may send, by name. Windows can end a process only
// by killing it, so each of these signals kills.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"SIGTERM": syscall.SIGKILL, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGKILL, "SIGHUP": syscall.SIGKILL,
		"SIGQUIT": syscall.SIGKILL,
	}
}

// errNoTerminal is the error for a pty on this system, which has none.
var errNoTerminal = errors.New("this system has no terminals to give to a process; spawn it without \"pty\"")

func openTerminal() (master, slave *os.File, err error) { return nil, nil, errNoTerminal }

func setSize(uintptr, uint16, uint16) error { return errNoTerminal }
