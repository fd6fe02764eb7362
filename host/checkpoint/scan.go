package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// scan finds out what changed in the workspace since the last checkpoint:
//
//	folders (all, or those with changed names) ─ visit ─► their entries now ─► contents to keep ─► changes
//
// The state of the last checkpoint stays as it is until commit.
type scan struct {
	*Keeper
	place *place
	all   bool // all folders are read, not only those with changed names
	calm  bool // nobody waits for it yet

	places chan struct{} // for folders that are read side by side
	work   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	seen    map[string]*folder
	unread  []content
	names   int             // in seen
	linked  map[uint64]bool // numbers of files with a name that was not known
	problem error

	unwatched error // why not all folders can be watched
}

// content is a file whose content is not known yet.
type content struct {
	path string
	size int64
}

// staging is the name that a restore works with.
const staging = ".a2e-restore"

// leftAlone reports whether a name is never kept nor put back, as far as the folder that it is in is not:
// the host's own, and what version control has in its folders.
func (k *Keeper) leftAlone(name string) bool {
	_, base := split(name)
	return base == staging || isRepository(base) || slices.Contains(k.o.Hidden, name)
}

// isRepository reports whether a folder of this name is one of version control. Nothing in it is kept, but
// that it is there, so that a restore says where it is missing. A file .git, which leads to the repository
// of a submodule or work tree, is kept like any other.
func isRepository(base string) bool {
	return slices.Contains([]string{".git", ".jj", ".hg", ".svn"}, base)
}

// isGitLink reports whether a name that would be left alone is a file .git.
func (k *Keeper) isGitLink(name string, e *entry) bool {
	_, base := split(name)
	return base == ".git" && e.kind == aFile && !slices.Contains(k.o.Hidden, name)
}

// run reads what may have changed. names are the changed ones by folder; nil = all.
func (s *scan) run(names map[string][]string) error {
	s.seen, s.linked = make(map[string]*folder), make(map[uint64]bool)
	s.places = make(chan struct{}, max(2, runtime.GOMAXPROCS(0))-1)
	if s.all = names == nil; s.all {
		s.visit("", nil, nil, false)
	}
	for _, dir := range slices.Sorted(maps.Keys(names)) {
		if f := s.store.tree[dir]; f != nil && s.seen[dir] == nil {
			s.visit(dir, names[dir], f.rules, f.ignored)
			s.work.Wait() // a folder that is new at its path is read with those in it
		}
	}
	s.work.Wait()
	s.secondNames() // which may read a name again
	slices.SortFunc(s.unread, func(a, b content) int { return strings.Compare(a.path, b.path) })
	s.unread = slices.CompactFunc(s.unread, func(a, b content) bool { return a.path == b.path })
	return s.problem
}

// secondNames looks at the other names of files that got a further one, as nothing tells of that.
// Such a name may be a folder by now, with more such files in it.
func (s *scan) secondNames() {
	for known := 0; !s.all && known < len(s.linked); {
		known = len(s.linked)
		for dir, f := range s.store.tree {
			var names []string
			for i := range f.entries {
				if e := &f.entries[i]; e.kind == aFile && s.linked[e.ino] && s.seen[dir].get(e.name).isNot(e.ino) {
					names = append(names, e.name)
				}
			}
			if names != nil {
				s.visit(dir, names, f.rules, f.ignored)
				s.work.Wait()
			}
		}
	}
}

// visit reads a folder, or some names in it, and the folders in it that are to be read.
func (s *scan) visit(dir string, names []string, above *rules, ignored bool) {
	f, subs, err := s.folder(dir, names, above, ignored)
	s.mu.Lock()
	if s.problem = cmp.Or(s.problem, err, context.Cause(s.ctx)); s.problem != nil {
		s.mu.Unlock()
		return
	}
	if f == nil { // it has gone, which the folder that it was in tells
		s.mu.Unlock()
		return
	}
	if was := s.seen[dir]; was != nil {
		s.names -= len(was.entries)
	}
	s.seen[dir] = f
	if s.names += len(f.entries); s.names > s.o.MaxFiles {
		s.problem = fmt.Errorf("the workspace has more than %d files and folders that would be kept; name what is not to be kept in a .gitignore, or raise checkpoints.max_files", s.o.MaxFiles)
	}
	s.mu.Unlock()
	for _, sub := range subs {
		below := func() { s.visit(sub.path, nil, f.rules, sub.ignored) }
		if s.calm && s.asks.Load() == 0 {
			below()
			continue
		}
		select {
		case s.places <- struct{}{}:
			s.work.Go(func() {
				below()
				<-s.places
			})
		default:
			below()
		}
	}
}

