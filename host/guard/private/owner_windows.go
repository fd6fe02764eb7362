package private

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// open opens a bare name. There is no flag against links here: what was opened is compared
// with what has the name.
func (d *Dir) open(name string, flag int) (*os.File, error) {
	if info, err := d.root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, d.wrong(name, refuse(kindOf(info.Mode()), wantFile))
	}
	file, err := d.root.OpenFile(name, flag, filePerm)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = d.root.Lstat(name); err == nil && !os.SameFile(opened, named) {
			err = d.wrong(name, refuse("is not what was opened", wantFile))
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// checkOwner knows nothing: who may write a file stands in lists of rights that Go does not
// read, and the folder of a user gives them to that user.
func checkOwner(fs.FileInfo) error { return nil }

func checkFolder(fs.FileInfo) error { return nil }

// HardLinks returns the number of names of an open file. A second one of a file in a folder
// may lie outside of it, where nothing that is said of the folder holds.
func HardLinks(file *os.File, _ fs.FileInfo) (n uint64, err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info windows.ByHandleFileInformation
	failed := conn.Control(func(fd uintptr) { err = windows.GetFileInformationByHandle(windows.Handle(fd), &info) })
	return uint64(info.NumberOfLinks), errors.Join(failed, err)
}
