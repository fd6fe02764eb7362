package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
)

const (
	writeChunk  = 256 << 10
	retryRotate = time.Minute
	repairWait  = 100 * time.Millisecond
	filePerm    = 0o600
	folderPerm  = 0o700
)

// file is the chain on disk. It keeps nothing open between two batches: each
// one locks, opens, writes and closes, so that files removed, rotated or
// repaired by somebody else in between are simply found as they are.
type file struct {
	path     string
	maxBytes int64
	backups  int
	note     func(string)

	// What the file looked like after our last write. While it still looks like
	// that, nobody else has written and prev holds.
	known bool
	info  fs.FileInfo
	size  int64
	prev  link

	out      []byte    // lines of the chunk being written
	noRotate time.Time // a rotation failed: none is tried before this
}

// repair cuts a half line off the end of an existing file.
func (f *file) repair() error {
	if fi, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) || (err == nil && fi.Size() == 0) {
		return nil
	}
	unlock, err := f.lock(nil, repairWait)
	if err != nil {
		return err
	}
	defer unlock()
	h, err := f.open()
	if err != nil {
		return err
	}
	return h.Close()
}

// write appends encoded entries (see appendEntry) to the chain. n counts the
// bytes of src whose entries are on disk, also when err is set.
func (f *file) write(src []byte, quit <-chan struct{}, patience time.Duration) (n int, err error) {
	unlock, err := f.lock(quit, patience)
	if err != nil {
		return 0, err
	}
	defer unlock()
	h, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = h.Close() }() // every write was checked already
	for len(src) > n {
		taken, full := f.build(src[n:])
		if len(f.out) > 0 {
			taken, err = f.flush(h, src[n:][:taken])
			n += taken
			if err != nil {
				return n, err
			}
		}
		if !full {
			continue
		}
		_ = h.Close()
		f.rotate()
		if h, err = f.open(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// build links entries of src into f.out: a chunk, or less when the file is full.
func (f *file) build(src []byte) (taken int, full bool) {
	f.out = f.out[:0]
	prev := f.prev
	for taken < len(src) && len(f.out) < writeChunk {
		end := taken + bytes.IndexByte(src[taken:], '\n')
		entry := src[taken:end]
		used := f.size + int64(len(f.out))
		line := len(entry) + len(linkStart) + hashLen + len(linkEnd) + 1
		if f.rotates() && used > 0 && used+int64(line) > f.maxBytes {
			return taken, true
		}
		f.out, prev = appendLinked(f.out, entry, prev)
		taken = end + 1
	}
	return taken, false
}

func (f *file) rotates() bool {
	return f.maxBytes > 0 && f.backups > 0 && (f.noRotate.IsZero() || time.Now().After(f.noRotate))
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
	}
	if err != nil && h.Truncate(f.size) != nil {
		f.known = false
	}
	return taken, err
}

// open opens the file and makes sure that f.prev is the link of its last line.
// Without O_APPEND, because Windows refuses to cut a file opened so. The lock
// must be held.
func (f *file) open() (*os.File, error) {
	h, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, err
	}
	fi, err := h.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.path)
	}
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

func (f *file) backup(i int) string { return f.path + "." + strconv.Itoa(i) }

// rotate moves the file to .1 and the others up, as far as they follow without
// a gap: a host killed in between leaves one, and it is filled here. The lock
// must be held and the file closed. When it fails the file grows on.
func (f *file) rotate() {
	last := 1
	for last < f.backups && exists(f.backup(last)) {
		last++
	}
	var err error
	for i := last; i > 1 && err == nil; i-- {
		err = os.Rename(f.backup(i-1), f.backup(i))
	}
	if err == nil {
		err = os.Rename(f.path, f.backup(1))
	}
	if err != nil {
		f.noRotate = time.Now().Add(retryRotate)
		f.note(fmt.Sprintf("audit: %s cannot be rotated and grows on: %v", f.path, err))
		return
	}
	f.noRotate = time.Time{}
	// Files of a time when more of them were kept would look like a broken chain.
	for i := f.backups + 1; exists(f.backup(i)); i++ {
		if os.Remove(f.backup(i)) != nil {
			return
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
