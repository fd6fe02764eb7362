// Package checkpoint keeps what the files of a workspace were before something changed them, so that
// it can be undone. A private bare repository of git has them: one commit for each checkpoint.
//
//	checkpoint.go  Keeper: take, list       repo.go    the repository: scripts of git, what its commits say
//	look.go        what may have changed, and what of that is kept
//	diff.go        from one state to another
//	restore.go     what to put back         apply.go   puts it back: the only one that changes the workspace
//
// Git runs in the sandbox, where it reads the workspace and writes nothing but the repository:
//
//	diff-files, ls-files ─► names ─ bounds ─► update-index ─► write-tree ─► commit-tree ─► update-ref
//
// The index of git tells which files are as they were at the last checkpoint.
package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/sandbox"
)

// Options say what is kept of which workspace. Bounds of 0 are the defaults.
type Options struct {
	Workspace      string   // absolute, without links
	StateDir       string   // checkpoints are kept below it
	Hidden         []string // paths in the workspace, with slashes, that are left alone
	MaxCount       int      // checkpoints; the oldest go
	MaxBytes       int64    // of the repository
	MaxFileBytes   int64    // of one content
	MaxFiles       int      // in the workspace
	IncludeIgnored bool     // what .gitignore names is kept too
	Log            zerolog.Logger
	Now            func() time.Time                  // nil = time.Now
	Launcher       func() (*sandbox.Launcher, error) // starts git
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
	Changed  int       `json:"changed"`           // files that differ from the checkpoint before; set by List
	Files    int       `json:"files"`             // files and links in it
	LeftOut  int       `json:"left_out"`          // files beside them whose content is not kept
	Restored uint64    `json:"restored,omitzero"` // the checkpoint that was put back then; 0 = none
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
	dir      string          // the repository
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	uses     sync.WaitGroup
	prepared atomic.Bool

	mu    sync.Mutex // held by the one that works; guards the fields below
	lock  *os.File   // held among hosts, and by git as its stdin: a git that outlives its host holds it on
	metas []meta     // the oldest first, as of the commit that the last one is
	bytes int64      // of the repository, at most; 0 = not known
	told  int        // files that were said not to be kept
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
	dir := filepath.Join(o.StateDir, "checkpoints", hex.EncodeToString(id[:10])+".git")
	if abs, err := filepath.Abs(dir); err == nil { // else git says so
		dir = abs
	}
	k := &Keeper{o: o, dir: dir}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Close ends what is under way.
func (k *Keeper) Close() error {
	k.stop()
	k.uses.Wait()
	return nil
}

// Exists reports whether there are checkpoints of the workspace.
func (k *Keeper) Exists() bool {
	_, err := os.Stat(filepath.Join(k.dir, branch))
	return err == nil
}

// Prepare makes the first checkpoint of a workspace in the background. It returns at once.
func (k *Keeper) Prepare() {
	if k == nil || k.prepared.Swap(true) || k.Exists() {
		return
	}
	k.uses.Go(func() {
		_ = k.alone(func() error { // the next checkpoint says what is wrong
			_, err := k.take(Info{})
			return err
		})
	})
}

// Take makes a checkpoint of the workspace as it is now. Where nothing has changed since the last one
// that one is it. before says what comes next; "" leaves what was said. It returns when ctx ends, while
// the work goes on for whoever comes next.
func (k *Keeper) Take(ctx context.Context, before string) (Info, error) {
	return use(ctx, k, func() (Info, error) {
		k.giveUp()
		return k.take(Info{Before: before})
	})
}

// List returns the checkpoints, the oldest first.
func (k *Keeper) List(ctx context.Context) ([]Info, error) {
	if !k.Exists() {
		return nil, nil
	}
	return use(ctx, k, k.list)
}

// use does some work with the repository, alone among all that use it. What the work gives is handed over once
// it is done: it goes on where ctx ends before.
func use[T any](ctx context.Context, k *Keeper, do func() (T, error)) (none T, err error) {
	if err := cmp.Or(context.Cause(ctx), context.Cause(k.ctx)); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	k.uses.Go(func() {
		var r result
		r.err = k.alone(func() (err error) {
			r.value, err = do()
			return err
		})
		done <- r
		if r.err == nil { // nobody waits for that
			_ = k.alone(k.tidy)
		}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// alone is use without a context.
func (k *Keeper) alone(do func() error) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoints: %w", err)
		}
	}()
	if k.ctx.Err() != nil {
		return errClosed
	}
	if err := k.hold(); err != nil {
		return err
	}
	defer k.lock.Close()
	if err := k.refresh(); err != nil {
		return err
	}
	return do()
}

// take makes a checkpoint that says what i says.
func (k *Keeper) take(i Info) (Info, error) {
	names, err := k.look()
	if err != nil {
		return i, err
	}
	last := k.last()
	now, err := k.sort(names)
	if err != nil {
		return i, err
	}
	if last != nil && now.empty() && now.like(last) && i.Restored == 0 && (i.Before == "" || i.Before == last.Before) &&
		!k.unfinished() {
		return last.Info, nil
	}
	now.ID, now.Made, now.IncludesIgnored = 1, k.o.Now().UTC(), k.o.IncludeIgnored
	now.Before, now.Restored = i.Before, i.Restored
	if last != nil {
		now.ID = last.ID + 1
	}
	made, err := k.keep(now)
	if err != nil {
		return i, err
	}
	if made.LeftOut > k.told {
		k.told = made.LeftOut
		k.o.Log.Warn().Int("files", made.LeftOut).Str("workspace", k.o.Workspace).Msg("checkpoints: the content of " +
			"some files is not kept, as they are too large or cannot be read; undo does not restore it")
	}
	return made.Info, nil
}

// list counts what changed from each checkpoint to the next.
func (k *Keeper) list() (all []Info, err error) {
	changed, err := k.counts()
	for i := range k.metas {
		m := &k.metas[i]
		if i > 0 {
			m.Changed = changed[m.commit] + len(leftChanges(k.metas[i-1].Left, m.Left))
		}
		all = append(all, m.Info)
	}
	return all, err
}

// tidy removes the oldest checkpoints where there are too many, some more than it must so that it is not
// called each time.
func (k *Keeper) tidy() error {
	if len(k.metas) <= k.o.MaxCount {
		return nil
	}
	return k.trim(k.o.MaxCount - k.o.MaxCount/8)
}
