//go:build unix

package fleet_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestStuckGit: a repository in which git waits for ever, such as one with a pipe as its index, does not delay the
// tasks.
func TestStuckGit(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "trunk")
	put(t, dir, "a.txt", "1")
	git(t, dir, "add", ".")
	index := filepath.Join(dir, ".git", "index")
	must.OK(t, os.Remove(index))
	must.OK(t, syscall.Mkfifo(index, 0o600))
	opts := inRepo(t, dir)
	opts.Log = zerolog.Nop()
	f := front.New(opts)
	f.HurryGit(200 * time.Millisecond)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{&pool{}}, Dialects: []host.Dialect{f}})
	m := do(p, dispatch("t", "low", ""), "t")
	check(t, m, "/status", "done")
	assert.Contains(t, m.Get("/next_steps"), "git could not list")
	assert.Contains(t, string(announces(p)[0].Line), `"repo_state":null`)
}
