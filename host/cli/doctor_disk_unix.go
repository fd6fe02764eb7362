//go:build linux || darwin

package cli

import "golang.org/x/sys/unix"

// freeBytes returns how many bytes this user may still write to the disk of a folder.
func freeBytes(dir string) (free int64, known bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return int64(min(st.Bavail, 1<<40)) * int64(st.Bsize), true
}
