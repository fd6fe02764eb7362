//go:build unix

package host

import "syscall"

// readerGone lists what a write gives when the other end is closed.
func readerGone() []error { return []error{syscall.EPIPE, syscall.ECONNRESET} }
