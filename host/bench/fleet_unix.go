//go:build unix

package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// namedPipe makes a named pipe and opens it for both ends, so that neither waits for the
// other.
func namedPipe(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
