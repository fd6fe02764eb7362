package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// list describes the names in a folder, by name, or those of names that there are. What is
// neither file, folder nor link is not among them, and no link is followed on the way.
func (p *place) list(dir string, names []string) (found []entry, err error) {
	f, err := p.openDir(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd := int(f.Fd())
	if names == nil {
		if names, err = readNames(fd); err != nil {
			return nil, &fs.PathError{Op: "read", Path: dir, Err: err}
		}
		slices.Sort(names)
	}
	found = make([]entry, 0, len(names))
	for _, name := range names {
		e := entry{name: name, held: heldNot}
		ok, err := describe(fd, &e)
		if err != nil {
			return nil, &fs.PathError{Op: "stat", Path: join(dir, name), Err: err}
		}
		if ok {
			found = append(found, e)
		}
	}
	return found, nil
}

// openDir opens a folder below the workspace.
func (p *place) openDir(dir string) (*os.File, error) {
	if dir == "" {
		return p.root.Open(".")
	}
	return p.openQuick(dir, unix.O_DIRECTORY)
}

// openFile opens a file below the workspace; a pipe that came in between does not hold it up.
func (p *place) openFile(name string) (*os.File, error) { return p.openQuick(name, unix.O_NONBLOCK) }

// openQuick opens a path for reading with no link in it; os.Root does where the kernel has nothing
// quicker, and for paths that are longer than the kernel takes.
func (p *place) openQuick(name string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(unix.O_RDONLY | unix.O_CLOEXEC | flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(int(p.top.Fd()), name, &how)
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENAMETOOLONG):
		dir, base := split(name)
		root, err := p.folder(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return root.OpenFile(base, os.O_RDONLY|unix.O_NOFOLLOW|flags, 0)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func readNames(fd int) (names []string, err error) {
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// describe fills in what a name is; false = it has gone, or is left alone.
func describe(fd int, e *entry) (ok bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			err = nil
		}
		return false, err
	}
	e.fill(&st)
	if e.kind == aLink {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, e.name, buf)
		if err != nil {
			return false, nil // it is something else by now
		}
		e.link = strings.Clone(string(buf[:n]))
	}
	return e.kind != 0, nil
}

func (e *entry) fill(st *unix.Stat_t) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.kind = aFile
	case unix.S_IFDIR:
		e.kind = aDir
	case unix.S_IFLNK:
		e.kind = aLink
	}
	e.perm, e.nlink, e.ino = st.Mode&0o7777, 1, st.Ino
	if e.kind == aFile { // the links of a folder are those that lead up to it
		e.size, e.nlink = st.Size, uint32(st.Nlink)
	}
	e.mtime, e.ctime = st.Mtim.Nano(), st.Ctim.Nano()
}

// opened describes an open file.
func opened(f *os.File) (e entry, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return e, err
	}
	e.fill(&st)
	return e, nil
}
