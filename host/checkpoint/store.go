package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"a2e/host/private"
)

// The files of one workspace's store.
const (
	logFile     = "log"     // one record after the other: the checkpoints, and how they are called since
	indexFile   = "index"   // the state of the workspace at one of them
	lockFile    = "lock"    // held by whoever works on the store or puts files back
	pendingFile = "restore" // there while files are put back
	blobsDir    = "blobs"
)

const (
	logMagic   = "a2e checkpoints 1\n"
	indexMagic = "a2e checkpoint index 1\n"
)

// store is what is kept of one workspace. The lock is held by who uses it.
type store struct {
	dir   *private.Dir
	log   *os.File
	seen  int64 // bytes of the log that were read
	info  fs.FileInfo
	metas []meta // the oldest first, with ids one after the other
	notes int    // records that only rename
	base  uint64 // the checkpoint that the index file is of; 0 = there is none
	blobs blobs
	tree  tree // the state at the last checkpoint
}

// meta is what is known of a checkpoint without its changes.
type meta struct {
	Info
	offset int64 // of its record in the log
	size   int
}

func openStore(dir string) (*store, error) {
	d, err := private.MakeDir(dir)
	if err != nil {
		return nil, err
	}
	sub, err := d.Sub(blobsDir)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	s := &store{dir: d}
	s.blobs.dir = sub.Path()
	return s, sub.Close()
}

func (s *store) close() error {
	var err error
	if s.log != nil {
		err = s.log.Close()
	}
	return errors.Join(err, s.dir.Close())
}

// lock waits for its turn among all hosts, until ctx ends.
func (s *store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := s.dir.Open(lockFile, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		ok, err := private.TryLock(f)
		if ok {
			return func() { _ = f.Close() }, nil
		}
		if err == nil {
			select {
			case <-time.After(wait):
				continue
			case <-ctx.Done():
				err = fmt.Errorf("another host uses the checkpoints of this workspace: %w", context.Cause(ctx))
			}
		}
		return nil, errors.Join(err, f.Close())
	}
}

// refresh takes in what other hosts have written since. fresh says that all was read anew.
func (s *store) refresh() (fresh bool, err error) {
	now, err := s.dir.Lstat(logFile)
	switch {
	case s.log != nil && err == nil && os.SameFile(now, s.info) && now.Size() == s.seen:
		return false, nil
	case s.log != nil && err == nil && os.SameFile(now, s.info) && now.Size() > s.seen:
		return false, s.readLog(true)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return true, err
	}
	if s.log != nil {
		s.log.Close()
	}
	if s.log, err = s.dir.Open(logFile, os.O_RDWR|os.O_CREATE); err != nil {
		return true, err
	}
	if s.info, err = s.log.Stat(); err != nil {
		return true, err
	}
	s.metas, s.notes, s.seen, s.tree, s.base = nil, 0, 0, tree{}, 0
	if s.info.Size() < int64(len(logMagic)) {
		if err := s.log.Truncate(0); err != nil {
			return true, err
		}
		_, err := s.log.WriteAt([]byte(logMagic), 0)
		s.seen = int64(len(logMagic))
		return true, err
	}
	if err := s.readIndex(); err != nil {
		return true, s.damaged(indexFile)
	}
	return true, s.readLog(false)
}

// readLog reads the records behind seen. What is not whole at the end was cut off with its host, and is removed.
func (s *store) readLog(more bool) error {
	raw, err := io.ReadAll(io.NewSectionReader(s.log, s.seen, 1<<62))
	if err != nil {
		return err
	}
	if !more {
		if !bytes.HasPrefix(raw, []byte(logMagic)) {
			return s.damaged(logFile)
		}
		raw, s.seen = raw[len(logMagic):], int64(len(logMagic))
	}
	for len(raw) > 0 {
		payload, size := unframe(raw)
		if size == 0 && !cutOff(raw) {
			return s.damaged(logFile)
		} else if size == 0 {
			if err := s.log.Truncate(s.seen); err != nil {
				return err
			}
			break
		}
		if s.apply(payload, s.seen, size) != nil {
			return s.damaged(logFile)
		}
		raw, s.seen = raw[size:], s.seen+int64(size)
	}
	if n := len(s.metas); n > 0 && (s.base < s.metas[0].ID || s.base > s.metas[n-1].ID) {
		return s.damaged(indexFile) // without it, or without the records before it, nothing says what there was
	}
	return nil
}

