//go:build unix

package tools

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"a2e/host/child/spill"
	"a2e/host/guard/private"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestWallSpillFolder: long output goes into a folder that only the host can write to, or nowhere.
func TestWallSpillFolder(t *testing.T) {
	for name, attack := range map[string]func(elsewhere, at string) error{
		"a link":           os.Symlink,
		"a file":           func(_, at string) error { return os.WriteFile(at, nil, 0o600) },
		"others may write": func(_, at string) error { return errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, 0o777)) },
	} {
		t.Run(name, func(t *testing.T) {
			state, elsewhere := t.TempDir(), t.TempDir()
			must.OK(t, attack(elsewhere, filepath.Join(state, "spill")))
			if f, err := spill.New(state, nil).Create(t.Context(), "tool"); err == nil {
				_ = f.Close()
				t.Error("it was made")
			} else if !errors.Is(err, private.ErrUnsafe) {
				t.Errorf("it gave %v", err)
			}
			left, _ := os.ReadDir(elsewhere)
			assert.That(t, len(left) == 0, "%v lies elsewhere", left)
		})
	}
}
