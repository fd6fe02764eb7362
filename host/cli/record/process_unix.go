//go:build unix

package record

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's Ctrl-C from the host, so that the program which started the host
// can end it in order.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks the host to end.
func terminate(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) } // it may have ended already

// killGroup kills the host and all processes in its group.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may have ended already
