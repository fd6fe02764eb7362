package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"a2e/host/hosttest/assert"
)

// TestWriteWhole: a write that fails half-way leaves the file as it was, and no other file beside it.
func TestWriteWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, broken := filepath.Join(dir, "out"), errors.New("broken")
	for _, c := range []struct {
		text string
		err  error
		want string // "" = no file
	}{
		{"half", broken, ""},
		{"first", nil, "first"},
		{"half", broken, "first"},
		{"2nd", nil, "2nd"},
	} {
		err := writeWhole(path, func(w io.Writer) error {
			if _, err := io.WriteString(w, c.text); err != nil {
				return err
			}
			return c.err
		})
		assert.Is(t, err, c.err, "%q", c.text)
		text, err := os.ReadFile(path)
		assert.That(t, string(text) == c.want && (err == nil) == (c.want != ""),
			"%q: the file holds %q, %v, want %q", c.text, text, err, c.want)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 1 || len(left) == 1 && left[0].Name() != "out" {
			t.Errorf("%q: left behind %v, %v", c.text, left, err)
		}
	}
}
