package record

import "os/exec"

// ownGroup does nothing: the host ends when its input ends.
func ownGroup(*exec.Cmd) {}

// terminate does nothing: Windows has no such signal.
func terminate(*exec.Cmd) {}

// killGroup kills the host.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // it may have ended already
