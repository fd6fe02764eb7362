package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/poll"
)

// nest makes folders in folders, the innermost with a file, without long paths.
func nest(t testing.TB, dir, name string, levels int) {
	t.Helper()
	at, err := os.OpenRoot(dir)
	must(t, err)
	for range levels {
		err := at.Mkdir(name, 0o700)
		next, openErr := at.OpenRoot(name)
		must(t, errors.Join(err, openErr, at.Close()))
		at = next
	}
	must(t, errors.Join(at.WriteFile("file", nil, 0o600), at.Close()))
}

// closeRights takes the rights from a folder and all in it, the innermost first.
func closeRights(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if e.IsDir() {
			closeRights(t, filepath.Join(dir, e.Name()))
		}
	}
	must(t, os.Chmod(dir, 0))
}

// What children leave is removed whatever it is, and nothing else is: a name of a file may
// lead anywhere, and a folder may be deeper than any path or descriptor table is long.
func TestWallRemoveTree(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, dir, outside string){
		"3000 folders deep": func(t *testing.T, dir, _ string) { nest(t, dir, "d", 3000) },
		"long names deep":   func(t *testing.T, dir, _ string) { nest(t, dir, strings.Repeat("n", 250), 100) },
		"many deep ones": func(t *testing.T, dir, _ string) {
			for i := range 20 {
				sub := filepath.Join(dir, fmt.Sprint(i))
				must(t, os.Mkdir(sub, 0o700))
				nest(t, sub, "d", 50)
			}
		},
		"no rights": func(t *testing.T, dir, _ string) {
			nest(t, dir, "d", 40)
			closeRights(t, dir)
		},
		"wide": func(t *testing.T, dir, _ string) {
			for i := range 500 {
				must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("f", i), "in"), 0o700))
			}
		},
		"names": func(t *testing.T, dir, _ string) {
			for _, name := range []string{"new\nline", "-rf", " ", "a\\b", "*", "ü\xff", ".hidden", "..."} {
				must(t, os.MkdirAll(filepath.Join(dir, name, name), 0o700))
				must(t, os.WriteFile(filepath.Join(dir, name, "file"+name), nil, 0o400))
			}
		},
		"links out": func(t *testing.T, dir, outside string) {
			must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
			for i, to := range []string{outside, "../" + filepath.Base(outside), filepath.Join(outside, "kept"), "/", "..", ".", "sub", "nowhere"} {
				must(t, os.Symlink(to, filepath.Join(dir, "sub", fmt.Sprint(i))))
				must(t, os.Symlink(to, filepath.Join(dir, fmt.Sprint(i))))
			}
		},
		"hard links": func(t *testing.T, dir, outside string) {
			must(t, os.Link(filepath.Join(outside, "kept", "file"), filepath.Join(dir, "same")))
		},
		"names of the remover": func(t *testing.T, dir, _ string) {
			for i := range 9 {
				must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("a2e-gone-", i), "d", fmt.Sprint(i)), 0o700))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, outside := filepath.Join(top, "left"), filepath.Join(top, "outside")
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.MkdirAll(filepath.Join(outside, "kept"), 0o750))
			must(t, os.WriteFile(filepath.Join(outside, "kept", "file"), []byte("text"), 0o640))
			leave(t, dir, outside)
			if err := RemoveTree(t.Context(), dir); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("the folder is still there: %v", err)
			}
			info, err := os.Stat(filepath.Join(outside, "kept", "file"))
			if err != nil || info.Size() != 4 || info.Mode().Perm() != 0o640 {
				t.Errorf("the file outside: %v, %v", info, err)
			}
			if info, err := os.Stat(filepath.Join(outside, "kept")); err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("the folder outside: %v, %v", info, err)
			}
		})
	}
	t.Run("a link in place of the folder", func(t *testing.T) {
		top := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(top, "outside", "kept"), 0o700))
		must(t, os.Symlink("outside", filepath.Join(top, "left")))
		if err := RemoveTree(t.Context(), filepath.Join(top, "left")); err == nil {
			t.Error("it was removed")
		}
		if _, err := os.Stat(filepath.Join(top, "outside", "kept")); err != nil {
			t.Error(err)
		}
	})
	t.Run("out of time", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "left")
		must(t, os.Mkdir(dir, 0o700))
		nest(t, dir, "d", 500)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := RemoveTree(ctx, dir); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped: %v", err)
		}
		if err := RemoveTree(t.Context(), dir); err != nil {
			t.Errorf("taken up again: %v", err)
		}
	})
}

// What dead hosts left, however much it is, keeps no child of the next host waiting, nor
// its end.
func TestWallStaleFoldersBlockNobody(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	old := time.Now().Add(-2 * staleAfter)
	for i := range 3 {
		dir := filepath.Join(temp, privatePrefix+fmt.Sprint("left", i))
		must(t, os.Mkdir(dir, 0o700))
		nest(t, dir, "d", 500)
		must(t, os.Chtimes(dir, old, old))
	}
	var h homeDir
	h.sweep.turn.Lock() // no sweep gets anywhere
	home, tmp, err := h.get()
	if err != nil || home == "" || tmp == "" {
		t.Fatalf("%q, %q, %v", home, tmp, err)
	}
	h.sweep.turn.Unlock()
	poll.Eventually(t, "the folders of dead hosts to go", func() bool {
		left, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"left*"))
		return len(left) == 0
	})
	nest(t, tmp, "d", 50)
	must(t, h.close())
	left, err := filepath.Glob(filepath.Join(temp, privatePrefix+"*"))
	must(t, err)
	for _, dir := range left { // a busy machine has no time for it: then the next host has it
		lock, err := LockDir(dir)
		must(t, err)
		must(t, RemoveTree(t.Context(), dir))
		lock.Close()
	}
}
