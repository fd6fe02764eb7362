package env

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/private"
	"a2e/host/store"
	"a2e/protocol"
)

// What is answered is in a file beside the store before: one line, one write, which a kill of
// the host does not touch. A transaction for each step would cost thirty times as much as
// the step. The keeper brings what is in memory to the store's tables, many steps at once,
// and then takes the file away. Files of hosts that were killed are read by all others,
// and brought to the tables by one of them.

const (
	journalFolder = "env"
	journalSuffix = ".journal"
	maxJournal    = 1 << 30
	// strayAge is how old a file must be that another host takes for one left behind. A
	// living host takes its own away within seconds; should one be slower, the same steps
	// are written twice, and shown once.
	strayAge = time.Minute
)

// journal is the file of one life of a plugin.
type journal struct {
	plugin, owner string
	sync          bool // Env.SyncStore

	mu    sync.Mutex // guards the fields below
	part  int        // number of the file that is written, or is to be
	first int        // the oldest one that may be there
	file  *os.File   // nil until it is needed
	buf   []byte
}

// journalLine is what a line holds, behind its checksum.
type journalLine struct {
	Plugin      string         `json:"plugin"`
	At          int64          `json:"at"`
	Experiences []experience   `json:"experiences"`
	Episodes    []savedEpisode `json:"episodes"`
	Closed      []string       `json:"closed"`
}

