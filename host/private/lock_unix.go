//go:build unix

package private

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// TryLock takes the lock of an open lock file; ok is false when somebody else
// holds it. Closing h gives it back.
func TryLock(h *os.File) (ok bool, err error) {
	for {
		err := unix.Flock(int(h.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}
