package wall

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// Folder is a folder that is worked in for long, such as the workspace. It is safe for concurrent
// use.
type Folder struct {
	path string
	real string // that path led to at first

	mu   sync.Mutex
	root *os.Root // guarded by mu
}

// OpenFolder opens a folder.
func OpenFolder(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{path: path, real: Place(path), root: root}, nil
}

// Root returns the open folder. Where it was removed and made again, that is the new one: the old
// one is closed. A folder that only was moved away stays the one that is worked in, whatever has
// its name by then. It stays the Folder's to close.
func (f *Folder) Root() *os.Root {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.remadeLocked() {
		return f.root // which says what is wrong, if anything is
	}
	if next, err := os.OpenRoot(f.path); err == nil {
		_ = f.root.Close() // what still uses it works in a folder that has gone
		f.root = next
	}
	return f.root
}

// Remade reports whether the folder was removed and made again since it was opened.
func (f *Folder) Remade() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.remadeLocked()
}

func (f *Folder) remadeLocked() bool {
	now, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	was, err := f.root.Stat(".")
	return (err != nil || !os.SameFile(was, now)) && Place(f.path) == f.real && removed(f.root)
}

// removed reports whether an open folder is in no other one any more.
func removed(root *os.Root) bool {
	dir, err := root.Open(".")
	if err == nil {
		defer dir.Close()
		_, err = dir.Readdirnames(1)
	}
	return errors.Is(err, fs.ErrNotExist)
}

// Close closes the folder.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root.Close()
}
