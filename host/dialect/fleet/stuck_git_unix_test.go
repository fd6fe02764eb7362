//go:build unix

package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

// TestStuckGit: a repository that git waits in for ever, as for a pipe, does not hold up the
// tasks.
func TestStuckGit(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	git(t, dir, "add", ".")
	index := filepath.Join(dir, ".git", "index")
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(index, 0o600); err != nil {
		t.Fatal(err)
	}
	launcher, err := sandbox.New(sandbox.Options{Workspace: dir, Launcher: hosttest.Launcher(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
	f := front.New(front.Options{Workspace: dir, Log: zerolog.Nop(), Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }})
	f.HurryGit(200 * time.Millisecond)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{&pool{}}, Dialects: []host.Dialect{f}})
	p.SendRaw(dispatch("t", "low", "") + "\n")
	if m := result(p, "t"); m.Get("/status") != "done" || !strings.Contains(string(announces(p)[0].Line), `"repo_state":null`) {
		t.Errorf("%s after %s", m.Line, announces(p)[0].Line)
	}
}
