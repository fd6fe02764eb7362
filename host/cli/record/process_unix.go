//go:build unix

package record

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's Ctrl-C from the host: whoever started it ends it in order.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks the host to end.
func terminate(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) } // it may have ended before

// killGroup ends the host and what is in its group.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // likewise
