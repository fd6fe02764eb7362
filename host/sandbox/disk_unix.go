//go:build !windows

package sandbox

import (
	"io/fs"
	"syscall"
)

// fileID tells one file or folder from all others that are there at the same time.
type fileID struct{ dev, ino uint64 }

// diskUsage gives the bytes that a file takes on disk, and whether it has several names.
func diskUsage(info fs.FileInfo) (bytes int64, id fileID, several bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size(), fileID{}, false
	}
	return stat.Blocks * 512, fileID{uint64(stat.Dev), stat.Ino}, stat.Nlink > 1
}
