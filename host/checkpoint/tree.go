package checkpoint

import (
	"iter"
	"path"
	"slices"
	"strings"
)

// kind is what stands under a name. Pipes, sockets and devices are no kind: they are left alone.
type kind uint8

const (
	aFile kind = iota + 1
	aDir
	aLink
)

// held says whether the content of a file is kept, and why not.
type held uint8

const (
	heldWhole  held = iota
	heldNot         // not looked at yet
	heldTooBig      // it has more than max_file_bytes
	heldNoRoom      // with it there would be more than max_bytes
	heldClosed      // it cannot be read
)

// reason says why a content is not kept, as the end of a sentence.
func (h held) reason() string {
	return [...]string{"is kept", "was not read", "is larger than max_file_bytes", "did not fit into max_bytes", "could not be read"}[h]
}

// entry is what is known of one name in a folder.
type entry struct {
	name  string
	kind  kind
	held  held
	racy  bool   // it changed so shortly before it was read that a further change may not show
	perm  uint32 // as stat has it, and hasACL
	nlink uint32
	size  int64
	mtime int64 // in nanoseconds since 1970, as ctime
	ctime int64
	ino   uint64
	sum   sum    // of a file's content
	link  string // where a link leads
}

// hasACL is set in the perm of a file with an ACL, once its content was read. What it says is not kept: the
// rights of the group in perm are those of its mask then.
const hasACL = 1 << 16

// looks reports whether a name looks as it did when it was read, so that it need not be read again.
func (e *entry) looks(now *entry) bool {
	return e.kind == now.kind && e.perm&^hasACL == now.perm && e.nlink == now.nlink && e.size == now.size &&
		e.mtime == now.mtime && e.ctime == now.ctime && e.ino == now.ino && !e.racy && (e.held == heldWhole || e.held == heldTooBig || e.kind != aFile)
}

// untold reports whether nothing may tell that a file changed.
func (e *entry) untold() bool {
	return e.kind == aFile && (e.racy || e.nlink > 1 || e.held == heldClosed || e.held == heldNoRoom)
}

// isNot reports whether a name is not known as one of several of the file with a number.
func (e *entry) isNot(ino uint64) bool {
	return e == nil || e.kind != aFile || e.ino != ino || e.nlink == 1
}

// same reports whether two states of a name are the same to whoever works in the folder; nil
// is a name that is free.
func same(a, b *entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	switch {
	case a.kind != b.kind:
		return false
	case a.kind == aLink:
		return a.link == b.link
	case a.kind == aDir:
		return a.perm == b.perm
	case a.perm != b.perm || a.mtime != b.mtime || a.size != b.size:
		return false
	case (a.nlink > 1 || b.nlink > 1) && (a.ino != b.ino || min(a.nlink, b.nlink) == 1):
		return false
	case a.held == heldWhole && b.held == heldWhole:
		return a.sum == b.sum
	}
	return a.held == b.held || a.ctime == b.ctime && a.ino == b.ino
}

// folder is what is known of the names in one folder, by name.
type folder struct {
	path    string // relative to the workspace, with slashes; "" is the workspace
	entries []entry
	rules   *rules // of .gitignore; nil = none
	ignored bool   // nothing is taken in that was not there before
	closed  bool   // it cannot be read
}

func (f *folder) find(name string) (at int, ok bool) {
	if f == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(f.entries, name, func(e entry, name string) int { return strings.Compare(e.name, name) })
}

func (f *folder) get(name string) *entry {
	if at, ok := f.find(name); ok {
		return &f.entries[at]
	}
	return nil
}

// put sets what is known of a name.
func (f *folder) put(e entry) {
	at, ok := f.find(e.name)
	if ok {
		f.entries[at] = e
		return
	}
	f.entries = slices.Insert(f.entries, at, e)
}

// drop forgets a name.
func (f *folder) drop(name string) {
	if at, ok := f.find(name); ok {
		f.entries = slices.Delete(f.entries, at, at+1)
	}
}

// tree is the state of a workspace, by the paths of its folders.
type tree map[string]*folder

// get returns what is known of a path; nil = it is free.
func (t tree) get(name string) *entry {
	dir, base := split(name)
	return t[dir].get(base)
}

// set takes in the state of a path, nil for a free one, whose folder is made where it is not known.
func (t tree) set(name string, e *entry) {
	dir, base := split(name)
	f := t[dir]
	switch {
	case e == nil:
		if f != nil {
			f.drop(base)
		}
		delete(t, name)
		return
	case f == nil:
		f = &folder{path: dir}
		t[dir] = f
	}
	own, was := *e, f.get(base)
	own.name = base
	if own.kind != aDir {
		delete(t, name)
	} else if was == nil || was.kind != aDir || t[name] == nil {
		t[name] = &folder{path: name}
	}
	f.put(own)
}

// below yields the paths and states of all that lies in a folder, each folder before what is in it.
func (t tree) below(dir string) iter.Seq2[string, *entry] {
	return func(yield func(string, *entry) bool) { t.each(dir, yield) }
}

func (t tree) each(dir string, yield func(string, *entry) bool) bool {
	f := t[dir]
	if f == nil {
		return true
	}
	for i := range f.entries {
		e := &f.entries[i]
		name := join(dir, e.name)
		if !yield(name, e) || e.kind == aDir && !t.each(name, yield) {
			return false
		}
	}
	return true
}

// count returns how many names the tree has, and of how many the content is not kept.
func (t tree) count() (names, leftOut int) {
	for _, f := range t {
		names += len(f.entries)
		if f.closed {
			leftOut++
		}
		for i := range f.entries {
			if e := &f.entries[i]; e.kind == aFile && e.held != heldWhole {
				leftOut++
			}
		}
	}
	return names, leftOut
}

func split(name string) (dir, base string) {
	dir, base = path.Split(name)
	return strings.TrimSuffix(dir, "/"), base
}

func join(dir, base string) string {
	if dir == "" {
		return base
	}
	return dir + "/" + base
}

// change is what became of one path between two states.
type change struct {
	path     string
	old, new *entry // nil = the path is free
}
