package env

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"a2e/host/guard/wall"
	"a2e/host/sandbox"
)

const (
	// staleAfter is how old a folder must be to count as left behind: a new folder is locked a moment
	// after it was made.
	staleAfter = time.Minute
	// savedFor is how long the folder of a saved episode is kept for a host that continues it.
	savedFor = 30 * 24 * time.Hour
	// idLetters are the characters that the id of an episode may have.
	idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
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
// A folder that is removed as a whole is renamed first, see gonePrefix.
type folder struct {
	path  string // absolute
	lock  *os.File
	clean *sandbox.Cleaner
}

func (f *folder) work() string   { return filepath.Join(f.path, "work") }
func (f *folder) aside() string  { return filepath.Join(f.path, "aside") }
func (f *folder) judged() string { return filepath.Join(f.path, "judged") }
func (f *folder) saved() string  { return filepath.Join(f.path, "saved") }

// folderOf returns the path of an episode's folder. It checks the id, which may come from a file of
// somebody else.
func (w *workspace) folderOf(id string) (string, error) {
	if id == "" || len(id) > 64 || strings.Trim(id, idLetters) != "" {
		return "", fmt.Errorf("the episode's id %.80q is not a name of a folder", id)
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
		return nil, fmt.Errorf("the folder of the episodes cannot be made: %w", wall.Cause(err))
	}
	w.swept.Do(func() {
		w.sweep.Do(func(ctx context.Context) { removeStaleFolders(ctx, filepath.Dir(path), w.env.Now()) })
	})
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("the episode's folder cannot be made: %w", wall.Cause(err))
	}
	lock, err := sandbox.LockDir(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the episode's folder cannot be locked: %w", wall.Cause(err)),
			os.Remove(path))
	}
	return &folder{path, lock, &w.cleaner}, nil
}

// oldFolder opens the folder that another host left.
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
		return nil, errors.Join(fmt.Errorf("the folder of episode %s cannot be put in order: %w", id, wall.Cause(err)),
			f.close())
	}
	return f, nil
}

// back puts the agent's folder back in its place, if a check had moved it aside. What the check left is
// removed in the background, as it may be very deep or large.
func (f *folder) back() error {
	if _, err := os.Lstat(f.aside()); err != nil {
		return nil
	}
	for _, dir := range []string{f.work(), f.judged()} {
		gone := filepath.Join(f.path, "gone-"+rand.Text())
		if err := os.Rename(dir, gone); err == nil {
			f.clean.Do(func(ctx context.Context) {
				_ = sandbox.RemoveTree(ctx, gone)
			}) // what remains is removed with the folder
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Rename(f.aside(), f.work())
}

// keep marks the folder as that of a saved episode.
func (f *folder) keep() error { return os.WriteFile(f.saved(), nil, 0o600) }

// close unlocks the folder for other hosts.
func (f *folder) close() error { return f.lock.Close() }

// gonePrefix begins the names of folders that are being removed; no id of an episode begins so.
const gonePrefix = ".gone-"

// remove removes the folder in the background. It renames the folder first, so that nobody finds it. What
// is not removed in time, the next host removes.
func (f *folder) remove() error {
	gone := filepath.Join(filepath.Dir(f.path), gonePrefix+filepath.Base(f.path)+"-"+rand.Text())
	if err := os.Rename(f.path, gone); err != nil {
		return errors.Join(wall.Cause(err), f.lock.Close())
	}
	f.clean.Do(func(ctx context.Context) { _ = sandbox.RemoveTree(ctx, gone) })
	return f.lock.Close()
}

// removeStaleFolders removes the folders of dead hosts, and of saved episodes that nobody has continued.
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
			continue // its host is alive
		}
		saved, err := os.Lstat(filepath.Join(path, "saved"))
		if strings.HasPrefix(e.Name(), gonePrefix) || err != nil || now.Sub(saved.ModTime()) >= savedFor {
			_ = sandbox.RemoveTree(ctx, path) // the next host tries again
		}
		_ = lock.Close()
	}
}

// bounds is how much a copy may still take.
type bounds struct {
	files int
	bytes int64
}

// errTooLarge is the error of a copy that exceeds its bounds.
var errTooLarge = errors.New("too large")

// copier copies the contents of folders. It never opens anything outside of the two folders.
type copier struct {
	left   bounds
	option string // begins the names of the options that set left
	// strict refuses links that lead out, and entries that are neither file, folder nor link. Otherwise
	// such links are copied as they are, and such entries are left out.
	strict bool
	inside bool                   // leaves out links that lead out
	skip   func(path string) bool // paths to leave out; a folder is left out with its content
	wall   *wall.Wall             // hides the host's own files, which are left out

	from, to *os.Root
}

