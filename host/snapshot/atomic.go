package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"a2e/host/private"
)

const (
	tempSuffix = private.TempSuffix
	// tempAge is how old a file must be that was left half written, by a process
	// that was killed, to be removed.
	tempAge = 24 * time.Hour
)

// newTemp makes a file, for this user only, that will take the place of path. Its
// name is none that is ever read.
func newTemp(path string) (*os.File, error) {
	dir, err := private.MakeDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	file, err := dir.Temp(filepath.Base(path))
	return file, errors.Join(err, dir.Close())
}

// writeTemp writes such a file and gives its name.
func writeTemp(path string, content []byte) (string, error) {
	file, err := newTemp(path)
	if err != nil {
		return "", err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// place gives a file its name, in the place of what has it.
func place(temp, path string) error {
	err := os.Rename(temp, path)
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

// placeNew is place for a name that must be free; the error is fs.ErrExist
// otherwise.
func placeNew(temp, path string) error {
	dir, err := private.OpenDir(filepath.Dir(path))
	if err == nil {
		err = errors.Join(dir.PlaceNew(filepath.Base(temp), filepath.Base(path)), dir.Close())
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeTemps removes what was left half written long ago.
func removeTemps(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if isTemp(e.Name()) && olderThan(e, tempAge) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

func isTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, tempSuffix)
}

func olderThan(e fs.DirEntry, age time.Duration) bool {
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) > age
}