// cutOff reports whether a record that is not whole is the last one: none that is whole stands behind it.
func cutOff(raw []byte) bool {
	for at := 1; at+frameSize < len(raw); at++ {
		if _, size := unframe(raw[at:]); size > frameSize {
			return false
		}
	}
	return true
}

func (s *store) damaged(file string) error {
	return fmt.Errorf("%s: %w; move the folder away to start over", filepath.Join(s.dir.Path(), file), errDamaged)
}

// The kinds of records.
const (
	recordCheckpoint = 1
	recordRename     = 2
)

// apply takes in one record.
func (s *store) apply(payload []byte, offset int64, size int) error {
	d := &decoder{s: string(payload)}
	typ := d.num()
	m := meta{offset: offset, size: size}
	m.ID, m.Made, m.Before = d.num(), time.Unix(0, d.signed()).UTC(), d.text()
	if typ == recordRename {
		s.notes++
		if n := len(s.metas); n > 0 && s.metas[n-1].ID == m.ID {
			s.metas[n-1].Made, s.metas[n-1].Before = m.Made, m.Before
		}
		return d.err
	}
	m.decode(d)
	n := d.num()
	if last := s.last(); last != nil && m.ID != last.ID+1 {
		return errDamaged // find counts on it
	}
	if s.metas = append(s.metas, m); m.ID <= s.base {
		return d.err // the index has it
	}
	for ; n > 0 && d.err == nil; n-- {
		var old, now entry
		path := d.text()
		d.entry(&old)
		s.tree.set(path, d.entry(&now))
	}
	s.blobs.bytes.Store(m.bytes)
	return d.err
}

func (m *meta) decode(d *decoder) {
	m.Restored, m.ignored, m.bytes = d.num(), d.num() == 1, int64(d.num())
	m.Files, m.LeftOut, m.Changed = int(d.num()), int(d.num()), int(d.num())
}

func (m *meta) encode(e *encoder) {
	e.num(m.Restored)
	e.num(map[bool]uint64{true: 1}[m.ignored])
	for _, n := range []int64{m.bytes, int64(m.Files), int64(m.LeftOut), int64(m.Changed)} {
		e.num(uint64(n))
	}
}

// header begins a record.
func header(typ uint64, i *Info) *encoder {
	e := &encoder{b: make([]byte, frameSize, 256)}
	e.num(typ)
	e.num(i.ID)
	e.signed(i.Made.UnixNano())
	e.text(i.Before)
	return e
}

// record makes the record of a checkpoint, which stands at an offset of the log.
func (m *meta) record(changes []change, offset int64) *encoder {
	e := header(recordCheckpoint, &m.Info)
	m.encode(e)
	e.num(uint64(len(changes)))
	for _, c := range changes {
		e.text(c.path)
		e.entry(c.old)
		e.entry(c.new)
	}
	m.offset, m.size = offset, len(e.b)
	return e
}

// add writes a checkpoint, whose changes led from the one before to this one.
func (s *store) add(m meta, changes []change) error {
	e := m.record(changes, s.seen)
	if err := s.append(e); err != nil {
		return err
	}
	s.metas = append(s.metas, m)
	return nil
}

// rename has the last checkpoint say what came after it.
func (s *store) rename(i Info) error {
	if err := s.append(header(recordRename, &i)); err != nil {
		return err
	}
	s.notes++
	s.metas[len(s.metas)-1].Info = i
	return nil
}

