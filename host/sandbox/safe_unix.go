//go:build !windows

package sandbox

import (
	"os"
	"syscall"
)

// safeNames are the host's variables that children see, beside LC_*.
func safeNames() []string {
	return []string{"LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME", "TMPDIR"}
}

// systemDirs come first on every PATH.
func systemDirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// writableByOthers tells whether a stranger could change what is in a folder:
// it belongs neither to root nor to us, or everybody may write to it.
func writableByOthers(info os.FileInfo) bool {
	if info.Mode().Perm()&0o002 != 0 {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid()
}

func executable(info os.FileInfo) bool {
	return info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// programNames are the file names that a bare name stands for.
func programNames(name string) []string { return []string{name} }
