// Package checkpoint keeps what the files of a workspace were before something changed them, so that
// it can be undone.
//
//	checkpoint.go  Keeper: take, list          scan.go    what changed since the last one; ignore.go: .gitignore
//	store.go       the files: log and index    place.go   the open workspace: read one file; the bounds
//	blobs.go       contents and states as bytes        list_*.go  what is in one folder
//	tree.go        states in memory            watch_*.go which names changed, as the kernel tells
//	diff.go        from one state to another   restore.go what to put back; apply.go puts it back
//
// A checkpoint is the state of the whole workspace at one moment. The first one copies all that is
// to be kept; each further one holds what differs from the one before. The state at the last one
// is in memory and, as of some checkpoint, in the file index; the file log has the changes from
// each checkpoint to the next, with the states before and after of each path, so that it leads
// from the present state back to any that is kept, and the oldest can be cut off.
package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Options say what is kept of which workspace. Bounds of 0 are those of DefaultOptions.
type Options struct {
	Workspace      string   // absolute, without links
	StateDir       string   // checkpoints are kept below it
	Hidden         []string // paths in the workspace, with slashes, that are left alone
	MaxCount       int      // checkpoints; the oldest go
	MaxBytes       int64    // of all contents together
	MaxFileBytes   int64    // of one content
	MaxFiles       int      // files and folders in the workspace
	IncludeIgnored bool     // what .gitignore names is kept too
	Watch          bool     // the kernel is asked what changed: for one that lives long
	Log            zerolog.Logger
	Now            func() time.Time // nil = time.Now
}

// The bounds where none are set.
const (
	DefaultMaxCount     = 200
	DefaultMaxBytes     = 1 << 30
	DefaultMaxFileBytes = 32 << 20
	DefaultMaxFiles     = 200_000
)

// Info is one checkpoint.
type Info struct {
	ID       uint64    `json:"id"`
	Made     time.Time `json:"made"`              // in UTC
	Before   string    `json:"before"`            // what came after it; "" = nothing known
	Changed  int       `json:"changed"`           // paths that differ from the checkpoint before
	Files    int       `json:"files"`             // files, folders and links in it
	LeftOut  int       `json:"left_out"`          // of those, files whose content is not kept
	Restored uint64    `json:"restored,omitzero"` // the checkpoint that was put back then; 0 = none

	bytes   int64 // of all contents then
	ignored bool  // what .gitignore names is in it
}

// Why a checkpoint cannot be used.
var (
	ErrNone    = errors.New("there are no checkpoints of this workspace")
	ErrUnknown = errors.New("there is no such checkpoint")
	ErrNoPath  = errors.New("there is no path")
	errClosed  = errors.New("the host ends")
)

// Keeper keeps the checkpoints of one workspace. It opens nothing before the first use, and is safe
// for concurrent use; other keepers, also of other processes, may work on the same workspace.
type Keeper struct {
	o        Options
	dir      string
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	uses     sync.WaitGroup
	asks     atomic.Int32 // of callers that wait
	prepared atomic.Bool

	mu      sync.Mutex  // held by the one that works; guards the fields below
	store   *store      // nil before the first use
	watch   *watcher    // nil = all folders are read each time
	top     fs.FileInfo // the folder that watch was made for; nil = none yet
	stale   bool        // what the watcher told was lost
	again   []string    // paths to look at in any case
	unsaved int         // changes since the index was written
	told    int         // files that were said not to be kept
}

