package wall

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// Folder is a folder that is used for a long time, such as the workspace. It is safe for concurrent use.
type Folder struct {
	path string
	real string // the real path of path when the folder was opened

	mu   sync.Mutex
	root *os.Root // guarded by mu
}

// OpenFolder opens a folder.
func OpenFolder(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{path: path, real: Canonical(path), root: root}, nil
}

// Root returns the open folder. If the folder was removed and made again, Root opens the new one and
// closes the old one. A folder that was only moved stays in use, even if another folder has its path
// now. The caller must not close the result.
func (f *Folder) Root() *os.Root {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.remadeLocked() {
		return f.root // an error shows at its next use
	}
	if next, err := os.OpenRoot(f.path); err == nil {
		_ = f.root.Close() // its remaining users work in a removed folder
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
	return (err != nil || !os.SameFile(was, now)) && Canonical(f.path) == f.real && removed(f.root)
}

// removed reports whether an open folder was removed.
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
