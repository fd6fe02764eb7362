package memory

import (
	"context"
	"sync"
	"time"

	"a2e/host/state/store"
)

const (
	idleTime  = 200 * time.Millisecond // time without a store request after which the indexes are merged
	tidyPages = 16                     // pages of an index that one transaction merges: other writers wait meanwhile
)

// tidying merges the segments of the word indexes (store.MergeWords) while nothing is stored. During
// many store requests the same segments would be merged again and again.
type tidying struct {
	mu      sync.Mutex
	running bool               // guarded by mu
	ctx     context.Context    // ends with close
	stop    context.CancelFunc // called with mu held
	workers sync.WaitGroup
}

// start merges the indexes of a repository in the background, unless they are tidy or a merge is running.
func (t *tidying) start(s *repository) {
	indexes, mergeable := s.store.(*store.SQLite)
	if s.tidy.Load() || !mergeable {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running || t.ctx.Err() != nil {
		return
	}
	t.running = true
	t.workers.Go(func() {
		for again := true; again; {
			tidied := t.run(s, indexes)
			t.mu.Lock()
			again = tidied && !s.tidy.Load() && t.ctx.Err() == nil // store requests meanwhile started no merge
			t.running = again
			t.mu.Unlock()
		}
	})
}

// run merges until the index is tidy, the store refuses a write, or close is called. It reports whether
// the index was tidy at its end.
func (t *tidying) run(s *repository, indexes *store.SQLite) (tidied bool) {
	wait, seen := idleTime, s.stored.Load()
	for {
		select {
		case <-t.ctx.Done():
			return false
		case <-time.After(wait):
		}
		if now := s.stored.Load(); now != seen || s.storing.Load() > 0 {
			wait, seen = idleTime, now
			continue
		}
		began := time.Now()
		s.tidy.Store(true) // a store request from now on sets it to false
		more, err := indexes.MergeWords(context.Background(), tidyPages, inForms, inText)
		if err != nil || !more {
			return err == nil
		}
		s.tidy.Store(false)
		wait = time.Since(began) // pauses as long as the merge took, so that others can write
	}
}

// close stops the merging and waits for its end.
func (t *tidying) close() {
	t.mu.Lock()
	t.stop()
	t.mu.Unlock()
	t.workers.Wait()
}
