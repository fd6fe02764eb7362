//go:build !linux

package main

import (
	"os"
	"os/exec"
	"time"
)

// tellsMemory says whether megabytes knows anything.
const tellsMemory = false

// ownGroup does nothing: the host itself ends what it has started.
func ownGroup(*exec.Cmd) {}

// killGroup ends the child at once.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended before
}

// setPipe leaves the pipe as the system made it.
func setPipe(*os.File, int) {}

// pipeSize is unknown here, so nothing is taken to fit.
func pipeSize(*os.File) int { return 0 }

// cpuTime is unknown while the process runs; its total is read when it ended.
func cpuTime(*exec.Cmd) time.Duration { return 0 }

// megabytes is unknown here.
func megabytes(*child, string) float64 { return 0 }
