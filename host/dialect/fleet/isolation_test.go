package fleet_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// isolated are the options of a Front that has each task done in a worktree.
func isolated(t testing.TB, dir string) front.Options {
	opts := inRepo(t, dir)
	opts.Isolated, opts.StateDir, opts.MaxTasks = true, t.TempDir(), 8
	return opts
}

// newRepo makes a repository with one commit of one file.
func newRepo(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "all.txt", "begin")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	return dir
}

// asked returns what git says of a repository.
func asked(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	must.That(t, err == nil, "git %v: %v", args, err)
	return strings.TrimSpace(string(out))
}

// TestIsolation: eight tasks side by side, which all change the same file and one of their
// own, each leave their own changes on a branch; the workspace stays as the user left it.
func TestIsolation(t *testing.T) {
	dir := newRepo(t)
	put(t, dir, "all.txt", "of the user")
	put(t, dir, "staged.txt", "of the user")
	git(t, dir, "add", "staged.txt")
	index := must.Get(os.ReadFile(filepath.Join(dir, ".git", "index")))(t)
	before := asked(t, dir, "status", "--porcelain")
	var all sync.WaitGroup
	all.Add(8)
	opts := isolated(t, dir)
	p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
		all.Done()
		all.Wait()
		id := task.Task.TaskID
		put(t, task.Workspace, "all.txt", id)
		put(t, task.Workspace, id+".txt", id)
		if strings.HasSuffix(id, "3") { // this one commits by itself
			git(t, task.Workspace, "add", id+".txt")
			git(t, task.Workspace, "commit", "-q", "-m", id)
		}
		return did(task), nil
	}}, opts)
	for i := range 8 {
		p.SendRaw(dispatch(fmt.Sprint("t/", i), "low", "") + "\n")
	}
	for i := range 8 {
		id := fmt.Sprint("t/", i)
		branch := fmt.Sprint("a2e/t-", i)
		check(t, result(p, id), "/status", "done", "/artifacts/files_changed", fmt.Sprintf(`["all.txt","%s.txt"]`, id), "/artifacts/branch", branch)
		assert.Equal(t, asked(t, dir, "show", branch+":all.txt"), id, "%s", branch)
		got := asked(t, dir, "log", "--format=%s", branch+"~1")
		assert.Equal(t, strings.HasSuffix(id, "3"), (got == id+"\nx"), "%s goes back to %q", branch, got)
	}
	if after, err := os.ReadFile(filepath.Join(dir, ".git", "index")); err != nil || !bytes.Equal(index, after) {
		t.Errorf("the index was touched (%v)", err)
	}
	assert.Equal(t, asked(t, dir, "status", "--porcelain"), before, "the workspace was\n…\nand")
	left, err := filepath.Glob(filepath.Join(opts.StateDir, "worktrees", "*", "*"))
	trees := asked(t, dir, "worktree", "list")
	assert.That(t, err == nil && len(left) == 0 && strings.Count(trees, "\n") <= 0, "left are %v (%v), and git knows\n%s", left, err, trees)
}

