package private

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// PlaceNew renames a file to a name that must be free; otherwise the error is fs.ErrExist. The file
// never has two names at once, because programs that open it would take that for an attack.
func (d *Dir) PlaceNew(from, to string) error {
	dir, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	err = unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return fs.ErrExist
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return d.placeByLink(from, to) // the file system does not support the flag
	}
	return err
}
