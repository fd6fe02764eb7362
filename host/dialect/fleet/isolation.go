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

// isolateTimeout bounds the making of a worktree, and the saving of the changes in it.
const isolateTimeout = time.Minute

// worktree is the place of one isolated task: a working tree of the workspace's repository,
// without a branch. Its folder is locked while its host lives.
//
//	state_dir/worktrees/WORKSPACE/TASK-RANDOM/{base,tree}
type worktree struct {
	changes           // of tree
	main    *git.Repo // the workspace's repository
	folder  string
	alone   *sync.Mutex // held while git adds or removes worktrees
	lock    *os.File
	base    string // the commit that it began with
	branch  string // the branch for its changes
	entry   string // the name of its folder in .git/worktrees of the workspace; set by linked
}

// runIsolated does a task in a worktree and saves its changes on a branch. The workspace and its index stay unchanged.
func (f *Front) runIsolated(ctx context.Context, t *task) *fleet.Result {
	w, err := f.addWorktree(ctx, t.Task.TaskID)
	if err != nil {
		return fleet.Blocked(t.Task.TaskID, "the task cannot have its own worktree (isolation): "+reason(err))
	}
	defer w.lock.Close()
	result := f.have(ctx, t, w.dir)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), isolateTimeout)
	defer cancel()
	if !w.linked() { // else git would work on another repository
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

// linked reports whether .git is still the file that links this worktree to its entry in the workspace's repository.
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

// maxLink is the largest size of the file .git of a worktree, in bytes.
const maxLink = 64 << 10

// sameFile reports whether two paths lead to the same file.
func sameFile(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// worktrees returns the folder for the worktrees of the workspace.
func (f *Front) worktrees() string {
	sum := sha256.Sum256([]byte(f.opts.Workspace))
	return filepath.Join(f.opts.StateDir, "worktrees", hex.EncodeToString(sum[:8]))
}

// worktreeIn returns the worktree in a folder that lock locks. The tree itself may be missing.
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

// addWorktree makes a worktree for a task. If it fails, it removes what it has made.
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
	if err == nil { // a command of its own, because includeIf in the config may set filters for a worktree only
		_, err = w.repo.Run(within, "reset", "--quiet", "--hard")
	}
	return w, err
}

// plainName makes a name from the id of a task that is valid in the names of branches and folders.
func plainName(id string) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, id), "-")
	return cmp.Or(name[:min(len(name), 100)], "task")
}

// commitOf returns the hash of the commit that is checked out.
func commitOf(ctx context.Context, repo *git.Repo) (string, error) {
	out, err := repo.Run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", fmt.Errorf("the repository has no commit to start from: %s",
			reason(err)) // not wrapped, because reason would return only the inner text
	}
	return strings.TrimSpace(out.Text), nil
}

// save commits all changes that are not committed, and makes a branch for the commits. It returns the files that they
// change; without changes there is no branch.
func (w *worktree) save(ctx context.Context) (files []string, branch string, err error) {
	files = []string{}
	seen := w.look(ctx)
	if seen == nil {
		return files, "", errors.New("git cannot tell what has changed")
	}
	if len(seen.dirty) > 0 {
		for name := range seen.dirty {
			if strings.HasSuffix(name, "/") { // its commits would be lost with the worktree
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
	committed, _ := w.committed(ctx, w.base, head) // if the list fails, the branch still has all files
	files = append(files, committed...)
	for n := 1; ; n++ {
		if branch = w.branch; n > 1 {
			branch = fmt.Sprintf("%s-%d", w.branch, n) // the branch of an earlier run of the task exists
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

// unlock removes the lock file of the index. A git that was stopped with its task or its host may have left it, and
// nobody else works in the tree now. Errors are ignored: usually there is no lock, and git reports one that stays.
func (w *worktree) unlock() {
	if all, err := os.OpenRoot(filepath.Join(w.main.Dir, ".git", "worktrees")); err == nil {
		defer all.Close()
		_ = all.Remove(path.Join(w.entry, "index.lock"))
	}
}

// inMain runs git in the workspace itself. Such a command reads all worktrees, and fails while another one makes or
// removes a worktree. In this host the commands wait for each other; because of other hosts a command is tried again.
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

// maxBranches is how many branches one task may have.
const maxBranches = 1000

// remove deletes the worktree. It never runs git worktree prune, which would treat worktrees that git may not see as
// deleted.
func (w *worktree) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, isolateTimeout)
	defer cancel()
	_ = sandbox.RemoveTree(ctx, w.dir) // what is left is removed with the folder below, or reported there
	if gone := w.inMain(ctx, "worktree", "remove", "--force", "--force", w.dir); gone != nil {
		w.log.Debug().Err(gone).Str("folder", w.folder).Msg("git does not know a worktree")
	}
	if err := sandbox.RemoveTree(ctx, w.folder); err != nil {
		w.log.Warn().Err(err).Str("folder", w.folder).Msg("a worktree cannot be removed")
	}
}

// sweep saves and removes the worktrees of hosts that were killed.
func (f *Front) sweep() {
	entries, _ := os.ReadDir(f.worktrees()) // empty if there is no folder
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

// fresh reports whether a folder was changed within the last minute.
func (f *Front) fresh(e fs.DirEntry) bool {
	info, err := e.Info()
	return err != nil || f.opts.Now().Sub(info.ModTime()) < time.Minute
}

// recover saves and removes the worktree of a host that was killed.
func (f *Front) recover(folder string, lock *os.File) error {
	ctx, cancel := context.WithTimeout(f.ctx, isolateTimeout)
	defer cancel()
	w, err := f.worktreeIn(folder, lock)
	if err != nil {
		return err
	}
	base, _ := os.ReadFile(filepath.Join(folder, "base")) // without the file there is no tree either
	w.base = string(base)
	if !w.there() || !w.linked() { // its host was killed before it made the tree, or its task replaced .git
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
