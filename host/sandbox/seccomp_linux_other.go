//go:build linux && !amd64

package sandbox

// archDeniedCalls are those that only this machine has.
func archDeniedCalls() []uint32 { return nil }
