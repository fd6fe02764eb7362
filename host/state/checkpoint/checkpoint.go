// Package checkpoint keeps the state of a workspace's files before they are changed, so that changes
// can be undone. It uses a private bare git repository with one commit for each checkpoint.
//
//	checkpoint.go  Keeper: take, list       repo.go    the repository: git scripts, contents of commits
//	look.go        finds changed files, and decides which of them are kept
//	diff.go        changes between two states
//	restore.go     decides what to restore  apply.go   restores it: the only code that changes the workspace
//
// Git runs in the sandbox, where it reads the workspace and can write only to the repository:
//
//	diff-files, ls-files ─► names ─ bounds ─► update-index ─► write-tree ─► commit-tree ─► update-ref
//
// The index of git shows which files are unchanged since the last checkpoint.
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/sandbox"
)

// Options say which workspace is kept, and with which limits. A limit of 0 is the default.
type Options struct {
	Workspace      string   // absolute, without links
	StateDir       string   // checkpoints are kept below it
	Hidden         []string // paths in the workspace, with slashes, that are ignored
	MaxCount       int      // number of checkpoints; the oldest are removed
	MaxBytes       int64    // size of the repository
	MaxFileBytes   int64    // size of one file
	MaxFiles       int      // number of files in the workspace
	IncludeIgnored bool     // files that .gitignore names are kept too
	Log            zerolog.Logger
	Now            func() time.Time                  // nil = time.Now
	Launcher       func() (*sandbox.Launcher, error) // starts git
}

// The default limits.
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
	Before   string    `json:"before"`            // what followed it; "" = not known
	Changed  int       `json:"changed"`           // files that differ from the previous checkpoint; set by List
	Files    int       `json:"files"`             // files and links in it
	LeftOut  int       `json:"left_out"`          // further files whose content is not kept
	Restored uint64    `json:"restored,omitzero"` // the checkpoint that was restored at that time; 0 = none
}

// Reasons why a checkpoint cannot be used.
var (
	ErrNone    = errors.New("there are no checkpoints of this workspace")
	ErrUnknown = errors.New("there is no such checkpoint")
	ErrNoPath  = errors.New("there is no path")
	errClosed  = errors.New("the host ends")
)

// Keeper keeps the checkpoints of one workspace. It opens nothing before its first use, and is safe
// for concurrent use. Other keepers, even in other processes, may work on the same workspace.
type Keeper struct {
	o        Options
	dir      string          // the repository
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	uses     sync.WaitGroup
	prepared atomic.Bool

	mu    sync.Mutex // held while the repository is used; guards the fields below
	lock  *os.File   // excludes other hosts; as git's stdin it stays locked by a git that outlives its host
	metas []meta     // oldest first, up to the commit of the last one
	bytes int64      // upper limit of the repository's size; 0 = not known
	told  int        // number of files that were reported as not kept
}

// Open makes the Keeper of a workspace.
func Open(o Options) *Keeper {
	o.MaxCount = cmp.Or(max(o.MaxCount, 0), DefaultMaxCount)
	o.MaxBytes = cmp.Or(max(o.MaxBytes, 0), DefaultMaxBytes)
	o.MaxFileBytes = cmp.Or(max(o.MaxFileBytes, 0), DefaultMaxFileBytes)
	o.MaxFiles = cmp.Or(max(o.MaxFiles, 0), DefaultMaxFiles)
	if o.Now == nil {
		o.Now = time.Now
	}
	state, _ := filepath.EvalSymlinks(o.StateDir) // "" = it does not exist yet
	if rel, err := filepath.Rel(o.Workspace, cmp.Or(state, o.StateDir)); err == nil && filepath.IsLocal(rel) {
		if rel == "." {
			rel = "checkpoints"
		}
		o.Hidden = append(slices.Clone(o.Hidden), filepath.ToSlash(rel)) // a restore would remove its own repository
	}
	id := sha256.Sum256([]byte(o.Workspace))
	dir := filepath.Join(o.StateDir, "checkpoints", hex.EncodeToString(id[:10])+".git")
	if abs, err := filepath.Abs(dir); err == nil { // on an error git reports it
		dir = abs
	}
	k := &Keeper{o: o, dir: dir}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Close cancels the work in progress and waits for its end.
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

// Former returns the folder with the checkpoints that an earlier version made of the workspace; "" = there
// is none. They are not read.
func (k *Keeper) Former() string {
	old := strings.TrimSuffix(k.dir, ".git")
	if _, err := os.Stat(filepath.Join(old, "log")); err != nil {
		return ""
	}
	return old
}

// Prepare starts to make the first checkpoint of a workspace in the background.
func (k *Keeper) Prepare() {
	if k == nil || k.prepared.Swap(true) {
		return
	}
	if old := k.Former(); old != "" {
		k.o.Log.Warn().Str("folder", old).Msg("checkpoints: those of an earlier version are not read; " +
			"remove the folder when they are not needed any more")
	}
	if k.Exists() {
		return
	}
	k.uses.Go(func() {
		_ = k.alone(func() error { // the next checkpoint reports the error
			_, err := k.take(Info{})
			return err
		})
	})
}

// Take makes a checkpoint of the workspace as it is now, or returns the last one if nothing has changed since. before
// says what follows; "" keeps the old text. When ctx ends, Take returns, but the work continues for later callers.
func (k *Keeper) Take(ctx context.Context, before string) (Info, error) {
	return use(ctx, k, func() (Info, error) {
		k.giveUp()
		return k.take(Info{Before: before})
	})
}

// List returns the checkpoints, oldest first.
func (k *Keeper) List(ctx context.Context) ([]Info, error) {
	if !k.Exists() {
		return nil, nil
	}
	return use(ctx, k, k.list)
}

// use runs do with exclusive use of the repository, and returns its result. If ctx ends first, use
// returns, but do continues.
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
		if r.err == nil { // nobody waits for the result
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

// take makes a checkpoint with the fields of i.
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

// list returns the checkpoints with the number of changes from each to the next.
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

// tidy removes the oldest checkpoints if there are too many. It removes more than necessary, so that
// it seldom has to run.
func (k *Keeper) tidy() error {
	if len(k.metas) <= k.o.MaxCount {
		return nil
	}
	return k.trim(k.o.MaxCount - k.o.MaxCount/8)
}
