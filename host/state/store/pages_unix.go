//go:build unix

package store

import (
	"os"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"
)

// openedSafely checks the file that SQLite has opened, not its name: it must be a regular file of this user, without a
// second name, and nobody else may write to it. The names were checked before (see Open), but may have changed since.
func openedSafely(file uintptr) bool {
	var stat unix.Stat_t
	if unix.Fstat(int(at[sqlite3.TunixFile](file).Fh), &stat) != nil {
		return false
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink <= 1 && int(stat.Uid) == os.Geteuid() &&
		stat.Mode&0o022 == 0
}
