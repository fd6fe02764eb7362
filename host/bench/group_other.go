//go:build !unix

package bench

import "os/exec"

// ownGroup does nothing: there are no process groups here.
func ownGroup(*exec.Cmd) {}

// killGroup ends the child at once.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended before
}
