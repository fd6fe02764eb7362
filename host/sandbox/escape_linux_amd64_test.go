package sandbox

import "golang.org/x/sys/unix"

// archCallNumbers are those that only this machine has.
func archCallNumbers() map[string]int {
	return map[string]int{"utime": unix.SYS_UTIME, "utimes": unix.SYS_UTIMES}
}