// tree copies the content of the folder from into the existing folder to.
func (c *copier) tree(ctx context.Context, from, to string) error {
	var err error
	if c.from, err = os.OpenRoot(from); err != nil {
		return err
	}
	defer c.from.Close()
	if c.to, err = os.OpenRoot(to); err != nil {
		return err
	}
	defer c.to.Close()
	return c.content(ctx)
}

// content copies the content of the open folder from into to. Folders get their permissions after their
// content, as these may forbid writing.
func (c *copier) content(ctx context.Context) (err error) {
	guard, rights := c.wall.In(c.from), map[string]fs.FileMode{}
	var folders []string
	err = fs.WalkDir(c.from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || name == ".":
			return aboutFile(name, err)
		case !(c.skip != nil && c.skip(name) || guard.Hides(name, nil)):
			mode, err := c.entry(ctx, name)
			if mode.IsDir() {
				folders, rights[name] = append(folders, name), mode
			} else if err == nil && d.IsDir() {
				return fs.SkipDir // it was a folder a moment ago
			}
			return err
		case d.IsDir():
			return fs.SkipDir
		}
		return nil
	})
	for _, name := range slices.Backward(folders) {
		if err == nil {
			err = aboutFile(name, c.to.Chmod(filepath.FromSlash(name), rights[name].Perm()|0o700))
		}
	}
	return err
}

// entry copies one entry of a folder; of a folder only itself, without its content.
func (c *copier) entry(ctx context.Context, name string) (fs.FileMode, error) {
	local := filepath.FromSlash(name)
	info, err := c.from.Lstat(local)
	if err != nil {
		return 0, aboutFile(name, err)
	}
	if err := c.count(); err != nil {
		return 0, err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return mode, aboutFile(name, c.to.Mkdir(local, 0o700))
	case mode.IsRegular():
		return mode, aboutFile(name, c.file(ctx, local, info))
	case mode&fs.ModeSymlink != 0:
		return mode, c.link(name)
	case c.strict:
		return mode, fmt.Errorf("%q is not a file, folder or link; only those can be copied", name)
	}
	return 0, nil
}

// file copies a file with its permissions and its time, which tools such as make use.
func (c *copier) file(ctx context.Context, local string, info fs.FileInfo) error {
	in, _, err := openRegular(c.from, local) // it may be no regular file any more
	if err != nil {
		return err
	}
	defer in.Close()
	if err := c.write(local, stoppable{ctx, in}, info.Mode()); err != nil {
		return err
	}
	return c.to.Chtimes(local, info.ModTime(), info.ModTime())
}

// count counts a file or folder against the bounds.
func (c *copier) count() error {
	if c.left.files--; c.left.files < 0 {
		return c.tooMany("files")
	}
	return nil
}

func (c *copier) tooMany(what string) error {
	return fmt.Errorf("%w: it holds more %s than %smax_%s allows", errTooLarge, what, c.option, what)
}

// write writes a file within the bounds.
func (c *copier) write(local string, in io.Reader, mode fs.FileMode) error {
	out, err := c.to.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm()|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, c.left.bytes+1))
	if c.left.bytes -= n; err == nil && c.left.bytes < 0 {
		err = c.tooMany("bytes")
	}
	return errors.Join(err, out.Close())
}

// link copies a symbolic link.
func (c *copier) link(name string) error {
	local := filepath.FromSlash(name)
	text, err := c.from.Readlink(local)
	if err != nil {
		return aboutFile(name, err)
	}
	if c.strict || c.inside {
		if err := c.checkLink(name, text); c.inside && err != nil {
			return nil
		} else if err != nil {
			return err
		}
	}
	return aboutFile(name, c.to.Symlink(text, local))
}

// checkLink refuses a link that leads out, by its text or by other links on its path.
func (c *copier) checkLink(name, text string) error {
	out := fmt.Errorf("%q is a link that leads out of the folder; put in what it leads to", name)
	if !filepath.IsLocal(filepath.FromSlash(path.Join(path.Dir(name), filepath.ToSlash(text)))) {
		return out
	}
	// The system decides about the rest, such as absolute links.
	if _, err := c.from.Stat(filepath.FromSlash(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out
	}
	return nil
}

// aboutFile adds to an error which file it is about, without outer paths.
func aboutFile(name string, err error) error {
	if err == nil || errors.Is(err, errTooLarge) {
		return err
	}
	return fmt.Errorf("%q: %w", name, wall.Cause(err))
}
