//go:build unix

package store

import (
	"os"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"
)

// openedSafely looks at what SQLite has opened, not at its name: it must be a regular file of
// this user's, without a second name, that nobody else may write. The names were looked at
// before (see Open), but that is some time ago.
func openedSafely(file uintptr) bool {
	var stat unix.Stat_t
	if unix.Fstat(int(at[sqlite3.TunixFile](file).Fh), &stat) != nil {
		return false
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink <= 1 && int(stat.Uid) == os.Geteuid() &&
		stat.Mode&0o022 == 0
}
