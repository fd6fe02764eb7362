package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"a2e/host/guard/swap"
)

// run makes the changes in an order in which each step finds what it needs:
//
//	what goes, the deepest first ─ folders, the highest first ─ files and links ─ modes of folders
func (r *restore) run() {
	r.opened = make(map[string]fs.FileMode)
	for i := range r.changes {
		r.changes[i].now, _ = r.place.root.Lstat(r.changes[i].path)
	}
	byDepth := slices.Clone(r.changes)
	slices.SortFunc(byDepth, func(a, b change) int { return deepestFirst(a.path, b.path) })
	for _, c := range byDepth {
		if c.old != nil && (c.new == nil || (c.old.mode == aFolder) != (c.new.mode == aFolder)) {
			r.try(c.path, func(dir *os.Root, base string) error { return r.gone(dir, base, c) })
		}
	}
	for _, c := range slices.Backward(byDepth) {
		if c.new != nil && c.new.mode == aFolder {
			r.try(c.path, func(dir *os.Root, base string) error { return r.folder(dir, base, c) })
		}
	}
	var files []change
	var oids []string
	for _, c := range r.changes {
		switch {
		case c.new == nil || c.new.mode == aFolder:
		case c.old.file() && c.new.file() && c.old.oid == c.new.oid:
			r.try(c.path, func(dir *os.Root, base string) error { return r.dress(dir, base, c) })
		default:
			files, oids = append(files, c), append(oids, c.new.oid)
		}
	}
	err := r.contents(oids, func(i int, content io.Reader) error {
		c := files[i]
		r.try(c.path, func(dir *os.Root, base string) error {
			err := r.file(dir, base, c, content)
			_ = dir.Remove(staging)
			return err
		})
		return nil
	}, func(i int, err error) { r.problems[files[i].path] = err.Error() })
	r.problem(".", err)
	for _, dir := range slices.SortedFunc(maps.Keys(r.opened), deepestFirst) {
		r.problem(dir, r.in(dir, func(at *os.Root, base string) error { return at.Chmod(base, r.opened[dir]) }))
	}
}

// deepestFirst orders paths so that the contents of a folder come before the folder.
func deepestFirst(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), strings.Compare(a, b))
}

func (r *restore) problem(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problems[path] = cause(err).Error()
	}
}

// cause returns the innermost system error, without paths.
func cause(err error) error {
	for {
		switch e := err.(type) {
		case *fs.PathError:
			err = e.Err
		case *os.LinkError:
			err = e.Err
		default:
			return err
		}
	}
}

// in runs a step in the folder that contains a path. It opens the folder again, without following
// links, so that a folder that has replaced it meanwhile is not touched.
func (r *restore) in(name string, step func(dir *os.Root, base string) error) error {
	above, base := split(name)
	dir, err := r.place.folder(above)
	if err != nil {
		return err
	}
	defer dir.Close()
	return step(dir, cmp.Or(base, "."))
}

// try runs a step as in does. If the folder is not writable, it is made writable until the end.
func (r *restore) try(name string, step func(dir *os.Root, base string) error) {
	err := r.in(name, step)
	if dir, _ := split(name); errors.Is(err, fs.ErrPermission) {
		unlock := func(at *os.Root, base string) error { return r.unlock(at, base, dir) }
		if _, done := r.opened[dir]; !done && r.in(dir, unlock) == nil {
			err = r.in(name, step)
		}
	}
	r.problem(name, err)
}

// unlock makes a folder writable until the end.
func (r *restore) unlock(at *os.Root, base, dir string) error {
	info, err := at.Lstat(base)
	if err == nil && !info.IsDir() {
		err = errSwapped
	}
	if err != nil {
		return err
	}
	r.opened[dir] = info.Mode().Perm()
	return at.Chmod(base, info.Mode()|0o700)
}

