package env

import (
	"compress/gzip"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host/state/store"
)

const (
	// saveEvery is the shortest time between two saves. savePause is how many times longer than a save the
	// pause after it is, so that saving takes only a small part of the time.
	saveEvery = time.Second
	savePause = 10
	// saveGroup is how many experiences are written in one transaction.
	saveGroup = 8192
)

// keeper writes episodes and experiences to the store in the background.
type keeper struct {
	plugin   *Plugin
	journals *store.Journals
	number   atomic.Int64 // of the journal of this keeper; 0 = none yet
	places   atomic.Int64 // number of its last line
	lined    atomic.Bool  // it may have lines that can be trimmed after a save
	mute     atomic.Bool  // the log has a message that the journal cannot be written
	former   atomic.Bool  // the files of earlier versions were imported
	formerMu sync.Mutex   // held during that import

	asked   atomic.Bool   // a save is about to begin
	failing atomic.Bool   // the last save failed
	pause   atomic.Int64  // nanoseconds until the next save
	turn    chan struct{} // held by the goroutine that saves, which alone uses the fields below
	fresh   int           // experiences written since the last trim
	packer  *gzip.Writer

	mu   sync.Mutex
	gone []string // ids of episodes to delete from the store; guarded by mu
}

func (k *keeper) init(p *Plugin) {
	k.plugin, k.packer, k.turn = p, newPacker(), make(chan struct{}, 1)
	k.journals = newJournals()
	k.fresh = p.opts.MaxExperiences // an earlier host may have allowed more
	k.pause.Store(int64(saveEvery))
}

// durable reports whether answers wait for the journal.
func (p *Plugin) durable() bool { return p.Store != nil && !p.opts.SaveLater }

// poke starts a save after a pause, unless one is waiting already. It is cheap.
func (k *keeper) poke() {
	if k.plugin.Store == nil || k.asked.Load() || k.asked.Swap(true) {
		return
	}
	time.AfterFunc(time.Duration(k.pause.Load()), func() {
		k.plugin.tend(func() {
			k.asked.Store(false)
			began := time.Now()
			k.save(k.plugin.life, false)
			k.pause.Store(int64(max(saveEvery, savePause*time.Since(began))))
		})
	})
}

// save writes what is not in the store yet, before ctx ends. all makes it wait for running steps.
func (k *keeper) save(ctx context.Context, all bool) {
	if k.plugin.Store == nil {
		return
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return
	}
	err := k.saveLocked(ctx, all)
	if before := k.failing.Swap(err != nil); err != nil && (!before || all) {
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Msg("episodes and experiences cannot be saved")
	}
	if err != nil && !all {
		k.poke() // try again later
	}
}

func (k *keeper) saveLocked(ctx context.Context, all bool) error {
	last := k.places.Load() // what these lines hold is in memory already
	episodes, rows, whole := k.unsaved(ctx, all)
	k.mu.Lock()
	gone := slices.Clone(k.gone)
	k.mu.Unlock()
	for {
		some, next := k.plugin.recent.unsaved(saveGroup)
		if len(some) == 0 && len(rows) == 0 && len(gone) == 0 {
			if !whole {
				return nil // only the journal has the rest
			}
			return k.tidyJournals(ctx, last)
		}
		if err := k.write(ctx, rows, gone, some); err != nil {
			for _, e := range episodes {
				e.dirty.Store(true)
			}
			return err
		}
		k.plugin.recent.save(next)
		k.mu.Lock()
		k.gone = k.gone[len(gone):]
		k.mu.Unlock()
		episodes, rows, gone = nil, nil, nil
	}
}

// tidyJournals removes lines that the tables have: those of this host up to last, and those of dead hosts.
func (k *keeper) tidyJournals(ctx context.Context, last int64) error {
	if !k.plugin.durable() || last == 0 {
		return nil // the store is not opened just for this
	}
	s, err := k.opened(ctx)
	if err == nil && k.lined.Swap(false) {
		number := k.number.Load()
		err = s.Write(ctx, func(tx *store.Tx) error {
			if err := k.journals.Renew(tx, number); err != nil {
				return err
			}
			return k.journals.Trim(tx, number, last+1)
		})
		k.lined.CompareAndSwap(false, err != nil)
	}
	if err != nil && !errors.Is(err, store.ErrLost) { // ErrLost: another host has taken the lines over
		return err
	}
	return k.takeLeft(ctx, s)
}

// close saves all, and leaves what it could not save to other hosts.
func (k *keeper) close(ctx context.Context) error {
	k.save(ctx, true)
	number := k.number.Load()
	if number == 0 {
		return nil
	}
	_ = k.plugin.Store.Write(ctx, func(tx *store.Tx) error { // after an error others remove it
		lines, err := k.journals.Read(tx, number)
		if err != nil || len(lines) > 0 {
			return err
		}
		return k.journals.Remove(tx, number)
	})
	return k.journals.Close(ctx, k.plugin.Store)
}

