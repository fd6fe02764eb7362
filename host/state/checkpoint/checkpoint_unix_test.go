//go:build unix

package checkpoint_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/host/state/checkpoint"
)

// picture is the content of a workspace by path: files and links, as git sees them.
type picture map[string]string

// pictureOf describes every file and link: its kind, whether it is a program, its content.
func pictureOf(t testing.TB, dir string) picture {
	t.Helper()
	p := picture{}
	must.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		must.OK(t, err)
		name, err := filepath.Rel(dir, path)
		must.OK(t, err)
		info, err := os.Lstat(path)
		must.OK(t, err)
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			must.OK(t, err)
			p[name] = fmt.Sprintf("file, program %t, %d bytes %x", info.Mode()&0o100 != 0, len(content),
				sha256.Sum256(content))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			must.OK(t, err)
			p[name] = "-> " + to
		}
		return nil
	}))
	return p
}

func (p picture) want(t testing.TB, dir, when string) {
	t.Helper()
	now := pictureOf(t, dir)
	for name, was := range p {
		must.That(t, now[name] == was, "%s: %q is %s; it was %s", when, name, now[name], was)
	}
	for name, is := range now {
		must.That(t, p[name] != "", "%s: %q is new: %s", when, name, is)
	}
}

// stage is a workspace with its keeper.
type stage struct {
	testing.TB
	dir  string
	opts checkpoint.Options
	*checkpoint.Keeper
}

func newStage(t testing.TB, change func(*checkpoint.Options)) *stage {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.OK(t, err)
	s := &stage{TB: t, dir: dir, opts: checkpoint.Options{Workspace: dir, StateDir: t.TempDir()}}
	if change != nil {
		change(&s.opts)
	}
	s.opts.Launcher = launchers(t, s.opts.Workspace)
	s.Keeper = s.another()
	return s
}

// launchers returns a function that returns the launcher of git. It makes a new launcher if the workspace was deleted
// and made again.
func launchers(t testing.TB, workspace string) func() (*sandbox.Launcher, error) {
	var mu sync.Mutex
	var last *sandbox.Launcher
	var is os.FileInfo
	return func() (*sandbox.Launcher, error) {
		mu.Lock()
		defer mu.Unlock()
		now, err := os.Stat(workspace)
		if last != nil && err == nil && os.SameFile(now, is) {
			return last, nil
		}
		is, last = now, sandboxtest.New(t, sandbox.Options{Workspace: workspace})
		return last, nil
	}
}

// another opens a further keeper of the same workspace, as another host would.
func (s *stage) another() *checkpoint.Keeper {
	k := checkpoint.Open(s.opts)
	s.Cleanup(func() { must.OK(s, k.Close()) })
	return k
}

