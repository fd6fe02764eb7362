package checkpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"a2e/host/private"
)

// sum names a content.
type sum [sha256.Size]byte

// blobs keeps contents, each once, in a file of its own that is called by its sum. A file is whole or not there.
type blobs struct {
	dir   string
	bytes atomic.Int64 // that they have together
}

func (b *blobs) path(s sum) string {
	name := hex.EncodeToString(s[:])
	return filepath.Join(b.dir, name[:2], name[2:])
}

// add keeps what is in a file, and sets its size and sum, unless that would be too much; most bounds
// the whole store.
func (b *blobs) add(f *os.File, e *entry, most int64) (held, error) {
	if b.bytes.Load()+e.size > most {
		return heldNoRoom, nil
	}
	unread := false
	err := b.write(e, func(to *os.File) error {
		hash := sha256.New()
		n, err := io.Copy(io.MultiWriter(to, hash), io.LimitReader(f, most-b.bytes.Load()))
		unread = err != nil && isRead(err)
		e.size = n
		hash.Sum(e.sum[:0])
		return err
	})
	if unread {
		return heldClosed, nil
	}
	return heldWhole, err
}

// isRead reports whether reading failed, rather than the store.
func isRead(err error) bool {
	var wrong *fs.PathError
	return errors.As(err, &wrong) && wrong.Op == "read"
}

// write makes the file of a content whose sum is known once fill has returned.
func (b *blobs) write(e *entry, fill func(*os.File) error) error {
	temp, err := os.OpenFile(filepath.Join(b.dir, rand.Text()+private.TempSuffix), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(fill(temp), temp.Close())
	if path := b.path(e.sum); err == nil {
		if info, known := os.Lstat(path); known == nil && info.Size() == e.size {
			return os.Remove(temp.Name())
		}
		if err = os.Rename(temp.Name(), path); errors.Is(err, fs.ErrNotExist) {
			if err = os.Mkdir(filepath.Dir(path), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
				err = os.Rename(temp.Name(), path)
			}
		}
		if err == nil {
			b.bytes.Add(e.size)
		}
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return err
}

// copyTo writes a content into a file. The error says that it is not what it was.
func (b *blobs) copyTo(to *os.File, e *entry) error {
	from, err := os.Open(b.path(e.sum))
	if err != nil {
		return err
	}
	defer from.Close()
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, hash), from)
	if err == nil && sum(hash.Sum(nil)) != e.sum {
		err = fmt.Errorf("the copy that was kept %w", errDamaged)
	}
	return err
}

// read returns a content of at most so many bytes.
func (b *blobs) read(e *entry, most int64) ([]byte, error) {
	f, err := os.Open(b.path(e.sum))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// remove forgets a content.
func (b *blobs) remove(s sum) {
	info, err := os.Lstat(b.path(s))
	if err == nil && os.Remove(b.path(s)) == nil { // or another time
		b.bytes.Add(-info.Size())
	}
}

// each calls f for every content that there is, and removes what never became whole.
func (b *blobs) each(f func(s sum, size int64)) error {
	return filepath.WalkDir(b.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := filepath.Base(filepath.Dir(path)) + entry.Name()
		var s sum
		if n, err := hex.Decode(s[:], []byte(name[max(0, len(name)-2*len(s)):])); err != nil || n != len(s) {
			if strings.HasSuffix(name, private.TempSuffix) {
				_ = os.Remove(path)
			}
			return nil
		}
		info, err := entry.Info()
		if err == nil {
			f(s, info.Size())
		}
		return nil
	})
}

var errDamaged = errors.New("it is damaged")

// encoder writes numbers and texts one after the other.
type encoder struct{ b []byte }

func (e *encoder) num(n uint64)   { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) signed(n int64) { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) text(s string) {
	e.num(uint64(len(s)))
	e.b = append(e.b, s...)
}

// entry writes all but the name.
func (e *encoder) entry(x *entry) {
	if x == nil {
		e.num(0)
		return
	}
	racy := uint64(0)
	if x.racy {
		racy = 1
	}
	e.num(uint64(x.kind))
	e.num(uint64(x.held)<<1 | racy)
	e.num(uint64(x.perm))
	e.num(uint64(x.nlink))
	e.num(x.ino)
	e.signed(x.size)
	e.signed(x.mtime)
	e.signed(x.ctime)
	switch {
	case x.kind == aFile && x.held == heldWhole:
		e.b = append(e.b, x.sum[:]...)
	case x.kind == aLink:
		e.text(x.link)
	}
}

// decoder reads what an encoder wrote. Once something is wrong it gives nothing any more.
type decoder struct {
	s   string // the texts it gives are parts of it
	err error
}

func (d *decoder) take(n uint64) string {
	if n > uint64(len(d.s)) {
		d.s, d.err = "", errDamaged
		return ""
	}
	text := d.s[:n]
	d.s = d.s[n:]
	return text
}

func (d *decoder) num() uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := d.take(1)
		if b == "" {
			return 0
		}
		if n |= uint64(b[0]&0x7f) << shift; b[0] < 0x80 {
			return n
		}
	}
	d.err = errDamaged
	return 0
}

func (d *decoder) signed() int64 {
	n := d.num()
	return int64(n>>1) ^ -int64(n&1)
}

func (d *decoder) text() string { return d.take(d.num()) }

// entry reads one; nil = a free name.
func (d *decoder) entry(x *entry) *entry {
	x.kind = kind(d.num())
	if x.kind == 0 || x.kind > aLink {
		return nil
	}
	flags := d.num()
	x.held, x.racy = held(min(flags>>1, uint64(heldClosed))), flags&1 == 1
	x.perm, x.nlink, x.ino = uint32(d.num()), uint32(d.num()), d.num()
	x.size, x.mtime, x.ctime = d.signed(), d.signed(), d.signed()
	switch {
	case x.kind == aFile && x.held == heldWhole:
		copy(x.sum[:], d.take(uint64(len(x.sum))))
	case x.kind == aLink:
		x.link = d.text()
	}
	return x
}

// frame puts a length and a checksum before a payload, which begins after frameSize bytes of b.
func frame(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-frameSize))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[frameSize:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

const frameSize = 8

// unframe returns the first payload of b and the bytes it takes up; size 0 = there is no whole one.
func unframe(b []byte) (payload []byte, size int) {
	if len(b) < frameSize {
		return nil, 0
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n > uint64(len(b)-frameSize) {
		return nil, 0
	}
	payload = b[frameSize : frameSize+n]
	if crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, 0
	}
	return payload, frameSize + int(n)
}
