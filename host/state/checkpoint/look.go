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

// staging is the temporary name that a restore uses. It is also passed to git to make it look into a nested repository.
const staging = ".a2e-restore"

// left is a file whose content is not kept.
type left struct {
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // in nanoseconds since 1970
	Why   string `json:"why"`   // as the end of a sentence
}

// Reasons why a content is not kept.
const (
	tooLarge = "is larger than max_file_bytes"
	noRoom   = "did not fit into max_bytes"
	closed   = "could not be read"
)

// hasACL marks rights that an ACL changes.
const hasACL = 1 << 16

// seen contains the names to examine.
type seen struct{ changed, others []string }

// state is the input for the next checkpoint.
type state struct {
	meta
	add, drop []string
	fresh     map[string]bool // names in add that were not kept before
	sizes     map[string]int64
	need      int64
}

// empty reports whether all files are as in the last checkpoint.
func (s *state) empty() bool {
	return len(s.add) == 0 && !slices.ContainsFunc(s.drop, func(name string) bool { return path.Base(name) != staging })
}

// like reports whether the data that git does not keep is as in the last checkpoint.
func (s *state) like(last *meta) bool {
	return maps.Equal(s.Left, last.Left) && maps.Equal(s.Narrow, last.Narrow) && slices.Equal(s.Nested, last.Nested)
}

// leave records that the content of a file is not kept, and why.
func (s *state) leave(name string, info fs.FileInfo, why string) {
	l := left{Why: why}
	if info != nil {
		l.Size, l.Mtime = info.Size(), info.ModTime().UnixNano()
	}
	s.Left[strconv.Quote(name)] = l
}

// fit drops the contents that do not fit into room bytes.
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

// out removes a name from the kept ones.
func (s *state) out(name string) {
	if s.Files--; !s.fresh[name] {
		s.drop = append(s.drop, name)
	}
}

// shortRead is the beginning of git's error for a file that became shorter while it was read.
const shortRead = "fatal: failed to read "

// closed drops the file that git could not read, and reports whether the error names one.
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

// look asks git for the files that differ from the index. Git does not look into a nested repository
// without a name in the index, so look passes it such a name.
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
		if err != nil && !again { // the index may be damaged: it is made again from the last checkpoint
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

// holds reports whether a folder contains more than the folder of a repository.
func (k *Keeper) holds(dir string) bool {
	all, _ := os.ReadDir(filepath.Join(k.o.Workspace, dir))
	return slices.ContainsFunc(all, func(e fs.DirEntry) bool { return !isRepository(e.Name()) })
}

// hides reports whether a path is never kept or restored.
func (k *Keeper) hides(name string) bool {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if base := path.Base(dir); base == staging || isRepository(base) || slices.Contains(k.o.Hidden, dir) {
			return true
		}
	}
	return false
}

// repositories returns the names of version control folders, which are not kept.
func repositories() []string { return []string{".git", ".hg", ".jj", ".svn"} }

func isRepository(base string) bool { return slices.Contains(repositories(), base) }

// sort decides which of the names are kept.
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
		for _, base := range repositories() {
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

// one decides whether one name is kept. dirs caches the results of rights.
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

// rights returns the mode bits that a folder and those above it leave: without access for the group or others,
// their bits are missing. 0 = it is not a folder.
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
	case dir == ".": // the mode of the workspace itself does not count
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

// usual returns the mode of a new file for which no narrower mode is known.
func usual(program bool) fs.FileMode {
	if program {
		return 0o755
	}
	return 0o644
}
