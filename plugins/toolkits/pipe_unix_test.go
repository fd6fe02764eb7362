//go:build unix

package toolkits

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestFolderIsAPipe: a pipe where a folder should be is refused; opening it by its bare name
// would wait for its other end for ever.
func TestFolderIsAPipe(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	p := open(t, dir, Options{})
	m := configure(p, "filesystem", `{"root_dir":"pipe"}`)
	assert.That(t, m.Get("/code") == string(protocol.CodeSchemaViolation) && strings.Contains(m.Get("/message"),
		"not a directory"), "%s", m)
}
