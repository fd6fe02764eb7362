package sandbox

import "golang.org/x/sys/unix"

// archCallNumbers returns the numbers of system calls that only this architecture has.
func archCallNumbers() map[string]int {
	return map[string]int{"utime": unix.SYS_UTIME, "utimes": unix.SYS_UTIMES}
}
