//go:build unix

package cli

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// launcherFD names the pipe or socket that ends with the program which started this one on behalf
// of another, as the npm package does.
const launcherFD = "A2E_LAUNCHER_FD"

// watchLauncher ends this program as SIGTERM does once its launcher is gone: a killed launcher
// cannot pass on what killed it. No child gets the descriptor, or its name.
func watchLauncher(sys *System) {
	fd, err := strconv.Atoi(sys.getenv(launcherFD))
	if err != nil || fd <= 2 {
		return
	}
	os.Unsetenv(launcherFD)
	sys.Environ = slices.DeleteFunc(sys.Environ, func(entry string) bool {
		return strings.HasPrefix(entry,
			launcherFD+"=")
	})
	var about syscall.Stat_t
	if err := syscall.Fstat(fd, &about); err != nil || about.Mode&syscall.S_IFMT != syscall.S_IFSOCK &&
		about.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return // it names what another program has
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
