//go:build unix

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// The manual page has each command, and those who know the language of such pages find nothing
// to say of it.
func TestManualPage(t *testing.T) {
	dir := workDir(t)
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	page := run(t, dir, nil, "man").want(t, 0, "").stdout
	assert.Equal(t, run(t, dir, nil, "man").stdout, page, "the second one differs")
	for _, has := range []string{".TH A2E 1 \"2023-11-14\"", ".SS tools call <name> [<values> ...]\n", ".B \\-c, \\-\\-config FILE\n", ".SH EXIT STATUS\n", "\n.B 130\n", ".SS memory add"} {
		assert.Contains(t, page, has, "no …")
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "a2e.1"), []byte(page), 0o600))
	_, err := exec.LookPath("mandoc")
	must.That(t, err == nil, "there is no mandoc here: `make tools` installs it")
	said, err := exec.Command("mandoc", "-Tlint", filepath.Join(dir, "a2e.1")).CombinedOutput()
	assert.That(t, err == nil && len(said) == 0, "mandoc: %v: %s", err, said)
	shown, err := exec.Command("mandoc", "-Tascii", "-Owidth=70", filepath.Join(dir, "a2e.1")).Output()
	assert.That(t, err == nil && strings.Contains(string(shown), "printf '%s\\n' '{\"type\":\"handshake/req\",\"id\":\"1\",\"agent_caps\":[\"tools\"]}' '{\"type\":\"tool/call/req\""),
		"an example is not on one line: %v", err)
}
