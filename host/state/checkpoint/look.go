package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"a2e/host/guard/swap"
)

// staging is the name that a restore works with, and that git is told of to have it look into a repository.
const staging = ".a2e-restore"

// left is a file whose content is not kept.
type left struct {
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // in nanoseconds since 1970
	Why   string `json:"why"`   // as the end of a sentence
}

// Why a content is not kept.
const (
	tooLarge = "is larger than max_file_bytes"
	noRoom   = "did not fit into max_bytes"
	closed   = "could not be read"
)

// hasACL marks rights that an ACL extended or narrowed.
const hasACL = 1 << 16

// seen are the names that are to be looked at.
type seen struct{ changed, others []string }

// state is what the next checkpoint is made of.
type state struct {
	meta
	add, drop []string
	fresh     map[string]bool // names in add that were not kept before
	sizes     map[string]int64
	need      int64
}

// empty reports whether the files are those of the last checkpoint.
func (s *state) empty() bool {
	return len(s.add) == 0 && !slices.ContainsFunc(s.drop, func(name string) bool { return path.Base(name) != staging })
}

// like reports whether what git does not keep is as it was.
func (s *state) like(last *meta) bool {
	return maps.Equal(s.Left, last.Left) && maps.Equal(s.Narrow, last.Narrow) && slices.Equal(s.Nested, last.Nested)
}

// leave has the content of a file not be kept.
func (s *state) leave(name string, info fs.FileInfo, why string) {
	l := left{Why: why}
	if info != nil {
		l.Size, l.Mtime = info.Size(), info.ModTime().UnixNano()
	}
	s.Left[strconv.Quote(name)] = l
}

// fit leaves out what does not fit into some room.
func (s *state) fit(room int64) {
	if s.need <= room {
		return
	}
	s.need = 0
	s.add = slices.DeleteFunc(s.add, func(name string) bool {
		if s.need+s.sizes[name] <= room {
			s.need += s.sizes[name]
			return false
		}
		s.Left[strconv.Quote(name)] = left{Size: s.sizes[name], Why: noRoom}
		s.out(name)
		return true
	})
}

// out has a name no longer be kept.
func (s *state) out(name string) {
	if s.Files--; !s.fresh[name] {
		s.drop = append(s.drop, name)
	}
}

// shortRead is what git says of a file that became shorter while it was read.
const shortRead = "fatal: failed to read "

// closed leaves out the file that git could not read, if that is what it says.
func (s *state) closed(err error) bool {
	_, name, found := strings.Cut(err.Error(), "fatal: Unable to process path ")
	if !found {
		_, name, _ = strings.Cut(err.Error(), shortRead)
		_, name, _ = strings.Cut(name, "from '")
		name = strings.TrimSuffix(name, "'")
	}
	at := slices.Index(s.add, name)
	if at < 0 {
		return false
	}
	s.leave(name, nil, closed)
	s.out(name)
	s.add = slices.Delete(s.add, at, at+1)
	return true
}

// look asks git for what is not as the index has it. It does not look into a repository in the workspace as long
// as it has no name in it: such a one gets one for that.
func (k *Keeper) look() (seen, error) {
	others := `--exclude-standard`
	if k.o.IncludeIgnored {
		others = `--exclude-from="$GIT_DIR/info/exclude"`
	}
	known, seed, again := map[string]bool{}, "", false
	for {
		if err := k.write("seed", seed); err != nil {
			return seen{}, err
		}
		err := k.script(io.Discard, `[ -f "$GIT_DIR/index" ] || git read-tree ${TIP:---empty} || exit
			[ ! -s "$GIT_DIR/seed" ] || git update-index -z --index-info <"$GIT_DIR/seed" || exit
			git ls-files -z -o `+others+` >"$GIT_DIR/others" & other=$!
			git diff-files -z --name-only >"$GIT_DIR/changed" || exit
			wait $other`)
		if err != nil && !again { // the index is damaged, perhaps: it is made of the last checkpoint
			if again = true; os.Remove(filepath.Join(k.dir, indexFile)) == nil {
				continue
			}
		}
		if err != nil {
			return seen{}, err
		}
		changed, wrong := k.names(changedFile)
		names, err := k.names(othersFile)
		if err := errors.Join(wrong, err); err != nil {
			return seen{}, err
		}
		grown := false
		for _, name := range names {
			if dir, ok := strings.CutSuffix(name, "/"); ok && !known[dir] && !k.hides(dir) && k.holds(dir) {
				known[dir], grown = true, true
				seed += "100644 e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 0\t" + dir + "/" + staging + "\x00"
			}
		}
		if !grown {
			return seen{changed, names}, nil
		}
	}
}

