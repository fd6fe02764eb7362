// Package private opens files that only this user may use: the host's state.
//
// A user who can write to the folder of such a file could replace it by a link, a pipe or a second name of another
// file, and make the host write there. So a file is opened by its bare name, relative to a handle of its folder,
// without following links. The checks before its use look at the open file, not at its name.
package private

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	folderPerm = 0o700
	filePerm   = 0o600
)

// TempSuffix is the suffix of the names of incomplete files.
const TempSuffix = ".tmp"

// ErrUnsafe is wrapped by every error about a file or folder that others could have changed.
var ErrUnsafe = errors.New("it is not safe to use")

// Dir is a handle of a folder. All operations apply to that folder, even if it is renamed.
type Dir struct {
	root *os.Root
	path string
}

// OpenDir opens a folder that belongs to this user or root and that nobody else may write to. The
// error is fs.ErrNotExist if there is no such folder.
func OpenDir(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{root, path}
	info, err := root.Stat(".")
	if err == nil {
		err = checkFolder(info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the folder %s: %w", path, err), root.Close())
	}
	return d, nil
}

// MakeDir opens a folder as OpenDir does, and makes it and its missing parents.
func MakeDir(path string) (*Dir, error) {
	d, err := OpenDir(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := os.MkdirAll(path, folderPerm); err != nil {
		return nil, err
	}
	return OpenDir(path)
}

// Sub opens a folder inside this one, and makes it if it is missing. It must not be a link: the user's
// own folder may be one, but not a folder that the host made in it.
func (d *Dir) Sub(name string) (*Dir, error) {
	if err := bare(name); err != nil {
		return nil, err
	}
	info, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.root.Mkdir(name, folderPerm); err == nil || errors.Is(err, fs.ErrExist) {
			info, err = d.root.Lstat(name)
		}
	}
	if err == nil && !info.IsDir() {
		err = d.wrong(name, refuse("is not a folder", wantFile))
	}
	if err != nil {
		return nil, err
	}
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	sub := &Dir{root, filepath.Join(d.path, name)}
	opened, err := root.Stat(".")
	if err == nil {
		if err = checkFolder(opened); err == nil && !os.SameFile(opened, info) {
			err = refuse("was replaced", wantFile)
		}
	}
	if err != nil {
		return nil, errors.Join(d.wrong(name, err), root.Close())
	}
	return sub, nil
}

// MakeSub is Sub for a parent folder given by its path.
func MakeSub(path, name string) (*Dir, error) {
	d, err := MakeDir(path)
	if err != nil {
		return nil, err
	}
	sub, err := d.Sub(name)
	return sub, errors.Join(err, d.Close())
}

// Close closes the handle of the folder. Files opened from it stay open.
func (d *Dir) Close() error { return d.root.Close() }

// Path returns the absolute path that the folder had when it was opened.
func (d *Dir) Path() string { return d.path }

// Open opens a file of the folder with the flags of os.OpenFile; only this user may access a new file.
// The file must be a regular file of this user with one name, to which nobody else may write.
// Otherwise the error wraps ErrUnsafe, and nothing was changed.
func (d *Dir) Open(name string, flag int) (*os.File, error) {
	if err := bare(name); err != nil {
		return nil, err
	}
	// With O_TRUNC the file would be truncated before it is checked.
	file, err := d.open(name, flag&^os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = checkFile(info)
	}
	if err == nil && flag&os.O_TRUNC != 0 {
		err = file.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(d.wrong(name, err), file.Close())
	}
	return file, nil
}

// Check checks a name as Open does, without opening the file: opening a device or a pipe may have side
// effects. If the name is free, the error is fs.ErrNotExist.
func (d *Dir) Check(name string) (fs.FileInfo, error) {
	if err := bare(name); err != nil {
		return nil, err
	}
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := checkFile(info); err != nil {
		return nil, d.wrong(name, err)
	}
	return info, nil
}

// Read returns the content of a file that has at most max bytes.
func (d *Dir) Read(name string, max int64) ([]byte, error) {
	file, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readUpTo(file, max)
}

// Names returns the names in the folder, sorted.
func (d *Dir) Names() ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// Lstat describes a file of the folder; for a link it describes the link itself.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) { return d.root.Lstat(name) }

// Exists reports whether the folder contains the name, whatever kind of file it is.
func (d *Dir) Exists(name string) bool {
	_, err := d.root.Lstat(name)
	return err == nil
}

// Rename renames a file of the folder and replaces a file that has the new name.
func (d *Dir) Rename(from, to string) error { return d.root.Rename(from, to) }

// Remove removes a name from the folder.
func (d *Dir) Remove(name string) error { return d.root.Remove(name) }

// The intervals at which Lock tries again; they double each time.
const (
	lockPollMin = time.Millisecond
	lockPollMax = 20 * time.Millisecond
)

// ErrGivenUp is Lock's error when quit was closed.
var ErrGivenUp = errors.New("given up")

// Lock takes the lock of a file of the folder and makes the file if it is missing. It waits up to
// patience, or until quit is closed. Closing the file releases the lock.
func (d *Dir) Lock(name string, quit <-chan struct{}, patience time.Duration) (*os.File, error) {
	deadline := time.Now().Add(patience)
	for poll := lockPollMin; ; poll = min(2*poll, lockPollMax) {
		h, err := d.Open(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, err
		}
		ok, err := TryLock(h)
		if ok && d.holds(name, h) {
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
			return nil, ErrGivenUp
		case <-time.After(poll):
		}
	}
}

// holds reports whether an open file still has its name: the lock of a removed file protects nothing.
func (d *Dir) holds(name string, h *os.File) bool {
	a, err := h.Stat()
	if err != nil {
		return false
	}
	b, err := d.root.Lstat(name)
	return err == nil && os.SameFile(a, b)
}

// placeByLink is PlaceNew for systems whose rename always replaces an existing file.
func (d *Dir) placeByLink(from, to string) error {
	err := d.root.Link(from, to)
	switch {
	case err == nil:
		return d.Remove(from)
	case errors.Is(err, fs.ErrExist) || d.Exists(to):
		return fs.ErrExist
	}
	return d.Rename(from, to) // a file system without links
}

// Temp makes a file that gets its final name once it is complete. Its own name begins with a dot and
// ends with TempSuffix.
func (d *Dir) Temp(name string) (*os.File, error) {
	return d.Open("."+name+"."+rand.Text()+TempSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Replace replaces the content of a file at once: a reader sees either the old content or the new one.
func (d *Dir) Replace(name string, content []byte) error {
	file, err := d.Temp(name)
	if err != nil {
		return err
	}
	temp := filepath.Base(file.Name())
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = d.Rename(temp, name)
	}
	if err != nil {
		_ = d.Remove(temp)
	}
	return err
}

// wrong adds the path to an error. A PathError would hide that a person has to act.
func (d *Dir) wrong(name string, err error) error {
	return fmt.Errorf("%s: %w", filepath.Join(d.path, name), err)
}

// bare refuses names that are not plain file names in the folder.
func bare(name string) error {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return fmt.Errorf("%q is not a file name", name)
	}
	return nil
}

func readUpTo(file *os.File, max int64) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > max {
		return nil, fmt.Errorf("%s has more than %d bytes", file.Name(), max)
	}
	raw := make([]byte, info.Size())
	n, err := file.ReadAt(raw, 0)
	if err != nil && n == len(raw) {
		err = nil
	}
	return raw[:n], err
}

func checkFile(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return refuse(kindOf(info.Mode()), wantFile)
	}
	return checkOwner(info)
}

// refuse returns the error for a file or folder that others could have changed.
func refuse(why, wanted string) error { return fmt.Errorf("%w: it %s; %s", ErrUnsafe, why, wanted) }

// kindOf describes a file that is not a regular one.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "is a link"
	case mode.IsDir():
		return "is a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "is a pipe"
	}
	return "is a device or a socket"
}

const (
	wantFile   = "remove it or move it away; the host makes its own files"
	wantRights = "remove the permissions of others: chmod go-w"
	wantOwner  = "use a folder and files of your own"
)
