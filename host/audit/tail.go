package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	shownHalf   = 256     // bytes of a cut half line that the log shows
	firstWindow = 4 << 10 // holds the usual last line
	tailWindow  = 2 * maxLine
)

// resume finds the last line of a file that somebody else, or an earlier life
// of this host, has written.
func (f *file) resume(h *os.File, fi fs.FileInfo) error {
	last, size, err := f.lastLine(h, fi.Size())
	if err != nil {
		return err
	}
	switch {
	case f.known && os.SameFile(fi, f.info) && size < f.size:
		// No host makes a file shorter than its whole lines: somebody removed
		// entries. The chain goes on from the ones we know, so that it shows.
	case last != nil:
		f.prev = linkOf(last)
	case size > 0:
		// The last line is longer than any entry. Verify names it; the chain starts anew behind it.
		f.prev = noLink()
	default:
		f.prev = f.inherit()
	}
	f.size = size
	if f.signer != nil {
		if last == nil && size == 0 {
			last = f.newest()
		}
		f.resumeSeal(last)
	}
	return nil
}

// inherit gives the link for the first entry of an empty file: that of the
// newest rotated file. Without one a chain that we know goes on, so that a
// removed file leaves a gap to be seen.
func (f *file) inherit() link {
	if last := f.newest(); last != nil {
		return linkOf(last)
	}
	if f.known {
		return f.prev
	}
	return noLink()
}

// newest gives the last line there is in the file, or in the newest rotated one; nil =
// there is none.
func (f *file) newest() []byte {
	names := []string{filepath.Base(f.path)}
	for i := 1; i <= f.backups; i++ {
		names = append(names, f.backup(i))
	}
	for _, name := range names {
		h, err := f.dir.Open(name, os.O_RDONLY)
		if err != nil {
			continue
		}
		fi, err := h.Stat()
		var last []byte
		if err == nil {
			last, _, err = readTail(h, fi.Size())
		}
		_ = h.Close()
		if err == nil && last != nil {
			return last
		}
	}
	return nil
}

// lastLine gives the last line of h and its size after a half line at its end
// was cut off, or completed when only the newline was missing.
func (f *file) lastLine(h *os.File, size int64) (last []byte, newSize int64, err error) {
	last, half, err := readTail(h, size)
	if err != nil || len(half) == 0 {
		return last, size, err
	}
	if _, ok := linkIn(half); ok || len(half) > maxLine {
		// A good entry, or something that no host wrote: neither is ours to delete.
		if _, err := h.WriteAt([]byte{'\n'}, size); err != nil {
			return nil, size, errors.Join(err, h.Truncate(size))
		}
		if ok {
			return half, size + 1, nil
		}
		return nil, size + 1, nil
	}
	if err := h.Truncate(size - int64(len(half))); err != nil {
		return nil, size, err
	}
	f.note(fmt.Sprintf("audit: cut a half line of %d bytes off the end of %s: %q", len(half), f.path, half[:min(len(half), shownHalf)]))
	return last, size - int64(len(half)), nil
}

// readTail gives the last whole line of h, nil when there is none or it does
// not fit the window, and the half line behind it.
func readTail(h *os.File, size int64) (last, half []byte, err error) {
	last, half, err = readWindow(h, size, firstWindow)
	if err == nil && last == nil && size > firstWindow {
		return readWindow(h, size, tailWindow)
	}
	return last, half, err
}

func readWindow(h *os.File, size, window int64) (last, half []byte, err error) {
	from := max(0, size-window)
	data := make([]byte, size-from)
	if _, err := h.ReadAt(data, from); err != nil {
		return nil, nil, err
	}
	end := bytes.LastIndexByte(data, '\n')
	half = data[end+1:]
	if end < 0 {
		return nil, half, nil
	}
	start := bytes.LastIndexByte(data[:end], '\n') + 1
	if start == 0 && from > 0 {
		return nil, half, nil
	}
	return data[start:end], half, nil
}
