//go:build unix

package audit

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isReadOnly reports whether an error means that the file system is read-only, or that a file stands
// in place of a folder.
func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOTDIR) }