// folder returns the state of a folder, with the folders in it that have to be read too.
func (s *scan) folder(dir string, names []string, above *rules, ignored bool) (f *folder, subs []*folder, err error) {
	if s.watch != nil && names == nil {
		if err := s.watch.add(dir); err != nil {
			s.mu.Lock()
			s.unwatched = err
			s.mu.Unlock()
		}
	}
	old := s.store.tree[dir]
	f = &folder{path: dir, rules: above, ignored: ignored}
	if names != nil {
		slices.Sort(names)
		names = slices.Compact(names)
		base := old
		if seen := s.seen[dir]; seen != nil {
			base = seen
		}
		f.entries = slices.DeleteFunc(slices.Clone(base.entries), func(e entry) bool {
			_, changed := slices.BinarySearch(names, e.name)
			return changed
		})
	}
	now, err := s.place.list(dir, names)
	switch {
	case errors.Is(err, fs.ErrPermission):
		f.closed = true
		if old != nil {
			f.entries = old.entries
		}
		return f, nil, nil
	case isGone(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	if names == nil && slices.ContainsFunc(now, func(e entry) bool { return e.name == ignoreFile && e.kind == aFile }) {
		f.rules = newRules(above, dir, s.place.readSmall(join(dir, ignoreFile), maxIgnoreBytes))
	}
	var found []entry
	for i := range now {
		if sub, ok := s.take(f, old.get(now[i].name), &now[i]); ok {
			if found = append(found, now[i]); sub != nil {
				subs = append(subs, sub)
			}
		}
	}
	if f.entries == nil {
		f.entries = found
		return f, subs, nil
	}
	for _, e := range found {
		f.put(e)
	}
	return f, subs, nil
}

// isGone reports whether a folder is none any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) || errors.Is(err, errSwapped)
}

// take decides whether a name is kept, fills in what is known of it, and returns the folder that it is
// where that has to be read.
func (s *scan) take(f *folder, old, now *entry) (sub *folder, ok bool) {
	name := join(f.path, now.name)
	if s.leftAlone(name) && !s.isGitLink(name, now) {
		there := now.kind == aDir && isRepository(now.name) && !slices.Contains(s.o.Hidden, name)
		*now = entry{name: now.name, kind: aDir, held: heldNot} // whatever becomes of it
		return nil, there
	}
	isDir := now.kind == aDir
	ignored := false
	if known := old != nil && old.kind == now.kind; !s.o.IncludeIgnored && (!known || isDir) {
		if ignored = f.ignored || f.rules.ignores(name, isDir); ignored && !known {
			return nil, false // what was kept before it was ignored is kept on
		}
	}
	switch {
	case isDir && (s.moved(name, old, now) || s.all || old == nil || old.kind != aDir || s.store.tree[name] == nil || !s.watched(name)):
		return &folder{path: name, ignored: ignored}, true
	case now.kind != aFile:
		return nil, true
	case now.nlink > 1 && old.isNot(now.ino):
		s.mu.Lock()
		s.linked[now.ino] = true
		s.mu.Unlock()
	}
	switch {
	case isDir:
	case old != nil && old.looks(now) && (old.held != heldTooBig || now.size > s.o.MaxFileBytes):
		now.held, now.sum, now.name, now.perm = old.held, old.sum, old.name, old.perm
	case now.size > s.o.MaxFileBytes:
		now.held = heldTooBig
	default:
		s.mu.Lock()
		s.unread = append(s.unread, content{name, now.size})
		s.mu.Unlock()
	}
	return nil, true
}

// watched reports whether changes in a folder are told, as far as any are: one that another host
// found first is not watched here yet.
func (s *scan) watched(name string) bool { return s.watch == nil || s.watch.has(name) }

// moved reports whether another folder is at the path of one, which is not watched then.
func (s *scan) moved(name string, old, now *entry) bool {
	if old == nil || old.kind != aDir || old.ino == now.ino {
		return false
	}
	if s.watch != nil {
		s.watch.remove(name)
	}
	return true
}

// contents keeps those that are not known yet, several at once.
func (s *scan) contents() error {
	var next int
	for range cap(s.places) + 1 {
		s.work.Go(func() {
			for {
				s.mu.Lock()
				if s.problem = cmp.Or(s.problem, context.Cause(s.ctx)); s.problem != nil || next == len(s.unread) {
					s.mu.Unlock()
					return
				}
				one := s.unread[next]
				next++
				s.mu.Unlock()
				s.content(one.path)
			}
		})
	}
	s.work.Wait()
	return s.problem
}

func (s *scan) content(name string) {
	dir, base := split(name)
	s.mu.Lock()
	f := s.seen[dir]
	e := f.get(base)
	if e == nil { // it went before its folder was read again
		s.mu.Unlock()
		return
	}
	own := *e
	s.mu.Unlock()
	ok, err := s.place.keep(name, &own, &s.store.blobs, s.o.MaxBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = cmp.Or(s.problem, err)
	if ok {
		f.put(own)
	} else {
		f.drop(base)
	}
}

// changes compares what was seen with the state of the last checkpoint.
func (s *scan) changes() (all []change, gone []string) {
	for dir, f := range s.seen {
		old := s.store.tree[dir]
		for i := range f.entries {
			now := &f.entries[i]
			if was := old.get(now.name); !same(was, now) {
				all = append(all, change{join(dir, now.name), was, now})
				if was != nil && was.kind == aDir && now.kind != aDir {
					gone = s.removed(join(dir, now.name), &all, gone)
				}
			}
		}
		if old == nil {
			continue
		}
		for i := range old.entries {
			was := &old.entries[i]
			if f.get(was.name) != nil {
				continue
			}
			all = append(all, change{join(dir, was.name), was, nil})
			if was.kind == aDir {
				gone = s.removed(join(dir, was.name), &all, gone)
			}
		}
	}
	slices.SortFunc(all, func(a, b change) int { return strings.Compare(a.path, b.path) })
	return all, gone
}

// removed adds what was in a folder that has gone.
func (s *scan) removed(dir string, all *[]change, gone []string) []string {
	gone = append(gone, dir)
	for name, was := range s.store.tree.below(dir) {
		*all = append(*all, change{name, was, nil})
		if was.kind == aDir {
			gone = append(gone, name)
		}
	}
	return gone
}

// commit makes what was seen the state of the last checkpoint.
func (s *scan) commit(gone []string) {
	for _, dir := range gone {
		delete(s.store.tree, dir)
		if s.watch != nil && s.seen[dir] == nil {
			s.watch.remove(dir)
		}
	}
	maps.Copy(s.store.tree, s.seen)
	if s.all {
		s.again = nil
	}
	for dir, f := range s.seen {
		for i := range f.entries {
			if e := &f.entries[i]; e.untold() {
				s.again = append(s.again, join(dir, e.name))
			}
		}
	}
	slices.Sort(s.again)
	s.again = slices.Compact(s.again)
}

// adopt has the next scan look again at the names that are others than at the last checkpoint, and at no
// more than what changes from now on. It reports false where that would not do: other names may be left
// out than before. The state of the last checkpoint stays as it is.
func (s *scan) adopt() bool {
	var again []string
	for dir, f := range s.seen {
		old := s.store.tree[dir]
		if old == nil {
			continue // its own folder names it
		}
		for i := range f.entries {
			now := &f.entries[i]
			if was := old.get(now.name); was == nil || !was.looks(now) || now.untold() || now.kind == aFile && now.held == heldNot {
				again = append(again, join(dir, now.name))
			}
		}
		for i := range old.entries {
			if f.get(old.entries[i].name) == nil {
				again = append(again, join(dir, old.entries[i].name))
			}
		}
	}
	if slices.ContainsFunc(again, func(name string) bool { _, base := split(name); return base == ignoreFile }) {
		return false
	}
	for dir, f := range s.seen {
		if old := s.store.tree[dir]; old != nil {
			old.rules, old.ignored, old.closed = f.rules, f.ignored, f.closed
		}
	}
	slices.Sort(again)
	s.again = slices.Compact(again)
	return true
}

// pending returns the names to look at: those that changed, and those whose change nobody would tell.
// nil = all have to be looked at.
func (k *Keeper) pending() map[string][]string {
	if k.watch == nil {
		return nil
	}
	names, ok := k.watch.changed()
	if !ok {
		k.watch.close()
		k.watch = newWatcher(k.o.Workspace)
	}
	if !ok || k.stale {
		return nil
	}
	for _, changed := range names {
		if slices.Contains(changed, ignoreFile) {
			return nil
		}
	}
	for _, name := range k.again {
		dir, base := split(name)
		if all, there := names[dir]; !there || all != nil {
			names[dir] = append(all, base)
		}
	}
	k.again = nil
	return names
}

// deepestFirst orders paths so that what is in a folder comes before it.
func deepestFirst(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), strings.Compare(path.Dir(a), path.Dir(b)), strings.Compare(a, b))
}
