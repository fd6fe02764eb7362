package sandbox

import (
	"os"
	"syscall"
)

const platformMechanism = MechanismProcess

// platformAttr keeps a console's Ctrl-C, meant for the host, from the command.
func platformAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// killGroup reaches nothing beyond the command on Windows.
func killGroup(*os.Process) {}

func signalGroup(proc *os.Process, sig syscall.Signal) error { return proc.Signal(sig) }
