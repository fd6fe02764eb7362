//go:build unix

package checkpoint_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/sandbox"
	"a2e/host/state/checkpoint"
)

// killedJob is the variable that makes this program do a job instead of tests: workspace, state, checkpoint to
// restore (0 = take one).
const killedJob = "A2E_TEST_CHECKPOINT_JOB"

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher()
	var workspace, state string
	var to uint64
	if n, _ := fmt.Sscanf(os.Getenv(killedJob), "%q %q %d", &workspace, &state, &to); n == 3 {
		k := checkpoint.Open(checkpoint.Options{
			Workspace: workspace, StateDir: state,
			Launcher: func() (*sandbox.Launcher, error) {
				return sandbox.New(sandbox.Options{Workspace: workspace})
			},
		})
		var err error
		if to == 0 {
			_, err = k.Take(context.Background(), "job")
		} else {
			_, err = k.Restore(context.Background(), checkpoint.RestoreOptions{To: to})
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// killed starts another process that takes a checkpoint, or restores one, and kills it when the given number of names
// in a folder has changed, or when it is done.
func (s *stage) killed(to uint64, dir string, changes int) {
	s.Helper()
	job := exec.Command(os.Args[0])
	job.Env = append(os.Environ(), killedJob+"="+fmt.Sprintf("%q %q %d", s.opts.Workspace, s.opts.StateDir, to))
	out, err := job.StdoutPipe()
	must.OK(s, err)
	before := entries(dir)
	must.OK(s, job.Start())
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, out)
		close(ended)
	}()
	for changed := 0; changed < changes; {
		select {
		case <-ended:
			changed = changes
		default:
			changed = 0
			now := entries(dir)
			for name, is := range now {
				if was := before[name]; was == nil || !os.SameFile(was, is) {
					changed++
				}
			}
			changed += max(0, len(before)-len(now))
		}
	}
	_ = job.Process.Kill()
	<-ended
	_ = job.Wait()
}

// entries returns the entries two folders deep, by path.
func entries(dir string) map[string]os.FileInfo {
	all := make(map[string]os.FileInfo)
	names, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil {
			all[name] = info
		}
	}
	return all
}

// TestKilled: after a host is killed while it makes a checkpoint or restores one, the next host can make the
// checkpoint, and can finish the restore. A soak has more rounds and more files.
func TestKilled(t *testing.T) {
	rounds, files := poll.Soak(t, "A2E_SOAK_CHECKPOINT_KILLS", 4), 150
	if rounds > 4 {
		files = 1000
	}
	s := newStage(t, func(o *checkpoint.Options) { o.MaxCount = 30 })
	c := &chaos{stage: s, r: rand.New(rand.NewPCG(3, 4))}
	for i := range files {
		s.write(filepath.Join(strconv.Itoa(i%40), strconv.Itoa(i)), fmt.Sprint("content ", i))
	}
	for round := range rounds {
		now := s.take("changes")
		goal, want := cmp.Or(now.Restored, now.ID), pictureOf(t, s.dir)
		c.changeAll(round, files)
		s.killed(0, filepath.Join(must.Get(filepath.Glob(filepath.Join(s.opts.StateDir, "checkpoints", "*")))(t)[0],
			"objects"), c.r.IntN(files/2))
		changed := pictureOf(t, s.dir)
		undone := s.take("restore").ID
		s.killed(goal, s.dir, c.r.IntN(files))
		if round%2 == 0 {
			s.restore(checkpoint.RestoreOptions{To: goal})
		} else if undo, err := s.Restore(t.Context(), checkpoint.RestoreOptions{Steps: 1, DryRun: true}); err == nil &&
			undo.To == goal { // otherwise the restore was done
			s.restore(checkpoint.RestoreOptions{Steps: 1})
		}
		want.want(t, s.dir, fmt.Sprint("round ", round))
		if round%4 == 3 { // the state that was undone is still there
			s.restore(checkpoint.RestoreOptions{To: undone})
			changed.want(t, s.dir, fmt.Sprint("undone round ", round))
		}
	}
}

// changeAll changes each file in some way.
func (c *chaos) changeAll(round, files int) {
	for i := range files {
		path := filepath.Join(c.dir, strconv.Itoa(i%40), strconv.Itoa(i))
		switch c.r.IntN(5) {
		case 0:
			_ = os.Remove(path)
		case 1:
			_ = os.Chmod(path, 0o600+os.FileMode(c.r.IntN(64)))
		case 2:
			_ = os.Remove(path)
			_ = os.Symlink(fmt.Sprint("to ", round), path)
		default:
			_ = os.Remove(path)
			_ = os.WriteFile(path, fmt.Appendf(nil, "%d %d\x00", round, c.r.Uint64()), 0o644)
		}
	}
	if c.r.IntN(3) == 0 {
		_ = os.RemoveAll(filepath.Join(c.dir, strconv.Itoa(c.r.IntN(40))))
	}
	c.step(20)
}

// BenchmarkOneChangedFile makes checkpoints of trees of 5,000 and 50,000 files: the first one with a new keeper, and
// one after a single change with a keeper that stays open.
func BenchmarkOneChangedFile(b *testing.B) {
	for _, files := range []int{5000, 50_000} {
		s := newStage(b, nil)
		for n := range files {
			s.write(fmt.Sprintf("d%02d/s%03d/file_%d.go", n/20%50, n/20, n%20), fmt.Sprint("package x // ", n))
		}
		b.Run(fmt.Sprint("first of ", files), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s.opts.StateDir = s.TempDir()
				k := s.another()
				b.StartTimer()
				must.Get(k.Take(b.Context(), "first"))(b)
			}
		})
		b.Run(fmt.Sprint("one of ", files), func(b *testing.B) {
			s.take("first")
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				s.write("d07/s007/file_3.go", fmt.Sprint("package y // ", n))
				// An agent thinks between two requests; meanwhile a spare launcher is made.
				time.Sleep(100 * time.Millisecond)
				b.StartTimer()
				s.take("one")
			}
		})
	}
}
