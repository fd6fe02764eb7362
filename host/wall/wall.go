// Package wall keeps agents from the host's own files, such as its state_dir and its config,
// where those lie in a folder that agents reach. What acts for agents by handles, such as
// the file tools, asks a Guard; children are kept out by the sandbox.
//
//	wall.go    what is walled off     guard.go  the part of that in one open folder
package wall

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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

// Within tells whether a path is dir or lies below it, by their names.
func Within(dir, path string) bool {
	_, ok := below(dir, path)
	return ok
}

// below gives the path relative to dir, which is or holds it.
func below(dir, path string) (rel string, ok bool) {
	if ignoresCase() {
		dir, path = strings.ToLower(dir), strings.ToLower(path)
	}
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// ignoresCase tells whether names usually mean the same in upper and lower case here. What
// takes too much for the same only hides more.
func ignoresCase() bool { return runtime.GOOS == "darwin" || runtime.GOOS == "windows" }

// Hides tells whether a path without links on the way lies in a hidden folder.
func (w *Wall) Hides(path string) bool {
	if w == nil {
		return false
	}
	return slices.ContainsFunc(w.Hidden, func(h string) bool {
		return Within(h, path) && !slices.ContainsFunc(w.Open, func(o string) bool { return Within(h, o) && Within(o, path) })
	})
}

// In gives what of the wall lies in an open folder; nil = nothing. The folder stays the
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
