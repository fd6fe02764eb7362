package env

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"a2e/host/store"
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

	asked   atomic.Bool   // there is something to save
	wake    chan struct{} // gets a word when asked is set
	started sync.Once
	turn    chan struct{} // held by the one who saves, who alone uses the fields below
	fresh   int           // experiences written since the oldest were last looked at
	failing bool          // the last save failed
	pack    packer
	journal journal

	mu   sync.Mutex
	gone map[string]bool // episodes to take out of the store; guarded by mu
}

func (k *keeper) init(p *Plugin) {
	k.plugin, k.gone = p, make(map[string]bool)
	k.journal.owner, k.journal.sync = uuid.NewString(), p.SyncJournal
	_, k.restores = p.env.(Restorer)
	k.wake, k.turn = make(chan struct{}, 1), make(chan struct{}, 1)
	k.fresh = p.opts.MaxExperiences // an earlier host may have had room for more
}

// poke says that there is something to save. It costs next to nothing.
func (k *keeper) poke() {
	if k.plugin.Store == nil || k.asked.Load() || k.asked.Swap(true) {
		return
	}
	k.started.Do(func() { k.plugin.tend(k.run) })
	select {
	case k.wake <- struct{}{}:
	default: // it knows already
	}
}

// run saves from time to time, as long as there is something to.
func (k *keeper) run() {
	ctx := k.plugin.life
	for pause := saveEvery; ; {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return
		}
		clock := time.NewTimer(pause)
		select {
		case <-clock.C:
		case <-ctx.Done():
			clock.Stop()
			return
		}
		k.asked.Store(false)
		began := time.Now()
		k.save(ctx, false)
		pause = max(saveEvery, savePause*time.Since(began))
	}
}

// settle saves all there is, before ctx ends.
func (k *keeper) settle(ctx context.Context) {
	if k.plugin.Store != nil {
		k.save(ctx, true)
	}
}

// save writes what is not in the store yet. all waits for steps that run.
func (k *keeper) save(ctx context.Context, all bool) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return
	}
	err := k.saveAll(ctx, all)
	switch {
	case err == nil:
		k.failing = false
	case !k.failing || all:
		k.failing = true
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Int("experiences", k.plugin.recent.waiting()).Msg("episodes and experiences cannot be saved")
	}
	if err != nil && !all {
		k.poke() // again, later
	}
}

func (k *keeper) saveAll(ctx context.Context, all bool) error {
	before := k.journal.next() // what is in the files before is in memory already
	episodes, rows, whole := k.unsaved(ctx, all)
	gone := k.leaving()
	for {
		some, next := k.plugin.recent.unsaved(saveGroup)
		if len(some) == 0 && len(rows) == 0 && len(gone) == 0 {
			if !whole {
				return nil // the journal alone has the rest
			}
			return k.tidyJournals(ctx, before)
		}
		if err := k.write(ctx, rows, gone, k.pack.chunks(some, k.plugin.env.Name())); err != nil {
			for _, e := range episodes {
				e.dirty.Store(true)
			}
			return err
		}
		k.plugin.recent.save(next)
		k.fresh += len(some)
		k.left(gone)
		episodes, rows, gone = nil, nil, nil
		if err := k.trim(ctx); err != nil {
			return err
		}
	}
}

// tidyJournals takes away what the tables have: this host's files, and those of killed ones.
func (k *keeper) tidyJournals(ctx context.Context, before int) error {
	if !k.plugin.durable() || !k.journal.used() {
		return nil // the store is not opened for this
	}
	s, err := k.plugin.Store(ctx)
	if err != nil {
		return err
	}
	if err := k.journal.clear(s.Dir(), before); err != nil {
		return err
	}
	return k.takeStrays(ctx, s)
}

// unsaved gives the episodes that have changed, as rows. whole tells whether these are all.
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
		row, now := k.row(ctx, e, all)
		if whole = whole && now; row != nil {
			rows = append(rows, row)
		}
	}
	return episodes, rows, whole
}

// row saves one episode; nil = there is nothing to save. now is false when a step is under
// way.
func (k *keeper) row(ctx context.Context, e *episode, wait bool) (row *savedEpisode, now bool) {
	if wait && !e.lock(ctx) || !wait && !e.mu.TryLock() {
		k.poke()
		return nil, false
	}
	defer e.mu.Unlock()
	return k.rowLocked(e), true
}

func (k *keeper) rowLocked(e *episode) *savedEpisode {
	e.dirty.Store(false)
	if e.closed || e.saver == nil {
		return nil
	}
	saved, err := e.saver.Save()
	if err != nil {
		k.plugin.Log.Warn().Err(err).Str("plugin", k.plugin.name).Str("episode", e.id).Msg("the episode cannot be saved")
		return nil
	}
	e.kept.Store(true)
	e.saved.Store(e.used.Load())
	return &savedEpisode{
		id: e.id, plugin: k.plugin.name, env: k.plugin.env.Name(), seed: e.seed, options: string(e.options), created: e.created,
		used: e.used.Load(), steps: e.steps.Load(), done: e.done || e.over.Load(), truncated: e.truncated, failure: e.failure,
		reward: e.reward, saved: saved,
	}
}

// forget takes an episode out of the store.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	k.gone[id] = true
	k.mu.Unlock()
	k.poke()
}

func (k *keeper) leaving() (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.gone {
		ids = append(ids, id)
	}
	return ids
}

func (k *keeper) left(ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		delete(k.gone, id)
	}
}

// find gives the saved episode of an id; nil = there is none.
func (k *keeper) find(ctx context.Context, id string) (*savedEpisode, error) {
	k.mu.Lock()
	gone := k.gone[id]
	k.mu.Unlock()
	if gone {
		return nil, nil
	}
	s, err := k.plugin.Store(ctx)
	if err != nil {
		return nil, err
	}
	var row *savedEpisode
	err = s.Read(ctx, func(tx *store.Tx) (err error) {
		if row, err = findEpisode(tx, id); err == nil {
			row, err = journalled(tx, k.plugin.name, k.journal.owner, id, row)
		}
		return err
	})
	if row != nil && (row.plugin != k.plugin.name || row.env != k.plugin.env.Name()) {
		row = nil
	}
	return row, err
}

func (k *keeper) write(ctx context.Context, rows []*savedEpisode, gone []string, some []*chunk) error {
	s, err := k.plugin.Store(ctx)
	if err != nil {
		return err
	}
	return s.Write(ctx, func(tx *store.Tx) error {
		for _, row := range rows {
			if err := row.put(tx); err != nil {
				return err
			}
		}
		for _, id := range gone {
			if err := deleteEpisode(tx, k.plugin.name, id); err != nil {
				return err
			}
		}
		for _, c := range some {
			c.plugin = k.plugin.name
			if err := c.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// trim takes the oldest out of the store where there are more than the options allow. It
// looks after every hundredth of that number.
func (k *keeper) trim(ctx context.Context) error {
	p := k.plugin
	if k.fresh <= p.opts.MaxExperiences/100 {
		return nil
	}
	s, err := p.Store(ctx)
	if err != nil {
		return err
	}
	unused := p.Now().Add(-p.opts.idle()).UnixMicro()
	err = s.Write(ctx, func(tx *store.Tx) error {
		if err := trimExperiences(tx, p.name, p.opts.MaxExperiences); err != nil {
			return err
		}
		return trimEpisodes(tx, p.name, p.opts.MaxEpisodes, unused)
	})
	if err == nil {
		k.fresh = 0
	}
	return err
}
