//go:build unix

package chains

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/must"
)

// Pipes in the place of a saved chain, and of their folder, keep nobody waiting.
func TestPipesKeepNobodyWaiting(t *testing.T) {
	work := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(work, "chains"), 0o755), syscall.Mkfifo(filepath.Join(work, "chains", "p.yaml"), 0o644), syscall.Mkfifo(filepath.Join(work, "pipe"), 0o644))
	p := newPlugin(t, Options{}, work)
	if _, err := p.openSaved("p"); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Error(err)
	}
	root := must.Get(os.OpenRoot(work))(t)
	defer root.Close()
	if all := namesIn(root, "pipe"); all != nil {
		t.Error(all)
	}
}