// holds reports whether there is more in the folder of a repository than that.
func (k *Keeper) holds(dir string) bool {
	all, _ := os.ReadDir(filepath.Join(k.o.Workspace, dir))
	return slices.ContainsFunc(all, func(e fs.DirEntry) bool { return !isRepository(e.Name()) })
}

// hides reports whether a path is never kept nor put back.
func (k *Keeper) hides(name string) bool {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if base := path.Base(dir); base == staging || isRepository(base) || slices.Contains(k.o.Hidden, dir) {
			return true
		}
	}
	return false
}

// isRepository reports whether a name is that of a folder of version control, which is not kept.
func isRepository(base string) bool {
	switch base {
	case ".git", ".jj", ".hg", ".svn":
		return true
	}
	return false
}

// sort decides what of the names is kept.
func (k *Keeper) sort(names seen) (*state, error) {
	s := &state{fresh: map[string]bool{}, sizes: map[string]int64{}}
	s.Left, s.Narrow, s.Files = map[string]left{}, map[string]fs.FileMode{}, k.indexed()
	root, err := os.OpenRoot(k.o.Workspace)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dirs := map[string]fs.FileMode{}
	nested := map[string]bool{}
	if last := k.last(); last != nil {
		maps.Copy(s.Narrow, last.Narrow)
		for _, name := range last.Nested {
			nested[unquote(name)] = true
		}
	}
	for i, name := range slices.Concat(names.changed, names.others) {
		if fresh := i >= len(names.changed); fresh {
			s.fresh[name] = true
		} else {
			s.Files--
		}
		if !strings.HasSuffix(name, "/") {
			k.one(s, root, name, dirs)
		}
	}
	for dir, mode := range dirs {
		for _, base := range []string{".git", ".hg", ".jj", ".svn"} {
			if mode != 0 && dir != "." && !k.hides(dir) {
				nested[dir+"/"+base] = true
			}
		}
	}
	for name := range nested {
		if _, err := os.Lstat(filepath.Join(k.o.Workspace, name)); err == nil {
			s.Nested = append(s.Nested, strconv.Quote(name))
		}
	}
	slices.Sort(s.Nested)
	if s.Files > k.o.MaxFiles {
		return nil, fmt.Errorf("the workspace has more than %d files that would be kept; name what is not to be kept "+
			"in a .gitignore, or raise checkpoints.max_files", k.o.MaxFiles)
	}
	return s, nil
}

// one decides about one name. dirs are the rights that the folders leave, 0 where one is none.
func (k *Keeper) one(s *state, root *os.Root, name string, dirs map[string]fs.FileMode) {
	quoted := strconv.Quote(name)
	delete(s.Narrow, quoted)
	gone := func() {
		if !s.fresh[name] {
			s.drop = append(s.drop, name)
		}
	}
	if k.hides(name) {
		gone()
		return
	}
	rights := k.rights(path.Dir(name), dirs)
	info, err := os.Lstat(filepath.Join(k.o.Workspace, name))
	if rights == 0 || err != nil || !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		gone()
		return
	}
	if info.Mode().IsRegular() {
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		switch {
		case info.Size() > k.o.MaxFileBytes:
			s.leave(name, info, tooLarge)
		case err != nil:
			s.leave(name, info, closed)
		}
		perm := info.Mode().Perm() & rights
		acl := fs.FileMode(0)
		if err == nil {
			if swap.HasACL(f) {
				perm, acl = perm&^0o070, hasACL
			}
			f.Close()
		}
		if usual := usual(perm&0o100 != 0); perm&usual != usual || acl != 0 {
			s.Narrow[quoted] = perm | acl
		}
		if _, out := s.Left[quoted]; out {
			gone()
			return
		}
	}
	s.Files++
	s.add, s.sizes[name] = append(s.add, name), info.Size()
	s.need += info.Size()
}

// rights returns what a folder and those above it let others do; 0 = it is no folder.
func (k *Keeper) rights(dir string, known map[string]fs.FileMode) fs.FileMode {
	if r, ok := known[dir]; ok {
		return r
	}
	above := fs.FileMode(0o777)
	if dir != "." {
		above = k.rights(path.Dir(dir), known)
	}
	info, err := os.Lstat(filepath.Join(k.o.Workspace, dir))
	r := above
	switch {
	case err != nil || !info.IsDir() || above == 0:
		r = 0
	case dir == ".": // who may enter the workspace is not its own concern
	default:
		for _, class := range []fs.FileMode{0o070, 0o007} {
			if info.Mode()&class&0o011 == 0 {
				r &^= class
			}
		}
	}
	known[dir] = r
	return r
}

// usual returns the rights of a file that is made anew, as far as no less is known.
func usual(program bool) fs.FileMode {
	if program {
		return 0o755
	}
	return 0o644
}