func (s *store) append(e *encoder) error {
	if _, err := s.log.WriteAt(frame(e.b), s.seen); err != nil {
		return err // what was written of it is cut off when it is read
	}
	s.seen += int64(len(e.b))
	return nil
}

// changes reads those that led to a checkpoint from the one before.
func (s *store) changes(m *meta) ([]change, error) {
	raw := make([]byte, m.size)
	if _, err := s.log.ReadAt(raw, m.offset); err != nil {
		return nil, err
	}
	payload, size := unframe(raw)
	if size == 0 {
		return nil, fmt.Errorf("checkpoint %d %w", m.ID, errDamaged)
	}
	d := &decoder{s: string(payload)}
	var skip meta
	d.num()
	d.num()
	d.signed()
	d.text()
	skip.decode(d)
	var all []change // the number that is written there need not be true
	for n := d.num(); n > 0 && d.err == nil; n-- {
		pair := new([2]entry)
		all = append(all, change{path: d.text(), old: d.entry(&pair[0]), new: d.entry(&pair[1])})
	}
	return all, d.err
}

func (s *store) last() *meta {
	if len(s.metas) == 0 {
		return nil
	}
	return &s.metas[len(s.metas)-1]
}

// find returns a checkpoint by its id; nil = there is none.
func (s *store) find(id uint64) *meta {
	if len(s.metas) == 0 || id < s.metas[0].ID || id > s.last().ID {
		return nil
	}
	return &s.metas[id-s.metas[0].ID]
}

// writeIndex writes the state down, as it is at the checkpoint with an id.
func (s *store) writeIndex(id uint64) error {
	names, _ := s.tree.count()
	e := &encoder{b: make([]byte, frameSize, 128*names+1024)}
	e.num(id)
	e.num(uint64(s.blobs.bytes.Load()))
	e.num(uint64(len(s.tree)))
	for path, f := range s.tree {
		e.text(path)
		e.num(uint64(len(f.entries)))
		for i := range f.entries {
			e.text(f.entries[i].name)
			e.entry(&f.entries[i])
		}
	}
	if err := s.dir.Replace(indexFile, append([]byte(indexMagic), frame(e.b)...)); err != nil {
		return err
	}
	s.base = id
	return nil
}

// readIndex reads the state that was written down last; there may be none.
func (s *store) readIndex() error {
	raw, err := s.dir.Read(indexFile, 4<<30)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(raw, []byte(indexMagic))
	payload, size := unframe(rest)
	if !ok || size == 0 {
		return errDamaged
	}
	d := &decoder{s: string(payload)}
	s.base = d.num()
	s.blobs.bytes.Store(int64(d.num()))
	for n := d.num(); n > 0 && d.err == nil; n-- {
		f := &folder{path: d.text()}
		f.entries = make([]entry, min(d.num(), uint64(len(d.s))))
		for i := range f.entries {
			f.entries[i].name = d.text()
			d.entry(&f.entries[i])
		}
		s.tree[f.path] = f
	}
	return d.err
}

// compact writes the log anew without the first drop checkpoints.
func (s *store) compact(drop int) error {
	if err := s.writeIndex(s.last().ID); err != nil {
		return err
	}
	out := []byte(logMagic)
	kept := slices.Clone(s.metas[drop:])
	for i := range kept {
		m := &kept[i]
		changes, err := s.changes(m)
		if err != nil {
			return err
		}
		if i == 0 {
			changes, m.Changed = nil, 0 // they led here from what is not there any more
		}
		out = append(out, frame(m.record(changes, int64(len(out))).b)...)
	}
	return s.replaceLog(out, kept)
}

func (s *store) replaceLog(content []byte, kept []meta) error {
	if err := s.dir.Replace(logFile, content); err != nil {
		return err
	}
	f, err := s.dir.Open(logFile, os.O_RDWR)
	if err != nil {
		return err
	}
	s.log.Close()
	s.log, s.metas, s.notes, s.seen = f, kept, 0, int64(len(content))
	s.info, err = f.Stat()
	return err
}
