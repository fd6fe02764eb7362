//go:build unix

package private

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// TryLock takes the lock of an open lock file without waiting. ok is false if another process holds
// it. Closing h releases the lock.
func TryLock(h *os.File) (ok bool, err error) { return tryLock(h, unix.LOCK_EX) }

// TryShare takes a shared lock, for callers that only check whether the lock is held: they do not block each other.
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
