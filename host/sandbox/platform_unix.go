//go:build !windows

package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// safeNames returns the host's variables that children see, besides LC_*.
func safeNames() []string {
	return []string{"LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME"}
}

// systemDirs returns the folders that come first on every PATH.
func systemDirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// writableByOthers reports whether another user could change the contents of a folder: it belongs
// neither to root nor to us, or everybody may write to it.
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

// programNames returns the file names that a bare program name stands for.
func programNames(name string) []string { return []string{name} }

// OwnedByUs reports whether a folder belongs to the user of the host process. On Windows it always reports false.
func OwnedByUs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// LockDir locks a folder for this process, until the file is closed or the process ends. It fails if
// another process holds the lock. On Windows it only opens the folder.
func LockDir(dir string) (*os.File, error) { return flock(dir, syscall.LOCK_EX) }

// shareDir takes a shared lock of a folder. It fails while another process holds it by LockDir.
func shareDir(dir string) (*os.File, error) { return flock(dir, syscall.LOCK_SH) }

func flock(dir string, how int) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// fileID identifies a file or folder among all that exist at the same time.
type fileID struct{ Dev, Ino uint64 }

// diskUsage returns the bytes that a file uses on disk, its identity, and whether it has several names.
func diskUsage(info fs.FileInfo) (bytes int64, id fileID, several bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size(), fileID{}, false
	}
	return stat.Blocks * 512, fileID{uint64(stat.Dev), stat.Ino}, stat.Nlink > 1
}
