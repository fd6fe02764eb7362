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
	"github.com/go-json-experiment/json/jsontext"

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
	owner string
	sync  bool // Env.SyncJournal

	mu    sync.Mutex // guards the fields below
	part  int        // number of the file that is written, or is to be
	first int        // the oldest one that may be there
	file  *os.File   // nil until it is needed
	buf   []byte
	mute  bool // the log has heard that it cannot be written
}

// journalLine is what a line holds, behind its checksum.
type journalLine struct {
	Plugin      string           `json:"plugin"`
	At          int64            `json:"at"`
	Experiences []jsontext.Value `json:"experiences"`
	Episodes    []episodeRecord  `json:"episodes"`
	Closed      []string         `json:"closed"`
}

// durable tells whether answers wait for the journal.
func (p *Plugin) durable() bool { return p.Store != nil && !p.opts.SaveLater }

// recordLocked is where the episode stands, as JSON; nil = it cannot be saved.
func (p *Plugin) recordLocked(e *episode) []byte {
	if e.saver == nil || !p.keep.restores || !p.durable() {
		return nil
	}
	saved, err := e.saver.Save()
	if err != nil {
		p.Log.Warn().Err(err).Str("plugin", p.name).Str("episode", e.id).Msg("the episode cannot be saved")
		return nil
	}
	e.kept.Store(true)
	dst := protocol.AppendString([]byte(`{"episode_id":`), e.id)
	dst = protocol.AppendString(append(dst, `,"plugin":`...), p.name)
	dst = protocol.AppendString(append(dst, `,"env":`...), p.env.Name())
	dst = strconv.AppendInt(append(dst, `,"seed":`...), e.seed, 10)
	if len(e.options) > 0 {
		dst = append(append(dst, `,"options":`...), e.options...)
	}
	dst = appendMicros(append(dst, `,"created_at":`...), e.created)
	dst = appendMicros(append(dst, `,"used_at":`...), e.used.Load())
	dst = strconv.AppendInt(append(dst, `,"steps":`...), e.steps.Load(), 10)
	dst = strconv.AppendBool(append(dst, `,"done":`...), e.done || e.over.Load())
	dst = strconv.AppendBool(append(dst, `,"truncated":`...), e.truncated)
	dst = appendNumber(append(dst, `,"reward":`...), e.reward)
	if e.failure != "" {
		dst = protocol.AppendString(append(dst, `,"failure":`...), e.failure)
	}
	return append(append(append(dst, `,"saved":`...), saved...), '}')
}

// steps notes steps before they are answered.
func (k *keeper) steps(ctx context.Context, moves ...*move) {
	k.note(ctx, func(dst []byte) []byte {
		name := k.plugin.env.Name()
		dst = append(dst, `,"experiences":[`...)
		dst = appendEach(dst, moves, func(dst []byte, m *move) []byte {
			if !m.taken {
				return dst
			}
			return m.kept.append(dst, name)
		})
		dst = append(dst, `],"episodes":[`...)
		return append(appendEach(dst, moves, func(dst []byte, m *move) []byte { return append(dst, m.record...) }), ']')
	})
}

// begun notes a new episode before it is answered; closed one that has ended for good.
func (k *keeper) begun(ctx context.Context, record []byte) {
	if record != nil {
		k.note(ctx, func(dst []byte) []byte { return append(append(append(dst, `,"episodes":[`...), record...), ']') })
	}
}

func (k *keeper) closed(ctx context.Context, id string) {
	k.note(ctx, func(dst []byte) []byte { return append(protocol.AppendString(append(dst, `,"closed":[`...), id), ']') })
}

// appendEach appends what there is of each, with commas between.
func appendEach(dst []byte, moves []*move, one func([]byte, *move) []byte) []byte {
	start := len(dst)
	for _, m := range moves {
		before := len(dst)
		if before > start {
			dst = append(dst, ',')
		}
		comma := len(dst)
		if dst = one(dst, m); len(dst) == comma {
			dst = dst[:before]
		}
	}
	return dst
}

// note writes one line. When that fails the log hears of it: the step was taken, and is saved
// later all the same if the host lives.
func (k *keeper) note(ctx context.Context, rest func([]byte) []byte) {
	defer k.poke()
	if !k.plugin.durable() {
		return
	}
	j := &k.journal
	if j.sync {
		host.Detach(ctx)
	}
	s, err := k.plugin.Store(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil && s.Dir() != "" {
		const sum = len("00000000 ")
		j.buf = append(j.buf[:0], "00000000 "...)
		j.buf = protocol.AppendString(append(j.buf, `{"plugin":`...), k.plugin.name)
		j.buf = strconv.AppendInt(append(j.buf, `,"at":`...), k.plugin.micros(), 10)
		j.buf = append(rest(j.buf), '}')
		copy(j.buf, fmt.Appendf(nil, "%08x", crc32.Checksum(j.buf[sum:], crc32.MakeTable(crc32.Castagnoli))))
		j.buf = append(j.buf, '\n')
		err = j.writeLocked(filepath.Join(s.Dir(), journalFolder))
	}
	if err != nil && !j.mute {
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Msg("steps cannot be kept before they are answered; a kill of the host would lose the last ones")
	}
	j.mute = err != nil
}

func (j *journal) name(part int) string { return fmt.Sprintf("%s.%d%s", j.owner, part, journalSuffix) }

// writeLocked writes the line in buf. A half line, of a full disk, ends the file.
func (j *journal) writeLocked(dir string) error {
	if j.file == nil {
		folder, err := private.MakeSub(filepath.Dir(dir), filepath.Base(dir))
		if err != nil {
			return err
		}
		defer folder.Close()
		file, err := folder.Open(j.name(j.part), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
		if err != nil {
			return err
		}
		if j.file = file; j.sync {
			err = syncFolder(dir)
		}
		if err != nil {
			return err
		}
	}
	_, err := j.file.Write(j.buf)
	if err == nil && j.sync {
		err = j.file.Sync()
	}
	if err != nil {
		j.nextLocked()
	}
	if cap(j.buf) > 1<<20 {
		j.buf = nil
	}
	return err
}

// syncFolder brings the name of a new file to the disk. Systems that cannot do it for a folder
// have no need to.
func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = dir.Sync()
	return dir.Close()
}

// nextLocked ends the file that is written.
func (j *journal) nextLocked() {
	if j.file != nil {
		_ = j.file.Close() // every write was checked
		j.file = nil
		j.part++
	}
}

// next begins a new file and gives the number of the first that is not among the older ones.
func (j *journal) next() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.nextLocked()
	return j.part
}

