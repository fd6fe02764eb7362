package hardlink

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// Count gives the number of names of an open file.
func Count(file *os.File, _ fs.FileInfo) (uint64, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info windows.ByHandleFileInformation
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = windows.GetFileInformationByHandle(windows.Handle(fd), &info)
	})
	if err == nil {
		err = failed
	}
	return uint64(info.NumberOfLinks), err
}
