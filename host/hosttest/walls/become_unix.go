//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// become lets a command run as another user.
func become(cmd *exec.Cmd, user int) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	return nil
}