// unsaved returns the episodes that have changed, as rows. whole reports whether these are all: an episode
// with a running step is left out unless all is set.
func (k *keeper) unsaved(ctx context.Context, all bool) (episodes []*episode, rows []*savedEpisode, whole bool) {
	whole = true
	p := k.plugin
	if p.restorer == nil {
		return nil, nil, whole
	}
	p.mu.Lock()
	for _, e := range p.episodes {
		if e.dirty.Load() || all && e.saved.Load() != e.used.Load() {
			episodes = append(episodes, e)
		}
	}
	p.mu.Unlock()
	for _, e := range episodes {
		if all && !e.lock(ctx) || !all && !e.mu.TryLock() {
			k.poke()
			whole = false
			continue
		}
		e.dirty.Store(false)
		if row := k.rowLocked(e); row != nil {
			e.saved.Store(e.used.Load())
			rows = append(rows, row)
		}
		e.mu.Unlock()
	}
	return episodes, rows, whole
}

// rowLocked returns the row of the episode; nil = it cannot be saved.
func (k *keeper) rowLocked(e *episode) *savedEpisode {
	if e.closed || e.saver == nil {
		return nil
	}
	world, err := e.saver.Save()
	if err != nil {
		k.plugin.Log.Warn().Err(err).Str("plugin", k.plugin.name).Str("episode", e.id).Msg("the episode cannot be " +
			"saved")
		return nil
	}
	e.kept.Store(true)
	return &savedEpisode{
		ID: e.id, Plugin: k.plugin.name, Env: k.plugin.env.Name(), Seed: e.seed, Options: e.options,
		Created: store.Micros(e.created),
		Used:    store.Micros(e.used.Load()), Steps: e.steps.Load(), Done: e.done || e.over.Load(),
		Truncated: e.truncated,
		Reward:    e.reward, Failure: e.failure, World: world,
	}
}

// recordLocked returns the episode as JSON for the journal; nil = it is not journalled.
func (k *keeper) recordLocked(e *episode) []byte {
	if !k.plugin.durable() {
		return nil
	}
	row := k.rowLocked(e)
	if row == nil {
		return nil
	}
	raw, _ := row.AppendJSON(make([]byte, 0, 384)) // it never fails
	return raw
}

// forget deletes an episode from the store at the next save.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	k.gone = append(k.gone, id)
	k.mu.Unlock()
	k.poke()
}

// find returns the saved episode with an id; nil = there is none.
func (k *keeper) find(ctx context.Context, id string) (row *savedEpisode, err error) {
	s, err := k.opened(ctx)
	if err != nil {
		return nil, err
	}
	_ = k.takeLeft(ctx, s) // after an error its lines are read below
	err = s.Read(ctx, func(tx *store.Tx) error {
		row = nil
		j, err := readJournals(tx, k.number.Load())
		if err == nil {
			err = eachEpisode(tx, id, func(s *savedEpisode) error {
				row = s
				return nil
			})
		}
		if err == nil {
			row = j.newest(id, row)
		}
		return err
	})
	if row != nil && (row.Plugin != k.plugin.name || row.Env != k.plugin.env.Name()) {
		row = nil
	}
	return row, err
}

// write writes episodes and experiences. It also deletes the oldest beyond the options, after every
// hundredth of max_experiences.
func (k *keeper) write(ctx context.Context, rows []*savedEpisode, gone []string, some []experience) error {
	p := k.plugin
	s, err := p.Store(ctx)
	if err != nil {
		return err
	}
	chunks, fresh := chunksOf(p.name, some), k.fresh+len(some)
	trims := fresh > p.opts.MaxExperiences/100
	err = s.Write(ctx, func(tx *store.Tx) error {
		for _, row := range rows {
			if err := row.put(tx, unlessBehind); err != nil {
				return err
			}
		}
		for _, id := range gone {
			if err := deleteEpisode(tx, p.name, id); err != nil {
				return err
			}
		}
		for _, c := range chunks {
			if err := c.put(tx, k.packer); err != nil {
				return err
			}
		}
		if !trims {
			return nil
		}
		if err := trimExperiences(tx, p.name, p.opts.MaxExperiences); err != nil {
			return err
		}
		return trimEpisodes(tx, p.name, p.opts.MaxEpisodes, p.Now().Add(-p.opts.idle()).UnixMicro())
	})
	if err == nil {
		if k.fresh = fresh; trims {
			k.fresh = 0
		}
	}
	return err
}
