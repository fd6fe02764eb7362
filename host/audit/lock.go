package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	lockFileName = ".lock"
	lockPollMin  = time.Millisecond
	lockPollMax  = 20 * time.Millisecond
)

// lock takes the lock that hosts sharing this file agree on. It gives up with
// an error after patience, or when quit is closed.
func (f *file) lock(quit <-chan struct{}, patience time.Duration) (unlock func(), err error) {
	path := f.path + lockFileName
	deadline := time.Now().Add(patience)
	for poll := lockPollMin; ; poll = min(2*poll, lockPollMax) {
		h, err := openLock(path)
		if err != nil {
			return nil, err
		}
		ok, err := tryLock(h)
		// A lock file that was removed meanwhile guards nothing any more.
		if ok && sameFile(h, path) {
			return func() { _ = h.Close() }, nil
		}
		_ = h.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is held by another process", path)
		}
		select {
		case <-quit:
			return nil, errClosing
		case <-time.After(poll):
		}
	}
}

func openLock(path string) (*os.File, error) {
	h, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, filePerm)
	if !errors.Is(err, fs.ErrNotExist) {
		return h, err
	}
	if err := os.MkdirAll(filepath.Dir(path), folderPerm); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, filePerm)
}

func sameFile(h *os.File, path string) bool {
	a, err := h.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
