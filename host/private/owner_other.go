//go:build !unix

package private

import (
	"errors"
	"io/fs"
	"os"
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

// checkFile knows kinds alone: who may write a file stands in lists of rights that Go does
// not read, and the folder of a user gives them to that user.
func checkFile(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return refuse(kindOf(info.Mode()), wantFile)
	}
	return nil
}

func checkFolder(fs.FileInfo) error { return nil }
