//go:build !linux

package checkpoint

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
)

// openFile opens a file below the workspace.
func (p *place) openFile(name string) (*os.File, error) {
	dir, base := split(name)
	root, err := p.folder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(base)
}

// list describes the names in a folder, by name, or those of names that there are. What is
// neither file, folder nor link is not among them.
func (p *place) list(dir string, names []string) (found []entry, err error) {
	if names == nil {
		all, err := fs.ReadDir(p.root.FS(), cmp.Or(dir, "."))
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			names = append(names, e.Name())
		}
	}
	for _, name := range names {
		info, err := p.root.Lstat(join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		e := describeInfo(info)
		if e.name = name; e.kind == aLink {
			if e.link, err = p.root.Readlink(join(dir, name)); err != nil {
				continue
			}
		}
		if e.kind != 0 {
			found = append(found, e)
		}
	}
	return found, nil
}

func describeInfo(info fs.FileInfo) entry {
	e := entry{held: heldNot, perm: uint32(info.Mode().Perm()), nlink: 1}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		e.kind, e.size = aFile, info.Size()
	case mode.IsDir():
		e.kind = aDir
	case mode&fs.ModeSymlink != 0:
		e.kind = aLink
	}
	e.mtime = info.ModTime().UnixNano()
	return e
}

// opened describes an open file.
func opened(f *os.File) (e entry, err error) {
	info, err := f.Stat()
	if err != nil {
		return e, err
	}
	return describeInfo(info), nil
}

// watcher tells which names changed. There is none here: the whole workspace is looked at.
type watcher struct{}

func newWatcher(string) *watcher { return nil }

func (*watcher) close()                               {}
func (*watcher) add(string) error                     { return nil }
func (*watcher) has(string) bool                      { return true }
func (*watcher) remove(string)                        {}
func (*watcher) changed() (map[string][]string, bool) { return nil, false }
