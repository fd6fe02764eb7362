//go:build unix

package bench

import (
	"os/exec"
	"syscall"
)

// ownGroup gives the child a process group, so that its own children end with it.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the child and its children at once.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended before
}
