//go:build !linux && !darwin

package cli

// freeBytes always reports that the number is unknown on this system.
func freeBytes(string) (free int64, known bool) { return 0, false }
