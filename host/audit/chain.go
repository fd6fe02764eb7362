package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// chainFile is one open file of a chain, up to the size it had when the walk began.
type chainFile struct {
	path string
	h    *os.File
	size int64
}

type lineForm int

const (
	lineWhole lineForm = iota
	lineHalf           // at the end of the file, without a newline
	lineLong           // cut, being longer than any entry
)

// each calls fn for every line until it returns false. The line is valid
// during the call only.
func (f chainFile) each(fn func(line []byte, n int, form lineForm) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f.h, 0, f.size), maxLine+1)
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if !fn(line, n, lineLong) {
				return nil
			}
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
		case err == nil:
			if !fn(line[:len(line)-1], n, lineWhole) {
				return nil
			}
		case errors.Is(err, io.EOF) && len(line) > 0:
			fn(line, n, lineHalf)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("audit: read %s: %w", f.path, err)
		}
	}
}

// openChain opens the files of a chain, oldest first, all of one moment: under
// the writers' lock where there is one, and calls locked then. Open files stay the same when a host
// rotates them during the walk.
func openChain(path string, locked func()) (files []chainFile, err error) {
	if fileExists(path + lockFileName) {
		// A lock that cannot be had only means that a rotation may look like a break.
		if unlock, err := (&file{path: path}).lock(nil, lockPatience); err == nil {
			defer unlock()
		}
	}
	locked()
	names, err := chainNames(path)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := openPart(name)
		if errors.Is(err, fs.ErrNotExist) && name == path && len(names) > 1 {
			continue // a host was stopped between a rotation and the next entry
		}
		if err != nil {
			for _, f := range files {
				_ = f.h.Close()
			}
			return nil, fmt.Errorf("audit: cannot read %s: %w", name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func openPart(path string) (chainFile, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return chainFile{}, err
	}
	if !fi.Mode().IsRegular() { // opening a pipe would wait for its other end
		return chainFile{}, errors.New("it is not a regular file")
	}
	h, err := os.Open(path)
	if err != nil {
		return chainFile{}, err
	}
	return chainFile{path: path, h: h, size: fi.Size()}, nil
}

// chainNames lists path.N … path.1 as far as they exist, and path.
func chainNames(path string) ([]string, error) {
	base := filepath.Base(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("audit: cannot read the folder of %s: %w", path, err)
	}
	var numbers []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), base+".")
		if n, err := strconv.Atoi(digits); ok && err == nil && n > 0 && strconv.Itoa(n) == digits {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	names := make([]string, 0, len(numbers)+1)
	for _, n := range numbers {
		names = append(names, path+"."+strconv.Itoa(n))
	}
	return append(names, path), nil
}
