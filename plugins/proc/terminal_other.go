//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package proc

import (
	"errors"
	"os"
)

// errNoTerminal says that this system has no pty.
var errNoTerminal = errors.New("this system has no terminals to give to a process; spawn it without \"pty\"")

func openTerminal() (master, slave *os.File, err error) { return nil, nil, errNoTerminal }

func setSize(uintptr, uint16, uint16) error { return errNoTerminal }
