package run

import (
	"io"
	"io/fs"
	"os"

	expsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/experimental/sysfs"
)

// file is an open file or folder of a module: wazero's, where it reads, and bounded where
// it writes.
type file struct {
	expsys.File // over f

	f      *os.File
	name   string // in its folder
	in     *folder
	dir    bool
	write  bool
	append bool
}

// opener gives wazero a file that is open; a folder that is read again from its
// beginning is opened anew.
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
	return o.in.OpenFile(name, os.O_RDONLY|openNonblock, 0)
}

// newFile makes a file of an open one.
func newFile(f *os.File, name string, in *folder, dir bool, flag expsys.Oflag) (expsys.File, expsys.Errno) {
	inner, errno := (&sysfs.AdaptFS{FS: &opener{in.root, f}}).OpenFile(name, expsys.O_RDONLY, 0)
	if errno != 0 {
		f.Close()
		return nil, errno
	}
	return &file{
		File: inner, f: f, name: name, in: in, dir: dir, write: flag&(expsys.O_RDWR|expsys.O_WRONLY) != 0, append: flag&expsys.O_APPEND != 0,
	}, 0
}

// IsAppend implements expsys.File.
func (f *file) IsAppend() bool { return f.append }

// SetAppend implements expsys.File.
func (f *file) SetAppend(enable bool) expsys.Errno {
	f.append = enable
	return 0
}

// moved gives the result of a write.
func moved(n int, err error) (int, expsys.Errno) { return n, errnoOf(err) }

// spend takes bytes to be written from the budget.
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
