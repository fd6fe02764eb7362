//go:build unix

package checkpoint

import (
	"io/fs"
	"os"
	"syscall"
)

// giveTo gives a file the owner that another has, where this user may do that.
func giveTo(f *os.File, other fs.FileInfo) {
	if st, ok := other.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid))
	}
}
