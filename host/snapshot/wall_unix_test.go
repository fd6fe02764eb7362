//go:build unix

package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/private"
)

// TestWallSnapshotFiles: what stands in the place of a snapshot or of a session's state, and is
// no file of the host's own, is neither read nor written through.
func TestWallSnapshotFiles(t *testing.T) {
	attacks := map[string]func(victim, at string) error{
		"a link":        os.Symlink,
		"a second name": os.Link,
		"a folder":      func(_, at string) error { return os.Mkdir(at, 0o700) },
		"a pipe":        func(_, at string) error { return unix.Mkfifo(at, 0o600) },
		"others may write": func(v, at string) error {
			return errors.Join(os.WriteFile(at, []byte("{}"), 0o600), os.Chmod(at, 0o666))
		},
	}
	for name, attack := range attacks {
		victim := filepath.Join(t.TempDir(), "victim")
		content := []byte("not the host's")
		must.OK(t, os.WriteFile(victim, content, 0o600))
		untouched := func(t *testing.T) {
			t.Helper()
			got, err := os.ReadFile(victim)
			assert.That(t, err == nil && bytes.Equal(got, content), "the other file is now %q, %v", got, err)
		}
		t.Run("snapshot/"+name, func(t *testing.T) {
			s := &fileStore{dir: t.TempDir()}
			must.OK(t, attack(victim, s.path("x")))
			if r, err := s.Load(t.Context(), "x"); err == nil {
				_ = r.Close()
				t.Error("it was loaded")
			} else if !errors.Is(err, private.ErrUnsafe) {
				t.Errorf("it gave %v", err)
			}
			_, err := s.Save(t.Context(), Info{Name: "x", Made: time.Now()}, false, func(io.Writer) (Holds, error) { return nil, nil })
			assert.That(t, errors.Is(err, ErrExists), "Save gave %v", err)
			untouched(t)
		})
		t.Run("session/"+name, func(t *testing.T) {
			s := NewSessions(t.TempDir()).(*fileSessions)
			must.OK(t, attack(victim, s.path("agent", pendingSuffix)))
			states, err := s.Take("agent")
			assert.That(t, err != nil, "it gave %v", states)
			must.OK(t, attack(victim, s.path("agent", lastSuffix)))
			_ = s.Put("agent", map[string]jsontext.Value{"p": jsontext.Value(`1`)})
			untouched(t)
		})
	}
}
