package checkpoint

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"a2e/host/swap"
)

// place is an open workspace. What is done through it stays in it, whatever links there are.
type place struct {
	root *os.Root
	top  *os.File // the folder itself
}

func openPlace(dir string) (*place, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	top, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &place{root, top}, nil
}

var errSwapped = errors.New("it was replaced by another folder or a link")

// folder opens a folder without following a link on the way: not even one that leads to another place
// in the workspace, where the host's own files may lie.
func (p *place) folder(dir string) (*os.Root, error) {
	at, err := p.root.OpenRoot(".")
	for name := range strings.SplitSeq(dir, "/") {
		if err != nil || name == "" {
			break
		}
		above := at
		at, err = openNoLink(above, name)
		_ = above.Close()
	}
	return at, err
}

// openNoLink opens a folder that is no link.
func openNoLink(above *os.Root, name string) (*os.Root, error) {
	named, err := above.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.IsDir() {
		return nil, errSwapped
	}
	dir, err := above.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil && !os.SameFile(named, info) {
		err = errSwapped
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

func (p *place) close() { _, _ = p.top.Close(), p.root.Close() }

// readSmall returns the beginning of a regular file; "" where it cannot be read.
func (p *place) readSmall(name string, most int64) string {
	f, _, err := p.open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return string(text)
}

var errOther = errors.New("it is not a regular file any more")

// open opens a regular file for reading, and says what it is.
func (p *place) open(name string) (*os.File, entry, error) {
	f, err := p.openFile(name)
	if err != nil {
		return nil, entry{}, err
	}
	e, err := opened(f)
	if err == nil && e.kind != aFile {
		err = errOther
	}
	if err != nil {
		return nil, entry{}, errors.Join(err, f.Close())
	}
	return f, e, nil
}

// maxReads is how often a file is read that changes meanwhile.
const maxReads = 3

// keep puts the content of a file into the store and says so in its entry; ok is false where the file
// has gone. A file that is written all the time is kept as it was read, and read again next time.
// The error is one of the store.
func (p *place) keep(name string, e *entry, to *blobs, most int64) (ok bool, err error) {
	for range maxReads {
		f, now, err := p.open(name)
		switch {
		case isGone(err) || errors.Is(err, errOther):
			return false, nil
		case err != nil:
			e.held = heldClosed
			return true, nil
		}
		now.name = e.name
		if swap.HasACL(f) {
			now.perm |= hasACL
		}
		*e = now
		read := time.Now()
		e.held, err = to.add(f, e, most)
		after, wrong := opened(f)
		f.Close()
		if err != nil {
			return true, err
		}
		e.racy = recent(e, read) || wrong != nil
		if after.size == e.size && after.mtime == e.mtime && after.ctime == e.ctime {
			return true, nil
		}
		e.racy = true
	}
	return true, nil
}

// recent reports whether a file changed so shortly before it was read that a change right after might
// bear the same time. Some file systems count whole seconds only.
func recent(e *entry, read time.Time) bool {
	const tick, coarse = 50 * time.Millisecond, 2 * time.Second
	last, grain := e.ctime, tick
	if last == 0 {
		last = e.mtime
	}
	if last%int64(time.Second) == 0 {
		grain = coarse
	}
	return read.UnixNano()-last < int64(grain)
}

// fileMode returns the bits of a mode as os has them.
func fileMode(perm uint32) fs.FileMode {
	mode := fs.FileMode(perm & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if perm&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// trim removes the oldest checkpoints until there are at most so many, and contents that leave room
// for some more bytes. The last one always stays.
func (s *store) trim(count int, most, need int64) error {
	drop := max(0, len(s.metas)-max(count, 1))
	if s.blobs.bytes.Load()+need > most {
		byBytes, err := s.dropFor(most - need)
		if err != nil {
			return err
		}
		drop = max(drop, byBytes)
	}
	candidates := make(map[sum]bool)
	for i := range s.metas[:min(drop+1, len(s.metas))] { // what is behind the first that stays goes too
		changes, err := s.changes(&s.metas[i])
		if err != nil {
			return err
		}
		for _, c := range changes {
			if c.old != nil && c.old.kind == aFile && c.old.held == heldWhole {
				candidates[c.old.sum] = true
			}
		}
	}
	if err := s.compact(drop); err != nil {
		return err
	}
	last, err := s.uses()
	if err != nil {
		return err
	}
	for is := range candidates {
		if _, used := last[is]; !used {
			s.blobs.remove(is)
		}
	}
	return s.writeIndex(s.last().ID) // with the bytes that there are now
}

// uses tells for each content which checkpoint is the last that needs it, by its place among metas;
// those of the state there is now are needed for good.
func (s *store) uses() (map[sum]int, error) {
	last := make(map[sum]int)
	for i := range s.metas {
		changes, err := s.changes(&s.metas[i])
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			if i > 0 && c.old != nil && c.old.kind == aFile { // to go back to the one before
				last[c.old.sum] = max(last[c.old.sum], i-1)
			}
			if c.new != nil && c.new.kind == aFile {
				last[c.new.sum] = max(last[c.new.sum], i)
			}
		}
	}
	for _, e := range s.tree.below("") {
		if e.kind == aFile && e.held == heldWhole {
			last[e.sum] = len(s.metas) - 1
		}
	}
	return last, nil
}

// dropFor returns how many checkpoints have to go so that at most so many bytes are left, and removes
// contents that nothing needs.
func (s *store) dropFor(most int64) (int, error) {
	last, err := s.uses()
	if err != nil {
		return 0, err
	}
	freed := make([]int64, len(s.metas)) // by dropping each
	var total int64
	var gone []sum
	err = s.blobs.each(func(is sum, size int64) {
		total += size
		if at, used := last[is]; used {
			freed[at] += size
		} else {
			gone = append(gone, is) // of a checkpoint that did not come about
		}
	})
	s.blobs.bytes.Store(total)
	for _, is := range gone {
		s.blobs.remove(is)
	}
	total = s.blobs.bytes.Load()
	drop := 0
	for ; total > most && drop < len(s.metas)-1; drop++ {
		total -= freed[drop]
	}
	return drop, err
}
