package host

import "syscall"

// readerGone lists the errors of a write when the other end is closed.
func readerGone() []error {
	const noData = syscall.Errno(232) // ERROR_NO_DATA: the pipe is being closed
	return []error{syscall.ERROR_BROKEN_PIPE, noData, syscall.WSAECONNRESET}
}
