package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"a2e/host/private"
)

const (
	lockFileName = ".lock"
	lockPollMin  = time.Millisecond
	lockPollMax  = 20 * time.Millisecond
)

// lock takes the lock that hosts sharing this file agree on. It returns up with
// an error after patience, or when quit is closed.
func (f *file) lock(quit <-chan struct{}, patience time.Duration) (unlock func(), err error) {
	dir, err := private.MakeDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	h, err := waitLock(dir, filepath.Base(f.path)+lockFileName, quit, patience)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	f.dir = dir
	return func() {
		f.dir = nil
		_, _ = h.Close(), dir.Close()
	}, nil
}

func waitLock(dir *private.Dir, name string, quit <-chan struct{}, patience time.Duration) (*os.File, error) {
	deadline := time.Now().Add(patience)
	for poll := lockPollMin; ; poll = min(2*poll, lockPollMax) {
		h, err := dir.Open(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, err
		}
		ok, err := private.TryLock(h)
		// A lock file that was removed meanwhile guards nothing any more.
		if ok && sameFile(h, dir, name) {
			return h, nil
		}
		_ = h.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", h.Name(), err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is held by another process", h.Name())
		}
		select {
		case <-quit:
			return nil, errClosing
		case <-time.After(poll):
		}
	}
}

func sameFile(h *os.File, dir *private.Dir, name string) bool {
	a, err := h.Stat()
	if err != nil {
		return false
	}
	b, err := dir.Lstat(name)
	return err == nil && os.SameFile(a, b)
}
