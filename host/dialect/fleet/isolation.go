package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"a2e/host/sandbox"
	"a2e/host/state/git"
	"a2e/protocol/fleet"
)

// isolateTimeout is for making a worktree, and for saving what a task left in one.
const isolateTimeout = time.Minute

// worktree is where one task is done apart from others: a working tree of the workspace's
// repository, without a branch. Its folder is locked while its host lives.
//
//	state_dir/worktrees/WORKSPACE/TASK-RANDOM/{base,tree}
type worktree struct {
	changes           // of tree
	main    *git.Repo // the workspace's
	folder  string
	alone   *sync.Mutex // held while git changes what worktrees there are
	lock    *os.File
	base    string // the commit that it began with
	branch  string // that its changes shall get
	entry   string // the name of its folder in .git/worktrees of the workspace; set by linked
}

// runIsolated is run in a worktree, whose changes end up on a branch. The workspace and its
// index stay as they are.
func (f *Front) runIsolated(ctx context.Context, t *task) *fleet.Result {
	w, err := f.addWorktree(ctx, t.Task.TaskID)
	if err != nil {
		return fleet.Blocked(t.Task.TaskID, "the task cannot have its own worktree (isolation): "+reason(err))
	}
	defer w.lock.Close()
	result := f.have(ctx, t, w.dir)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), isolateTimeout)
	defer cancel()
	if !w.linked() { // git would work on whatever repository took its place
		w.remove(context.WithoutCancel(ctx))
		r := stopped(t, errReplaced)
		r.TokensSpent, r.TokensEstimated, r.Summary = result.TokensSpent, result.TokensEstimated, result.Summary
		return r
	}
	result.Artifacts.FilesChanged, result.Artifacts.Branch, err = w.save(within)
	if err != nil {
		f.opts.Log.Error().Err(err).Str("task_id", t.Task.TaskID).Str("folder",
			w.dir).Msg("the changes of a task cannot be committed to a branch; they stay in its worktree")
		result.NextSteps = append(result.NextSteps, fmt.Sprintf("save the changes in %s, which could not be "+
			"committed to a branch: %s", w.dir, reason(err)))
		return result
	}
	f.carryPatch(within, w, result)
	w.remove(context.WithoutCancel(ctx))
	return result
}

var errReplaced = errors.New("the task replaced or removed .git of its worktree, which links it to the repository; " +
	"the worktree was removed, and nothing of it is kept")

// linked reports whether .git is still the file that names the entry of this worktree in the workspace's repository.
func (w *worktree) linked() bool {
	link := filepath.Join(w.dir, ".git")
	info, err := os.Lstat(link)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxLink {
		return false
	}
	text, err := os.ReadFile(link)
	entry, named := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
	if err != nil || !named {
		return false
	}
	w.entry = filepath.Base(entry)
	back, err := os.ReadFile(filepath.Join(entry, "gitdir"))
	return err == nil && sameFile(filepath.Dir(entry), filepath.Join(w.main.Dir, ".git", "worktrees")) &&
		sameFile(strings.TrimSpace(string(back)), link)
}

// maxLink is how long the file .git of a worktree may be, in bytes.
const maxLink = 64 << 10

