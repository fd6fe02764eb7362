package swap

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// accessACL is the extended attribute that holds the access control list of a file.
const accessACL = "system.posix_acl_access"

// dropped are attributes that certify the old content or give rights to it. The kernel itself removes
// capabilities when a file is written.
var dropped = []string{"security.capability", "security.ima", "security.evm"}

// keepAttributes copies the extended attributes of the old file to a new one. If the old file has no
// ACL, it removes the ACL that the new one got from its folder. The kernel only shows attributes that
// this user may set: user.*, the ACL, and more for root.
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

// Bare removes the ACL that a new file got from its folder.
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

// attribute returns the value of an extended attribute, or nil if there is none.
func attribute(file *os.File, name string) ([]byte, error) {
	return sized(func(to []byte) (int, error) { return unix.Fgetxattr(int(file.Fd()), name, to) })
}

// sized reads a value whose size is unknown and may change before it is read.
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

// reserve allocates disk space for a file of size bytes, if the file system supports that.
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
