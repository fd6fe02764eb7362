package run

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	expsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/sys"

	"a2e/host/guard/private"
)

// Limits of what a module may write in one run, in all folders together.
const (
	maxWritten = 512 << 20 // bytes
	maxCreated = 10_000    // files and folders
)

// budget is what is left of these limits. It needs no lock, as a module has one thread.
type budget struct{ bytes, files int64 }

// folder is a folder as a module sees it. An os.Root keeps every path and link inside. Like the file
// tools, it refuses a file with a second hard link, which may be outside of the folder.
type folder struct {
	expsys.UnimplementedFS // modules cannot make links, as these would outlive the module

	root   *os.Root
	write  bool
	budget *budget
}

// below turns a path of the module into a path for the root.
func below(name string) string {
	if name = path.Clean(strings.TrimPrefix(name, "/")); name == "" {
		return "."
	}
	return name
}

// errnoOf turns an error into one that modules know.
func errnoOf(err error) expsys.Errno {
	errno := expsys.UnwrapOSError(err)
	if system := syscall.Errno(0); errno == expsys.EIO && !errors.As(err, &system) {
		return expsys.EPERM // a path that leads out
	}
	return errno
}

// changes are the flags of an open that changes something.
const changes = expsys.O_RDWR | expsys.O_WRONLY | expsys.O_APPEND | expsys.O_CREAT | expsys.O_TRUNC

// OpenFile implements expsys.FS.
func (d *folder) OpenFile(name string, flag expsys.Oflag, _ fs.FileMode) (expsys.File, expsys.Errno) {
	if !d.write && flag&changes != 0 {
		return nil, expsys.EROFS
	}
	own := below(name)
	before, err := d.root.Lstat(own)
	switch {
	case err == nil && flag&expsys.O_NOFOLLOW != 0 && before.Mode()&fs.ModeSymlink != 0:
		return nil, expsys.ELOOP
	case err == nil && before.IsDir() && flag&changes&^expsys.O_RDWR != 0:
		return nil, expsys.EISDIR
	case errors.Is(err, fs.ErrNotExist) && flag&expsys.O_CREAT != 0:
		if d.budget.files--; d.budget.files < 0 {
			return nil, expsys.EIO
		}
	}
	f, err := d.root.OpenFile(own, openFlags(flag)|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, errnoOf(err)
	}
	info, errno := look(f)
	switch {
	case errno != 0:
	case !info.IsDir() && (flag&expsys.O_DIRECTORY != 0 || strings.HasSuffix(name, "/")):
		errno = expsys.ENOTDIR
	case !info.IsDir() && flag&expsys.O_TRUNC != 0:
		errno = errnoOf(f.Truncate(0))
	}
	if errno != 0 {
		f.Close()
		return nil, errno
	}
	return newFile(f, own, d, info.IsDir(), flag)
}

// look returns an error unless f is a folder, or a regular file with one hard link.
func look(f *os.File) (fs.FileInfo, expsys.Errno) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, errnoOf(err)
	case info.IsDir():
		return info, 0
	case !info.Mode().IsRegular():
		return nil, expsys.EPERM
	}
	if n, err := private.HardLinks(f, info); err != nil || n > 1 {
		return nil, expsys.EPERM
	}
	return info, 0
}

// openFlags turns the flags of an open into those of package os. It leaves out O_TRUNC, as a file is
// truncated only after look has checked it.
func openFlags(flag expsys.Oflag) int {
	flags := os.O_RDONLY
	switch {
	case flag&expsys.O_WRONLY != 0:
		flags = os.O_WRONLY
	case flag&(expsys.O_RDWR|expsys.O_TRUNC) != 0:
		flags = os.O_RDWR
	}
	for _, f := range []struct {
		theirs expsys.Oflag
		ours   int
	}{{expsys.O_CREAT, os.O_CREATE}, {expsys.O_EXCL, os.O_EXCL}, {expsys.O_SYNC, os.O_SYNC}} {
		if flag&f.theirs != 0 {
			flags |= f.ours
		}
	}
	return flags
}

// Lstat implements expsys.FS.
func (d *folder) Lstat(name string) (sys.Stat_t, expsys.Errno) {
	return statOf(d.root.Lstat(below(name)))
}

// Stat implements expsys.FS.
func (d *folder) Stat(name string) (sys.Stat_t, expsys.Errno) {
	return statOf(d.root.Stat(below(name)))
}

func statOf(info fs.FileInfo, err error) (sys.Stat_t, expsys.Errno) {
	if err != nil {
		return sys.Stat_t{}, errnoOf(err)
	}
	return sys.NewStat_t(info), 0
}

// Mkdir implements expsys.FS.
func (d *folder) Mkdir(name string, _ fs.FileMode) expsys.Errno {
	if !d.write {
		return expsys.EROFS
	}
	if d.budget.files--; d.budget.files < 0 {
		return expsys.EIO
	}
	return errnoOf(d.root.Mkdir(below(name), 0o755))
}

// Rename implements expsys.FS.
func (d *folder) Rename(from, to string) expsys.Errno {
	if !d.write {
		return expsys.EROFS
	}
	return errnoOf(d.root.Rename(below(from), below(to)))
}

