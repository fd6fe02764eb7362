//go:build unix

package checkpoint_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host/checkpoint"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

func (s *stage) want(name, content string) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	assert.That(s, err == nil && string(text) == content, "%s is %.20q (%v), not %q", name, text, err, content)
}

// TestNothingLost goes back where the files of now are in no checkpoint, so that an undo would lose them.
func TestNothingLost(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.MaxFileBytes = 100 })
	long := strings.Repeat("x", 200)
	s.write("grows", "small")
	s.write("env", "one")
	s.write("host.yaml", "one")
	first := s.take("")
	must.OK(t, os.Remove(filepath.Join(s.dir, "env")))
	s.write(".gitignore", "env\n")
	s.take("")
	s.write("env", "two") // it is ignored by now
	s.write("grows", long)
	s.write("video", long)
	s.write("host.yaml", "two")
	s.opts.Hidden = []string{"host.yaml"}
	done, err := s.another().Restore(context.Background(), checkpoint.RestoreOptions{To: first.ID})
	must.OK(t, err)
	for name, content := range map[string]string{"grows": long, "video": long, "env": "two", "host.yaml": "two"} {
		s.want(name, content)
	}
	must.That(t, len(done.Problems) == 3, "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "is not kept, and would be lost")
	assert.Contains(t, done.Problems[1].Why, "larger than max_file_bytes")
}

// TestSwapped has a program put a link to a folder of the host's in place of the one whose files are put back.
func TestSwapped(t *testing.T) {
	s := newStage(t, func(o *checkpoint.Options) { o.Hidden = []string{"own"} })
	s.write("own/f", "the host's")
	at := func(name string) string { return filepath.Join(s.dir, name) }
	must.OK(t, os.Symlink("own", at("link")))
	s.write("d/f", "one")
	first := s.take("")
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(at("d"), at("e"))
				_ = os.Rename(at("link"), at("d"))
				_ = os.Rename(at("d"), at("link"))
				_ = os.Rename(at("e"), at("d"))
			}
		}
	})
	for range 40 {
		_ = os.Remove(at("d/new"))
		_ = os.WriteFile(at("e/f"), []byte("two"), 0o600)
		_, err := s.Restore(context.Background(), checkpoint.RestoreOptions{To: first.ID})
		must.OK(t, err)
		s.want("own/f", "the host's")
		names, err := os.ReadDir(at("own"))
		must.That(t, err == nil && len(names) == 1, "%v %v", names, err)
	}
	close(stop)
	swaps.Wait()
}

// TestDamaged has one byte of the log be another, and the index be gone: neither may lead to a wrong state.
func TestDamaged(t *testing.T) {
	s := newStage(t, nil)
	for _, content := range []string{"one", "two", "three"} {
		s.write("a", content)
		s.take(content)
	}
	dirs, err := filepath.Glob(filepath.Join(s.opts.StateDir, "checkpoints", "*"))
	must.That(t, err == nil && len(dirs) == 1, "%v %v", dirs, err)
	log := filepath.Join(dirs[0], "log")
	good := must.Get(os.ReadFile(log))(t)
	for _, where := range []int{0, 18, 30, len(good) / 2} {
		bad := append([]byte{}, good...)
		bad[where] ^= 0x40
		must.OK(t, os.WriteFile(log, bad, 0o600))
		_, err := s.another().List(context.Background())
		assert.Fails(t, err, "log: it is damaged; move the folder away to begin anew")
		assert.Equal(t, string(must.Get(os.ReadFile(log))(t)), string(bad), "what is damaged was changed")
	}
	must.OK(t, os.WriteFile(log, good[:len(good)-5], 0o600)) // cut off with its host
	all, err := s.another().List(context.Background())
	must.That(t, err == nil && len(all) == 2, "%v %v", all, err)
	must.OK(t, os.Remove(filepath.Join(dirs[0], "index")))
	_, err = s.another().Restore(context.Background(), checkpoint.RestoreOptions{To: 1})
	assert.Fails(t, err, "index: it is damaged")
	s.want("a", "three")
}

// TestStateInside has the state of the host lie in the workspace: undo must not put that back.
func TestStateInside(t *testing.T) {
	s := newStage(t, nil)
	s.opts.StateDir = filepath.Join(s.dir, "state")
	k := s.another()
	for _, content := range []string{"one", "two"} {
		s.write("a", content)
		must.Get(k.Take(context.Background(), ""))(t)
	}
	done := must.Get(s.another().Restore(context.Background(), checkpoint.RestoreOptions{Steps: 1}))(t)
	assert.Equal(t, changes(done), "changed a")
	s.want("a", "one")
}
