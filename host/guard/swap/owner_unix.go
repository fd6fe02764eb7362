//go:build unix

package swap

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a new file the owner and the group of the one it replaces: a host that runs as
// root must not take files over.
func keepOwner(file *os.File, old fs.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	was, ok := old.Sys().(*syscall.Stat_t)
	now, fine := info.Sys().(*syscall.Stat_t)
	if !ok || !fine || now.Uid == was.Uid && now.Gid == was.Gid {
		return nil
	}
	return file.Chown(int(was.Uid), int(was.Gid))
}
