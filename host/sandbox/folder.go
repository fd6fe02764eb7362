package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// MakeScratch makes an empty folder for the Scratch of one Policy. The caller gives
// it back with Discard; what is left goes with Close, or with the next host.
func (l *Launcher) MakeScratch() (string, error) {
	_, tmp, err := l.env.home.get()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(tmp), "scratch-")
	if err != nil {
		return "", fmt.Errorf("sandbox: scratch folder: %w", err)
	}
	return dir, nil
}

// LockDir takes a folder for this process, until the file is closed or the process
// ends, however it does. The error says that another one has it. On Windows it
// only opens the folder.
func LockDir(dir string) (*os.File, error) { return lockDir(dir) }

// OwnedByUs tells whether a folder belongs to the user that the host runs as; on
// Windows always false.
func OwnedByUs(info os.FileInfo) bool { return ownedByUs(info) }

// Discard removes a folder of MakeScratch in the background.
func (l *Launcher) Discard(scratch string) {
	l.env.home.clean.Do(func(ctx context.Context) { _ = RemoveTree(ctx, scratch) }) // what stays goes with Close
}