// TestIsolationAgain: a task that left nothing has no branch; one that is done again does not
// lose what it left before. The worktree of a host that was killed becomes a branch at the next
// start.
func TestIsolationAgain(t *testing.T) {
	dir := newRepo(t)
	opts := isolated(t, dir)
	p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
		if task.Brief == "nothing" {
			return did(task), nil
		}
		put(t, task.Workspace, "b.txt", "b")
		left := filepath.Join(filepath.Dir(filepath.Dir(task.Workspace)), "killed-1")
		if _, err := os.Stat(left); err != nil {
			put(t, filepath.Join(filepath.Dir(left), "early-1"), "base", "")
			put(t, left, "base", asked(t, dir, "rev-parse", "HEAD"))
			git(t, dir, "worktree", "add", "-q", "--detach", filepath.Join(left, "tree"))
			put(t, filepath.Join(left, "tree"), "half.txt", "half")
		}
		return fleet.NewResult(task.Task.TaskID, fleet.StatusPartial), nil
	}}, opts)
	check(t, do(p, strings.Replace(dispatch("idle", "low", ""), `"work"`, `"nothing"`, 1), "idle"), "/artifacts/files_changed", "[]", "/artifacts/branch", "")
	for i, branch := range []string{"a2e/t", "a2e/t-2"} {
		p.SendRaw(dispatch("t", "low", "") + "\n")
		check(t, resultNo(t, p, "t", i+1), "/artifacts/files_changed", `["b.txt"]`, "/artifacts/branch", branch)
	}
	p.CloseInput()
	must.OK(t, p.WaitEnd())
	open(t, &pool{}, opts)
	hosttest.Eventually(t, "the end of the worktree", func() bool {
		left, _ := filepath.Glob(filepath.Join(opts.StateDir, "worktrees", "*", "*"))
		return len(left) == 0 && !strings.Contains(asked(t, dir, "worktree", "list"), "killed")
	})
	assert.Equal(t, asked(t, dir, "show", "a2e/killed:half.txt"), "half", "the branch")
}

// TestIsolationHostile: no config of the repository runs a program in a worktree, and nothing
// that a task leaves there is lost.
func TestIsolationHostile(t *testing.T) {
	clone := func(t *testing.T, tree string) {
		git(t, tree, "init", "-q", "nested")
		put(t, filepath.Join(tree, "nested"), "n.txt", "n")
	}
	lock := func(t *testing.T, tree string) {
		put(t, asked(t, tree, "rev-parse", "--git-dir"), "index.lock", "")
	}
	for name, c := range map[string]struct {
		config string // %s = a program that leaves ran.txt
		leaves func(t *testing.T, tree string)
		branch string
		next   string
	}{
		"a filter for worktrees alone": {config: "[includeIf \"gitdir:**/worktrees/**\"]\n\tpath = more\n", branch: "a2e/t"},
		"a sparse checkout":            {config: "[core]\n\tsparseCheckout = true\n", branch: "a2e/t"},
		"a lock of a git that ended":   {leaves: lock, branch: "a2e/t"},
		"a repository in it":           {leaves: clone, next: "nested/ is a git repository of its own"},
		"a branch in the way":          {config: "A", next: "cannot lock ref"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRepo(t)
			if c.config == "A" {
				git(t, dir, "branch", "a2e")
				c.config = ""
			}
			config := must.Get(os.ReadFile(filepath.Join(dir, ".git", "config")))(t)
			ran := filepath.Join(dir, ".git", "ran.txt")
			put(t, dir, ".git/config", string(config)+c.config)
			put(t, dir, ".git/more", fmt.Sprintf("[filter \"x\"]\n\tsmudge = touch '%s'; cat\n\tclean = touch '%s'; cat\n", ran, ran))
			put(t, dir, ".git/info/attributes", "* filter=x\n")
			put(t, dir, ".git/info/sparse-checkout", "/all.txt\n")
			p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
				put(t, task.Workspace, "b.txt", "b")
				if c.leaves != nil {
					c.leaves(t, task.Workspace)
				}
				return did(task), nil
			}}, isolated(t, dir))
			r := do(p, dispatch("t", "low", ""), "t")
			check(t, r, "/artifacts/branch", c.branch)
			if c.next != "" {
				check(t, r, "/next_steps/0~", c.next)
			}
			_, err := os.Stat(ran)
			assert.That(t, err != nil, "a filter of the repository ran")
		})
	}
}

// TestIsolationImpossible: without a repository, or a commit in it, nothing is begun.
func TestIsolationImpossible(t *testing.T) {
	empty := t.TempDir()
	git(t, empty, "init", "-q")
	for dir, why := range map[string]string{t.TempDir(): "not the top of a git repository", empty: "no commit"} {
		workers := &pool{}
		check(t, do(open(t, workers, isolated(t, dir)), dispatch("t", "low", ""), "t"), "/status", "blocked", "/blocked_reason~", why)
		assert.Equal(t, workers.order(), "", "it was begun")
	}
}
