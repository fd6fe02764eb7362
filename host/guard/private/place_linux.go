package private

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// PlaceNew returns a file another name, which must be free: fs.ErrExist otherwise. The file
// never has two names at once, which would look like an attack to those who open it.
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
		return d.placeByLink(from, to) // a file system without this
	}
	return err
}
