package fleet_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

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
		text, err := os.ReadFile(filepath.Join(dir, ".git", "index"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := index()
	launcher, err := sandbox.New(sandbox.Options{Workspace: dir, Launcher: hosttest.Launcher(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
	p := open(t, &pool{}, front.Options{Workspace: dir, Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }})
	p.SendRaw(dispatch("t", "low", "") + "\n")
	if m := result(p, "t"); m.Get("/status") != "done" || announces(p)[0].Get("/session/repo_state/clean") != "true" {
		t.Errorf("%s after %s", m.Line, announces(p)[0].Line)
	}
	if !bytes.Equal(before, index()) {
		t.Error("the index was written")
	}
}
