//go:build unix

package tools

import (
	"io/fs"
	"syscall"
)

// deviceOf returns the number of the device that a file is on.
func deviceOf(info fs.FileInfo) (uint64, bool) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev), true
	}
	return 0, false
}