func (s *stage) write(name, content string) {
	s.Helper()
	path := filepath.Join(s.dir, name)
	must.OK(s, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(s, os.WriteFile(path, []byte(content), 0o644))
}

func (s *stage) take(before string) checkpoint.Info {
	s.Helper()
	i, err := s.Take(context.Background(), before)
	must.OK(s, err)
	return i
}

func (s *stage) restore(o checkpoint.RestoreOptions) checkpoint.Restored {
	s.Helper()
	done, err := s.Restore(context.Background(), o)
	must.OK(s, err)
	if len(done.Problems) > 0 {
		s.Logf("not restored: %v", done.Problems)
	}
	return done
}

// TestRandomRounds: a restore brings back exactly the state of its checkpoint, after random changes of all kinds,
// with keepers that stay open and keepers that are new.
func TestRandomRounds(t *testing.T) {
	rounds := poll.Soak(t, "A2E_SOAK_CHECKPOINT_ROUNDS", 12)
	for seed := range 2 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newStage(t, func(o *checkpoint.Options) { o.MaxCount = 100 })
			chaos := &chaos{stage: s, r: rand.New(rand.NewPCG(uint64(seed), 7))}
			keepers := []*checkpoint.Keeper{s.Keeper, s.another()}
			keepers = append(keepers, s.another())
			states := map[uint64]picture{}
			var ids []uint64
			for round := range rounds {
				for range 1 + chaos.r.IntN(4) {
					chaos.step(1 + chaos.r.IntN(40))
					if s.Keeper = keepers[chaos.r.IntN(3)]; chaos.r.IntN(6) == 0 {
						s.Keeper = s.another()
						s.Prepare()
					}
					was := pictureOf(t, s.dir)
					id := s.take(fmt.Sprint("round ", round)).ID
					if states[id] == nil {
						ids = append(ids, id)
					}
					states[id] = was
				}
				kept, err := s.List(context.Background())
				must.OK(t, err)
				ids = slices.DeleteFunc(ids, func(id uint64) bool { return id < kept[0].ID })
				to := ids[chaos.r.IntN(len(ids))]
				chaos.step(chaos.r.IntN(10))
				before := pictureOf(t, s.dir)
				done := s.restore(checkpoint.RestoreOptions{To: to})
				must.That(t, len(done.Problems) == 0, "problems %v", done.Problems)
				states[to].want(t, s.dir, fmt.Sprintf("seed %d round %d to %d", seed, round, to))
				if chaos.r.IntN(2) == 0 { // an undo can be undone
					s.restore(checkpoint.RestoreOptions{To: done.From})
					before.want(t, s.dir, fmt.Sprintf("seed %d round %d back to %d", seed, round, done.From))
				}
			}
		})
	}
}

// chaos makes random changes in a workspace.
type chaos struct {
	*stage
	r *rand.Rand
}

// name returns one of a few paths, so that files, folders and links replace each other. Some of the names are odd.
func (c *chaos) name() string {
	names := []string{"a", "b", "with space", "new\nline", "-dash", "\xff\xfe", "ünï", ".hidden", "*?[", "c.txt"}
	path := names[c.r.IntN(len(names))]
	for range c.r.IntN(3) {
		path = filepath.Join([]string{"d1", "d2", "dé"}[c.r.IntN(3)], path)
	}
	return filepath.Join(c.dir, path)
}

// step makes up to the given number of changes; changes that are not possible are skipped.
func (c *chaos) step(changes int) {
	for range changes {
		at, other := c.name(), c.name()
		info, _ := os.Lstat(at) // the code does not write through links, which may lead anywhere
		isLink := info != nil && info.Mode()&fs.ModeSymlink != 0
		switch c.r.IntN(12) {
		case 0, 1, 2:
			_ = os.MkdirAll(filepath.Dir(at), 0o755)
			content := make([]byte, c.r.IntN(3000))
			for i := range content {
				content[i] = byte(c.r.IntN(256))
			}
			if !isLink {
				_ = os.WriteFile(at, content, 0o644)
			}
		case 3: // same size, in place
			if f, err := os.OpenFile(at, os.O_RDWR|syscall.O_NOFOLLOW, 0); err == nil {
				_, _ = f.WriteAt([]byte{byte(c.r.IntN(256))}, 0)
				f.Close()
			}
		case 4:
			_ = os.Remove(at)
		case 5:
			if dir := filepath.Dir(at); dir != c.dir {
				_ = os.RemoveAll(dir)
			}
		case 6:
			_ = os.Symlink([]string{"a", "d1", "..", "/nonexistent/a2e", "nowhere"}[c.r.IntN(5)], at)
		case 7:
			_ = os.Link(at, other)
		case 8:
			if !isLink {
				_ = os.Chmod(at, []fs.FileMode{0o600, 0o644, 0o755, 0o700, 0o444}[c.r.IntN(5)])
			}
		case 9:
			_ = os.Rename(at, other)
		case 10:
			_ = os.Rename(filepath.Dir(at), filepath.Dir(other)+"moved")
		case 11:
			_ = os.MkdirAll(at, 0o755)
		}
	}
}
