package memory

import (
	"context"
	"sync"
	"time"

	"a2e/host/state/store"
)

const (
	idleTime  = 200 * time.Millisecond // without a store request, after which the indexes are tidied
	tidyPages = 16                     // of an index that one transaction merges: others wait meanwhile
)

// tidying merges the segments of the word indexes while nothing is stored (store.MergeWords). While much is stored,
// that would be
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
	indexes, mergeable := s.store.(*store.SQLite)
	if s.tidy.Load() || !mergeable {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running || t.closed {
		return
	}
	t.running = true
	t.workers.Go(func() {
		for again := true; again; {
			tidied := t.run(s, indexes)
			t.mu.Lock()
			again = tidied && !s.tidy.Load() && !t.closed // who stored meanwhile has begun none
			t.running = again
			t.mu.Unlock()
		}
	})
}

// run ends when the index is tidy, the store takes no writes, or with close.
func (t *tidying) run(s *repository, indexes *store.SQLite) (tidied bool) {
	wait, seen := idleTime, s.stored.Load()
	for {
		select {
		case <-t.done:
			return false
		case <-time.After(wait):
		}
		if now := s.stored.Load(); now != seen || s.storing.Load() > 0 {
			wait, seen = idleTime, now
			continue
		}
		began := time.Now()
		s.tidy.Store(true) // what is stored from now on says otherwise
		more, err := indexes.MergeWords(context.Background(), tidyPages, inForms, inText)
		if err != nil || !more {
			return err == nil
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
