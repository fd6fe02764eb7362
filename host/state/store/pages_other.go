//go:build !unix

package store

// openedSafely reports true: here only the names are checked (see Open).
func openedSafely(uintptr) bool { return true }