// checksum is that of a line's text.
func checksum(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

// note writes a line before its steps, beginnings of episodes or ends are answered. When
// that fails the log hears of it: they are saved later all the same if the host lives.
func (k *keeper) note(ctx context.Context, moves []move, begun []byte, closed string) {
	defer k.poke()
	if !k.plugin.durable() {
		return
	}
	if k.journal.sync {
		host.HandOff(ctx)
	}
	s, err := k.plugin.Store(ctx)
	if err == nil && s.Dir() != "" {
		err = k.journal.write(filepath.Join(s.Dir(), journalFolder), k.plugin.micros(), moves, begun, closed)
	}
	if failed := err != nil; k.mute.Swap(failed) != failed && failed {
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Msg("steps cannot be kept before they are answered; a kill of the host would lose the last ones")
	}
}

// write writes one line. A half line, of a full disk, ends the file.
func (j *journal) write(dir string, at int64, moves []move, begun []byte, closed string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	const sum = len("00000000 ")
	dst := protocol.AppendString(append(j.buf[:0], `00000000 {"plugin":`...), j.plugin)
	dst = strconv.AppendInt(append(dst, `,"at":`...), at, 10)
	dst = append(dst, `,"experiences":[`...)
	for i := range moves {
		dst = appendItem(dst, moves[i].made.raw)
	}
	dst = append(dst, `],"episodes":[`...)
	for i := range moves {
		dst = appendItem(dst, moves[i].record)
	}
	dst = append(appendItem(dst, begun), ']')
	if closed != "" {
		dst = append(protocol.AppendString(append(dst, `,"closed":[`...), closed), ']')
	}
	dst = append(dst, '}')
	copy(dst, fmt.Appendf(nil, "%08x", checksum(dst[sum:])))
	if j.buf = append(dst, '\n'); cap(j.buf) > 1<<20 {
		defer func() { j.buf = nil }()
	}
	if err := j.openLocked(dir); err != nil {
		return err
	}
	_, err := j.file.Write(j.buf)
	if err == nil && j.sync {
		err = j.file.Sync()
	}
	if err != nil {
		j.nextLocked()
	}
	return err
}

// appendItem appends an item of a list, if there is one.
func appendItem(dst, item []byte) []byte {
	if len(item) > 0 && dst[len(dst)-1] != '[' {
		dst = append(dst, ',')
	}
	return append(dst, item...)
}

// openLocked opens the file, and brings its name to the disk where that is asked for.
func (j *journal) openLocked(path string) error {
	if j.file != nil {
		return nil
	}
	dir, err := private.MakeSub(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if j.file, err = dir.Open(j.name(j.part), os.O_WRONLY|os.O_CREATE|os.O_APPEND); err != nil || !j.sync {
		return err
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = folder.Sync() // systems that cannot do it for a folder have no need to
	return folder.Close()
}

func (j *journal) name(part int) string { return fmt.Sprintf("%s.%d%s", j.owner, part, journalSuffix) }

// nextLocked ends the file that is written.
func (j *journal) nextLocked() {
	if j.file != nil {
		_ = j.file.Close() // every write was checked
		j.file = nil
		j.part++
	}
}

// next begins a new file and returns the number of the first that is not among the older ones.
func (j *journal) next() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.nextLocked()
	return j.part
}

// clear removes the files before a number: the tables have what is in them.
func (j *journal) clear(dir string, before int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.first >= before || dir == "" {
		return nil
	}
	d, err := private.OpenDir(filepath.Join(dir, journalFolder))
	if err != nil {
		return err
	}
	defer d.Close()
	for ; j.first < before; j.first++ {
		if err := d.Remove(j.name(j.first)); err != nil && d.Exists(j.name(j.first)) {
			return err
		}
	}
	return nil
}

// eachJournal goes over the files of others than owner ("" = of all), the oldest first.
func eachJournal(dir, owner string, do func(d *private.Dir, name string, age time.Duration) error) error {
	if dir == "" {
		return nil
	}
	d, err := private.OpenDir(filepath.Join(dir, journalFolder))
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	defer d.Close()
	names, err := d.Names()
	var files []os.FileInfo
	for _, name := range names {
		if info, err := d.Lstat(name); err == nil && strings.HasSuffix(name, journalSuffix) && (owner == "" || !strings.HasPrefix(name, owner+".")) {
			files = append(files, info)
		}
	}
	slices.SortStableFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, file := range files {
		if err == nil {
			err = do(d, file.Name(), time.Since(file.ModTime()))
		}
	}
	return err
}

// eachLine goes over the lines of a file, up to one that is not whole.
func eachLine(d *private.Dir, name string, do func(*journalLine) error) error {
	raw, err := d.Read(name, maxJournal)
	if os.IsNotExist(err) {
		return nil // its host has taken it away just now
	}
	for err == nil && len(raw) > 0 {
		text, rest, whole := bytes.Cut(raw, []byte{'\n'})
		if raw = rest; !whole {
			return nil // its host was killed, or the disk was full
		}
		sum, body, _ := bytes.Cut(text, []byte{' '})
		if string(sum) != fmt.Sprintf("%08x", checksum(body)) {
			return fmt.Errorf("%s: %w: a line does not fit its checksum", filepath.Join(d.Path(), name), store.ErrCorrupt)
		}
		var line journalLine
		if err = json.Unmarshal(body, &line); err == nil {
			err = do(&line)
		}
	}
	return err
}

// journals is what files beside the store have that may not be in its tables yet.
type journals struct {
	episodes    map[string]*savedEpisode // as they stand at the end; nil = closed
	experiences map[string][]experience  // by plugin
}

// readJournals reads those of others than owner ("" = of all).
func readJournals(dir, owner string) (*journals, error) {
	j := &journals{make(map[string]*savedEpisode), make(map[string][]experience)}
	return j, eachJournal(dir, owner, func(d *private.Dir, name string, _ time.Duration) error {
		return eachLine(d, name, func(l *journalLine) error {
			j.experiences[l.Plugin] = append(j.experiences[l.Plugin], l.Experiences...)
			for i := range l.Episodes {
				e := &l.Episodes[i]
				if last, there := j.episodes[e.ID]; !there || last != nil && last.Steps <= e.Steps {
					j.episodes[e.ID] = e
				}
			}
			for _, id := range l.Closed {
				j.episodes[id] = nil
			}
			return nil
		})
	})
}

// newest returns an episode as it stands: as a table has it, nil = not at all, or as these
// journals do.
func (j *journals) newest(id string, row *savedEpisode) *savedEpisode {
	if e, there := j.episodes[id]; there && (e == nil || row == nil || e.Steps > row.Steps) {
		return e
	}
	return row
}

// takeStrays brings to the tables what hosts have left that were killed. What may be a living host's
// is looked at again later: hosts on other machines read the tables only.
func (k *keeper) takeStrays(ctx context.Context, s store.Store) error {
	return eachJournal(s.Dir(), k.journal.owner, func(d *private.Dir, name string, age time.Duration) error {
		if age < strayAge {
			if !k.again.Swap(true) {
				time.AfterFunc(strayAge, func() { k.again.Store(false); k.poke() })
			}
			return nil
		}
		if err := s.Write(ctx, func(tx *store.Tx) error {
			return eachLine(d, name, func(l *journalLine) error { return k.take(tx, l) })
		}); err != nil {
			return err
		}
		if err := d.Remove(name); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	})
}

// take brings a line to the tables.
func (k *keeper) take(tx *store.Tx, l *journalLine) error {
	for _, c := range chunksOf(l.Plugin, l.Experiences) {
		if err := c.put(tx, k.packer); err != nil {
			return err
		}
	}
	for i := range l.Episodes {
		if err := l.Episodes[i].put(tx, ifFurther); err != nil {
			return err
		}
	}
	for _, id := range l.Closed {
		if err := deleteEpisode(tx, l.Plugin, id); err != nil {
			return err
		}
	}
	return nil
}

// forgetJournals removes all, which are not of the state that takes their place.
func forgetJournals(dir string) {
	_ = eachJournal(dir, "", func(d *private.Dir, name string, _ time.Duration) error {
		_ = d.Remove(name)
		return nil
	})
}