// sameFile reports whether two names lead to one file.
func sameFile(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// worktrees is the folder of the worktrees of the workspace.
func (f *Front) worktrees() string {
	sum := sha256.Sum256([]byte(f.opts.Workspace))
	return filepath.Join(f.opts.StateDir, "worktrees", hex.EncodeToString(sum[:8]))
}

// worktreeIn returns the worktree in a folder that is locked; it need not be there.
func (f *Front) worktreeIn(folder string, lock *os.File) (*worktree, error) {
	launcher, err := f.opts.Launcher()
	if err != nil {
		return nil, err
	}
	main, err := git.Open(git.Repo{Dir: f.opts.Workspace, Launcher: launcher, Write: []string{folder}})
	if err != nil {
		return nil, err
	}
	name := filepath.Base(folder)
	return &worktree{
		main: main, alone: &f.trees, folder: folder, lock: lock, branch: "a2e/" +
			name[:strings.LastIndexByte(name, '-')],
		changes: changes{
			dir: filepath.Join(folder, "tree"), launcher: f.opts.Launcher, log: f.opts.Log,
			patience: isolateTimeout, grant: []string{folder, filepath.Join(f.opts.Workspace, ".git")},
		},
	}, nil
}

// addWorktree makes a worktree for a task.
func (f *Front) addWorktree(ctx context.Context, id string) (w *worktree, err error) {
	if info, err := os.Stat(filepath.Join(f.opts.Workspace, ".git")); err != nil || !info.IsDir() || !f.repo.there() {
		return nil, errors.New("the workspace is not the top of a git repository, its main working tree; make it " +
			"one, or set isolation to none")
	}
	if err := os.MkdirAll(f.worktrees(), 0o700); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(f.worktrees(), plainName(id)+"-*")
	if err != nil {
		return nil, err
	}
	lock, err := sandbox.LockDir(folder)
	if err != nil {
		return nil, err
	}
	if w, err = f.worktreeIn(folder, lock); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder), lock.Close())
	}
	defer func() {
		if err != nil {
			w.remove(context.WithoutCancel(ctx))
			lock.Close()
		}
	}()
	within, cancel := context.WithTimeout(ctx, isolateTimeout)
	defer cancel()
	if w.base, err = commitOf(within, w.main); err != nil {
		return w, err
	}
	if err = os.WriteFile(filepath.Join(folder, "base"), []byte(w.base), 0o600); err == nil {
		err = w.inMain(within, "worktree", "add", "--quiet", "--lock", "--detach", "--no-checkout", w.dir, w.base)
	}
	if err == nil && w.open() == nil {
		err = errors.New("git cannot be run in it")
	}
	if err == nil { // by itself, as the config may have filters for a worktree alone, by includeIf
		_, err = w.repo.Run(within, "reset", "--quiet", "--hard")
	}
	return w, err
}

// plainName makes a part of the name of a branch, and of a folder, of the id of a task.
func plainName(id string) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, id), "-")
	return cmp.Or(name[:min(len(name), 100)], "task")
}

// commitOf returns the commit that is checked out.
func commitOf(ctx context.Context, repo *git.Repo) (string, error) {
	out, err := repo.Run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", fmt.Errorf("the repository has no commit to start from: %s",
			reason(err)) // not wrapped: the rest alone would be told
	}
	return strings.TrimSpace(out.Text), nil
}

// save commits what is not committed, and gives the commits a branch. It returns the files
// that they change; where there are none, there is no branch either.
func (w *worktree) save(ctx context.Context) (files []string, branch string, err error) {
	files = []string{}
	seen := w.look(ctx)
	if seen == nil {
		return files, "", errors.New("git cannot tell what has changed")
	}
	if len(seen.dirty) > 0 {
		for name := range seen.dirty {
			if strings.HasSuffix(name, "/") { // its commits would go with the worktree
				return files, "", fmt.Errorf("%s is a git repository of its own, which no branch can keep", name)
			}
		}
		w.unlock()
		if _, err = w.repo.Run(ctx, "add", "--all", "--sparse"); err == nil {
			_, err = w.repo.Run(ctx, "commit", "--quiet", "--no-verify", "--message",
				"Changes of the task "+strings.TrimPrefix(w.branch, "a2e/"))
		}
		if err != nil {
			return files, "", err
		}
	}
	head, err := commitOf(ctx, w.repo)
	if err != nil || head == w.base {
		return files, "", err
	}
	committed, _ := w.committed(ctx, w.base, head) // the branch has them all
	files = append(files, committed...)
	for n := 1; ; n++ {
		if branch = w.branch; n > 1 {
			branch = fmt.Sprintf("%s-%d", w.branch, n) // the task was done before
		}
		err = w.inMain(ctx, "branch", "--no-track", branch, head)
		if err == nil {
			return files[:min(len(files), maxFiles)], branch, nil
		}
		if n == maxBranches || !strings.Contains(err.Error(), "already exists") {
			return files[:min(len(files), maxFiles)], "", err
		}
	}
}

