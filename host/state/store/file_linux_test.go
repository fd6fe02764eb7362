package store_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

// TestUsable: Usable finds the reasons why a file cannot be used, by reading its first page, whether or not this
// process has other stores open. It does not release the locks of those stores.
func TestUsable(t *testing.T) {
	made := filepath.Join(t.TempDir(), store.FileName)
	s := open(t, made)
	must.OK(t, add(s, t.Context(), "x"), s.Close())
	good := must.Get(os.ReadFile(made))(t)
	look := func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(path string, data []byte) []byte
			want   error
		}{
			"whole":   {func(_ string, d []byte) []byte { return d }, nil},
			"cut off": {func(_ string, d []byte) []byte { return d[:4096] }, store.ErrCorrupt},
			"a bit":   {func(_ string, d []byte) []byte { d[2000] ^= 1; return d }, store.ErrCorrupt},
			"foreign": {func(_ string, d []byte) []byte { d[68]++; return d }, store.ErrForeign},
			"empty":   {func(string, []byte) []byte { return nil }, store.ErrCorrupt},
			"newer":   {func(_ string, d []byte) []byte { d[63]++; return d }, store.ErrNewer},
			"its log a link": {
				func(p string, d []byte) []byte { _ = os.Symlink("/etc/passwd", p+"-wal"); return d },
				store.ErrForeign,
			},
			"others write it": {
				func(p string, d []byte) []byte { _ = os.Chmod(filepath.Dir(p), 0o777); return d },
				nil,
			}, // not an error: a later try may succeed
		} {
			path := filepath.Join(t.TempDir(), store.FileName)
			data := c.change(path, append([]byte(nil), good...))
			if name == "newer" {
				sum := store.Checksum(data[:4096], 0)
				copy(data[4096-len(sum):], sum[:])
			}
			must.OK(t, os.WriteFile(path, data, 0o600))
			assert.Is(t, store.Usable(t.Context(), path), c.want, "%s", name)
		}
	}
	t.Run("no store open", look)
	_ = open(t, made)
	t.Run("another one open", look)
	assert.OK(t, store.Usable(t.Context(), made))
	file := must.Get(os.OpenFile(made, os.O_RDWR, 0))(t)
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
	assert.That(t, err == nil && lock.Type != unix.F_UNLCK, "the locks of the store are gone (%v)", err)
}
