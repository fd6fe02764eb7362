//go:build !windows

package trust

import (
	"errors"
	"os"
	"syscall"
)

// onlyOurs tells why another user than this one could change a file or folder.
func onlyOurs(info os.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return errors.New("can be written by others: chmod go-w")
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return errors.New("belongs to another user")
	}
	return nil
}
