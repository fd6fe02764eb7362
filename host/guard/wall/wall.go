// Package wall keeps agents from the host's own files, such as its state_dir and its config,
// where those lie in a folder that agents reach. What acts for agents by handles, such as
// the file tools, asks a Guard; children are kept out by the sandbox.
package wall

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// ErrOwn says that a path is the host's own.
var ErrOwn = errors.New("belongs to the host itself (its state or its config), which agents do not reach")

// Wall says what of the machine is the host's own. A nil Wall holds nothing back. It does
// not change.
type Wall struct {
	// Hidden are absolute folders that agents neither see nor change.
	Hidden []string
	// Fixed are absolute files that agents may read and not change.
	Fixed []string
	// Open are absolute folders that agents reach although a hidden one holds them.
	Open []string
	// Firm says that programs must not start where Fixed cannot be held.
	Firm bool
	// Loose says that they start also where nothing can be held: another host confines
	// this one, and has walls of its own.
	Loose bool
}

// Real follows the links on an absolute path as far as that exists.
func Real(path string) string {
	path = filepath.Clean(path)
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return real
	}
	return filepath.Join(Real(filepath.Dir(path)), filepath.Base(path))
}

// Place is where a path leads, absolute and without links, as what is kept names it: "." would
// be any folder.
func Place(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return Real(path)
}

// PlaceIn is the Place of a folder that a request names, relative to the workspace; "" = it names none.
func PlaceIn(workspace, name string) string {
	switch {
	case name == "":
		return ""
	case filepath.IsAbs(name):
		return Place(name)
	}
	return Place(filepath.Join(workspace, name))
}

// Within reports whether a path is dir or lies below it, by their names.
func Within(dir, path string) bool {
	_, ok := below(dir, path)
	return ok
}

// below returns the path relative to dir, which is or holds it.
func below(dir, path string) (rel string, ok bool) {
	if ignoresCase() {
		dir, path = strings.ToLower(dir), strings.ToLower(path)
	}
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// ignoresCase reports whether names usually mean the same in upper and lower case here. What
// takes too much for the same only hides more.
func ignoresCase() bool { return runtime.GOOS == "darwin" || runtime.GOOS == "windows" }

// Hides reports whether a path without links on the way lies in a hidden folder.
func (w *Wall) Hides(path string) bool {
	if w == nil {
		return false
	}
	return slices.ContainsFunc(w.Hidden, func(h string) bool {
		return Within(h, path) && !slices.ContainsFunc(w.Open,
			func(o string) bool { return Within(h, o) && Within(o, path) })
	})
}

// In returns what of the wall lies in an open folder; nil = nothing. The folder stays the
// caller's to close, after the last use.
func (w *Wall) In(root *os.Root) *Guard {
	if w == nil || len(w.Hidden)+len(w.Fixed) == 0 {
		return nil
	}
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil
	}
	dir = Real(dir)
	g := &Guard{root: root}
	for _, h := range w.Hidden {
		if rel, ok := below(dir, h); ok && rel != "." {
			g.hidden = append(g.hidden, part{h, filepath.ToSlash(rel)})
		}
	}
	for _, f := range w.Fixed {
		if rel, ok := below(dir, f); ok {
			g.fixed = append(g.fixed, part{f, filepath.ToSlash(rel)})
		}
	}
	if len(g.hidden)+len(g.fixed) == 0 {
		return nil
	}
	return g
}

// Inside returns what of the wall lies in a folder, a real path: relative to it, with slashes.
func (w *Wall) Inside(dir string) (all []string) {
	if w == nil {
		return nil
	}
	for _, own := range slices.Concat(w.Hidden, w.Fixed) {
		if rel, ok := below(dir, own); ok && rel != "." {
			all = append(all, filepath.ToSlash(rel))
		}
	}
	return all
}

// ErrSwapped says that another file or folder took the place of the one that was looked at.
var ErrSwapped = errors.New("was replaced while it was being opened")

// maxDepth bounds the folders on one way, each of which holds a descriptor; maxLinks the
// links, as the kernel does.
const (
	maxDepth = 256
	maxLinks = 40
)

// part is a piece of the wall within one folder.
type part struct {
	abs string
	rel string // with slashes
}

// Guard is the part of a Wall that lies in one folder. A nil Guard lets everything pass. It
// is safe for concurrent use.
type Guard struct {
	root          *os.Root
	hidden, fixed []part
}

// Hides reports whether something in the folder is the host's own: by its path without links
// on the way, and by what it is, which info tells unless it is nil.
func (g *Guard) Hides(rel string, info fs.FileInfo) bool {
	if g == nil {
		return false
	}
	return slices.ContainsFunc(g.hidden, func(p part) bool {
		if within(p.rel, rel) {
			return true
		}
		if info == nil || !info.IsDir() {
			return false
		}
		own, err := os.Stat(p.abs) // it may have come, or come anew, since the start
		return err == nil && os.SameFile(own, info)
	})
}

// Holds reports whether anything hidden lies in the folder.
func (g *Guard) Holds() bool { return g != nil && len(g.hidden) > 0 }

// Keeps reports whether a file of the folder must stay as it is. info may be nil.
func (g *Guard) Keeps(rel string, info fs.FileInfo) bool {
	if g == nil {
		return false
	}
	return g.Hides(rel, nil) || slices.ContainsFunc(g.fixed, func(p part) bool {
		if within(p.rel, rel) {
			return true
		}
		own, err := os.Stat(p.abs)
		return err == nil && info != nil && os.SameFile(own, info)
	})
}

func within(dir, name string) bool {
	if ignoresCase() {
		dir, name = strings.ToLower(dir), strings.ToLower(name)
	}
	return name == dir || strings.HasPrefix(name, dir+"/")
}

