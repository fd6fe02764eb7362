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
	"time"

	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// TestFilesChanged: git finds the files that a worker changed, if the worker does not name them itself.
func TestFilesChanged(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	put(t, dir, "dirty.txt", "1")
	put(t, dir, "same.txt", "1")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	put(t, dir, "dirty.txt", "was changed before")
	workers := &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		r := fleet.NewResult(task.Task.TaskID, fleet.StatusDone)
		switch task.Brief {
		case "committed":
			put(t, dir, "b.txt", "2")
			git(t, dir, "add", "b.txt")
			git(t, dir, "commit", "-q", "-m", "y")
		case "edited":
			put(t, dir, "a.txt", "longer")
			put(t, dir, "sub/new ü.txt", "2")
		case "moved":
			git(t, dir, "checkout", "-q", "-b", "branch")
		case "put back":
			put(t, dir, "same.txt", "1")
			git(t, dir, "checkout", "-q", "dirty.txt")
		case "says so":
			r.Artifacts.FilesChanged = []string{"mine"}
		case "its tools say so":
			put(t, dir, "c.txt", "3")
			put(t, dir, "d.txt", "4")
			r.Artifacts.FilesChanged = []string{"c.txt", "same.txt"}
			r.Artifacts.Written = []string{"c.txt", "same.txt"}
		}
		return r, nil
	}}
	p := open(t, workers, inRepo(t, dir))
	for _, c := range []struct{ brief, files string }{
		{"nothing", `[]`},
		{"edited", `["a.txt","sub/new ü.txt"]`},
		{"committed", `["b.txt"]`},
		{"says so", `["mine"]`},
		{"its tools say so", `["c.txt","d.txt"]`},
		{"put back", `["dirty.txt"]`},
		{"moved", `[]`},
		{"after that", `[]`},
	} {
		check(t, do(p, strings.Replace(dispatch(c.brief, "low", ""), `"brief":"work"`, `"brief":"`+c.brief+`"`, 1),
			c.brief), "/artifacts/files_changed", c.files)
	}
	a := announced(p)
	assert.Equal(t, a.Get("/session/repo_state"), `{"branch":"trunk","clean":false}`, "repo_state: %s", a.Line)
	all := announces(p)
	var states []string
	for _, a := range all {
		states = append(states, a.Get("/session/repo_state/branch")+" "+a.Get("/session/repo_state/clean"))
	}
	assert.Equal(t, strings.Join(states, ", "), "trunk false, branch false", "announced")
}

// TestRepoState: a change of the branch or of "clean" is announced, even if there is no task.
func TestRepoState(t *testing.T) {
	dir := newRepo(t)
	opts := inRepo(t, dir)
	opts.AtStartup = true
	l := openLab(t, &pool{}, opts, shortly, long, shortly)
	for i, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, `{"branch":"trunk","clean":true}`},
		{func() { put(t, dir, "all.txt", "changed") }, `{"branch":"trunk","clean":false}`},
		{func() { git(t, dir, "checkout", "-q", "-b", "other") }, `{"branch":"other","clean":false}`},
		{func() { git(t, dir, "commit", "-q", "-a", "-m", "y") }, `{"branch":"other","clean":true}`},
	} {
		c.change()
		hosttest.Eventually(t, c.want, func() bool {
			all := announces(l.Pair)
			return len(all) == i+1 && all[i].Get("/session/repo_state") == c.want
		})
	}
}

// TestRequireClean: with RequireClean, tasks that write are blocked while the workspace has changes that are not
// committed.
func TestRequireClean(t *testing.T) {
	dir := newRepo(t)
	opts := inRepo(t, dir)
	opts.RequireClean = true
	for _, want := range []string{"done", "blocked"} {
		if want == "blocked" {
			put(t, dir, "new.txt", "")
		}
		p := open(t, &pool{workers: []agent.WorkerInfo{{Unknown: true}}}, opts)
		for i, c := range []struct{ task, needs, status string }{
			{`{"task_id":"ID","writes":true}`, `{}`, want},
			{
				`{"task_id":"ID"}`,
				`{"required_capabilities":["file","search"]}`, want,
			},
			{`{"task_id":"ID","writes":false}`, `{"required_capabilities":["file"]}`, "done"},
			{`{"task_id":"ID"}`, `{"required_capabilities":["search"]}`, "done"},
		} {
			id := fmt.Sprint("t", i)
			check(t, do(p, strings.Replace(needing(id, c.needs, ""), fmt.Sprintf(`{"task_id":%q}`, id),
				strings.Replace(c.task, "ID", id, 1), 1), id), "/status", c.status)
		}
	}
}

