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

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// nest makes folders in folders, the innermost with a file, without using long paths.
func nest(t testing.TB, dir, name string, levels int) {
	t.Helper()
	at := must.Get(os.OpenRoot(dir))(t)
	for range levels {
		err := at.Mkdir(name, 0o700)
		next, openErr := at.OpenRoot(name)
		must.OK(t, err, openErr, at.Close())
		at = next
	}
	must.OK(t, at.WriteFile("file", nil, 0o600), at.Close())
}

// closeRights removes all rights from a folder and the folders in it, the innermost first.
func closeRights(t testing.TB, dir string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		if e.IsDir() {
			closeRights(t, filepath.Join(dir, e.Name()))
		}
	}
	must.OK(t, os.Chmod(dir, 0))
}

// TestWallRemoveTree: RemoveTree removes a tree whatever is in it, and nothing else. A link can lead anywhere, and
// folders can be nested deeper than a path or a descriptor table allows.
func TestWallRemoveTree(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, dir, outside string){
		"3000 folders deep": func(t *testing.T, dir, _ string) { nest(t, dir, "d", 3000) },
		"long names deep":   func(t *testing.T, dir, _ string) { nest(t, dir, strings.Repeat("n", 250), 100) },
		"many deep ones": func(t *testing.T, dir, _ string) {
			for i := range 20 {
				sub := filepath.Join(dir, fmt.Sprint(i))
				must.OK(t, os.Mkdir(sub, 0o700))
				nest(t, sub, "d", 50)
			}
		},
		"no rights": func(t *testing.T, dir, _ string) {
			nest(t, dir, "d", 40)
			closeRights(t, dir)
		},
		"wide": func(t *testing.T, dir, _ string) {
			for i := range 500 {
				must.OK(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("f", i), "in"), 0o700))
			}
		},
		"names": func(t *testing.T, dir, _ string) {
			for _, name := range []string{"new\nline", "-rf", " ", "a\\b", "*", "ü\xff", ".hidden", "..."} {
				must.OK(t, os.MkdirAll(filepath.Join(dir, name, name), 0o700))
				must.OK(t, os.WriteFile(filepath.Join(dir, name, "file"+name), nil, 0o400))
			}
		},
		"links out": func(t *testing.T, dir, outside string) {
			must.OK(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
			for i, to := range []string{
				outside, "../" + filepath.Base(outside), filepath.Join(outside, "kept"), "/",
				"..", ".", "sub", "nowhere",
			} {
				must.OK(t, os.Symlink(to, filepath.Join(dir, "sub", fmt.Sprint(i))))
				must.OK(t, os.Symlink(to, filepath.Join(dir, fmt.Sprint(i))))
			}
		},
		"hard links": func(t *testing.T, dir, outside string) {
			must.OK(t, os.Link(filepath.Join(outside, "kept", "file"), filepath.Join(dir, "same")))
		},
		"names of the remover": func(t *testing.T, dir, _ string) {
			for i := range 9 {
				must.OK(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("a2e-gone-", i), "d", fmt.Sprint(i)), 0o700))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, outside := filepath.Join(top, "left"), filepath.Join(top, "outside")
			must.OK(t, os.Mkdir(dir, 0o700))
			must.OK(t, os.MkdirAll(filepath.Join(outside, "kept"), 0o750))
			must.OK(t, os.WriteFile(filepath.Join(outside, "kept", "file"), []byte("text"), 0o640))
			leave(t, dir, outside)
			assert.OK(t, RemoveTree(t.Context(), dir))
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("the folder is still there: %v", err)
			}
			info, err := os.Stat(filepath.Join(outside, "kept", "file"))
			assert.That(t, err == nil && info.Size() == 4 && info.Mode().Perm() == 0o640, "the file outside: %v, %v",
				info, err)
			if info, err := os.Stat(filepath.Join(outside, "kept")); err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("the folder outside: %v, %v", info, err)
			}
		})
	}
	t.Run("a link in place of the folder", func(t *testing.T) {
		top := t.TempDir()
		must.OK(t, os.MkdirAll(filepath.Join(top, "outside", "kept"), 0o700))
		must.OK(t, os.Symlink("outside", filepath.Join(top, "left")))
		assert.Fails(t, RemoveTree(t.Context(), filepath.Join(top, "left")), "", "it was removed")
		_, err := os.Stat(filepath.Join(top, "outside", "kept"))
		assert.That(t, err == nil, "%v", err)
	})
	t.Run("out of time", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "left")
		must.OK(t, os.Mkdir(dir, 0o700))
		nest(t, dir, "d", 500)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Is(t, RemoveTree(ctx, dir), context.Canceled, "stopped")
		assert.OK(t, RemoveTree(t.Context(), dir))
	})
}

