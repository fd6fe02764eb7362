package env

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
//	judged another copy of it, for a judge to read
//	saved  a file: the episode was saved, and the next host may take it up
//	gone…  what is being removed
//
// A folder that is removed as a whole goes by another name at once, see goneName.
type folder struct {
	path  string // absolute
	lock  *os.File
	clean *sandbox.Cleaner
}

func (f *folder) work() string   { return filepath.Join(f.path, "work") }
func (f *folder) aside() string  { return filepath.Join(f.path, "aside") }
func (f *folder) judged() string { return filepath.Join(f.path, "judged") }
func (f *folder) saved() string  { return filepath.Join(f.path, "saved") }

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
	w.swept.Do(func() {
		w.sweep.Do(func(ctx context.Context) { removeStaleFolders(ctx, filepath.Dir(path), w.env.Now()) })
	})
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("the episode's folder cannot be made: %w", bareCause(err))
	}
	lock, err := sandbox.LockDir(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the episode's folder cannot be locked: %w", bareCause(err)), os.Remove(path))
	}
	return &folder{path, lock, &w.cleaner}, nil
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
	f := &folder{path, lock, &w.cleaner}
	if err := f.back(); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder of episode %s cannot be put in order: %w", id, bareCause(err)), f.close())
	}
	return f, nil
}

// back puts the agent's folder back in its place, if a check had it aside. What the check
// left is removed in the background: it may be as deep and as much as a program can make it.
func (f *folder) back() error {
	if _, err := os.Lstat(f.aside()); err != nil {
		return nil
	}
	for _, dir := range []string{f.work(), f.judged()} {
		gone := filepath.Join(f.path, "gone-"+rand.Text())
		if err := os.Rename(dir, gone); err == nil {
			f.clean.Do(func(ctx context.Context) { _ = sandbox.RemoveTree(ctx, gone) }) // what stays goes with the folder
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Rename(f.aside(), f.work())
}

// keep notes that the episode was saved.
func (f *folder) keep() error { return os.WriteFile(f.saved(), nil, 0o600) }

// close leaves the folder to others.
func (f *folder) close() error { return f.lock.Close() }

// gonePrefix begins the names of folders that are being removed; no episode has such a one.
const gonePrefix = ".gone-"

// remove removes the folder in the background. Nobody finds it by its name any more; what
// there is no time for, the next host removes.
func (f *folder) remove() error {
	gone := filepath.Join(filepath.Dir(f.path), gonePrefix+filepath.Base(f.path)+"-"+rand.Text())
	if err := os.Rename(f.path, gone); err != nil {
		return errors.Join(bareCause(err), f.lock.Close())
	}
	f.clean.Do(func(ctx context.Context) { _ = sandbox.RemoveTree(ctx, gone) })
	return f.lock.Close()
}

// removeStaleFolders removes the folders of hosts that died, and of saved episodes that
// nobody took up.
func removeStaleFolders(ctx context.Context, episodes string, now time.Time) {
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
		saved, err := os.Lstat(filepath.Join(path, "saved"))
		if strings.HasPrefix(e.Name(), gonePrefix) || err != nil || now.Sub(saved.ModTime()) >= savedFor {
			_ = sandbox.RemoveTree(ctx, path) // the next host tries again
		}
		_ = lock.Close()
	}
}
