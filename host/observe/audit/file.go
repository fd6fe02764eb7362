package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"a2e/host/guard/private"
)

const writeChunk = 256 << 10

// file is the chain on disk. It keeps nothing open between two batches: each one locks, opens,
// writes and closes, so that a file that was moved (as logrotate does), removed or repaired by
// somebody else in between is simply found as it is.
type file struct {
	path string
	note func(string)
	key  Key

	dir *private.Dir // the log's folder, while the lock is held

	signer   *signer // nil without a key, and before the first write
	unsigned bool    // there can be no key here

	// What the file looked like after our last write. While it still looks like
	// that, nobody else has written and prev and number hold.
	known  bool
	info   fs.FileInfo
	size   int64
	prev   link
	number int64 // of the last signed entry

	out []byte // lines of the chunk being written
}

// write appends encoded entries (see appendEntry) to the chain. n counts the
// bytes of src whose entries are on disk, also when err is set.
func (f *file) write(src []byte, quit <-chan struct{}, patience time.Duration) (n int, err error) {
	unlock, err := f.lock(quit, patience)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if err := f.loadKey(); err != nil {
		return 0, err
	}
	h, err := f.open()
	if err != nil {
		return 0, err
	}
	defer h.Close() // every write was checked already
	for len(src) > n && err == nil {
		taken := f.build(src[n:])
		taken, err = f.flush(h, src[n:][:taken])
		n += taken
	}
	return n, err
}

// build links entries of src into f.out: a chunk.
func (f *file) build(src []byte) (taken int) {
	f.out = f.out[:0]
	prev, number := f.prev, f.number
	for taken < len(src) && len(f.out) < writeChunk {
		end := taken + bytes.IndexByte(src[taken:], '\n')
		number++
		f.out, prev = appendLinked(f.out, src[taken:end], prev, f.signer, number)
		taken = end + 1
	}
	return taken
}

// flush writes f.out, the lines of src. After a short write the whole lines
// that arrived count and the half one is cut off again; should even that fail,
// the next open does it.
func (f *file) flush(h *os.File, src []byte) (taken int, err error) {
	// Not WriteAt: it says 0 after a short write, whatever arrived.
	if _, err := h.Seek(f.size, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := h.Write(f.out)
	whole := f.out[:n]
	if err != nil {
		whole = f.out[:bytes.LastIndexByte(f.out[:n], '\n')+1]
	}
	for range bytes.Count(whole, []byte{'\n'}) {
		taken += bytes.IndexByte(src[taken:], '\n') + 1
	}
	if len(whole) > 0 {
		last := whole[:len(whole)-1]
		f.prev = linkOf(last[bytes.LastIndexByte(last, '\n')+1:])
		f.size += int64(len(whole))
		f.number += int64(bytes.Count(whole, []byte{'\n'}))
	}
	if err != nil && h.Truncate(f.size) != nil {
		f.known = false
	}
	return taken, err
}

// open opens the file, which must be this user's alone (not a link, nor another's), and makes
// sure that f.prev is the link of its last line. The lock must be held.
func (f *file) open() (*os.File, error) {
	// without O_APPEND, because Windows refuses to cut a file opened so
	h, err := f.dir.Open(filepath.Base(f.path), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	fi, err := h.Stat()
	if err == nil && (!f.known || fi.Size() != f.size || !os.SameFile(fi, f.info)) {
		err = f.resume(h, fi)
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	f.known, f.info = true, fi
	return h, nil
}

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
	if last == nil && size == 0 { // the first entry has the link of the last one that was moved away
		if last, err = f.newestMoved(); err != nil {
			return err
		}
	}
	switch {
	case f.known && os.SameFile(fi, f.info) && size < f.size:
		// No host makes a file shorter than its whole lines: somebody removed
		// entries. The chain goes on from the ones we know, so that it shows.
	case last != nil:
		f.prev = linkOf(last)
		if at, signed := signatureIn(last); signed {
			f.number = at.number
		}
	case size > 0 || !f.known:
		// The last line is longer than any entry, which Verify names, or there is none
		// at all. Where a chain is known it goes on in the new file.
		f.prev = noLink()
	}
	f.size = size
	return nil
}

// newestMoved returns the last line of FILE.1, where logrotate moves the log; nil = there is none.
func (f *file) newestMoved() ([]byte, error) {
	h, err := f.dir.Open(filepath.Base(f.path)+".1", os.O_RDONLY)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) {
		return nil, err // which says nothing of the file
	}
	if err != nil {
		return nil, nil
	}
	defer h.Close()
	fi, err := h.Stat()
	// An older one is not the file that was written to: that was removed.
	if err != nil || f.known && fi.ModTime().Before(f.info.ModTime()) {
		return nil, err
	}
	last, _, err := readTail(h, fi.Size())
	return last, err
}

// lastLine returns the last line of h and its size after a half line at its end
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
	f.note(fmt.Sprintf("audit: cut a half line of %d bytes off the end of %s: %q", len(half), f.path,
		half[:min(len(half), shownHalf)]))
	return last, size - int64(len(half)), nil
}

// readTail returns the last whole line of h, nil when there is none or it does
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

const lockFileName = ".lock"

// lock takes the lock that hosts sharing this file agree on. It returns up with
// an error after patience, or when quit is closed.
func (f *file) lock(quit <-chan struct{}, patience time.Duration) (unlock func(), err error) {
	dir, err := private.MakeDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	h, err := dir.Lock(filepath.Base(f.path)+lockFileName, quit, patience)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	f.dir = dir
	return func() {
		f.dir = nil
		_, _ = h.Close(), dir.Close()
	}, nil
}