// TestBesides: of two tasks in the same workspace each reports the changes that were found at its end. No file is
// counted twice, except one that the tools of the longer task wrote.
func TestBesides(t *testing.T) {
	dir := newRepo(t)
	opts := inRepo(t, dir)
	opts.MaxTasks = 2
	ready, begun, other := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		if task.Task.TaskID == "long" {
			<-ready
			put(t, dir, "tool.txt", "1")
			close(begun)
			<-other
			put(t, dir, "long.txt", "1")
			r := did(task)
			r.Artifacts.FilesChanged, r.Artifacts.Written = []string{"tool.txt"}, []string{"tool.txt"}
			return r, nil
		}
		close(ready)
		<-begun
		put(t, dir, "short.txt", "1")
		return did(task), nil
	}}, opts)
	p.SendRaw(dispatch("long", "", "") + "\n" + dispatch("short", "", "") + "\n")
	check(t, result(p, "short"), "/artifacts/files_changed", `["short.txt","tool.txt"]`)
	close(other)
	check(t, result(p, "long"), "/artifacts/files_changed", `["long.txt","tool.txt"]`)
}

// TestFirstCommit: in a repository without a commit, the first commit counts as a change of all its files.
func TestFirstCommit(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a b.txt", "1")
	p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", "x")
		return did(task), nil
	}}, inRepo(t, dir))
	check(t, do(p, dispatch("t", "low", ""), "t"), "/artifacts/files_changed", `["a b.txt"]`)
}

// TestNoLocks: the host does not write git's index when it looks at the workspace. The index lock would make a worker
// fail that adds or commits at that moment.
func TestNoLocks(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "a.txt"), at,
		at); err != nil { // git has to read the file, and would note that in the index
		t.Fatal(err)
	}
	index := func() []byte {
		text := must.Get(os.ReadFile(filepath.Join(dir, ".git", "index")))(t)
		return text
	}
	before := index()
	p := open(t, &pool{}, inRepo(t, dir))
	if m := do(p, dispatch("t", "low", ""), "t"); m.Get("/status") != "done" ||
		announces(p)[0].Get("/session/repo_state/clean") != "true" {
		t.Errorf("%s after %s", m.Line, announces(p)[0].Line)
	}
	assert.That(t, bytes.Equal(before, index()), "the index was written")
}

// isolated returns the options of a Front that runs each task in a worktree.
func isolated(t testing.TB, dir string) front.Options {
	opts := inRepo(t, dir)
	opts.Isolated, opts.StateDir, opts.MaxTasks = true, t.TempDir(), 8
	return opts
}

// newRepo makes a repository with one commit of one file, and returns its folder.
func newRepo(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "all.txt", "begin")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	return dir
}

// asked returns the output of git for a repository.
func asked(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	must.That(t, err == nil, "git %v: %v", args, err)
	return strings.TrimSpace(string(out))
}

// TestIsolation: eight tasks at the same time, which all change the same file and one of their own, each leave their
// changes on a branch of their own. The workspace stays as the user left it.
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
	p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		all.Done()
		all.Wait()
		id := task.Task.TaskID
		put(t, task.Workspace, "all.txt", id)
		put(t, task.Workspace, id+".txt", id)
		if strings.HasSuffix(id, "3") { // this task commits by itself
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
		check(t, result(p, id), "/status", "done", "/artifacts/files_changed", fmt.Sprintf(`["all.txt","%s.txt"]`, id),
			"/artifacts/branch", branch)
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
	assert.That(t, err == nil && len(left) == 0 && strings.Count(trees, "\n") <= 0, "left are %v (%v), and git "+
		"knows\n%s", left, err, trees)
}

// TestIsolationAgain: a task without changes has no branch. A task that runs again does not lose the changes of the
// first run. The worktree of a host that was killed becomes a branch when the next host starts.
func TestIsolationAgain(t *testing.T) {
	dir := newRepo(t)
	opts := isolated(t, dir)
	p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
		if task.Brief == "nothing" {
			return did(task), nil
		}
		put(t, task.Workspace, "b.txt", "b")
		left := filepath.Join(filepath.Dir(filepath.Dir(task.Workspace)), "killed-1")
		if _, err := os.Stat(left); err != nil {
			put(t, filepath.Join(filepath.Dir(left), "early-1"), "base", "")
			must.OK(t, os.MkdirAll(filepath.Join(filepath.Dir(left), "stray-1"), 0o700))
			must.OK(t, os.Chtimes(filepath.Join(filepath.Dir(left), "stray-1"), time.Time{},
				time.Now().Add(-time.Hour)))
			must.OK(t, os.MkdirAll(filepath.Join(filepath.Dir(left), "made-1"),
				0o700)) // a new folder, of a host that is about to lock it
			put(t, left, "base", asked(t, dir, "rev-parse", "HEAD"))
			git(t, dir, "worktree", "add", "-q", "--detach", filepath.Join(left, "tree"))
			put(t, filepath.Join(left, "tree"), "half.txt", "half")
		}
		return fleet.NewResult(task.Task.TaskID, fleet.StatusPartial), nil
	}}, opts)
	check(t, do(p, strings.Replace(dispatch("idle", "low", ""), `"work"`, `"nothing"`, 1), "idle"),
		"/artifacts/files_changed", "[]", "/artifacts/branch", "")
	for i, branch := range []string{"a2e/t", "a2e/t-2"} {
		p.SendRaw(dispatch("t", "low", "") + "\n")
		check(t, resultNo(t, p, "t", i+1), "/artifacts/files_changed", `["b.txt"]`, "/artifacts/branch", branch)
	}
	p.CloseInput()
	must.OK(t, p.WaitEnd())
	open(t, &pool{}, opts)
	hosttest.Eventually(t, "the end of the worktree", func() bool {
		left, _ := filepath.Glob(filepath.Join(opts.StateDir, "worktrees", "*", "*"))
		return len(left) == 1 && filepath.Base(left[0]) == "made-1" &&
			!strings.Contains(asked(t, dir, "worktree", "list"), "killed")
	})
	assert.Equal(t, asked(t, dir, "show", "a2e/killed:half.txt"), "half", "the branch")
}

