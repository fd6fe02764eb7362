package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/poll"
)

// What children leave in the sandbox's folders is bounded in total: whoever fills them is
// ended and what it left is removed, by whatever way it fills them.
func TestWallDisk(t *testing.T) {
	const limit = 8 << 20
	const wait = "; while :; do sleep 1; done"
	for name, script := range map[string]string{
		"one file":            "head -c 20000000 /dev/zero > $HOME/big" + wait,
		"temporary file":      "head -c 20000000 /dev/zero > $TMPDIR/big" + wait,
		"many files":          "i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero > $TMPDIR/$i; i=$((i+1)); done" + wait,
		"empty files":         "mkdir $TMPDIR/d; cd $TMPDIR/d; i=0; while [ $i -lt 3000 ]; do : > $i; i=$((i+1)); done" + wait,
		"in deep folders":     "cd $TMPDIR; i=0; while [ $i -lt 50 ]; do mkdir d; cd d; i=$((i+1)); done; head -c 20000000 /dev/zero > big" + wait,
		"folders in folders":  "cd $TMPDIR; i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done" + wait,
		"a folder closed off": "mkdir $HOME/d; head -c 20000000 /dev/zero > $HOME/d/big; chmod 0 $HOME/d" + wait,
		"in the background":   "(head -c 20000000 /dev/zero > $HOME/big; sleep 1000) & wait" + wait,
		"under a hard link":   "head -c 20000000 /dev/zero > $HOME/a; ln $HOME/a $HOME/b; rm $HOME/a" + wait,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
			proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", script}})
			if _, err := proc.Wait(); !errors.Is(err, ErrDisk) {
				t.Errorf("it ended by %v", err)
			}
			made := l.env.home.folder()
			poll.Eventually(t, "its folders to be emptied", func() bool { return usage(made, limit) < limit/4 })
			if got := runShell(t, l, "echo fine > $HOME/x && cat $HOME/x", nil); got != "fine\n" {
				t.Errorf("the next child: %q", got)
			}
		})
	}
	t.Run("one that has ended", func(t *testing.T) {
		t.Parallel()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
		runShell(t, l, "head -c 20000000 /dev/zero > $HOME/big", nil)
		poll.Eventually(t, "its folder to be emptied", func() bool { return usage(l.env.home.folder(), limit) < limit/4 })
	})
	t.Run("its own scratch folder", func(t *testing.T) {
		t.Parallel()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: t.TempDir()})
		other := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 1000"}})
		scratch, err := l.MakeScratch()
		must(t, err)
		proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "head -c 20000000 /dev/zero > $HOME/big" + wait}, Scratch: scratch})
		if _, err := proc.Wait(); !errors.Is(err, ErrDisk) {
			t.Errorf("it ended by %v", err)
		}
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
		one, two := homelyLauncher(t, Options{Disk: disk, Workspace: t.TempDir()}), homelyLauncher(t, Options{Disk: disk, Workspace: t.TempDir()})
		runShell(t, one, "head -c 5000000 /dev/zero > $HOME/big", nil)
		proc, err := two.Command(t.Context(), Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "head -c 6000000 /dev/zero > $HOME/big" + wait}})
		must(t, err)
		if _, err := proc.Wait(); !errors.Is(err, ErrDisk) {
			t.Errorf("it ended by %v", err)
		}
	})
	t.Run("a counted folder", func(t *testing.T) {
		t.Parallel()
		folder := t.TempDir()
		l := homelyLauncher(t, Options{Disk: NewDisk(limit), Workspace: folder, Counted: []string{folder}})
		must(t, os.WriteFile(filepath.Join(folder, "kept"), nil, 0o600))
		proc := begin(t, l, Policy{Path: "/bin/sh", Args: []string{"sh", "-c", "head -c 20000000 /dev/zero > big" + wait}, Dir: folder})
		if _, err := proc.Wait(); !errors.Is(err, ErrDisk) || !strings.Contains(err.Error(), "children.disk_bytes") {
			t.Errorf("it ended by %v", err)
		}
		if _, err := os.Stat(filepath.Join(folder, "kept")); err != nil {
			t.Errorf("the agent's own file: %v", err)
		}
	})
}