// TestWallStaleFoldersBlockNobody: the folders that dead hosts left, however large, delay neither a child of the next
// host nor the end of that host.
func TestWallStaleFoldersBlockNobody(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	old := time.Now().Add(-2 * staleAfter)
	for i := range 3 {
		dir := filepath.Join(temp, privatePrefix+fmt.Sprint("left", i))
		must.OK(t, os.Mkdir(dir, 0o700))
		nest(t, dir, "d", 500)
		must.OK(t, os.Chtimes(dir, old, old))
	}
	var h homeDir
	h.sweep.turn.Lock() // so that no sweep makes progress
	home, tmp, err := h.get()
	must.That(t, err == nil && home != "" && tmp != "", "%q, %q, %v", home, tmp, err)
	h.sweep.turn.Unlock()
	poll.Eventually(t, "the folders of dead hosts to go", func() bool {
		left, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"left*"))
		return len(left) == 0
	})
	nest(t, tmp, "d", 50)
	must.OK(t, h.close())
	takeOver(t, filepath.Join(temp, privatePrefix+"*"))
}

// takeOver removes folders that a closed launcher had no time to remove on a busy machine, as the next host does. It
// fails if a folder is in use.
func takeOver(t *testing.T, pattern string) {
	t.Helper()
	for _, dir := range must.Get(filepath.Glob(pattern))(t) {
		lock := must.Get(LockDir(dir))(t)
		must.OK(t, RemoveTree(t.Context(), dir))
		lock.Close()
	}
}

// TestWallDisk: the total size of the sandbox's folders is limited. A child that fills them is ended, and its files
// are removed, in whatever way it fills them.
func TestWallDisk(t *testing.T) {
	const limit = 8 << 20
	const wait = "; while :; do sleep 1; done"
	for name, script := range map[string]string{
		"one file":       "head -c 20000000 /dev/zero > $HOME/big" + wait,
		"temporary file": "head -c 20000000 /dev/zero > $TMPDIR/big" + wait,
		"many files": "i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero > $TMPDIR/$i; i=$((i+1)); done" +
			wait,
		"empty files": "mkdir $TMPDIR/d; cd $TMPDIR/d; i=0; while [ $i -lt 3000 ]; do : > $i; i=$((i+1)); done" + wait,
		"in deep folders": "cd $TMPDIR; i=0; while [ $i -lt 50 ]; do mkdir d; cd d; i=$((i+1)); done; head -c " +
			"20000000 /dev/zero > big" + wait,
		"folders in folders":  "cd $TMPDIR; i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done" + wait,
		"a folder closed off": "mkdir $HOME/d; head -c 20000000 /dev/zero > $HOME/d/big; chmod 0 $HOME/d" + wait,
		"in the background":   "(head -c 20000000 /dev/zero > $HOME/big; sleep 1000) & wait" + wait,
		"under a hard link":   "head -c 20000000 /dev/zero > $HOME/a; ln $HOME/a $HOME/b; rm $HOME/a" + wait,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
			proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", script}})
			_, err := proc.Wait()
			assert.That(t, errors.Is(err, ErrDisk), "it ended by %v", err)
			made := l.env.home.folder()
			poll.Eventually(t, "its folders to be emptied", func() bool { return usage(made, limit) < limit/4 })
			assert.Equal(t, runShell(t, l, "echo fine > $HOME/x && cat $HOME/x", nil), "fine\n", "the next child")
		})
	}
	t.Run("one that has ended", func(t *testing.T) {
		t.Parallel()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
		runShell(t, l, "head -c 20000000 /dev/zero > $HOME/big", nil)
		poll.Eventually(t, "its folder to be emptied",
			func() bool { return usage(l.env.home.folder(), limit) < limit/4 })
	})
	t.Run("its own scratch folder", func(t *testing.T) {
		t.Parallel()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
		other := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 1000"}})
		scratch := must.Get(l.MakeScratch())(t)
		proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "head -c 20000000 /dev/zero > " +
			"$HOME/big" + wait}, Scratch: scratch})
		_, err := proc.Wait()
		assert.That(t, errors.Is(err, ErrDisk), "it ended by %v", err)
		select {
		case <-other.Done():
			t.Error("one with another home was ended too")
		default:
		}
		other.Kill()
		<-other.Done()
	})
	t.Run("several launchers together", func(t *testing.T) {
		t.Parallel()
		disk := NewDisk(limit)
		one, two := homelyLauncher(t, Options{Disk: disk, Workspace: t.TempDir()}),
			homelyLauncher(t, Options{Disk: disk, Workspace: t.TempDir()})
		runShell(t, one, "head -c 3000000 /dev/zero > $HOME/big", nil)
		proc := must.Get(two.Command(t.Context(), Policy{Path: "/bin/sh", Args: []string{
			"sh", "-c",
			"head -c 7000000 /dev/zero > $HOME/big" + wait,
		}}))(t) // the child that is ended must have the most
		_, err := proc.Wait()
		assert.That(t, errors.Is(err, ErrDisk), "it ended by %v", err)
	})
	t.Run("a counted folder", func(t *testing.T) {
		t.Parallel()
		folder := t.TempDir()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: folder, Counted: []string{folder}})
		must.OK(t, os.WriteFile(filepath.Join(folder, "kept"), nil, 0o600))
		proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{
			"sh", "-c",
			"head -c 20000000 /dev/zero > big" + wait,
		}, Dir: folder})
		_, err := proc.Wait()
		assert.That(t, errors.Is(err, ErrDisk) && strings.Contains(err.Error(), "children.disk_bytes"),
			"it ended by %v", err)
		_, err = os.Stat(filepath.Join(folder, "kept"))
		assert.That(t, err == nil, "the agent's own file: %v", err)
	})
}
