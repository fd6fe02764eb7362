package checkpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
	dir     string
	bytes   atomic.Int64 // that they have together
	noClone atomic.Bool  // the file system shares no blocks
}

// smallest is the size from which files are cloned rather than read and written.
const smallest = 64 << 10

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
	if e.size < smallest {
		content, err := io.ReadAll(io.LimitReader(f, smallest+1))
		if err != nil {
			return heldClosed, nil
		}
		e.size, e.sum = int64(len(content)), sha256.Sum256(content)
		if info, err := os.Lstat(b.path(e.sum)); err == nil && info.Size() == e.size {
			return heldWhole, nil
		}
		return heldWhole, b.write(e, func(to *os.File) error {
			_, err := to.Write(content)
			return err
		})
	}
	unread := false
	err := b.write(e, func(to *os.File) error {
		from := io.Reader(f)
		cloned := !b.noClone.Load() && clone(to, f) == nil
		if b.noClone.Store(!cloned); cloned {
			from = to
		}
		hash := sha256.New()
		into := io.Writer(hash)
		if !cloned {
			into = io.MultiWriter(to, hash)
		}
		n, err := io.Copy(into, io.LimitReader(from, most-b.bytes.Load()))
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
	if clone(to, from) == nil {
		_, err = io.Copy(hash, from)
	} else {
		_, err = io.Copy(io.MultiWriter(to, hash), from)
	}
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
