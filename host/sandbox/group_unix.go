//go:build unix && !linux

package sandbox

import (
	"os"
	"syscall"
)

const platformMechanism = MechanismProcessGroup

// platformAttr returns the command a session, and so a process group, of its own.
func platformAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// killGroup reaches all that stayed in the command's group. It may be gone.
func killGroup(proc *os.Process) { _ = syscall.Kill(-proc.Pid, syscall.SIGKILL) }

func signalGroup(proc *os.Process, sig syscall.Signal) error { return syscall.Kill(-proc.Pid, sig) }
