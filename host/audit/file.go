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
		used := f.size + int64(len(f.out))
		number++
		out, next := appendLinked(f.out, src[taken:end], prev, f.signer, number)
		if f.rotates() && used > 0 && f.size+int64(len(out)) > f.maxBytes {
			return taken, true
		}
		f.out, prev, taken = out, next, end+1
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
		if f.signer != nil {
			f.seal.Count += int64(bytes.Count(whole, []byte{'\n'}))
			f.seal.Last = f.prev.String()
		}
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
		prev, size := f.prev, f.size
		if err = f.resume(h, fi); err != nil { // nothing of it counts, or what is known would not fit together
			f.prev, f.size = prev, size
		}
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	f.known, f.info = true, fi
	return h, nil
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
		f.note(fmt.Sprintf("audit: %s cannot be rotated and keeps growing: %v", f.path, err))
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

// firstNumber returns the number of the first entry of a file; 0 where it is not signed.
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
	if last == nil && size == 0 { // the first entry has the link of the newest rotated file
		if last, err = f.newest(); err != nil {
			return err
		}
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
	case !f.known: // else the chain that we know goes on, so that a removed file leaves a gap to be seen
		f.prev = noLink()
	}
	f.size = size
	if f.signer != nil {
		return f.resumeSeal(last)
	}
	return nil
}

// newest returns the last line there is in the file, or in the newest rotated one; nil =
// there is none.
func (f *file) newest() ([]byte, error) {
	names := []string{filepath.Base(f.path)}
	for i := 1; i <= f.backups; i++ {
		names = append(names, f.backup(i))
	}
	for _, name := range names {
		h, err := f.dir.Open(name, os.O_RDONLY)
		if exhausted(err) {
			return nil, err
		}
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
			return last, nil
		}
	}
	return nil, nil
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
	f.note(fmt.Sprintf("audit: cut a half line of %d bytes off the end of %s: %q", len(half), f.path, half[:min(len(half), shownHalf)]))
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
