//go:build unix

package host

import "syscall"

// readerGone lists the errors of a write when the other end is closed.
func readerGone() []error { return []error{syscall.EPIPE, syscall.ECONNRESET} }
