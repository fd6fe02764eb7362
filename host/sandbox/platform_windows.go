package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// safeNames are the host's variables that children see; Windows programs do
// not start without the system's own.
func safeNames() []string {
	return []string{
		"LANG", "TERM", "TZ", "USERNAME", "SYSTEMROOT", "SystemRoot", "WINDIR", "windir", "COMSPEC",
		"ComSpec", "PATHEXT", "TEMP", "TMP",
	}
}

// systemDirs come first on every PATH.
func systemDirs() []string {
	root := os.Getenv("SystemRoot")
	if !filepath.IsAbs(root) {
		return nil
	}
	return []string{filepath.Join(root, "System32"), root}
}

// writableByOthers needs access lists on Windows, which are not read: folders
// of the host's PATH are trusted there.
func writableByOthers(os.FileInfo) bool { return false }

func executable(info os.FileInfo) bool { return info.Mode().IsRegular() }

// programNames are the file names that a bare name stands for.
func programNames(name string) []string { return []string{name + ".exe", name} }

// OwnedByUs is false here: what a killed host left behind stays, as a folder
// cannot be locked.
func OwnedByUs(os.FileInfo) bool { return false }

// LockDir only opens the folder.
func LockDir(dir string) (*os.File, error) { return os.Open(dir) }

// shareDir is the same.
func shareDir(dir string) (*os.File, error) { return os.Open(dir) }

const platformMechanism = MechanismProcess

// platformAttr keeps a console's Ctrl-C, meant for the host, from the command.
func platformAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// killGroup reaches nothing beyond the command on Windows.
func killGroup(*os.Process) {}

func signalGroup(proc *os.Process, sig syscall.Signal) error { return proc.Signal(sig) }

// fileID tells files apart.
type fileID struct{}

// diskUsage returns the bytes that a file takes on disk.
func diskUsage(info fs.FileInfo) (bytes int64, id fileID, several bool) {
	return info.Size(), fileID{}, false
}
