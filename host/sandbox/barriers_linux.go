package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// barriers are the places of the host that children are kept from, although they lie in what
// is granted. Only mounts can take a part away from a folder: Landlock knows no exceptions.
type barriers struct {
	hidden []string // absolute folders without links on the way
	fixed  []string // absolute paths without links on the way
}

func newBarriers(opts *Options) barriers {
	var w barriers
	for _, p := range opts.Hidden {
		w.hidden = append(w.hidden, realPrefix(p))
	}
	for _, p := range opts.Fixed {
		w.fixed = append(w.fixed, realPrefix(p))
	}
	return w
}

// realPrefix follows the links on a path as far as it exists.
func realPrefix(path string) string {
	path = filepath.Clean(path)
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return real
	}
	return filepath.Join(realPrefix(filepath.Dir(path)), filepath.Base(path))
}

// hide tells whether a part of a folder is hidden, and the path lies in it.
func (w *barriers) hide(dir, path string) bool {
	return slices.ContainsFunc(w.hidden, func(h string) bool { return h != dir && within(dir, h) && within(h, path) })
}

// make makes the hidden folders that are not there yet, or else a child could. One that
// cannot be made is none that a child could make.
func (w *barriers) make() {
	for _, h := range w.hidden {
		_ = os.MkdirAll(h, 0o700)
	}
}

// withWalls gives the grants with the walls in them. Each folder between one and the folder
// that children may change becomes a mount of its own: the kernel lets nobody rename such a
// one, or else another could be put in its place.
func (v *view) withWalls() []grant {
	var added []grant
	for _, h := range v.barriers.hidden {
		added = append(added, v.wall(h, accessHide)...)
	}
	for _, f := range v.barriers.fixed {
		if !slices.ContainsFunc(v.barriers.hidden, func(h string) bool { return within(h, f) }) {
			added = append(added, v.wall(f, accessRead)...)
		}
	}
	if len(added) == 0 {
		return v.grants
	}
	all := &view{grants: append(added, v.grants...)} // before grants of the same place, which come on top
	all.sort()
	return all.grants
}

// wall gives what puts a wall around a path, wherever the grants show it.
func (v *view) wall(path string, a access) (added []grant) {
	for _, g := range v.grants {
		if g.access != accessRead && g.access != accessWrite || !within(g.source, path) || g.source == path && a == accessHide {
			continue
		}
		if _, err := os.Lstat(path); err != nil {
			continue // it cannot be made, or nothing runs
		}
		inner := v.innermost(g.target + strings.TrimPrefix(path, g.source))
		if a == accessRead && inner.access != accessWrite {
			continue
		}
		for dir := filepath.Dir(path); dir != g.source && within(g.source, dir); dir = filepath.Dir(dir) {
			at := g.target + strings.TrimPrefix(dir, g.source)
			if around := v.innermost(at); around.target != at && around.access == accessWrite {
				added = append(added, grant{access: accessWrite, source: dir, target: at})
			}
		}
		wall := grant{access: a, source: path, target: g.target + strings.TrimPrefix(path, g.source)}
		if a == accessHide {
			wall.source = ""
		}
		added = append(added, wall)
	}
	return added
}

// innermost gives the grant that decides about a path of the view.
func (v *view) innermost(target string) (inner grant) {
	for _, g := range v.grants {
		if (g.access == accessRead || g.access == accessWrite) && within(g.target, target) && len(g.target) >= len(inner.target) {
			inner = g
		}
	}
	return inner
}

// idOf gives that of a folder; one that cannot be known fits nothing.
func idOf(info os.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{^uint64(0), ^uint64(0)}
	}
	return fileID{uint64(st.Dev), st.Ino}
}

// openStraight opens a path that has no link in it; with one the error is ELOOP.
func openStraight(path string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != unix.ENOSYS {
		return fd, err
	}
	// A host that is a child itself has no such call: what was opened tells where it is.
	if fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || real != filepath.Clean(path) || unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return -1, unix.ELOOP
	}
	return fd, nil
}

// open opens what is granted, as a path only. Links were followed when the view was made:
// one that has come since leads nowhere.
func (g *grant) open() (int, error) {
	fd, err := openStraight(g.source)
	switch {
	case err == unix.ELOOP, (err == unix.ENOENT || err == unix.ENOTDIR) && g.id != (fileID{}):
		return -1, errReplaced
	case err != nil || g.id == (fileID{}):
		return fd, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (fileID{uint64(st.Dev), st.Ino}) != g.id {
		err = errReplaced
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
