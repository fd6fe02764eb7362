package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// safeNames returns the host's variables that children see. Windows programs do not start without the
// system's own variables.
func safeNames() []string {
	return []string{
		"LANG", "TERM", "TZ", "USERNAME", "SYSTEMROOT", "SystemRoot", "WINDIR", "windir", "COMSPEC",
		"ComSpec", "PATHEXT", "TEMP", "TMP",
	}
}

// systemDirs returns the folders that come first on every PATH.
func systemDirs() []string {
	root := os.Getenv("SystemRoot")
	if !filepath.IsAbs(root) {
		return nil
	}
	return []string{filepath.Join(root, "System32"), root}
}

// writableByOthers reports false: it would have to read Windows access lists, so folders of the host's
// PATH are trusted.
func writableByOthers(os.FileInfo) bool { return false }

func executable(info os.FileInfo) bool { return info.Mode().IsRegular() }

// programNames returns the file names that a bare program name stands for.
func programNames(name string) []string { return []string{name + ".exe", name} }

// OwnedByUs reports false: a folder cannot be locked here, so what a killed host left behind is not removed.
func OwnedByUs(os.FileInfo) bool { return false }

// LockDir only opens the folder.
func LockDir(dir string) (*os.File, error) { return os.Open(dir) }

// shareDir only opens the folder as well.
func shareDir(dir string) (*os.File, error) { return os.Open(dir) }

const platformMechanism = MechanismProcess

// platformAttr keeps a console's Ctrl-C, which is meant for the host, from the command.
func platformAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// killGroup does nothing on Windows: only the command itself can be killed.
func killGroup(*os.Process) {}

func signalGroup(proc *os.Process, sig syscall.Signal) error { return proc.Signal(sig) }

// fileID is empty here: files with several names are not told apart.
type fileID struct{}

// diskUsage returns the size of a file in bytes.
func diskUsage(info fs.FileInfo) (bytes int64, id fileID, several bool) {
	return info.Size(), fileID{}, false
}
