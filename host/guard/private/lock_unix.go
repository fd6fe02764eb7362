//go:build unix

package private

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// TryLock takes the lock of an open lock file; ok is false when somebody else
// holds it. Closing h gives it back.
func TryLock(h *os.File) (ok bool, err error) { return tryLock(h, unix.LOCK_EX) }

// TryShare is TryLock for those who only look whether the lock is held: they do not keep each
// other out.
func TryShare(h *os.File) (ok bool, err error) { return tryLock(h, unix.LOCK_SH) }

func tryLock(h *os.File, how int) (ok bool, err error) {
	for {
		err := unix.Flock(int(h.Fd()), how|unix.LOCK_NB)
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
