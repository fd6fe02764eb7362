//go:build linux && !amd64

package sandbox

// archCallNumbers are those that only this machine has.
func archCallNumbers() map[string]int { return nil }
