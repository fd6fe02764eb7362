package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"a2e/host/private"
)

const (
	writeChunk  = 256 << 10
	retryRotate = time.Minute
	repairWait  = 100 * time.Millisecond
)

// file is the chain on disk. It keeps nothing open between two batches: each
// one locks, opens, writes and closes, so that files removed, rotated or
// repaired by somebody else in between are simply found as they are.
type file struct {
	path     string
	maxBytes int64
	backups  int
	note     func(string)
	now      func() time.Time
	sealing  Sealing

	dir *private.Dir // the log's folder, while the lock is held

	signer     *signer // nil without a key, and before the first write
	unsigned   bool    // there can be no key here
	seal       seal    // of what was written last
	sealFailed bool    // the note of that was given

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
	if fi, err := os.Lstat(f.path); errors.Is(err, fs.ErrNotExist) || (err == nil && fi.Size() == 0) {
		return nil
	}
	unlock, err := f.lock(nil, repairWait)
	if err != nil {
		return err
	}
	defer unlock()
	h, err := f.openEnd()
	if err != nil {
		return err
	}
	fi, err := h.Stat()
	if err == nil {
		_, _, err = f.lastLine(h, fi.Size())
	}
	return errors.Join(err, h.Close())
}

// write appends encoded entries (see appendEntry) to the chain. n counts the
// bytes of src whose entries are on disk, also when err is set.
func (f *file) write(src []byte, quit <-chan struct{}, patience time.Duration) (n int, err error) {
	unlock, err := f.lock(quit, patience)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if _, err := f.signerOf(); err != nil {
		return 0, err
	}
	h, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = h.Close() // every write was checked already
		if n > 0 {
			f.putSeal()
		}
	}()
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
	prev, number := f.prev, f.seal.Count
	for taken < len(src) && len(f.out) < writeChunk {
		end := taken + bytes.IndexByte(src[taken:], '\n')
		entry := src[taken:end]
		used := f.size + int64(len(f.out))
		line := len(entry) + len(linkStart) + hashLen + len(linkEnd) + 1
		if f.signer != nil {
			number++
			line = len(entry) + lineEnd - maxNumber + digits(number)
		}
		if f.rotates() && used > 0 && used+int64(line) > f.maxBytes {
			return taken, true
		}
		f.out, prev = appendLinked(f.out, entry, prev, f.signer, number)
		taken = end + 1
	}
	return taken, false
}

func digits(n int64) int { return len(strconv.FormatInt(n, 10)) }

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
		if f.signer != nil {
			f.seal.Count += int64(bytes.Count(whole, []byte{'\n'}))
			f.seal.Last = string(f.prev[:])
		}
	}
	if err != nil && h.Truncate(f.size) != nil {
		f.known = false
	}
	return taken, err
}

// open opens the file and makes sure that f.prev is the link of its last line. The lock
// must be held.
func (f *file) open() (*os.File, error) {
	h, err := f.openEnd()
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

// openEnd opens the file, which must be this user's alone: not a link, nor another's file.
// Without O_APPEND, because Windows refuses to cut a file opened so.
func (f *file) openEnd() (*os.File, error) {
	return f.dir.Open(filepath.Base(f.path), os.O_RDWR|os.O_CREATE)
}

func (f *file) backup(i int) string { return filepath.Base(f.path) + "." + strconv.Itoa(i) }

// rotate moves the file to .1 and the others up, as far as they follow without
// a gap: a host killed in between leaves one, and it is filled here. The lock
// must be held and the file closed. When it fails the file grows on.
func (f *file) rotate() {
	last := 1
	for last < f.backups && f.dir.Exists(f.backup(last)) {
		last++
	}
	f.sealRotation(last)
	var err error
	for i := last; i > 1 && err == nil; i-- {
		err = f.dir.Rename(f.backup(i-1), f.backup(i))
	}
	if err == nil {
		err = f.dir.Rename(filepath.Base(f.path), f.backup(1))
	}
	if err != nil {
		f.noRotate = time.Now().Add(retryRotate)
		f.note(fmt.Sprintf("audit: %s cannot be rotated and grows on: %v", f.path, err))
		return
	}
	f.noRotate = time.Time{}
	// Files of a time when more of them were kept would look like a broken chain.
	for i := f.backups + 1; f.dir.Exists(f.backup(i)); i++ {
		if f.dir.Remove(f.backup(i)) != nil {
			return
		}
	}
}

// sealRotation notes in the seal which entries are to go, before they do: a host killed in
// between must not look like somebody who took the oldest file away.
func (f *file) sealRotation(last int) {
	if f.signer == nil || last < f.backups || !f.dir.Exists(f.backup(last)) {
		return
	}
	next := f.backup(last - 1)
	if last == 1 {
		next = filepath.Base(f.path)
	}
	if first := f.firstNumber(next); first > f.seal.Oldest {
		f.seal.Oldest = first
		f.putSeal()
	}
}

// firstNumber gives the number of the first entry of a file; 0 where it is not signed.
func (f *file) firstNumber(name string) int64 {
	h, err := f.dir.Open(name, os.O_RDONLY)
	if err != nil {
		return 0
	}
	defer h.Close()
	line, err := bufio.NewReaderSize(h, maxLine+1).ReadSlice('\n')
	if err != nil {
		return 0
	}
	at, _ := signatureIn(bytes.TrimSuffix(line, []byte{'\n'}))
	return at.number
}