// gone removes a path. A folder is removed only if nothing except empty folders is left in it.
func (r *restore) gone(dir *os.Root, base string, c change) error {
	unlock, err := swap.Lock(r.ctx, dir) // another host may be editing the file
	if err != nil {
		return err
	}
	defer unlock()
	if c.old.mode == aFolder {
		return emptied(dir, base, "")
	}
	if err := unchanged(dir, base, c); err != nil {
		return err
	}
	return dir.Remove(base)
}

// emptied removes a folder and the empty folders in it.
func emptied(dir *os.Root, base, below string) error {
	in, err := openNoLink(dir, base)
	if err != nil {
		return err
	}
	defer in.Close()
	all, err := fs.ReadDir(in.FS(), ".")
	for _, e := range all {
		name := path.Join(below, e.Name())
		if !e.IsDir() {
			return errors.New("not removed, since it holds content that is not kept: " + name)
		}
		if err := emptied(in, e.Name(), name); err != nil {
			return err
		}
	}
	return cmp.Or(err, dir.Remove(base))
}

// unchanged returns an error if a file differs from the checkpoint before the restore: it could not be
// brought back, so it is not overwritten.
func unchanged(dir *os.Root, base string, c change) error {
	info, err := dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir(): // git does not keep empty folders
		return emptied(dir, base, "")
	case c.old == nil || c.old.mode == aFolder:
		return errors.New("what is there now is not kept and would be lost")
	case c.now == nil || !os.SameFile(info, c.now) || info.Size() != c.now.Size() ||
		!info.ModTime().Equal(c.now.ModTime()):
		return errors.New("it was changed during the restore, and left as it is")
	}
	return nil
}

// folder makes a folder; its mode is set at the end.
func (r *restore) folder(dir *os.Root, base string, c change) error {
	err := dir.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		r.opened[c.path] = 0o755
	}
	return err
}

// file replaces a file or link. The new one is completed under another name and then renamed.
func (r *restore) file(dir *os.Root, base string, c change, content io.Reader) error {
	if err := dir.RemoveAll(staging); err != nil {
		return err
	}
	if c.new.mode == aLink {
		to, err := io.ReadAll(io.LimitReader(content, 1<<16))
		if err == nil {
			err = dir.Symlink(string(to), staging)
		}
		if err != nil {
			return err
		}
	} else if err := r.copy(dir, base, c, content); err != nil {
		return err
	}
	unlock, err := swap.Lock(r.ctx, dir) // another host may be editing the file
	if err != nil {
		return err
	}
	defer unlock()
	if err := unchanged(dir, base, c); err != nil {
		return err
	}
	return dir.Rename(staging, base)
}

// copy makes the file that will replace a path.
func (r *restore) copy(dir *os.Root, base string, c change, content io.Reader) error {
	f, err := dir.OpenFile(staging, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, content); err == nil {
		err = keepRights(dir, base, f, c)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return r.dress(dir, staging, c)
}

// keepRights gives the new file the owner, the ACL and the attributes of the file that it replaces.
func keepRights(dir *os.Root, base string, f *os.File, c change) error {
	if c.now == nil || !c.now.Mode().IsRegular() {
		return swap.Bare(f)
	}
	old, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := swap.Keep(f, old); err != nil {
		return fmt.Errorf("left as it is, since a new file cannot have its owner and permissions: %w", cause(err))
	}
	return nil
}

// dress sets the mode of a file to that of the file which it replaces, if there was one. Others must
// not get more rights than before: the group of a file that has lost its ACL gets none.
func (r *restore) dress(dir *os.Root, name string, c change) error {
	perm := usual(c.new.mode == aProgram)
	if c.now != nil && c.now.Mode().IsRegular() {
		if perm = c.now.Mode().Perm(); c.new.mode == aProgram && perm&0o100 == 0 {
			perm |= perm & 0o444 >> 2
		} else if c.new.mode == aFile {
			perm &^= 0o111
		}
	} else if then, ok := r.to.Narrow[strconv.Quote(c.path)]; ok {
		if perm &= then; then&hasACL != 0 {
			r.problems[c.path] = "its ACL was not kept; it was restored without one, " +
				"and without permissions for its group"
		}
	}
	return dir.Chmod(name, perm)
}