// unlock takes away the lock of the index that a git has left which ended with its task, or with
// a host that was killed: nobody else works in the tree. Mostly there is none; git tells of one that stays.
func (w *worktree) unlock() {
	if all, err := os.OpenRoot(filepath.Join(w.main.Dir, ".git", "worktrees")); err == nil {
		defer all.Close()
		_ = all.Remove(path.Join(w.entry, "index.lock"))
	}
}

// inMain runs git in the workspace itself. Each one looks at all worktrees, and fails where
// another one is just making or removing one: in this host they wait for each other, those of
// another host are over soon.
func (w *worktree) inMain(ctx context.Context, args ...string) error {
	w.alone.Lock()
	defer w.alone.Unlock()
	_, err := backoff.Retry(ctx, func() (git.Output, error) {
		out, err := w.main.Run(ctx, args...)
		if err != nil && !strings.Contains(err.Error(), ".git/worktrees/") {
			err = backoff.Permanent(err)
		}
		return out, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxTries(20))
	return err
}

// maxBranches is how many branches of one task there may be.
const maxBranches = 1000

// remove takes the worktree away. It never has git prune: that would take those for gone that it
// may not see.
func (w *worktree) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, isolateTimeout)
	defer cancel()
	_ = sandbox.RemoveTree(ctx, w.dir) // what stays goes with the folder, or is told then
	if gone := w.inMain(ctx, "worktree", "remove", "--force", "--force", w.dir); gone != nil {
		w.log.Debug().Err(gone).Str("folder", w.folder).Msg("git does not know a worktree")
	}
	if err := sandbox.RemoveTree(ctx, w.folder); err != nil {
		w.log.Warn().Err(err).Str("folder", w.folder).Msg("a worktree cannot be removed")
	}
}

// sweep saves and removes the worktrees of hosts that were killed.
func (f *Front) sweep() {
	entries, _ := os.ReadDir(f.worktrees()) // none where there is none
	for _, e := range entries {
		folder := filepath.Join(f.worktrees(), e.Name())
		if _, err := os.Stat(filepath.Join(folder, "base")); err != nil && f.fresh(e) {
			continue // its host may be about to lock it
		}
		lock, err := sandbox.LockDir(folder)
		if err != nil || f.ctx.Err() != nil {
			continue // its host lives
		}
		if err := f.recover(folder, lock); err != nil {
			f.opts.Log.Warn().Err(err).Str("folder", folder).Msg("a worktree that a host left cannot be removed")
		}
		lock.Close()
	}
}

// fresh reports whether a folder was made within a minute.
func (f *Front) fresh(e fs.DirEntry) bool {
	info, err := e.Info()
	return err != nil || f.opts.Now().Sub(info.ModTime()) < time.Minute
}

// recover saves and removes one of them.
func (f *Front) recover(folder string, lock *os.File) error {
	ctx, cancel := context.WithTimeout(f.ctx, isolateTimeout)
	defer cancel()
	w, err := f.worktreeIn(folder, lock)
	if err != nil {
		return err
	}
	base, _ := os.ReadFile(filepath.Join(folder, "base")) // without it there is no tree either
	w.base = string(base)
	if !w.there() || !w.linked() { // its host did not get so far, or its task replaced .git
		w.remove(ctx)
		return nil
	}
	_, branch, err := w.save(ctx)
	if err != nil {
		return err
	}
	f.opts.Log.Warn().Str("branch", branch).Msg("a host that was killed left a worktree; what its task had done is " +
		"on the branch, if there is one")
	w.remove(ctx)
	return nil
}