// Open makes the keeper of a workspace.
func Open(o Options) *Keeper {
	o.MaxCount = cmp.Or(max(o.MaxCount, 0), DefaultMaxCount)
	o.MaxBytes = cmp.Or(max(o.MaxBytes, 0), DefaultMaxBytes)
	o.MaxFileBytes = cmp.Or(max(o.MaxFileBytes, 0), DefaultMaxFileBytes)
	o.MaxFiles = cmp.Or(max(o.MaxFiles, 0), DefaultMaxFiles)
	if o.Now == nil {
		o.Now = time.Now
	}
	state, _ := filepath.EvalSymlinks(o.StateDir) // "" = it is not there yet
	if rel, err := filepath.Rel(o.Workspace, cmp.Or(state, o.StateDir)); err == nil && filepath.IsLocal(rel) {
		if rel == "." {
			rel = "checkpoints"
		}
		o.Hidden = append(slices.Clone(o.Hidden), filepath.ToSlash(rel)) // a restore would remove what it works with
	}
	id := sha256.Sum256([]byte(o.Workspace))
	k := &Keeper{o: o, dir: filepath.Join(o.StateDir, "checkpoints", hex.EncodeToString(id[:10]))}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Close ends what is under way and lets the files go.
func (k *Keeper) Close() error {
	k.stop()
	k.uses.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watch != nil {
		k.watch.close()
		k.watch = nil
	}
	if k.store == nil {
		return nil
	}
	err := k.store.close()
	k.store = nil
	return err
}

// Exists reports whether there are checkpoints of the workspace.
func (k *Keeper) Exists() bool {
	_, err := os.Stat(filepath.Join(k.dir, logFile))
	return err == nil
}

// Take makes a checkpoint of the workspace as it is now. Where nothing has changed since the last one
// that one is it. before says what comes next; "" leaves what was said. It returns when ctx ends, while
// the work goes on for whoever comes next.
func (k *Keeper) Take(ctx context.Context, before string) (Info, error) {
	return use(ctx, k, func(p *place) (Info, error) {
		k.giveUp(p)
		return k.take(p, Info{Before: before})
	})
}

// List returns the checkpoints, the oldest first.
func (k *Keeper) List(ctx context.Context) ([]Info, error) {
	if !k.Exists() {
		return nil, nil
	}
	return use(ctx, k, func(*place) (all []Info, err error) {
		for i := range k.store.metas {
			all = append(all, k.store.metas[i].Info)
		}
		return all, nil
	})
}

// use does some work with the store, alone among all that use it. What the work gives is handed over once
// it is done: it goes on where ctx ends before.
func use[T any](ctx context.Context, k *Keeper, do func(*place) (T, error)) (none T, err error) {
	if err := cmp.Or(context.Cause(ctx), context.Cause(k.ctx)); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	k.asks.Add(1)
	k.uses.Go(func() {
		defer k.asks.Add(-1)
		var r result
		due, err := k.alone(func(p *place) (err error) {
			r.value, err = do(p)
			return err
		})
		r.err = err
		done <- r
		if due && err == nil { // nobody waits for that
			_, _ = k.alone(func(*place) error { return k.tidy() })
		}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// alone is use without a context. due says that there are too many checkpoints.
func (k *Keeper) alone(do func(*place) error) (due bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return false, errClosed
	}
	defer func() {
		if err != nil {
			if k.stale = true; k.store != nil { // it is read anew: what is in memory may be ahead of it
				_ = k.store.close()
				k.store = nil
			}
			err = fmt.Errorf("checkpoints: %w", err)
		}
	}()
	if k.store == nil {
		if k.store, err = openStore(k.dir); err != nil {
			return false, err
		}
	}
	unlock, err := k.store.lock(k.ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	fresh, err := k.store.refresh()
	if err != nil {
		return false, err
	}
	k.stale = k.stale || fresh
	p, err := openPlace(k.o.Workspace)
	if err != nil {
		return false, err
	}
	defer p.close()
	err = do(p)
	return len(k.store.metas) > k.o.MaxCount, err
}

// take makes a checkpoint that says what i says.
func (k *Keeper) take(p *place, i Info) (Info, error) {
	s, err := k.scan(p)
	if err != nil {
		return i, err
	}
	changes, gone := s.changes()
	s.commit(gone)
	last := k.store.last()
	if len(changes) == 0 && last != nil && i.Restored == 0 {
		if i.Before == "" || i.Before == last.Before {
			return last.Info, nil
		}
		renamed := last.Info
		renamed.Before, renamed.Made = i.Before, k.o.Now().UTC()
		return renamed, k.store.rename(renamed)
	}
	i.ID, i.Made, i.Changed = 1, k.o.Now().UTC(), len(changes)
	i.bytes, i.ignored = k.store.blobs.bytes.Load(), k.o.IncludeIgnored
	i.Files, i.LeftOut = k.store.tree.count()
	if last != nil {
		i.ID = last.ID + 1
	} else {
		i.Changed, changes = 0, nil // all of it is in the index
	}
	if i.LeftOut > k.told {
		k.told = i.LeftOut
		k.o.Log.Warn().Int("files", i.LeftOut).Str("workspace", k.o.Workspace).Msg("checkpoints: the content of " +
			"some files is not kept, as they are too large or cannot be read; undo does not restore it")
	}
	if last == nil { // without the index the first record would say that there was nothing
		if err := k.store.writeIndex(i.ID); err != nil {
			return i, err
		}
	}
	if err := k.store.add(meta{Info: i}, changes); err != nil {
		return i, err
	}
	if k.unsaved += len(changes); k.unsaved > max(indexEvery, i.Files/4) {
		k.unsaved = 0
		return i, k.store.writeIndex(i.ID)
	}
	return i, nil
}

// indexEvery is how many changes there are in the log, at least, before the index is written anew.
const indexEvery = 2000

// Prepare looks at the whole workspace in the background, so that the next checkpoint need only look
// at what changed since, where the kernel tells. It makes none, and nothing for a workspace without any.
func (k *Keeper) Prepare() {
	if k == nil || !k.o.Watch || k.prepared.Swap(true) || !k.Exists() {
		return
	}
	k.uses.Go(func() {
		_, _ = k.alone(func(p *place) error { // the next checkpoint says what is wrong
			s, err := k.look(p, true)
			if err == nil && k.watch != nil && k.store.last() != nil {
				k.stale = !s.adopt()
			}
			return err
		})
	})
}

// look reads what may have changed since the last checkpoint. With calm it leaves processors to others
// as long as nobody waits for it.
func (k *Keeper) look(p *place, calm bool) (*scan, error) {
	if err := k.watchTop(p); err != nil {
		return nil, err
	}
	s := &scan{Keeper: k, place: p, calm: calm}
	if err := s.run(k.pending()); err != nil {
		return nil, err
	}
	if s.unwatched != nil {
		k.watch.close()
		k.watch = nil
		k.o.Log.Info().Err(s.unwatched).Str("workspace", k.o.Workspace).Msg("checkpoints: not all folders can be watched, so all are read for each checkpoint")
	}
	return s, nil
}

// watchTop makes the watcher of the workspace, and a new one after the workspace was deleted and made
// again: as long as anything holds the old folder open, the kernel does not tell that it has gone.
func (k *Keeper) watchTop(p *place) error {
	if !k.o.Watch {
		return nil
	}
	top, err := p.top.Stat()
	if err != nil || k.top != nil && os.SameFile(k.top, top) {
		return err
	}
	if k.watch != nil {
		k.watch.close()
	}
	k.top, k.watch, k.stale = top, newWatcher(k.o.Workspace), true
	return nil
}

// scan looks at the workspace and keeps the contents that are new.
func (k *Keeper) scan(p *place) (*scan, error) {
	s, err := k.look(p, false)
	if err != nil {
		return nil, err
	}
	var need int64
	for _, c := range s.unread {
		need += c.size
	}
	if k.store.blobs.bytes.Load()+need > k.o.MaxBytes && k.store.last() != nil {
		if err := k.store.trim(k.o.MaxCount, k.o.MaxBytes, need); err != nil {
			return nil, err
		}
	}
	k.stale = false
	return s, s.contents()
}

// tidy removes the oldest checkpoints, some more than it must so that it is not called each time.
func (k *Keeper) tidy() error { return k.store.trim(k.o.MaxCount-k.o.MaxCount/8, k.o.MaxBytes, 0) }
