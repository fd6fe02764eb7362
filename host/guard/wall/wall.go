// Package wall keeps agents from the host's own files, such as its state_dir and its config, if these
// lie in a folder that agents can reach. Code that opens files for agents, such as the file tools,
// asks a Guard; the sandbox keeps out child processes.
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

// ErrOwn says that a path belongs to the host.
var ErrOwn = errors.New("belongs to the host itself (its state or its config), which agents do not reach")

// Wall says which paths belong to the host itself. A nil Wall hides nothing. A Wall does not change.
type Wall struct {
	// Hidden are absolute folders that agents can neither see nor change.
	Hidden []string
	// Fixed are absolute paths of files that agents can read but not change.
	Fixed []string
	// Open are absolute folders inside hidden ones that agents can reach nevertheless.
	Open []string
	// Firm says that programs must not start where Fixed cannot be enforced.
	Firm bool
	// Loose says that programs start even where nothing can be enforced: another host confines this one,
	// and has its own walls.
	Loose bool
}

// Real resolves the links in the existing part of an absolute path.
func Real(path string) string {
	path = filepath.Clean(path)
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return real
	}
	return filepath.Join(Real(filepath.Dir(path)), filepath.Base(path))
}

// Canonical returns the absolute path to which a path leads, without links, as it is stored: a relative
// path such as "." would depend on the working directory.
func Canonical(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return Real(path)
}

// CanonicalIn returns the Canonical path of a folder that a request names, relative to the workspace, or "" if it
// names none.
func CanonicalIn(workspace, name string) string {
	switch {
	case name == "":
		return ""
	case filepath.IsAbs(name):
		return Canonical(name)
	}
	return Canonical(filepath.Join(workspace, name))
}

// AsDir returns a path that opens only if it is a folder: opening the bare name of a pipe would wait for its other end.
func AsDir(name string) string { return name + "/." }

// Within reports whether path is dir or lies below it. Only the names are compared.
func Within(dir, path string) bool {
	_, ok := below(dir, path)
	return ok
}

// below returns path relative to dir; ok is false if dir does not contain it.
func below(dir, path string) (rel string, ok bool) {
	if ignoresCase() {
		dir, path = strings.ToLower(dir), strings.ToLower(path)
	}
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// ignoresCase reports whether names that differ only in case usually mean the same file on this
// system. If it is wrongly true, more is hidden than necessary.
func ignoresCase() bool { return runtime.GOOS == "darwin" || runtime.GOOS == "windows" }

// Hides reports whether a path lies in a hidden folder. The path must not contain links.
func (w *Wall) Hides(path string) bool {
	if w == nil {
		return false
	}
	return slices.ContainsFunc(w.Hidden, func(h string) bool {
		return Within(h, path) && !slices.ContainsFunc(w.Open,
			func(o string) bool { return Within(h, o) && Within(o, path) })
	})
}

// In returns the part of the wall inside an open folder, or nil if there is none. The caller still
// closes the folder, after the last use of the Guard.
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

// Inside returns the paths of the wall inside a folder, relative to it, with slashes. dir must not contain links.
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

// ErrSwapped says that a file or folder was replaced by another one after it was checked.
var ErrSwapped = errors.New("was replaced while it was being opened")

// maxDepth is the maximum number of nested folders on a path, each of which needs a descriptor;
// maxLinks is the maximum number of links, as in the kernel.
const (
	maxDepth = 256
	maxLinks = 40
)

// part is one path of the wall inside a folder.
type part struct {
	abs string
	rel string // with slashes
}

// Guard is the part of a Wall inside one folder. A nil Guard hides nothing. It is safe for concurrent use.
type Guard struct {
	root          *os.Root
	hidden, fixed []part
}

// Hides reports whether a file in the folder belongs to the host, by its path, which must not contain
// links, and by its identity, which info tells; info may be nil.
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
		own, err := os.Stat(p.abs) // it may have been made, or made again, since the start
		return err == nil && os.SameFile(own, info)
	})
}

// Holds reports whether the folder contains anything hidden.
func (g *Guard) Holds() bool { return g != nil && len(g.hidden) > 0 }

// Keeps reports whether a file of the folder must not be changed. info may be nil.
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

// openPath is the part of a path that was followed so far: nested folders, each held open.
type openPath struct {
	dirs  []*os.Root
	names []string // names of dirs[1:]
}

func (w *openPath) here() *os.Root { return w.dirs[len(w.dirs)-1] }

func (w *openPath) rel(name string) string { return path.Join(append(slices.Clone(w.names), name)...) }

// up closes the last folder and goes back to the one above.
func (w *openPath) up() error {
	if len(w.names) == 0 {
		return &fs.PathError{Op: "open", Path: "..", Err: ErrOutside}
	}
	err := w.here().Close()
	w.dirs, w.names = w.dirs[:len(w.dirs)-1], w.names[:len(w.names)-1]
	return err
}

func (w *openPath) close() {
	for _, d := range w.dirs {
		d.Close()
	}
}

// ErrOutside says that a link leads out of the folder.
var ErrOutside = errors.New("path escapes from parent")

// Resolve follows a path and all its links, including a link as its last name. It returns the open folder dir that
// contains the result, the name base in it, which is no link, and the path rel without links. The caller closes dir.
// Resolve goes from folder to folder by handles and enters no hidden folder; for such a path the error is ErrOwn.
func (g *Guard) Resolve(name string) (dir *os.Root, base, rel string, err error) {
	top, err := g.root.OpenRoot(".")
	if err != nil {
		return nil, "", "", err
	}
	w := &openPath{dirs: []*os.Root{top}}
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

// follow goes along the names of a path and returns the last one, or "." if the path ends in a folder
// that it has entered.
func (g *Guard) follow(w *openPath, rest []string) (base string, err error) {
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

// enter opens the folder called name, which must be the one that info describes.
func (w *openPath) enter(name string, info fs.FileInfo) error {
	if len(w.dirs) >= maxDepth {
		return &fs.PathError{Op: "open", Path: name, Err: errors.New("too deep")}
	}
	sub, err := w.here().OpenRoot(AsDir(name))
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

// OpenDir opens a folder in the guarded folder that is not hidden. rel is its path without links.
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
	w := &openPath{dirs: []*os.Root{dir}}
	if err := w.enter(base, info); err != nil {
		return nil, "", err
	}
	return w.here(), rel, nil
}

// OpenFile opens a regular file of the guarded folder that is not hidden, for reading. flag is for
// flags such as O_NONBLOCK.
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

// Cause returns the error of the system in err, without the paths that are beside it.
func Cause(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		return at.Err
	}
	return err
}

// ErrIrregular is the error for a folder, a pipe or another file that is not a regular one.
var ErrIrregular = errors.New("it is not a regular file")

// TooLargeError is the error for a file with more bytes than its value.
type TooLargeError int

// Error implements error.
func (e TooLargeError) Error() string { return fmt.Sprintf("it is larger than %d bytes", int(e)) }

// ReadFile reads a regular file of an open folder. The file must not be hidden, and must have at most
// most bytes; otherwise the error is ErrOwn or a TooLargeError. It does not block on a pipe, even one
// that has just replaced the file.
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
