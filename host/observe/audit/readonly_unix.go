//go:build unix

package audit

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isReadOnly reports whether the file system takes no files, or the path leads through one.
func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOTDIR) }