// TestIsolationHostile: no config of the repository runs a program in a worktree, and the changes of a task are not
// lost without a notice.
func TestIsolationHostile(t *testing.T) {
	clone := func(t *testing.T, tree string) {
		git(t, tree, "init", "-q", "nested")
		put(t, filepath.Join(tree, "nested"), "n.txt", "n")
	}
	lock := func(t *testing.T, tree string) {
		put(t, asked(t, tree, "rev-parse", "--git-dir"), "index.lock", "")
	}
	for name, c := range map[string]struct {
		config string // added to the repository's config; "A" = a branch is in the way
		leaves func(t *testing.T, tree string)
		branch string
		next   string
	}{
		"a filter for worktrees alone": {
			config: "[includeIf \"gitdir:**/worktrees/**\"]\n\tpath = more\n",
			branch: "a2e/t",
		},
		"a sparse checkout":          {config: "[core]\n\tsparseCheckout = true\n", branch: "a2e/t"},
		"a lock of a git that ended": {leaves: lock, branch: "a2e/t"},
		"a repository in it":         {leaves: clone, next: "nested/ is a git repository of its own"},
		"a branch in the way":        {config: "A", next: "cannot lock ref"},
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
			put(t, dir, ".git/more", fmt.Sprintf("[filter \"x\"]\n\tsmudge = touch '%s'; cat\n\tclean = touch '%s'; "+
				"cat\n", ran, ran))
			put(t, dir, ".git/info/attributes", "* filter=x\n")
			put(t, dir, ".git/info/sparse-checkout", "/all.txt\n")
			p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
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

// TestIsolationUnlinked: a task that replaces .git of its worktree ends with an error. Its worktree is removed, and
// its changes get neither into the repository nor into a repository that took its place.
func TestIsolationUnlinked(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, dir, tree string){
		"a repository": func(t *testing.T, _, tree string) { git(t, tree, "init", "-q") },
		"a link to the main one": func(t *testing.T, dir, tree string) {
			put(t, tree, ".git", "gitdir: "+filepath.Join(dir, ".git"))
		},
		"a symbolic link": func(t *testing.T, dir, tree string) {
			must.OK(t, os.Symlink(filepath.Join(dir, ".git"), filepath.Join(tree, ".git")))
		},
		"nothing": func(*testing.T, string, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRepo(t)
			opts := isolated(t, dir)
			refs, status := asked(t, dir, "for-each-ref"), asked(t, dir, "status", "--porcelain")
			p := open(t, &pool{act: func(task agent.WorkerTask) (*fleet.Result, error) {
				put(t, task.Workspace, "b.txt", "b")
				must.OK(t, os.Remove(filepath.Join(task.Workspace, ".git")))
				replace(t, dir, task.Workspace)
				return did(task), nil
			}}, opts)
			r := do(p, dispatch("t", "low", ""), "t")
			check(t, r, "/status", "error", "/error~", "replaced or removed .git of its worktree", "/summary",
				"did work", "/artifacts/files_changed", "[]", "/artifacts/branch", "")
			left := must.Get(filepath.Glob(filepath.Join(opts.StateDir, "worktrees", "*", "*")))(t)
			trees := asked(t, dir, "worktree", "list")
			assert.That(t, len(left) == 0 && !strings.Contains(trees, "\n"), "left are %v, and git knows\n%s", left,
				trees)
			assert.Equal(t, asked(t, dir, "for-each-ref"), refs, "the branches")
			assert.Equal(t, asked(t, dir, "status", "--porcelain"), status, "the workspace")
			asked(t, dir, "fsck")
		})
	}
}

// TestIsolationImpossible: without a repository, or without a commit in it, no task is begun.
func TestIsolationImpossible(t *testing.T) {
	empty := t.TempDir()
	git(t, empty, "init", "-q")
	for dir, why := range map[string]string{t.TempDir(): "not the top of a git repository", empty: "no commit"} {
		workers := &pool{}
		check(t, do(open(t, workers, isolated(t, dir)), dispatch("t", "low", ""), "t"), "/status", "blocked",
			"/blocked_reason~", why)
		assert.Equal(t, workers.order(), "", "it was begun")
	}
}
