package env

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"a2e/host/sandbox"
)

const (
	// staleAfter is how old a folder must be before it counts as left behind: its owner
	// locks it a moment after it was made.
	staleAfter = time.Minute
	// savedFor is how long the folder of a saved episode waits for a host that takes it up.
	savedFor = 30 * 24 * time.Hour
)

// folder is what one episode has on disk, in state_dir/episodes. The host that has
// it open holds a lock on it.
//
//	work   the agent's folder
//	aside  the agent's folder, while the check runs on a copy of it in work
//	saved  a file: the episode was saved, and the next host may take it up
type folder struct {
	path string // absolute
	lock *os.File
}

func (f *folder) work() string  { return filepath.Join(f.path, "work") }
func (f *folder) aside() string { return filepath.Join(f.path, "aside") }
func (f *folder) saved() string { return filepath.Join(f.path, "saved") }

// folderOf gives the place of an episode's folder. The id may come from a file that
// somebody else wrote.
func (w *workspace) folderOf(id string) (string, error) {
	if id == "" || len(id) > 64 {
		return "", fmt.Errorf("the episode's id %.80q is no name of a folder", id)
	}
	for i := range len(id) {
		c := id[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return "", fmt.Errorf("the episode's id %.80q is no name of a folder", id)
		}
	}
	episodes, err := filepath.Abs(filepath.Join(w.env.StateDir, "episodes"))
	return filepath.Join(episodes, id), err
}

// newFolder makes the folder of a new episode.
func (w *workspace) newFolder(id string) (*folder, error) {
	path, err := w.folderOf(id)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the episodes cannot be made: %w", bareCause(err))
	}
	w.sweep.Do(func() { w.sweeps.Go(func() { removeStaleFolders(filepath.Dir(path), w.env.Now()) }) })
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("the episode's folder cannot be made: %w", bareCause(err))
	}
	lock, err := sandbox.LockDir(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the episode's folder cannot be locked: %w", bareCause(err)), os.Remove(path))
	}
	return &folder{path, lock}, nil
}

// oldFolder takes up the folder that another host left.
func (w *workspace) oldFolder(id string) (*folder, error) {
	path, err := w.folderOf(id)
	if err != nil {
		return nil, err
	}
	lock, err := sandbox.LockDir(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("the folder of episode %s is gone", id)
	case err != nil:
		return nil, fmt.Errorf("the folder of episode %s is in use by another host", id)
	}
	f := &folder{path, lock}
	if err := f.back(); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder of episode %s cannot be put in order: %w", id, bareCause(err)), f.close())
	}
	return f, nil
}

// back puts the agent's folder back in its place, if a check had it aside.
func (f *folder) back() error {
	if _, err := os.Lstat(f.aside()); err != nil {
		return nil
	}
	if err := removeIfThere(f.work()); err != nil {
		return err
	}
	return os.Rename(f.aside(), f.work())
}

// keep notes that the episode was saved.
func (f *folder) keep() error { return os.WriteFile(f.saved(), nil, 0o600) }

// close leaves the folder to others.
func (f *folder) close() error { return f.lock.Close() }

// remove removes the folder.
func (f *folder) remove() error {
	return errors.Join(sandbox.RemoveTree(f.path), f.lock.Close())
}

func removeIfThere(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return sandbox.RemoveTree(dir)
}

// removeStaleFolders removes the folders of hosts that died, and of saved episodes that
// nobody took up.
func removeStaleFolders(episodes string, now time.Time) {
	entries, err := os.ReadDir(episodes)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(episodes, e.Name())
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !sandbox.OwnedByUs(info) || now.Sub(info.ModTime()) < staleAfter {
			continue
		}
		lock, err := sandbox.LockDir(path)
		if err != nil {
			continue // its host lives
		}
		f := &folder{path, lock}
		if saved, err := os.Lstat(f.saved()); err == nil && now.Sub(saved.ModTime()) < savedFor {
			_ = f.close()
			continue
		}
		_ = f.remove() // the next host tries again
	}
}
