//go:build unix

package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/guard/private"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

// TestWallStoreFiles: a link, a second name or a pipe in place of the store's file, or of SQLite's files beside it,
// is not opened, and the file that it leads to stays unchanged. A file or folder that others may write is refused.
func TestWallStoreFiles(t *testing.T) {
	attacks := map[string]func(victim, at string) error{
		"a link":             os.Symlink,
		"a link to nothing":  func(victim, at string) error { return os.Symlink(victim+"-new", at) },
		"a second name":      os.Link,
		"a folder":           func(_, at string) error { return os.Mkdir(at, 0o700) },
		"a pipe":             func(_, at string) error { return unix.Mkfifo(at, 0o600) },
		"others may write":   func(victim, at string) error { return copyFile(victim, at, 0o666) },
		"the group may, too": func(victim, at string) error { return copyFile(victim, at, 0o660) },
	}
	for _, beside := range []string{"", "-wal", "-shm", "-journal"} {
		for name, attack := range attacks {
			t.Run("state.db"+beside+"/"+name, func(t *testing.T) {
				dir := t.TempDir()
				victim := filepath.Join(dir, "victim.db")
				content := fullStore(t, victim)
				path := filepath.Join(dir, "state", store.FileName)
				if beside != "" {
					_ = open(t, path).Close()
				} else if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				must.OK(t, attack(victim, path+beside))
				refusedStore(t, path)
				got, err := os.ReadFile(victim)
				assert.That(t, err == nil && bytes.Equal(got, content), "the other file was changed (%v)", err)
				_, err = os.Lstat(victim + "-new")
				assert.That(t, err != nil, "a file was made at the link's end")
			})
		}
	}
	t.Run("folder/others may write", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		_ = open(t, filepath.Join(dir, store.FileName)).Close()
		must.OK(t, os.Chmod(dir, 0o777))
		refusedStore(t, filepath.Join(dir, store.FileName))
	})
	t.Run("state.db/a link while it is open", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, store.FileName)
		s := open(t, path)
		must.OK(t, os.Rename(path, path+".away"), os.Symlink(path+".away", path))
		assert.Is(t, add(s, t.Context(), "x"), store.ErrMoved, "a write")
	})
}

func copyFile(from, to string, mode os.FileMode) error {
	raw, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, raw, 0o600), os.Chmod(to, mode))
}

func refusedStore(t *testing.T, path string) {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
	if err == nil {
		_ = s.Close()
	}
	assert.Is(t, err, private.ErrUnsafe, "it")
}

// TestAFileThatWasTakenAway: a store whose file was moved away refuses reads and writes until the file is back. Only
// Unix allows this to happen to an open file.
func TestAFileThatWasTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := open(t, path)
	must.OK(t, add(s, t.Context(), "kept"))
	must.OK(t, os.Rename(path, path+".away"))
	for _, inPlace := range []string{"nothing", "another"} {
		if inPlace == "another" {
			must.OK(t, os.WriteFile(path, nil, 0o600))
		}
		assert.Is(t, add(s, t.Context(), "lost"), store.ErrMoved, "with %s in its place a write", inPlace)
		assert.Is(t, s.Read(t.Context(), func(*store.Tx) error { return nil }), store.ErrMoved,
			"with %s in its place a read", inPlace)
	}
	must.OK(t, os.Rename(path+".away", path))
	must.OK(t, add(s, t.Context(), "again"))
	assert.Equal(t, fmt.Sprint(texts(t, s)), "[kept again]", "there")
}
