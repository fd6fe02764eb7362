package memory

import (
	"context"
	"sync"
	"time"

	"a2e/host/store"
)

const (
	idleTime  = 200 * time.Millisecond // without a store request, after which the indexes are tidied
	tidyPages = 16                     // of an index that one transaction merges: others wait meanwhile
)

// tidying merges the segments of the word indexes while nothing is stored: SQLite adds one with
// each transaction, and a search looks into each of them. While much is stored, that would be
// work done again and again.
type tidying struct {
	mu      sync.Mutex
	running bool // guarded by mu
	closed  bool // guarded by mu
	done    chan struct{}
	workers sync.WaitGroup
}

// start tidies an index in the background, unless it is tidy or that is under way.
func (t *tidying) start(s *repository) {
	if s.tidy.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running || t.closed {
		return
	}
	t.running = true
	t.workers.Go(func() {
		t.run(s)
		t.mu.Lock()
		t.running = false
		t.mu.Unlock()
	})
}

// run ends when the index is tidy, the store takes no writes, or with close.
func (t *tidying) run(s *repository) {
	wait, seen := idleTime, s.stored.Load()
	for {
		select {
		case <-t.done:
			return
		case <-time.After(wait):
		}
		if now := s.stored.Load(); now != seen || s.storing.Load() > 0 {
			wait, seen = idleTime, now
			continue
		}
		began := time.Now()
		s.tidy.Store(true) // what is stored from now on says otherwise
		more, err := s.merge(context.Background())
		if err != nil || !more {
			return
		}
		s.tidy.Store(false)
		wait = time.Since(began) // as long as it works it lets others work
	}
}

// close waits for the end of what is under way.
func (t *tidying) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.done)
	}
	t.mu.Unlock()
	t.workers.Wait()
}

// merge merges some pages of each index, and reports whether there were any to merge.
func (s *repository) merge(ctx context.Context) (more bool, err error) {
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		for _, index := range []string{"memory_forms", "memory_text"} {
			var before, after int
			if _, err := tx.Get("SELECT total_changes()", nil, &before); err != nil {
				return err
			}
			if _, err := tx.Exec("INSERT INTO "+index+" ("+index+", rank) VALUES ('merge', ?)", tidyPages); err != nil {
				return err
			}
			if _, err := tx.Get("SELECT total_changes()", nil, &after); err != nil {
				return err
			}
			more = more || after-before > 1 // the INSERT itself counts as one
		}
		return nil
	})
	return more, err
}
