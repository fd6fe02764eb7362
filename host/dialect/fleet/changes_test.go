package fleet_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// TestFilesChanged: git says what a worker changed that does not say so itself.
func TestFilesChanged(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	put(t, dir, "dirty.txt", "1")
	put(t, dir, "same.txt", "1")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	put(t, dir, "dirty.txt", "was changed before")
	workers := &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
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
		}
		return r, nil
	}}
	p := open(t, workers, inRepo(t, dir))
	for _, c := range []struct{ brief, files string }{
		{"nothing", `[]`}, {"edited", `["a.txt","sub/new ü.txt"]`}, {"committed", `["b.txt"]`}, {"says so", `["mine"]`}, {"put back", `["dirty.txt"]`}, {"moved", `[]`}, {"after that", `[]`},
	} {
		check(t, do(p, strings.Replace(dispatch(c.brief, "low", ""), `"brief":"work"`, `"brief":"`+c.brief+`"`, 1), c.brief), "/artifacts/files_changed", c.files)
	}
	a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	assert.Equal(t, a.Get("/session/repo_state"), `{"branch":"trunk","clean":false}`, "repo_state: %s", a.Line)
	all := announces(p)
	var states []string
	for _, a := range all {
		states = append(states, a.Get("/session/repo_state/branch")+" "+a.Get("/session/repo_state/clean"))
	}
	assert.Equal(t, strings.Join(states, ", "), "trunk false, branch false", "announced")
}

// TestRepoState: a change of the branch, or of clean, is announced also while there is no task.
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

// TestRequireClean: a task that is marked as writing is refused where the workspace has changes
// that are not committed.
func TestRequireClean(t *testing.T) {
	dir := newRepo(t)
	opts := inRepo(t, dir)
	opts.RequireClean = true
	for _, want := range []string{"done", "blocked"} {
		if want == "blocked" {
			put(t, dir, "new.txt", "")
		}
		p := open(t, &pool{workers: []host.WorkerInfo{{Unknown: true}}}, opts)
		for i, c := range []struct{ task, needs, status string }{
			{`{"task_id":"ID","writes":true}`, `{}`, want}, {`{"task_id":"ID"}`, `{"required_capabilities":["file","search"]}`, want},
			{`{"task_id":"ID","writes":false}`, `{"required_capabilities":["file"]}`, "done"}, {`{"task_id":"ID"}`, `{"required_capabilities":["search"]}`, "done"},
		} {
			id := fmt.Sprint("t", i)
			check(t, do(p, strings.Replace(needing(id, c.needs, ""), fmt.Sprintf(`{"task_id":%q}`, id), strings.Replace(c.task, "ID", id, 1), 1), id), "/status", c.status)
		}
	}
}

// TestBesides: of two tasks in the same workspace each has what was found at its end, and no
// file is counted twice.
func TestBesides(t *testing.T) {
	dir := newRepo(t)
	opts := inRepo(t, dir)
	opts.MaxTasks = 2
	begun, other := make(chan struct{}), make(chan struct{})
	p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
		if task.Task.TaskID == "long" {
			close(begun)
			<-other
			put(t, dir, "long.txt", "1")
		} else {
			<-begun
			put(t, dir, "short.txt", "1")
		}
		return did(task), nil
	}}, opts)
	p.SendRaw(dispatch("long", "", "") + "\n" + dispatch("short", "", "") + "\n")
	check(t, result(p, "short"), "/artifacts/files_changed", `["short.txt"]`)
	close(other)
	check(t, result(p, "long"), "/artifacts/files_changed", `["long.txt"]`)
}

// TestFirstCommit: in a repository without a commit the first one counts as a change of all
// that is in it.
func TestFirstCommit(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a b.txt", "1")
	p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", "x")
		return did(task), nil
	}}, inRepo(t, dir))
	check(t, do(p, dispatch("t", "low", ""), "t"), "/artifacts/files_changed", `["a b.txt"]`)
}

// TestNoLocks: a look at the workspace does not write git's index: its lock would be in the
// way of a worker that adds or commits just then.
func TestNoLocks(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "a.txt"), at, at); err != nil { // git has to look into it, and would note that
		t.Fatal(err)
	}
	index := func() []byte {
		text := must.Get(os.ReadFile(filepath.Join(dir, ".git", "index")))(t)
		return text
	}
	before := index()
	p := open(t, &pool{}, inRepo(t, dir))
	if m := do(p, dispatch("t", "low", ""), "t"); m.Get("/status") != "done" || announces(p)[0].Get("/session/repo_state/clean") != "true" {
		t.Errorf("%s after %s", m.Line, announces(p)[0].Line)
	}
	assert.That(t, bytes.Equal(before, index()), "the index was written")
}
