//go:build unix

package cli

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// parentFD is the variable with the number of a pipe or socket. It is closed when the parent
// ends: the program that started this one for another program, such as the npm package.
const parentFD = "A2E_LAUNCHER_FD"

// watchParent ends this program like SIGTERM once its parent has ended, because a killed
// parent cannot pass on its signal. No child gets the descriptor or the variable.
func watchParent(sys *System) {
	fd, err := strconv.Atoi(sys.getenv(parentFD))
	if err != nil || fd <= 2 {
		return
	}
	os.Unsetenv(parentFD)
	sys.Environ = slices.DeleteFunc(sys.Environ, func(entry string) bool {
		return strings.HasPrefix(entry,
			parentFD+"=")
	})
	var about syscall.Stat_t
	if err := syscall.Fstat(fd, &about); err != nil || about.Mode&syscall.S_IFMT != syscall.S_IFSOCK &&
		about.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return // the number belongs to something else
	}
	syscall.CloseOnExec(fd)
	go func() {
		for {
			n, err := syscall.Read(fd, make([]byte, 1))
			switch {
			case err == nil && n == 0 || err == syscall.ECONNRESET:
				_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
				return
			case err != nil && err != syscall.EINTR:
				return
			}
		}
	}()
}
