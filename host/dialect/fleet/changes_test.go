package fleet_test

import (
	"strings"
	"testing"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/sandbox"
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
	launcher, err := sandbox.New(sandbox.Options{Workspace: dir, Launcher: hosttest.Launcher(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
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
	p := open(t, workers, front.Options{Workspace: dir, Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }})
	for _, c := range []struct{ brief, files string }{
		{"nothing", `[]`}, {"edited", `["a.txt","sub/new ü.txt"]`}, {"committed", `["b.txt"]`}, {"says so", `["mine"]`}, {"put back", `["dirty.txt"]`}, {"moved", `[]`}, {"after that", `[]`},
	} {
		p.SendRaw(strings.Replace(dispatch(c.brief, "low", ""), `"brief":"work"`, `"brief":"`+c.brief+`"`, 1) + "\n")
		if m := result(p, c.brief); m.Get("/artifacts/files_changed") != c.files {
			t.Errorf("%s: %s, should be %s", c.brief, m.Line, c.files)
		}
	}
	a := p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
	if a.Get("/session/repo_state") != `{"branch":"trunk","clean":false}` {
		t.Errorf("repo_state: %s", a.Line)
	}
	if all := announces(p); len(all) != 2 || all[1].Get("/session/repo_state/branch") != "branch" {
		t.Errorf("%d announces; the second should tell of the other branch", len(all))
	}
}

// TestFirstCommit: in a repository without a commit the first one counts as a change of all
// that is in it.
func TestFirstCommit(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a b.txt", "1")
	launcher, err := sandbox.New(sandbox.Options{Workspace: dir, Launcher: hosttest.Launcher(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
	p := open(t, &pool{act: func(task host.WorkerTask) (*fleet.Result, error) {
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", "x")
		return did(task), nil
	}}, front.Options{Workspace: dir, Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }})
	p.SendRaw(dispatch("t", "low", "") + "\n")
	if m := result(p, "t"); m.Get("/artifacts/files_changed") != `["a b.txt"]` {
		t.Errorf("%s", m.Line)
	}
}
