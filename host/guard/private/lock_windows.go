package private

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock takes the lock of an open lock file without waiting. ok is false if another process holds
// it. Closing h releases the lock.
func TryLock(h *os.File) (ok bool, err error) { return tryLock(h, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// TryShare takes a shared lock, for callers that only check whether the lock is held: they do not block each other.
func TryShare(h *os.File) (ok bool, err error) { return tryLock(h, 0) }

func tryLock(h *os.File, how uint32) (ok bool, err error) {
	err = windows.LockFileEx(windows.Handle(h.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}
