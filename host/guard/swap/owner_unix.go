//go:build unix

package swap

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner sets the owner and the group of a new file to those of the file that it replaces:
// otherwise a host that runs as root would become the owner.
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
