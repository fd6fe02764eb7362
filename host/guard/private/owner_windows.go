package private

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// open opens a bare name. Windows has no flag that refuses links, so the opened file is compared with
// the file that has the name.
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

// checkOwner accepts every file: Go does not read the Windows access lists that say who may write to
// it. By default they give a user's folder to that user.
func checkOwner(fs.FileInfo) error { return nil }

func checkFolder(fs.FileInfo) error { return nil }

// HardLinks returns the number of names of an open file. A second name may lie outside the folder,
// where the rules for the folder do not apply.
func HardLinks(file *os.File, _ fs.FileInfo) (n uint64, err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info windows.ByHandleFileInformation
	failed := conn.Control(func(fd uintptr) { err = windows.GetFileInformationByHandle(windows.Handle(fd), &info) })
	return uint64(info.NumberOfLinks), errors.Join(failed, err)
}
