//go:build unix && !linux

package sandbox

import (
	"os"
	"syscall"
)

const platformMechanism = MechanismProcessGroup

// platformAttr starts the command in its own session, and so in its own process group.
func platformAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// killGroup kills all processes that stayed in the command's group. The group may be gone.
func killGroup(proc *os.Process) { _ = syscall.Kill(-proc.Pid, syscall.SIGKILL) }

func signalGroup(proc *os.Process, sig syscall.Signal) error { return syscall.Kill(-proc.Pid, sig) }
