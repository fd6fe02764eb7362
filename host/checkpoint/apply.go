package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"a2e/host/swap"
)

// run does it in an order in which each step finds what it needs:
//
//	what goes, the deepest first ─ folders, the highest first ─ files and links ─ second names ─ modes of folders
func (r *restore) run() {
	r.opened = make(map[string]uint32)
	byDepth := slices.Clone(r.changes)
	slices.SortFunc(byDepth, func(a, b change) int { return deepestFirst(a.path, b.path) })
	for _, c := range byDepth {
		if c.old != nil && (c.new == nil || c.old.kind != c.new.kind && (c.old.kind == aDir || c.new.kind == aDir)) {
			r.try(c.path, func(dir *os.Root, base string) error { return r.gone(dir, base, c.path) })
		}
	}
	for _, c := range slices.Backward(byDepth) {
		if c.new != nil && c.new.kind == aDir {
			r.try(c.path, func(dir *os.Root, base string) error { return r.folder(dir, base, c) })
		}
	}
	first := make(map[uint64]string) // path of a file with several names, by its number then
	for _, c := range r.changes {
		if c.new == nil || c.new.kind == aDir {
			continue
		}
		r.try(c.path, func(dir *os.Root, base string) error {
			err := r.file(dir, base, c, first)
			_ = dir.Remove(staging)
			return err
		})
	}
	for _, dir := range slices.SortedFunc(maps.Keys(r.opened), deepestFirst) {
		r.problem(dir, r.in(dir, func(at *os.Root, base string) error {
			return at.Chmod(base, fileMode(r.opened[dir]))
		}))
	}
}

func (r *restore) problem(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problems[path] = cause(err).Error()
	}
}

// cause returns the system's word for an error, without paths.
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

// in does one step in the folder that a path is in, which is opened anew, with no link on the way:
// whatever takes its place meanwhile is not touched.
func (r *restore) in(name string, step func(dir *os.Root, base string) error) error {
	above, base := split(name)
	dir, err := r.place.folder(above)
	if err != nil {
		return err
	}
	defer dir.Close()
	return step(dir, cmp.Or(base, "."))
}

// try is in; where the folder does not let it, that is made writable for the time.
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
	r.opened[dir] = uint32(info.Mode().Perm())
	if e := r.store.tree.get(dir); e != nil {
		r.opened[dir] = e.perm
	}
	return at.Chmod(base, info.Mode()|0o700)
}

// gone removes a path; a folder only where nothing is left in it that is not kept.
func (r *restore) gone(dir *os.Root, base, name string) error {
	unlock, err := swap.Lock(r.ctx, dir) // another host may edit the file
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.unchanged(name); err != nil {
		return err
	}
	err = dir.Remove(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if f, wrong := dir.Open(base); wrong == nil {
			defer f.Close()
			if left, _ := f.Readdirnames(1); len(left) > 0 {
				return errors.New("not removed, since it holds content that is not kept: " + left[0])
			}
		}
	}
	return err
}

// unchanged reports what is under a name that is in no checkpoint: what could not be brought back is not
// written over.
func (r *restore) unchanged(name string) error {
	dir, base := split(name)
	found, err := r.place.list(dir, []string{base})
	if err != nil || len(found) == 0 {
		return err
	}
	was, now := r.store.tree.get(name), &found[0]
	switch {
	case now.kind == aDir:
		return nil // only an empty one can go
	case was == nil:
		return errors.New("what is there now is not kept and would be lost")
	case was.kind != now.kind || was.ino != now.ino || was.size != now.size ||
		was.mtime != now.mtime || was.link != now.link:
		return errors.New("it was changed during the restore, and left as it is")
	}
	return nil
}

// folder makes a folder; it gets its mode last.
func (r *restore) folder(dir *os.Root, base string, c change) error {
	err := dir.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		r.opened[c.path] = c.new.perm
	}
	return err
}

// file puts a file or link in its place: the new one is made whole beside it and takes the name then.
func (r *restore) file(dir *os.Root, base string, c change, first map[uint64]string) error {
	if err := dir.RemoveAll(staging); err != nil {
		return err
	}
	o := c.old
	switch {
	case c.new.kind == aLink:
		if err := dir.Symlink(c.new.link, staging); err != nil {
			return err
		}
	case c.new.nlink > 1 && r.link(dir, c, first):
	case o != nil && o.kind == aFile && o.held == heldWhole && o.sum == c.new.sum && o.nlink == 1 && c.new.nlink == 1:
		return r.dress(dir, base, c)
	default:
		if err := r.copy(dir, base, c); err != nil {
			return err
		}
		if c.new.nlink > 1 {
			first[c.new.ino] = c.path
		}
	}
	unlock, err := swap.Lock(r.ctx, dir) // another host may edit the file
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.unchanged(c.path); err != nil {
		return err
	}
	return dir.Rename(staging, base)
}

// link makes what is put in place of a path a further name of the file that it was a name of, where that
// is there.
func (r *restore) link(dir *os.Root, c change, first map[uint64]string) bool {
	other := r.other(c, first)
	if other == "" {
		return false
	}
	at, _ := split(c.path)
	if r.place.root.Link(other, join(at, staging)) != nil {
		return false
	}
	made, err := dir.Lstat(staging)
	if err == nil {
		err = r.in(other, func(at *os.Root, base string) error { // a link on the way may have led to something else
			info, err := at.Lstat(base)
			if err == nil && !os.SameFile(info, made) {
				err = errSwapped
			}
			return err
		})
	}
	if err != nil {
		_ = dir.Remove(staging)
	}
	return err == nil
}

// copy makes the file that is put in place of a path.
func (r *restore) copy(dir *os.Root, base string, c change) error {
	f, err := dir.OpenFile(staging, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = r.store.blobs.copyTo(f, c.new)
	if err == nil {
		err = r.keepRights(dir, base, f, c)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return r.dress(dir, staging, c)
}

// keepRights gives the new file the owner, the ACL and the attributes of the one that it replaces.
func (r *restore) keepRights(dir *os.Root, base string, f *os.File, c change) error {
	if c.old == nil || c.old.kind != aFile {
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

// dress sets mode and time of a file. Others must not get more rights than they had: the group of a file
// that has lost its ACL gets none.
func (r *restore) dress(dir *os.Root, name string, c change) error {
	perm, at := c.new.perm, time.Unix(0, c.new.mtime)
	if perm&hasACL != 0 && !acl(dir, name) {
		perm &^= 0o070
		r.problems[c.path] = "its ACL was not kept; it was restored without one, and without permissions for its group"
	}
	return errors.Join(dir.Chmod(name, fileMode(perm)), dir.Chtimes(name, at, at))
}

// acl reports whether a file has an ACL.
func acl(dir *os.Root, name string) bool {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return swap.HasACL(f)
}

// other returns another name of the file that a path was a name of, which has its content already.
func (r *restore) other(c change, first map[uint64]string) string {
	if name := first[c.new.ino]; name != "" {
		return name
	}
	changed := make(map[string]bool, len(r.changes))
	for _, c := range r.changes {
		changed[c.path] = true
	}
	for name, e := range r.store.tree.below("") {
		if e.kind == aFile && e.ino == c.new.ino && e.nlink > 1 && e.sum == c.new.sum && !changed[name] {
			return name
		}
	}
	return ""
}