// way is where a path has led so far: a folder within the other, each held open.
type way struct {
	dirs  []*os.Root
	names []string // of dirs but the first
}

func (w *way) here() *os.Root { return w.dirs[len(w.dirs)-1] }

func (w *way) rel(name string) string { return path.Join(append(slices.Clone(w.names), name)...) }

// up leaves the last folder.
func (w *way) up() error {
	if len(w.names) == 0 {
		return &fs.PathError{Op: "open", Path: "..", Err: ErrOutside}
	}
	err := w.here().Close()
	w.dirs, w.names = w.dirs[:len(w.dirs)-1], w.names[:len(w.names)-1]
	return err
}

func (w *way) close() {
	for _, d := range w.dirs {
		d.Close()
	}
}

// ErrOutside says that a link leads out of the folder.
var ErrOutside = errors.New("path escapes from parent")

// Resolve follows a path and the links on it, the last name's too, and returns the open
// folder that it leads to a name in, which is no link: dir is the caller's to close, and
// rel the path without links. It goes from folder to folder by handles and enters nothing
// that is hidden; the error is ErrOwn then.
func (g *Guard) Resolve(name string) (dir *os.Root, base, rel string, err error) {
	top, err := g.root.OpenRoot(".")
	if err != nil {
		return nil, "", "", err
	}
	w := &way{dirs: []*os.Root{top}}
	base, err = g.follow(w, strings.Split(name, "/"))
	if err != nil {
		w.close()
		return nil, "", "", err
	}
	dir, rel = w.here(), w.rel(base)
	w.dirs = w.dirs[:len(w.dirs)-1]
	w.close()
	return dir, base, rel, nil
}

// follow goes the steps and gives the name that is left at the end, "." for a folder that
// it has entered.
func (g *Guard) follow(w *way, rest []string) (base string, err error) {
	for links := 0; len(rest) > 0; {
		step := rest[0]
		rest = rest[1:]
		switch step {
		case "", ".":
			continue
		case "..":
			if err := w.up(); err != nil {
				return "", err
			}
			continue
		}
		info, err := w.here().Lstat(step)
		if g.Hides(w.rel(step), info) {
			return "", ErrOwn
		}
		switch {
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", &fs.PathError{Op: "open", Path: step, Err: errors.New("too many links")}
			}
			to, err := w.here().Readlink(step)
			if err == nil && (to == "" || path.IsAbs(to)) {
				err = &fs.PathError{Op: "open", Path: step, Err: ErrOutside}
			}
			if err != nil {
				return "", err
			}
			rest = append(strings.Split(to, "/"), rest...)
		case !slices.ContainsFunc(rest, func(s string) bool { return s != "" && s != "." }):
			return step, nil
		default:
			if err := w.enter(step, info); err != nil {
				return "", err
			}
		}
	}
	return ".", nil
}

// enter goes into the folder that was looked at.
func (w *way) enter(name string, info fs.FileInfo) error {
	if len(w.dirs) >= maxDepth {
		return &fs.PathError{Op: "open", Path: name, Err: errors.New("too deep")}
	}
	sub, err := w.here().OpenRoot(name + "/.") // which never waits, as the bare name of a pipe would
	if err != nil {
		return err
	}
	now, err := sub.Stat(".")
	if err == nil && !os.SameFile(info, now) {
		err = &fs.PathError{Op: "open", Path: name, Err: ErrSwapped}
	}
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	w.dirs, w.names = append(w.dirs, sub), append(w.names, name)
	return nil
}

// OpenDir is OpenRoot of the guarded folder, into nothing that is hidden. rel is the path
// without links.
func (g *Guard) OpenDir(name string) (sub *os.Root, rel string, err error) {
	dir, base, rel, err := g.Resolve(name)
	if err != nil || base == "." {
		return dir, rel, err
	}
	defer dir.Close()
	info, err := dir.Lstat(base)
	if err != nil {
		return nil, "", err
	}
	w := &way{dirs: []*os.Root{dir}}
	if err := w.enter(base, info); err != nil {
		return nil, "", err
	}
	return w.here(), rel, nil
}

// OpenFile opens a regular file of the guarded folder for reading, and nothing that is
// hidden. flag is for flags such as O_NONBLOCK.
func (g *Guard) OpenFile(name string, flag int) (*os.File, error) {
	dir, base, _, err := g.Resolve(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	before, err := dir.Lstat(base)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: base, Err: errors.New("is not a regular file")}
	}
	file, err := dir.OpenFile(base, os.O_RDONLY|flag, 0)
	if err != nil {
		return nil, err
	}
	after, err := file.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = &fs.PathError{Op: "open", Path: base, Err: ErrSwapped}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// ErrIrregular says that a file is a folder, a pipe or the like.
var ErrIrregular = errors.New("it is not a regular file")

// TooLargeError says how many bytes a file may have that has more.
type TooLargeError int

// Error implements error.
func (e TooLargeError) Error() string { return fmt.Sprintf("it is larger than %d bytes", int(e)) }

// ReadFile reads a regular file of an open folder that is not hidden and has at most a number of bytes, else the
// error is a TooLargeError. A pipe does not make it wait, also one that takes the place of a file just now.
func (w *Wall) ReadFile(root *os.Root, name string, most int) (content []byte, err error) {
	var file *os.File
	if guard := w.In(root); guard.Holds() {
		file, err = guard.OpenFile(filepath.ToSlash(name), syscall.O_NONBLOCK)
	} else {
		file, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, ErrIrregular)
	}
	content, err = io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err == nil && len(content) > most {
		return nil, TooLargeError(most)
	}
	return content, err
}
