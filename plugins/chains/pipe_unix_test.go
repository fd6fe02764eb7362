//go:build unix

package chains

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestPipesKeepNobodyWaiting: named pipes in the place of a saved chain, or of the folder of saved chains, do not block
// a request.
func TestPipesKeepNobodyWaiting(t *testing.T) {
	work := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(work, "chains"), 0o755), syscall.Mkfifo(filepath.Join(work, "chains", "p.yaml"),
		0o644), syscall.Mkfifo(filepath.Join(work, "pipe"), 0o644))
	p := newPlugin(t, Options{}, work)
	_, err := p.openSaved("p")
	assert.That(t, err != nil && strings.Contains(err.Error(), "not a regular file"), "%v", err)
	root := must.Get(os.OpenRoot(work))(t)
	defer root.Close()
	all := namesIn(root, "pipe")
	assert.That(t, all == nil, "%v", all)
}
