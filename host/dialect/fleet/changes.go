package fleet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/sandbox"
	"a2e/host/state/git"
	"a2e/protocol/fleet"
)

// maxFiles bounds the list of changed files in a result.
const maxFiles = 1000

// changes asks git for the state of a working tree.
type changes struct {
	dir      string
	launcher func() (*sandbox.Launcher, error)
	log      zerolog.Logger
	patience time.Duration // time limit for each question to git
	grant    []string      // further folders that git may write in

	once sync.Once
	repo *git.Repo // nil = there is none

	mu    sync.Mutex // guards the fields below
	last  *view      // the last view that git could tell
	stamp string     // result of mark before the last look
	again time.Time  // when to look again even if mark has not changed
}

// If git is slow, it is asked less often whether the workspace is clean: git may work for at most one part in lookShare
// of the time. It is still asked after lookLater at the latest.
const (
	lookShare = 100
	lookLater = 30 * time.Second
)

// open returns the repository; nil = there is none. It looks for it only once.
func (c *changes) open() *git.Repo {
	c.once.Do(func() {
		if !c.there() {
			return
		}
		launcher, err := c.launcher()
		if err == nil {
			c.repo, err = git.Open(git.Repo{Dir: c.dir, Launcher: launcher, Write: c.grant})
		}
		if err != nil {
			c.log.Warn().Err(err).Msg("the workspace is a repository, but git cannot be asked")
		}
	})
	return c.repo
}

// view is what git says of the workspace at one time.
type view struct {
	branch string            // "" = HEAD is detached
	head   string            // hash of the commit; "" = there is none
	dirty  map[string]string // path of a file that differs from head -> result of print
}

// state returns the view as an announce has it; nil = there is no view.
func (v *view) state() *fleet.RepoState {
	if v == nil {
		return nil
	}
	return &fleet.RepoState{Branch: v.branch, Clean: len(v.dirty) == 0}
}

// there reports whether the folder is the top of a working tree, and git may be asked.
func (c *changes) there() bool {
	_, err := os.Lstat(filepath.Join(c.dir, ".git"))
	return c.launcher != nil && err == nil
}

// mark returns a text that changes with each commit, checkout and add.
func (c *changes) mark() string {
	stamp := ""
	for _, name := range []string{"HEAD", "index"} {
		if info, err := os.Lstat(filepath.Join(c.dir, ".git", name)); err == nil {
			stamp += fmt.Sprintln(info.ModTime().UnixNano(), info.Size())
		}
	}
	return stamp
}

// lately returns a recent view, and asks git only if the last one is too old. If git cannot tell, it returns the last
// view that git could tell.
func (c *changes) lately(ctx context.Context) *view {
	c.mu.Lock()
	stale := c.stamp != c.mark() || !time.Now().Before(c.again)
	c.mu.Unlock()
	if stale {
		c.look(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// look returns the view now; nil = the workspace is not a repository, or git cannot tell. It takes no lock of git,
// which could block a worker's own git.
func (c *changes) look(ctx context.Context) (v *view) {
	repo := c.open()
	if repo == nil {
		return nil
	}
	stamp, begun := c.mark(), time.Now()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stamp, c.again = stamp, time.Now().Add(min(time.Since(begun)*lookShare, lookLater))
		if v != nil {
			c.last = v
		}
	}()
	// The time limit is needed: git waits forever if a file was replaced by a named pipe.
	within, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	out, err := repo.Run(within, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-z", "--no-renames",
		"--untracked-files=all", "--ignore-submodules=dirty")
	if err != nil {
		if ctx.Err() == nil {
			c.log.Warn().Err(err).Msg("git cannot tell the state of the workspace")
		}
		return nil
	}
	v = &view{dirty: make(map[string]string)}
	records := strings.Split(out.Text, "\x00")
	for _, record := range records[:len(records)-1] { // the last one is empty or incomplete
		v.read(record, c)
	}
	return v
}

// read adds one record of git's status to the view.
func (v *view) read(record string, c *changes) {
	if head, ok := strings.CutPrefix(record, "# branch.head "); ok && head != "(detached)" {
		v.branch = head
		return
	}
	if oid, ok := strings.CutPrefix(record, "# branch.oid "); ok && oid != "(initial)" {
		v.head = oid
		return
	}
	fields := map[byte]int{'1': 9, 'u': 11, '?': 2} // number of fields by kind; the last field is the path
	kind, _, _ := strings.Cut(record, " ")
	if len(kind) != 1 || fields[kind[0]] == 0 {
		return
	}
	if all := strings.SplitN(record, " ", fields[kind[0]]); len(all) == fields[kind[0]] {
		name := all[len(all)-1]
		v.dirty[name] = c.print(name)
	}
}

// print returns a text that differs for different versions of a file, made from its time, mode and size.
func (c *changes) print(name string) string {
	info, err := os.Lstat(filepath.Join(c.dir, filepath.FromSlash(name)))
	if err != nil {
		return "gone"
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Mode(), info.Size())
}

// without returns the view as if some files had already been then as they are in a later view.
func (v *view) without(files []string, later *view) *view {
	if v == nil {
		return nil
	}
	w := &view{branch: v.branch, head: later.head, dirty: maps.Clone(v.dirty)}
	for _, name := range files {
		if print, dirty := later.dirty[name]; dirty {
			w.dirty[name] = print
		} else {
			delete(w.dirty, name)
		}
	}
	return w
}

// since returns the files that changed between two views, sorted; false = git could not tell all.
func (c *changes) since(ctx context.Context, before, after *view) (files []string, known bool) {
	files = []string{}
	if before == nil || after == nil {
		return files, c.open() == nil
	}
	for name, print := range after.dirty {
		if before.dirty[name] != print {
			files = append(files, name)
		}
	}
	for name := range before.dirty {
		if _, still := after.dirty[name]; !still && after.head == before.head {
			files = append(files, name) // it was restored
		}
	}
	committed, known := c.committed(ctx, before.head, after.head)
	return joined(files, committed), known
}

// really returns the files that a task wrote, without those that are again as when it began, as far as git can tell.
func (c *changes) really(ctx context.Context, written []string, began, after *view) []string {
	if len(written) == 0 || began == nil || after == nil {
		return written
	}
	changed, known := c.since(ctx, began, after)
	if !known || len(changed) == maxFiles {
		return written
	}
	return slices.DeleteFunc(slices.Clone(written), func(name string) bool {
		_, found := slices.BinarySearch(changed, name)
		return !found
	})
}

// joined returns the files of two lists, sorted, without duplicates, at most maxFiles.
func joined(a, b []string) []string {
	all := append(append([]string{}, a...), b...)
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxFiles)]
}

// committed returns the files in which two commits differ; before "" stands for an empty tree. False = git could not
// tell.
func (c *changes) committed(ctx context.Context, before, after string) (files []string, known bool) {
	args := []string{"diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", before, after, "--"}
	switch {
	case before == after || after == "":
		return nil, true
	case before == "":
		args = []string{"ls-tree", "-r", "--name-only", "-z", after}
	}
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	out, err := c.repo.Run(ctx, args...)
	if err != nil {
		c.log.Warn().Err(err).Msg("git cannot tell what was committed")
		return nil, false
	}
	names := strings.Split(out.Text, "\x00")
	return names[:len(names)-1], true
}
