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
	// saveEvery is the least time between two saves, and savePause how many times longer
	// than a save the pause after it is: saving takes a small part of the time at most.
	saveEvery = time.Second
	savePause = 10
	// saveGroup is how many experiences are written at once.
	saveGroup = 8192
)

// keeper writes episodes and experiences to the store, behind the requests' back.
type keeper struct {
	plugin   *Plugin
	restores bool // saved episodes can be taken up again
	journals *store.Journals
	number   atomic.Int64 // of this keeper's; 0 = it has none yet
	places   atomic.Int64 // of its last line
	lined    atomic.Bool  // it has lines that may not be trimmed yet
	mute     atomic.Bool  // the log has heard that it cannot be written
	former   atomic.Bool  // files of hosts of before were taken in
	formerMu sync.Mutex   // held by the one who takes them in

	asked   atomic.Bool   // a save is about to begin
	failing atomic.Bool   // the last save failed
	pause   atomic.Int64  // nanoseconds until the next save
	turn    chan struct{} // held by the one who saves, who alone uses the fields below
	fresh   int           // experiences written since the oldest were last looked at
	packer  *gzip.Writer

	mu   sync.Mutex
	gone []string // episodes to take out of the store; guarded by mu
}

func (k *keeper) init(p *Plugin) {
	k.plugin, k.packer, k.turn = p, newPacker(), make(chan struct{}, 1)
	k.journals = newJournals()
	_, k.restores = p.env.(Restorer)
	k.fresh = p.opts.MaxExperiences // an earlier host may have had room for more
	k.pause.Store(int64(saveEvery))
}

// durable reports whether answers wait for the journal.
func (p *Plugin) durable() bool { return p.Store != nil && !p.opts.SaveLater }

// poke says that there is something to save. It costs next to nothing.
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

// save writes what is not in the store yet, before ctx ends. all waits for steps that run.
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
		k.poke() // again, later
	}
}

func (k *keeper) saveLocked(ctx context.Context, all bool) error {
	last := k.places.Load() // what is in the lines up to this is in memory already
	episodes, rows, whole := k.unsaved(ctx, all)
	k.mu.Lock()
	gone := slices.Clone(k.gone)
	k.mu.Unlock()
	for {
		some, next := k.plugin.recent.unsaved(saveGroup)
		if len(some) == 0 && len(rows) == 0 && len(gone) == 0 {
			if !whole {
				return nil // the journal alone has the rest
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

// tidyJournals removes what the tables have: this host's lines up to one, and those of hosts that live no more.
func (k *keeper) tidyJournals(ctx context.Context, last int64) error {
	if !k.plugin.durable() || last == 0 {
		return nil // the store is not opened for this
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
	if err != nil && !errors.Is(err, store.ErrLost) { // another host has taken the lines
		return err
	}
	return k.takeLeft(ctx, s)
}

// close saves all, and has others take over what could not be.
func (k *keeper) close(ctx context.Context) error {
	k.save(ctx, true)
	number := k.number.Load()
	if number == 0 {
		return nil
	}
	_ = k.plugin.Store.Write(ctx, func(tx *store.Tx) error { // else others remove it
		lines, err := k.journals.Read(tx, number)
		if err != nil || len(lines) > 0 {
			return err
		}
		return k.journals.Remove(tx, number)
	})
	return k.journals.Close(ctx, k.plugin.Store)
}

// unsaved returns the episodes that have changed, as rows. whole reports whether these are
// all: a step may be under way.
func (k *keeper) unsaved(ctx context.Context, all bool) (episodes []*episode, rows []*savedEpisode, whole bool) {
	whole = true
	if !k.restores {
		return nil, nil, whole
	}
	p := k.plugin
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

// rowLocked is where the episode stands; nil = it cannot be saved.
func (k *keeper) rowLocked(e *episode) *savedEpisode {
	if e.closed || e.saver == nil || !k.restores {
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

// recordLocked is where the episode stands, for the journal; nil = it is not in that.
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

// forget takes an episode out of the store.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	k.gone = append(k.gone, id)
	k.mu.Unlock()
	k.poke()
}

// find returns the saved episode of an id; nil = there is none.
func (k *keeper) find(ctx context.Context, id string) (row *savedEpisode, err error) {
	s, err := k.opened(ctx)
	if err != nil {
		return nil, err
	}
	_ = k.takeLeft(ctx, s) // else its lines are read below
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

// write writes episodes and experiences, and deletes the oldest where there are more than the
// options allow. It looks after every hundredth of that number.
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