// used tells whether there was anything to note.
func (j *journal) used() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.part > 0 || j.file != nil
}

// clear takes away the files before a number: the tables have what is in them.
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

// stray is a file that another life of a plugin has left, or is still writing.
type stray struct {
	name string
	age  time.Duration
}

// strays lists those of others than owner, the oldest first; nil = there is no folder.
func strays(dir, owner string, now time.Time) (d *private.Dir, found []stray, err error) {
	if dir == "" {
		return nil, nil, nil
	}
	d, err = private.OpenDir(filepath.Join(dir, journalFolder))
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return nil, nil, err
	}
	names, err := d.Names()
	for _, name := range names {
		if !strings.HasSuffix(name, journalSuffix) || owner != "" && strings.HasPrefix(name, owner+".") {
			continue
		}
		if info, err := d.Lstat(name); err == nil {
			found = append(found, stray{name, now.Sub(info.ModTime())})
		}
	}
	slices.SortFunc(found, func(a, b stray) int { return int(b.age - a.age) })
	return d, found, err
}

// eachLine goes over the lines of a file, up to one that is not whole.
func eachLine(d *private.Dir, name string, do func(*journalLine) error) error {
	raw, err := d.Read(name, maxJournal)
	if os.IsNotExist(err) {
		return nil // its host has taken it away just now
	}
	for err == nil && len(raw) > 0 {
		text, rest, whole := bytes.Cut(raw, []byte{'\n'})
		raw = rest
		sum, body, _ := bytes.Cut(text, []byte{' '})
		if want := fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))); !whole || string(sum) != want {
			if !whole {
				return nil // its host was killed, or the disk was full
			}
			return fmt.Errorf("%s: %w: a line does not fit its checksum", filepath.Join(d.Path(), name), store.ErrCorrupt)
		}
		var line journalLine
		if err = json.Unmarshal(body, &line); err == nil {
			err = do(&line)
		}
	}
	return err
}

// eachJournal goes over what others than owner have left of a plugin ("" = all).
func eachJournal(tx *store.Tx, plugin, owner string, do func(*journalLine) error) error {
	d, found, err := strays(tx.Dir(), owner, time.Now())
	if d == nil || err != nil {
		return err
	}
	defer d.Close()
	for _, f := range found {
		if err := eachLine(d, f.name, func(l *journalLine) error {
			if plugin != "" && l.Plugin != plugin {
				return nil
			}
			return do(l)
		}); err != nil {
			return err
		}
	}
	return nil
}

// takeStrays brings to the tables what hosts have left that were killed.
func (k *keeper) takeStrays(ctx context.Context, s store.Store) error {
	d, found, err := strays(s.Dir(), k.journal.owner, time.Now())
	if d == nil || err != nil {
		return err
	}
	defer d.Close()
	for _, f := range found {
		if f.age < strayAge {
			continue
		}
		if err := s.Write(ctx, func(tx *store.Tx) error { return eachLine(d, f.name, func(l *journalLine) error { return l.take(tx) }) }); err != nil {
			return err
		}
		if err := d.Remove(f.name); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// take brings a line to the tables.
func (l *journalLine) take(tx *store.Tx) error {
	for all := l.Experiences; len(all) > 0; {
		n := min(chunkCount, len(all))
		c, err := chunkOf(all[:n])
		if err != nil {
			return err
		}
		c.plugin, c.at = l.Plugin, l.At
		if err := c.put(tx); err != nil {
			return err
		}
		all = all[n:]
	}
	for i := range l.Episodes {
		r := &l.Episodes[i]
		row, err := findEpisode(tx, r.EpisodeID)
		if err == nil && (row == nil || row.steps < r.Steps) {
			err = r.take(tx)
		}
		if err != nil {
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

// journalled gives an episode as the journals of others have it, where that is newer than row.
func journalled(tx *store.Tx, plugin, owner, id string, row *savedEpisode) (*savedEpisode, error) {
	err := eachJournal(tx, plugin, owner, func(l *journalLine) error {
		for i := range l.Episodes {
			r := &l.Episodes[i]
			if r.EpisodeID != id || row != nil && row.steps >= r.Steps {
				continue
			}
			newer, err := r.row()
			if err != nil {
				return err
			}
			row = newer
		}
		if slices.Contains(l.Closed, id) {
			row = nil
		}
		return nil
	})
	return row, err
}

// forgetStrays takes all journals away, which are not of the state that takes their place.
func forgetStrays(dir string) {
	d, found, err := strays(dir, "", time.Now())
	if d == nil || err != nil {
		return
	}
	defer d.Close()
	for _, f := range found {
		_ = d.Remove(f.name)
	}
}
