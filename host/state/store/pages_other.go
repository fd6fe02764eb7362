//go:build !unix

package store

// openedSafely: the names were looked at (see Open), which is all there is here.
func openedSafely(uintptr) bool { return true }
