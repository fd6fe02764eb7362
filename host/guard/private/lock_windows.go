package private

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock takes the lock of an open lock file; ok is false when somebody else
// holds it. Closing h gives it back.
func TryLock(h *os.File) (ok bool, err error) { return tryLock(h, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// TryShare is TryLock for those who only look whether the lock is held: they do not keep each
// other out.
func TryShare(h *os.File) (ok bool, err error) { return tryLock(h, 0) }

func tryLock(h *os.File, how uint32) (ok bool, err error) {
	err = windows.LockFileEx(windows.Handle(h.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}
