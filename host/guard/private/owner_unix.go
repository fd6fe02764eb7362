//go:build unix

package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// open opens a bare name without following a link, and without waiting for the other end of a pipe.
func (d *Dir) open(name string, flag int) (*os.File, error) {
	dir, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := filepath.Join(d.path, name)
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC,
			filePerm)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENXIO),
			errors.Is(err, unix.EISDIR):
			return nil, d.wrong(name, d.notRegular(name, err))
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// notRegular returns an error that says what exists in place of a regular file, or err if that is not the problem.
func (d *Dir) notRegular(name string, err error) error {
	if info, lerr := d.root.Lstat(name); lerr == nil && !info.Mode().IsRegular() {
		return refuse(kindOf(info.Mode()), wantFile)
	}
	return err
}

func checkOwner(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return nil
	case stat.Nlink > 1: // 0 = a file that was removed while it was open
		return refuse(fmt.Sprintf("has %d names (hard links)", stat.Nlink), wantFile)
	case int(stat.Uid) != os.Geteuid():
		return refuse(fmt.Sprintf("belongs to the user %d", stat.Uid), wantOwner)
	case info.Mode().Perm()&0o022 != 0:
		return refuse(fmt.Sprintf("may be written by others (mode %04o)", info.Mode().Perm()), wantRights)
	}
	return nil
}

// checkFolder accepts folders of this user and of root that others may not write to, and sticky ones
// such as /tmp: the files in them are checked separately.
func checkFolder(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return nil
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return refuse(fmt.Sprintf("belongs to the user %d", stat.Uid), wantOwner)
	case info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return refuse(fmt.Sprintf("may be written by others (mode %04o)", info.Mode().Perm()), wantRights)
	}
	return nil
}

// HardLinks returns the number of names of an open file with the given info. A second name may lie
// outside the folder, where the rules for the folder do not apply.
func HardLinks(_ *os.File, info fs.FileInfo) (uint64, error) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Nlink), nil
	}
	return 0, fs.ErrInvalid
}
