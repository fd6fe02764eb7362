//go:build linux && !amd64

package sandbox

// archCallNumbers returns the numbers of system calls that only this architecture has.
func archCallNumbers() map[string]int { return nil }
