//go:build unix

package chains

import "syscall"

// openNonblock keeps an open from waiting for the other end of a pipe.
const openNonblock = syscall.O_NONBLOCK
