//go:build unix

package tools

import (
	"io/fs"
	"os"
	"syscall"
)

// deviceOf returns the file system that a file lies on.
func deviceOf(info fs.FileInfo) (uint64, bool) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev), true
	}
	return 0, false
}

// keepOwner returns a new file the owner of the one it replaces, as far as this
// process may do that: a host that runs as root must not take files over.
func keepOwner(file *os.File, old fs.FileInfo) {
	st, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	info, err := file.Stat()
	if err != nil {
		return
	}
	if now, ok := info.Sys().(*syscall.Stat_t); ok && (now.Uid != st.Uid || now.Gid != st.Gid) {
		_ = file.Chown(int(st.Uid), int(st.Gid)) // refused to anybody but root, who then owns the new file
	}
}
