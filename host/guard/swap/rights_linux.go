package swap

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// accessACL is the attribute that holds the list of who else may do what.
const accessACL = "system.posix_acl_access"

// dropped are attributes that vouch for the content, or give rights to it, as it was: the
// kernel takes capabilities away itself where a file is written.
var dropped = []string{"security.capability", "security.ima", "security.evm"}

// keepAttributes gives a new file the extended attributes of the old one, and takes away the ACL
// that the folder gave it where the old one has none. The kernel shows and lets set what this
// user may: user.*, the ACL, and more to root.
func keepAttributes(file, old *os.File) error {
	names, err := attributes(old)
	if err != nil {
		return err
	}
	if !slices.Contains(names, accessACL) {
		names = append(names, accessACL)
	}
	for _, name := range names {
		if slices.Contains(dropped, name) {
			continue
		}
		was, err := attribute(old, name)
		if err != nil {
			return err
		}
		now, err := attribute(file, name)
		switch {
		case err != nil:
			return err
		case was == nil && now != nil:
			err = unix.Fremovexattr(int(file.Fd()), name)
		case was != nil && (now == nil || !bytes.Equal(was, now)):
			err = unix.Fsetxattr(int(file.Fd()), name, was, 0)
		}
		if err != nil {
			return &os.PathError{Op: "setxattr " + name, Path: file.Name(), Err: err}
		}
	}
	return nil
}

// HasACL reports whether a file has an ACL, beyond the rights of its mode.
func HasACL(file *os.File) bool {
	acl, err := attribute(file, accessACL)
	return err == nil && acl != nil
}

// Bare takes away the ACL that a new file has of its folder.
func Bare(file *os.File) error {
	if !HasACL(file) {
		return nil
	}
	return unix.Fremovexattr(int(file.Fd()), accessACL)
}

// attributes returns the names of a file's extended attributes.
func attributes(file *os.File) ([]string, error) {
	list, err := sized(func(to []byte) (int, error) { return unix.Flistxattr(int(file.Fd()), to) })
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00"), nil
}

// attribute returns an extended attribute; nil = there is none.
func attribute(file *os.File, name string) ([]byte, error) {
	return sized(func(to []byte) (int, error) { return unix.Fgetxattr(int(file.Fd()), name, to) })
}

// sized reads what may have any size, and perhaps another one by the time that it is read.
func sized(read func(to []byte) (int, error)) ([]byte, error) {
	for {
		size, err := read(nil)
		if err == nil {
			value := make([]byte, size)
			if size == 0 {
				return value, nil
			}
			if size, err = read(value); err == nil {
				return value[:size], nil
			}
		}
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case !errors.Is(err, unix.ERANGE):
			return nil, err
		}
	}
}

// reserve takes room on the disk for a file of so many bytes, where the file system can.
func reserve(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return err
	}
	return nil
}