// Rmdir implements expsys.FS.
func (d *folder) Rmdir(name string) expsys.Errno { return d.remove(name, true) }

// Unlink implements expsys.FS.
func (d *folder) Unlink(name string) expsys.Errno { return d.remove(name, false) }

func (d *folder) remove(name string, dir bool) expsys.Errno {
	if !d.write {
		return expsys.EROFS
	}
	info, err := d.root.Lstat(below(name))
	switch {
	case err != nil:
		return errnoOf(err)
	case dir && !info.IsDir():
		return expsys.ENOTDIR
	case !dir && info.IsDir():
		return expsys.EISDIR
	}
	return errnoOf(d.root.Remove(below(name)))
}

// Link implements expsys.FS.
func (d *folder) Link(string, string) expsys.Errno { return expsys.EPERM }

// Symlink implements expsys.FS.
func (d *folder) Symlink(string, string) expsys.Errno { return expsys.EPERM }

// Readlink implements expsys.FS.
func (d *folder) Readlink(name string) (string, expsys.Errno) {
	text, err := d.root.Readlink(below(name))
	return text, errnoOf(err)
}

// Utimens implements expsys.FS.
func (d *folder) Utimens(name string, atim, mtim int64) expsys.Errno {
	if !d.write {
		return expsys.EROFS
	}
	now, errno := d.Stat(name)
	if errno != 0 {
		return errno
	}
	if atim == expsys.UTIME_OMIT {
		atim = now.Atim
	}
	if mtim == expsys.UTIME_OMIT {
		mtim = now.Mtim
	}
	own := below(name)
	f, err := d.root.OpenFile(own, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer f.Close()
	if _, errno := look(f); errno != 0 {
		return errno
	}
	return errnoOf(d.root.Chtimes(own, time.Unix(0, atim), time.Unix(0, mtim)))
}

// file is an open file or folder of a module. wazero does the reads; the writes count against
// the budget.
type file struct {
	expsys.File // over f

	f      *os.File
	name   string // path in its folder
	in     *folder
	dir    bool
	write  bool
	append bool
}

// opener passes an open file to wazero at the first Open. Later calls, for a folder that is read again from
// its beginning, open the file again.
type opener struct {
	in    *os.Root
	first *os.File
}

// Open implements fs.FS.
func (o *opener) Open(name string) (fs.File, error) {
	if f := o.first; f != nil {
		o.first = nil
		return f, nil
	}
	return o.in.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// newFile makes a file for the module from the open file f.
func newFile(f *os.File, name string, in *folder, dir bool, flag expsys.Oflag) (expsys.File, expsys.Errno) {
	inner, errno := (&sysfs.AdaptFS{FS: &opener{in.root, f}}).OpenFile(name, expsys.O_RDONLY, 0)
	if errno != 0 {
		f.Close()
		return nil, errno
	}
	return &file{
		File: inner, f: f, name: name, in: in, dir: dir, write: flag&(expsys.O_RDWR|expsys.O_WRONLY) != 0,
		append: flag&expsys.O_APPEND != 0,
	}, 0
}

// IsAppend implements expsys.File.
func (f *file) IsAppend() bool { return f.append }

// SetAppend implements expsys.File.
func (f *file) SetAppend(enable bool) expsys.Errno {
	f.append = enable
	return 0
}

// moved returns the result of a write with the error as an Errno.
func moved(n int, err error) (int, expsys.Errno) { return n, errnoOf(err) }

// spend takes n bytes to be written from the budget, or returns an error if the file cannot be written.
func (f *file) spend(n int) expsys.Errno {
	switch {
	case f.dir:
		return expsys.EISDIR
	case !f.write || !f.in.write:
		return expsys.EBADF
	}
	if f.in.budget.bytes -= int64(n); f.in.budget.bytes < 0 {
		return expsys.EIO
	}
	return 0
}

// Write implements expsys.File.
func (f *file) Write(buf []byte) (int, expsys.Errno) {
	if errno := f.spend(len(buf)); errno != 0 {
		return 0, errno
	}
	if f.append {
		if _, err := f.f.Seek(0, io.SeekEnd); err != nil {
			return 0, errnoOf(err)
		}
	}
	return moved(f.f.Write(buf))
}

// Pwrite implements expsys.File.
func (f *file) Pwrite(buf []byte, off int64) (int, expsys.Errno) {
	if errno := f.spend(len(buf)); errno != 0 {
		return 0, errno
	}
	return moved(f.f.WriteAt(buf, off))
}

// Truncate implements expsys.File.
func (f *file) Truncate(size int64) expsys.Errno {
	switch errno := f.spend(0); {
	case errno != 0:
		return errno
	case size < 0 || size > moduleFile:
		return expsys.EINVAL
	}
	return errnoOf(f.f.Truncate(size))
}

// Sync implements expsys.File.
func (f *file) Sync() expsys.Errno { return errnoOf(f.f.Sync()) }

// Datasync implements expsys.File.
func (f *file) Datasync() expsys.Errno { return f.Sync() }

// Utimens implements expsys.File.
func (f *file) Utimens(atim, mtim int64) expsys.Errno { return f.in.Utimens(f.name, atim, mtim) }
