package wall_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host/guard/wall"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const secret = "SECRET"

// ground returns a folder with a hidden folder "own" in it, its root, and the guard of that root.
func ground(t *testing.T) (dir string, root *os.Root, guard *wall.Guard) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	for name, text := range map[string]string{
		"own/secret": secret, "own/deep/secret": secret, "a/b/f": "open",
		"f": "open", "conf": "kept",
	} {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	must.OK(t, err)
	if root, err = os.OpenRoot(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	w := &wall.Wall{
		Hidden: []string{filepath.Join(dir, "own")}, Fixed: []string{filepath.Join(dir, "conf")},
		Open: []string{dir},
	}
	return dir, root, w.In(root)
}

// TestWallGuardOpens: no path leads to a hidden file, not even through links. Paths and links to other files still
// work.
func TestWallGuardOpens(t *testing.T) {
	dir, _, guard := ground(t)
	for name, to := range map[string]string{
		"in": "own", "up": "a/../own/secret", "a/up": "../own", "abs": filepath.Join(dir, "own"), "twice": "a/up",
		"loop": "loop", "out": "../..", "good": "a/b/f", "a/good": "../f", "dir": "a",
	} {
		must.OK(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	for _, name := range []string{
		"own/secret", "own", "./own/./secret", "a/../own/secret", "in/secret", "up", "a/up/secret", "a/up/deep/secret",
		"abs/secret", "twice/secret", "dir/up/secret", "loop", "out",
		"out/etc/passwd", "../x", "own/../own/secret", "a/b/../../own/secret",
	} {
		t.Run(name, func(t *testing.T) {
			if file, err := guard.OpenFile(name, 0); err == nil {
				text, _ := io.ReadAll(file)
				file.Close()
				t.Errorf("it is opened: %s", text)
			}
			if sub, _, err := guard.OpenDir(name); err == nil {
				sub.Close()
				t.Error("it is opened as a folder")
			}
		})
	}
	for name, rel := range map[string]string{
		"f": "f", "good": "a/b/f", "a/good": "f", "dir/b/f": "a/b/f",
		"a/./b//f": "a/b/f", "dir/../f": "f",
	} {
		sub, base, real, err := guard.Resolve(name)
		if err != nil || real != rel {
			t.Errorf("%s leads to %q, %v; want %q", name, real, err, rel)
			continue
		}
		if text, err := sub.ReadFile(base); string(text) != "open" {
			t.Errorf("%s holds %q, %v", name, text, err)
		}
		sub.Close()
	}
	for name, keeps := range map[string]bool{"conf": true, "own/x": true, "f": false, "conf2": false} {
		assert.Equal(t, guard.Keeps(name, nil), keeps, "%s is kept", name)
	}
}

// TestWallGuardRaces: a name that changes all the time between a file and a link to hidden content never opens the
// hidden content, whether the link leads to a file or to a folder.
func TestWallGuardRaces(t *testing.T) {
	for name, race := range map[string]struct{ good, bad, open string }{
		"of a file":   {"f", "own/secret", "x"},
		"of a folder": {"a/b", "own", "x/secret"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, guard := ground(t)
			stop := make(chan struct{})
			var done sync.WaitGroup
			done.Go(func() {
				at, next := filepath.Join(dir, "x"), filepath.Join(dir, "next")
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					var err error
					switch i % 3 {
					case 0:
						err = os.Symlink(race.bad, next)
					case 1:
						err = os.Symlink(race.good, next)
					case 2:
						err = os.WriteFile(next, []byte("open"), 0o600)
					}
					if err = errors.Join(err, os.Rename(next, at)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range 3000 {
				file, err := guard.OpenFile(race.open, 0)
				if err != nil {
					continue
				}
				text, _ := io.ReadAll(file)
				file.Close()
				must.That(t, !strings.Contains(string(text), secret), "what is hidden was read")
			}
			close(stop)
			done.Wait()
		})
	}
}

// TestWallGuardKnowsTheFolder: a hidden folder is also recognised as the same folder on disk under another name.
func TestWallGuardKnowsTheFolder(t *testing.T) {
	dir, root, guard := ground(t)
	must.OK(t, os.Rename(filepath.Join(dir, "own"), filepath.Join(dir, "moved")))
	if err := os.Symlink("moved", filepath.Join(dir, "own")); err != nil { // as a user does who moves state_dir
		t.Fatal(err)
	}
	info, err := root.Lstat("moved")
	assert.That(t, err == nil && guard.Hides("moved", info), "another name is not known, %v", err)
	if _, err := guard.OpenFile("moved/secret", 0); !errors.Is(err, wall.ErrOwn) {
		t.Errorf("it is opened by another name: %v", err)
	}
}

// TestWallIn: In returns nil if a Wall hides nothing in the folder, and if the Wall is the folder or around it. A
// folder in Open is not hidden by a Wall around it.
func TestWallIn(t *testing.T) {
	dir, root, _ := ground(t)
	for name, c := range map[string]struct {
		wall *wall.Wall
		none bool
	}{
		"no wall":        {nil, true},
		"empty":          {&wall.Wall{}, true},
		"elsewhere":      {&wall.Wall{Hidden: []string{dir + "2"}}, true},
		"around it":      {&wall.Wall{Hidden: []string{filepath.Dir(dir)}}, true},
		"in it":          {&wall.Wall{Hidden: []string{filepath.Join(dir, "new", "state")}}, false},
		"a file in it":   {&wall.Wall{Fixed: []string{filepath.Join(dir, "conf")}}, false},
		"the folder too": {&wall.Wall{Hidden: []string{dir}}, true},
	} {
		got := c.wall.In(root)
		assert.Equal(t, (got == nil), c.none, "%s: %v", name, got)
	}
	w := &wall.Wall{Hidden: []string{dir}, Open: []string{filepath.Join(dir, "a")}}
	for name, hides := range map[string]bool{"own": true, "": true, "a": false, "a/b": false, "ab": true} {
		assert.Equal(t, w.Hides(filepath.Join(dir, name)), hides, "%q is hidden", name)
	}
}

// TestWallReadFile: ReadFile reads regular files in the folder up to a size, but no hidden files.
func TestWallReadFile(t *testing.T) {
	dir, root, _ := ground(t)
	must.OK(t, os.Symlink("own/secret", filepath.Join(dir, "in")), os.Symlink("/", filepath.Join(dir, "out")))
	w := &wall.Wall{Hidden: []string{filepath.Join(dir, "own")}}
	for _, w := range []*wall.Wall{w, nil} {
		text, err := w.ReadFile(root, "f", 4)
		assert.That(t, err == nil && string(text) == "open", "%q, %v", text, err)
		_, err = w.ReadFile(root, "f", 3)
		assert.That(t, errors.Is(err, wall.TooLargeError(3)), "a large file: %v", err)
		_, err = w.ReadFile(root, "gone", 4)
		assert.That(t, errors.Is(err, fs.ErrNotExist), "no file: %v", err)
		for _, name := range []string{"a", "out/etc/passwd"} {
			_, err = w.ReadFile(root, name, 1<<20)
			assert.That(t, err != nil, "%s is read", name)
		}
	}
	for _, name := range []string{"own/secret", "in"} {
		_, err := w.ReadFile(root, name, 1<<20)
		assert.That(t, errors.Is(err, wall.ErrOwn), "%s: %v", name, err)
	}
}
