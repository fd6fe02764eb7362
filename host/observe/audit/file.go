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

// file is the chain on disk. It keeps nothing open between two batches: each batch locks, opens, writes and closes. So
// a file that was moved (as logrotate does), removed or repaired meanwhile is used as it is.
type file struct {
	path string
	note func(string)
	key  Key

	dir *private.Dir // the log's folder while the lock is held

	signer   *signer // nil without a key and before the first write
	unsigned bool    // a key cannot be kept here

	// The state of the file after our last write. If it is unchanged, nobody else has written, and prev
	// and number are valid.
	known  bool
	info   fs.FileInfo
	size   int64
	prev   link
	number int64 // of the last signed entry

	out []byte // lines of the chunk being written
}

// write appends encoded entries (see appendEntry) to the chain. n is the number of bytes of src whose
// entries are on disk, even if err is set.
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
	defer h.Close() // all writes were checked already
	for len(src) > n && err == nil {
		taken := f.build(src[n:])
		taken, err = f.flush(h, src[n:][:taken])
		n += taken
	}
	return n, err
}

// build links entries of src into f.out, up to about writeChunk bytes.
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

// flush writes f.out, the lines of src. After a short write the complete lines count, and the
// incomplete one is removed; if that fails too, the next open removes it.
func (f *file) flush(h *os.File, src []byte) (taken int, err error) {
	// Not WriteAt: it returns 0 after a short write, whatever was written.
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

// open opens the file, which must belong to this user alone (no link, and not another user's), and
// sets f.prev to the link of its last line. The lock must be held.
func (f *file) open() (*os.File, error) {
	// without O_APPEND, because Windows does not truncate a file opened with it
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
	shownHalf   = 256     // bytes of a removed incomplete line that are logged
	firstWindow = 4 << 10 // the usual last line fits in it
	tailWindow  = 2 * maxLine
)

// resume finds the last line of a file that another process, or an earlier run of this host, has written.
func (f *file) resume(h *os.File, fi fs.FileInfo) error {
	last, size, err := f.lastLine(h, fi.Size())
	if err != nil {
		return err
	}
	if last == nil && size == 0 { // the first entry links to the last one that was moved away
		if last, err = f.newestMoved(); err != nil {
			return err
		}
	}
	switch {
	case f.known && os.SameFile(fi, f.info) && size < f.size:
		// No host truncates complete lines of a file: somebody removed entries. The chain continues from the
		// known ones, so that Verify finds this.
	case last != nil:
		f.prev = linkOf(last)
		if at, signed := signatureIn(last); signed {
			f.number = at.number
		}
	case size > 0 || !f.known:
		// The last line is longer than any entry, which Verify reports, or the file is empty. A known chain
		// continues in the new file.
		f.prev = noLink()
	}
	f.size = size
	return nil
}

// newestMoved returns the last line of FILE.1, to which logrotate moves the log, or nil if there is none.
func (f *file) newestMoved() ([]byte, error) {
	h, err := f.dir.Open(filepath.Base(f.path)+".1", os.O_RDONLY)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) {
		return nil, err // this says nothing about the file
	}
	if err != nil {
		return nil, nil
	}
	defer h.Close()
	fi, err := h.Stat()
	// An older file is not the file that was written last: that one was removed.
	if err != nil || f.known && fi.ModTime().Before(f.info.ModTime()) {
		return nil, err
	}
	last, _, err := readTail(h, fi.Size())
	return last, err
}

// lastLine returns the last line of h and the file's new size. It first removes an incomplete line at
// the end, or completes it if only the newline is missing.
func (f *file) lastLine(h *os.File, size int64) (last []byte, newSize int64, err error) {
	last, half, err := readTail(h, size)
	if err != nil || len(half) == 0 {
		return last, size, err
	}
	if _, ok := linkIn(half); ok || len(half) > maxLine {
		// A complete entry, or a text that no host wrote: neither is deleted.
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

// readTail returns the last complete line of h, and the incomplete line after it. last is nil if there
// is none or if it does not fit the window.
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

// lock takes the lock that all hosts with this file use. It fails after patience, or when quit is closed.
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
