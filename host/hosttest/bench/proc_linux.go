package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tellsMemory says whether megabytes works on this system.
const tellsMemory = true

// ownGroup puts the child into a new process group, so that killGroup also ends its children.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the child and its children at once.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended before
}

// setPipe sets the size of a pipe's buffer, if allowed, and makes our end blocking:
// waiting in the kernel takes less time than in the Go runtime's poller.
func setPipe(f *os.File, size int) {
	fd := f.Fd() // Fd makes the file blocking
	if size > 0 {
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) // a smaller pipe works too
	}
}

// pipeSize returns the size of a pipe's buffer in bytes.
func pipeSize(f *os.File) int {
	n, err := unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return 0
	}
	return n
}

// cpuTime returns the processor time of all threads of a process so far, to the
// nanosecond. It reads the kernel's clock of the process, whose number it computes
// from the process id like clock_getcpuclockid.
func cpuTime(cmd *exec.Cmd) time.Duration {
	const schedClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^cmd.Process.Pid<<3|schedClock), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// megabytes returns one field of the process's status, in units of 1,000,000
// bytes; 0 if there is none.
func megabytes(c *child, field string) float64 {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		if string(name) != field {
			continue
		}
		words := bytes.Fields(rest)
		if len(words) == 0 {
			return 0
		}
		kib, err := strconv.ParseFloat(string(words[0]), 64)
		if err != nil {
			return 0
		}
		return kib * 1024 / 1e6
	}
	return 0
}
