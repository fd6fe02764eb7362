package e2e_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestNewcomer: the first hour of a newcomer works in an empty folder, with an empty home. The script checks each
// output. `make newcomer` builds the program as well.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	script := must.Get(filepath.Abs(root + "/testdata/newcomer/newcomer.sh"))(t)
	out, err := exec.CommandContext(t.Context(), "bash", script, must.Get(filepath.Abs(root))(t),
		hosttest.Program(t, "a2e")).CombinedOutput()
	must.That(t, err == nil, "%v:\n%s", err, out)
	assert.Contains(t, string(out), "== answered after 2 commands")
	t.Logf("%s", out)
}
