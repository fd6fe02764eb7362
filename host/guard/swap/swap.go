// Package swap replaces a file by a new one, completely or not at all. The new file keeps the owner
// and the rights of the old one. A lock allows only one host at a time.
//
//	swap.go    the lock of a folder; Replace     rights_*.go   owner, mode, ACL, attributes
package swap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"a2e/host/guard/private"
)

// The intervals at which Lock tries again, which double each time, and how long it tries.
const (
	pollMin  = time.Millisecond
	pollMax  = 20 * time.Millisecond
	patience = 10 * time.Second
)

// ErrLocked says that another program holds the lock of a folder.
var ErrLocked = errors.New("another program holds the lock of the folder")

// Lock takes the lock of a folder. All code that reads a file there and then replaces it holds this lock meanwhile. The
// lock is on the folder itself (flock), so it leaves no file, and it excludes all hosts, whatever their state_dir, and
// all other callers in this process. If the file system has no such locks, or the folder cannot be read, nobody is
// excluded. Lock waits until ctx ends, and for 10 s at most; after 10 s the error is ErrLocked.
func Lock(ctx context.Context, dir *os.Root) (unlock func(), err error) {
	h, err := dir.Open(".")
	if err != nil {
		return func() {}, nil
	}
	unlock = func() { h.Close() }
	deadline := time.Now().Add(patience)
	for poll := pollMin; ; poll = min(2*poll, pollMax) {
		if ok, err := private.TryLock(h); ok || err != nil {
			return unlock, nil
		}
		if time.Now().After(deadline) {
			unlock()
			return nil, ErrLocked
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, context.Cause(ctx)
		case <-time.After(poll):
		}
	}
}

// Replace replaces the content of the file base in a folder: it writes a new file next to it and
// renames that. old is the existing file, open for writing, or nil if there is none. If the new file
// cannot have the owner and the rights of the old one, Replace writes to the old file itself, which
// keeps them. ready is called last; if it returns an error, nothing is changed.
func Replace(dir *os.Root, base string, old *os.File, content string, ready func() error) error {
	temp := ".a2e-" + rand.Text() + ".tmp"
	kept, err := write(dir, temp, old, content)
	if err == nil {
		err = ready()
	}
	if err == nil && kept {
		if err = dir.Rename(temp, base); err == nil {
			return nil
		}
	}
	_ = dir.Remove(temp)
	if err != nil {
		return err
	}
	return overwrite(old, content)
}

// write makes the new file; kept is false if it cannot have the owner and rights of the old one.
func write(dir *os.Root, temp string, old *os.File, content string) (kept bool, err error) {
	mode := fs.FileMode(0o666)
	if old != nil {
		mode = 0o600 // nobody may read it before it has the rights of the old one
	}
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return false, err
	}
	_, err = io.WriteString(file, content)
	kept = err == nil && (old == nil || Keep(file, old) == nil)
	return kept, errors.Join(err, file.Close())
}

// overwrite writes to a file itself. Disk space is reserved first, so that a full disk changes nothing.
func overwrite(old *os.File, content string) error {
	if err := reserve(old, int64(len(content))); err != nil {
		return err
	}
	_, err := old.WriteAt([]byte(content), 0)
	if err == nil {
		err = old.Truncate(int64(len(content)))
	}
	if err != nil {
		return fmt.Errorf("only a part was written, in place, since a new file cannot have its owner and "+
			"permissions: %w", err)
	}
	return nil
}

// Keep gives a new file the owner, the mode, the ACL and the attributes of the file that it replaces. It skips
// attributes that a write removes, such as capabilities, and the set-user-ID and set-group-ID bits. After an error the
// new file must not replace the old one: others might get more rights than before, or the owner fewer.
func Keep(file, old *os.File) error {
	info, err := old.Stat()
	if err != nil {
		return err
	}
	if err := keepOwner(file, info); err != nil {
		return err
	}
	if err := keepAttributes(file, old); err != nil {
		return err
	}
	now, err := file.Stat()
	if err == nil && now.Mode().Perm() != info.Mode().Perm() {
		if err = file.Chmod(info.Mode().Perm()); err == nil {
			now, err = file.Stat()
		}
	}
	if err == nil && now.Mode().Perm() != info.Mode().Perm() {
		err = fs.ErrPermission
	}
	return err
}
